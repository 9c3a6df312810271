"""The command line: one sub-command for each thing that a person does."""

import argparse
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from erosion.common.errors import ErosionError, StudyError
from erosion.common.support.allocator import keep_freed_memory
from erosion.common.support.logs import LOG_FORMATS, configure_logging

CHECK_FAILED, FAULT, INTERRUPTED = 1, 70, 130  # 70: EX_SOFTWARE of sysexits.h

EPILOG = """\
a first run:
  erosion testbed                       five hospitals on this machine, nothing to download
  erosion testbed my-study.toml         the same for a study of your own

in the field:
  erosion enroll init                   once: the federation's own certificates
  erosion enroll site NAME              for every hospital: a kit to hand over
  erosion server STUDY.toml             at the hospital that wants the model
  erosion check SITE.toml               at every hospital: could it take part?
  erosion client SITE.toml              at every hospital, that one included

exit codes: 0 done, 1 a check failed, 2 study file, 3 site file, 4 data, 5 refused by a site's
  limits, 6 network, 7 the study could not be carried on, 8 checkpoint or model, 9 enrolment,
  70 a fault of this program, 130 interrupted
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
    except Exception as problem:  # noqa: BLE001 - a fault of ours; people still get a sentence
        if getattr(options, "verbose", 0):
            traceback.print_exc()
        print(
            f"erosion: a fault of this program ({type(problem).__name__}: {problem}). Please report"
            " it with what -v shows.",
            file=sys.stderr,
        )
        return FAULT


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
    server.add_argument(
        "study", type=Path, nargs="?", help="the study file; see `erosion schema study`"
    )
    server.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="go on with a run that was cut off, from its last finished round",
    )
    server.add_argument(
        "--federation",
        type=Path,
        default=Path("federation"),
        metavar="FOLDER",
        help="what `erosion enroll init` made (default: %(default)s/)",
    )
    server.add_argument(
        "--insecure",
        action="store_true",
        help="no TLS and no enrolment, on this machine only, for trying things",
    )
    server.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="where to listen (default: every address, at the port that the site kits name; with"
        " --insecure 127.0.0.1:9092; port 0 picks a free one)",
    )
    _add_runs(server)
    server.add_argument(
        "--updates",
        choices=["auto", "memory", "disk"],
        default="auto",
        help="where a round's updates are kept (default: auto, on the disk if they would take more"
        " than a quarter of the memory)",
    )
    server.add_argument("--run-folder", type=Path, help="an empty folder for this very run")
    _add_log_format(server)
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
    _add_log_format(client)
    client.add_argument(
        "--until-study-ends",
        action="store_true",
        help="end when a study that this site took part in has ended (default: wait for the next)",
    )
    _add_supervised(client)

    _add_field_commands(command)

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


def _add_field_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    from erosion.server.enrolment.enroll_command import add_enroll_commands

    add_enroll_commands(
        command(
            "enroll",
            _enroll,
            "decide who may connect, by keys and certificates",
            "At the coordinator, but for `key`,\nwhich a site may use.",
        )
    )

    check = command(
        "check",
        _check,
        "check everything that a site needs to take part",
        "Files, data, limits, network, TLS, clock and enrolment,\neach failure with its remedy.",
    )
    check.add_argument("site", type=Path, help="the site file")
    check.add_argument("--study", type=Path, help="check the data against this study too")

    status = command(
        "status",
        _status,
        "say what a running coordinator or site is doing",
        "Exit code 0 if it lives, for health checks.",
    )
    status.add_argument(
        "where",
        type=Path,
        nargs="?",
        default=Path("runs"),
        help="a run's folder, a folder of runs, or a site file (default: %(default)s/)",
    )
    status.add_argument("--json", action="store_true", help="the file as it is")

    log = command("log", _log, "show or verify the log of what a site sent")
    what = log.add_subparsers(title="sub-commands", metavar="WHAT", required=True)
    verify = what.add_parser(
        "verify",
        help="show whether a line was changed, removed or moved",
        description="Goes through the chain of hashes. Lines missing at the end show only against a"
        " hash that was noted earlier.",
    )
    verify.add_argument("file", type=Path, help="records/sent.jsonl")
    verify.add_argument("--head", help="a hash that an earlier `verify` or `status` gave")


def _add_log_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        default="text",
        help="json: one object a line, for programs that collect logs (default: text)",
    )


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
    from erosion.experiments.testbed import run_testbed, study_path

    configure_logging(options.verbose)
    return run_testbed(
        study_path(options.study),
        runs=options.runs,
        data_dir=options.data_dir,
        verbosity=options.verbose,
    )


def _server(options: argparse.Namespace) -> int:
    keep_freed_memory()
    configure_logging(options.verbose, options.log_format)
    from erosion.common.study.study import load_study
    from erosion.common.support.parent_process import end_with_stdin
    from erosion.server.coordination.run_study import run_study
    from erosion.server.enrolment.federation_folder import FederationFolder
    from erosion.server.link.open_link import federation_or_none
    from erosion.server.output.progress import progress
    from erosion.server.run.run_folder import new_run_folder, open_run_folder, resumed_run_folder

    if options.until_stdin_closes:
        end_with_stdin()
    if (options.study is None) == (options.resume is None):
        raise StudyError("Give a study file to start a run, or --resume RUN to go on with one.")
    study = load_study(options.study or resumed_run_folder(options.resume).study)
    federation = federation_or_none(FederationFolder(options.federation), insecure=options.insecure)
    if options.resume:
        folder = resumed_run_folder(options.resume)
    elif options.run_folder:
        folder = open_run_folder(options.run_folder, study)
    else:
        folder = new_run_folder(options.runs, study)
    with progress(log_format=options.log_format) as watcher:
        run_study(
            study,
            folder,
            options.address,
            watcher,
            federation=federation,
            updates=options.updates,
        )
    return 0


def _client(options: argparse.Namespace) -> int:
    keep_freed_memory()
    configure_logging(max(options.verbose, 1), options.log_format)
    from erosion.client.connection.serve import serve
    from erosion.client.site_file import load_site
    from erosion.common.support.parent_process import end_with_stdin

    if options.until_stdin_closes:
        end_with_stdin()
    serve(
        load_site(options.site),
        give_up_seconds=options.give_up_seconds,
        until_study_ends=options.until_study_ends,
    )
    return 0


def _enroll(options: argparse.Namespace) -> int:
    act: Callable[[argparse.Namespace], None] = options.enroll
    act(options)
    return 0


def _check(options: argparse.Namespace) -> int:
    configure_logging(options.verbose)
    from rich.console import Console

    from erosion.client.preflight import check_site

    console = Console(highlight=False)
    return 0 if check_site(options.site, options.study, console) else CHECK_FAILED


def _status(options: argparse.Namespace) -> int:
    from erosion.common.support.status_words import find_life_sign, in_words, is_well

    path, seen = find_life_sign(options.where)
    print(json.dumps(seen.values, indent=2) if options.json else in_words(path, seen))
    return 0 if is_well(seen) else CHECK_FAILED


def _log(options: argparse.Namespace) -> int:
    from erosion.client.audit.audit_check import verify

    found = verify(options.file, head=options.head)
    print(f"{found.num_lines} lines, each as it was written and in its place.")
    if found.cut_off:
        print("Half a line follows, which a crash leaves behind; what it was to say was not sent.")
    print(f"Hash of the last line: {found.head}")
    if options.head is None:
        print("Note it: only against it will lines show that are removed at the end.")
    return 0


def _predict(options: argparse.Namespace) -> int:
    from erosion.client.evaluation.predict import predict

    predict(options.run, options.data, options.output)
    return 0


def _data(options: argparse.Namespace) -> int:
    from erosion.experiments.download import DATA_SETS, fetch

    folder = fetch(options.name, options.data_dir)
    print(f"{DATA_SETS[options.name].about}: in {folder}, with the right checksums.")
    return 0


def _schema(options: argparse.Namespace) -> int:
    from erosion.client.site_file import Site
    from erosion.common.study.study import Study

    model = Study if options.file == "study" else Site
    print(json.dumps(model.model_json_schema(), indent=2))
    return 0


def _algorithms(options: argparse.Namespace) -> int:
    del options
    from erosion.common.algorithms import catalogue

    print(catalogue())
    return 0


if __name__ == "__main__":
    sys.exit(main())
