"""The command line: one sub-command for each thing that a person does."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from common.allocator import keep_freed_memory
from common.errors import ErosionError
from common.logs import configure_logging

INTERRUPTED = 130

EPILOG = """\
a first run:
  erosion testbed                       five hospitals on this machine, nothing to download
  erosion testbed my-study.toml         the same for a study of your own

in the field:
  erosion server STUDY.toml             at the hospital that wants the model
  erosion client SITE.toml              at every hospital, that one included

exit codes: 0 done, 2 study file, 3 site file, 4 data, 5 refused by a site's limits,
  6 network, 7 the study could not be carried on, 8 checkpoint or model, 130 interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one sub-command; people get messages, never tracebacks. Returns the exit code."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    handler: Callable[[argparse.Namespace], int] = options.handler
    try:
        return handler(options)
    except ErosionError as problem:
        print(f"erosion: {problem}", file=sys.stderr)
        return problem.exit_code
    except KeyboardInterrupt:
        print("erosion: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `erosion ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="erosion",
        description="Personalised collaborative learning for hospitals: train a model for your own"
        " patients with the help of hospitals whose data stay where they are.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(
        name: str, handler: Callable[[argparse.Namespace], int], summary: str, details: str = ""
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}. {details}".strip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(handler=handler)
        sub.add_argument(
            "-v", "--verbose", action="count", default=0, help="say more; -vv adds Flower's own log"
        )
        return sub

    testbed = command(
        "testbed",
        _testbed,
        "run a study with all its hospitals on this machine",
        "Starts the same server and clients as a deployment, each a\nprocess of its own, and stops"
        " them at the end.",
    )
    testbed.add_argument(
        "study",
        nargs="?",
        default="breast-cancer",
        help="a study file with a [testbed] table, or the name of one that comes with the program"
        " (default: breast-cancer)",
    )
    _add_runs(testbed)
    _add_data_dir(testbed)

    server = command(
        "server",
        _server,
        "coordinate a study, at the hospital that wants the model",
        "Waits for the hospitals, runs every arm\nof the study, and writes the report.",
    )
    server.add_argument("study", type=Path, help="the study file; see `erosion schema study`")
    server.add_argument(
        "--address",
        default="127.0.0.1:9092",
        metavar="HOST:PORT",
        help="where to listen (default: %(default)s; port 0 picks a free one)",
    )
    _add_runs(server)
    server.add_argument("--run-folder", type=Path, help="an empty folder for this very run")
    _add_supervised(server)

    client = command(
        "client",
        _client,
        "take part in studies, at a hospital",
        "Stays connected and trains when it is asked. Only what\n`erosion client` itself does is"
        " ever run here; code is never received.",
    )
    client.add_argument("site", type=Path, help="the site file; see `erosion schema site`")
    client.add_argument(
        "--give-up-seconds",
        type=float,
        metavar="S",
        help="end when the coordinator is out of reach for so long (default: keep trying)",
    )
    _add_supervised(client)

    predict = command(
        "predict",
        _predict,
        "apply a run's model to patients in a table",
        "The table needs the study's feature columns, not\nthe target.",
    )
    predict.add_argument("run", type=Path, help="a run folder, e.g. runs/20260101T120000-mine")
    predict.add_argument("data", type=Path, help="CSV or Parquet with the study's columns")
    predict.add_argument("-o", "--output", type=Path, help="a CSV file (default: standard output)")

    data = command("data", _data, "download a public data set and check it")
    data.add_argument("name", help="heart-disease or mnist")
    _add_data_dir(data)

    schema = command("schema", _schema, "print the JSON schema of the study or the site file")
    schema.add_argument("file", choices=["study", "site"])

    command("algorithms", _algorithms, "explain the algorithms that a study can name")
    return parser


def _add_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), help="where runs are kept (default: runs/)"
    )


def _add_data_dir(parser: argparse.ArgumentParser) -> None:
    configured = os.environ.get("EROSION_DATA")
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=Path(configured) if configured else Path("data"),
        help="where downloaded data sets are (default: $EROSION_DATA, else data/)",
    )


def _add_supervised(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--until-stdin-closes",
        action="store_true",
        help="for supervisors: end when standard input closes, that is, when the supervisor does",
    )


def _testbed(options: argparse.Namespace) -> int:
    from experiments.testbed import run_testbed, study_path

    configure_logging(options.verbose)
    return run_testbed(
        study_path(options.study),
        runs=options.runs,
        data_dir=options.data_dir,
        verbosity=options.verbose,
    )


def _server(options: argparse.Namespace) -> int:
    keep_freed_memory()
    configure_logging(options.verbose)
    from common.study import load_study
    from common.supervised import end_with_stdin
    from server.coordinator import run_study
    from server.progress import progress
    from server.run_folder import new_run_folder, open_run_folder

    if options.until_stdin_closes:
        end_with_stdin()
    study = load_study(options.study)
    folder = (
        open_run_folder(options.run_folder, study)
        if options.run_folder
        else new_run_folder(options.runs, study)
    )
    with progress() as watcher:
        run_study(study, folder, options.address, watcher)
    return 0


def _client(options: argparse.Namespace) -> int:
    keep_freed_memory()
    configure_logging(max(options.verbose, 1))
    from client.serve import serve
    from client.site_file import load_site
    from common.supervised import end_with_stdin

    if options.until_stdin_closes:
        end_with_stdin()
    serve(load_site(options.site), give_up_seconds=options.give_up_seconds)
    return 0


def _predict(options: argparse.Namespace) -> int:
    from client.predict import predict

    predict(options.run, options.data, options.output)
    return 0


def _data(options: argparse.Namespace) -> int:
    from experiments.download import fetch

    fetch(options.name, options.data_dir)
    return 0


def _schema(options: argparse.Namespace) -> int:
    from client.site_file import Site
    from common.study import Study

    model = Study if options.file == "study" else Site
    print(json.dumps(model.model_json_schema(), indent=2))
    return 0


def _algorithms(options: argparse.Namespace) -> int:
    del options
    from common.algorithms import catalogue

    print(catalogue())
    return 0


if __name__ == "__main__":
    sys.exit(main())
