"""`erosion server`."""

import argparse
import logging
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from erosion_common.errors import StudyError
from erosion_common.program import command
from erosion_common.program.command import Command
from erosion_common.support.exporter import add_metrics, exporting
from erosion_common.support.logs import configure_logging
from erosion_common.support.process import imports_for_good, keep_freed_memory
from erosion_server.commands.options import add_link, add_outputs, federation_of

if TYPE_CHECKING:
    from erosion_server.coordination.run_study import Setup

MODES = {"study": "a study file", "resume": "--resume", "queue": "--queue", "app": "--app"}
_RUNS_A_STUDY = ("study", "resume", "queue")
GOES_WITH = {  # options and the modes in which they do something; those not here do in all
    "until_empty": ("queue",),
    "start_with_quorum": _RUNS_A_STUDY,
    "longest_wait": _RUNS_A_STUDY,
    "runs": ("study", "queue"),
    "updates": _RUNS_A_STUDY,
    "weights": _RUNS_A_STUDY,
    "run_config": ("app",),
    "run_folder": ("study",),
    "output": _RUNS_A_STUDY,
    "metrics": _RUNS_A_STUDY,
}
TAKES_THE_PLACE_OF = {"run_folder": "runs", "insecure": "federation"}


def _server_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "study",
        type=Path,
        nargs="*",
        help="the study file, see `erosion schema study`; several run at the same time",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        action="append",
        help="continue a run that was cut off, from its last finished round; give it once for each"
        " run that is to continue. With one run a study file can be given as well: a run that has"
        " not begun yet takes that study, and one that has begun refuses any other than its own",
    )
    parser.add_argument(
        "--queue",
        type=Path,
        metavar="FOLDER",
        help="run the study files in FOLDER, and those that are added later, one after another"
        " while the sites stay connected; finished ones go to FOLDER/done or FOLDER/failed",
    )
    parser.add_argument(
        "--until-empty", action="store_true", help="with --queue: end when no study is left"
    )
    parser.add_argument(
        "--start-with-quorum",
        action="store_true",
        help="when the join deadline passes, begin with the hospitals that are connected, if they"
        " make up the study's quorum (default: as the study file says, or wait for all)",
    )
    parser.add_argument(
        "--longest-wait",
        type=command.seconds,
        metavar="SECONDS",
        help="end, to be resumed later, when hospitals that the study cannot do without have been"
        " away for this long (default: as the study file says, or wait for as long as it takes)",
    )
    add_link(parser)
    command.add_runs(parser)
    parser.add_argument(
        "--updates",
        choices=["auto", "memory", "disk"],
        default="auto",
        help="where a round's updates are kept (default: auto, on the disk if they would take more"
        " than a quarter of the memory)",
    )
    command.add_weights(parser)
    parser.add_argument(
        "--app",
        metavar="PACKAGE:APP",
        help="run this Flower ServerApp, with any strategy, instead of a study; its sites run"
        " `erosion client --app`",
    )
    parser.add_argument(
        "--run-config",
        metavar="'KEY=VALUE ...'",
        default="",
        help="with --app: the context.run_config of both apps, values as in TOML",
    )
    parser.add_argument(
        "--run-folder",
        type=Path,
        help="an empty folder for this run (default: a new one in the folder of --runs)",
    )
    add_outputs(parser)
    add_metrics(parser)
    command.add_log_format(parser)
    command.add_supervised(parser)


def _run_server(options: argparse.Namespace) -> int:
    keep_freed_memory()
    configure_logging(options.verbose, options.log_format, of_an_app=options.app is not None)
    with imports_for_good():
        from erosion_common.rounds.bounds import check_sizes
        from erosion_common.rounds.study import check_start
        from erosion_common.study.study import load_study
        from erosion_common.support.process import end_with_stdin
        from erosion_common.support.software import check_distributions
        from erosion_common.support.text import open_questions
        from erosion_server.coordination.run_study import Planned, run_queue, run_studies
        from erosion_server.output.observers import Observers
        from erosion_server.output.registry import check_outputs, open_outputs
        from erosion_server.output.terminal import progress
        from erosion_server.run.run_folder import (
            alone_in,
            new_run_folder,
            open_run_folder,
            resumed_run_folder,
            stored_study,
        )

    check_distributions()
    if options.until_stdin_closes:
        end_with_stdin()
    _refuse_what_does_nothing(options)
    if options.app is not None:
        return _run_app(options)
    check_outputs(options.output)

    def observers(label: str = "") -> Observers:
        terminal = progress(log_format=options.log_format, label=label)
        return Observers({"terminal": terminal, **open_outputs(options.output)})

    if options.queue is not None:
        logging.getLogger("erosion.queue").setLevel(logging.INFO)
        with exporting(options.metrics), alone_in(options.queue):
            run_queue(
                options.queue,
                options.runs,
                observers,
                _setup(options),
                until_empty=options.until_empty,
            )
        return 0
    studies = [load_study(file) for file in options.study] or [
        stored_study(resumed_run_folder(run)) for run in options.resume
    ]
    for file in options.study:
        for number, question in open_questions(file.read_bytes()).items():
            logging.getLogger("erosion").warning("%s, line %d asks: %s", file, number, question)
    setup = _setup(options)
    for study in studies:  # before a folder is made for a run that cannot begin
        check_sizes(study)
        check_start(study, options.weights)
    with ExitStack() as stack:
        stack.enter_context(exporting(options.metrics))
        if options.resume:
            folders = list(map(resumed_run_folder, options.resume, studies))
        elif options.run_folder:
            folders = [open_run_folder(options.run_folder, studies[0])]
        else:
            folders = [new_run_folder(options.runs, study) for study in studies]
        planned = []
        for study, folder in zip(studies, folders, strict=True):
            stack.enter_context(alone_in(folder.path))
            label = study.name if len(studies) > 1 else ""
            planned.append(Planned(study, folder, stack.enter_context(observers(label))))
        run_studies(planned, setup)
    return 0


def _refuse_what_does_nothing(options: argparse.Namespace) -> None:
    """Raise StudyError where not exactly one mode is given, or an option has no effect in it."""
    modes = [mode for mode in MODES if getattr(options, mode)]
    if modes == ["study", "resume"]:  # the run is resumed, with this study
        if len(options.study) + len(options.resume) > 2:
            raise StudyError(
                "A study file goes with one run that is resumed",
                remedy="Leave the study files out: every run's folder has its own.",
            )
        modes = ["resume"]
    if "app" in modes and len(modes) > 1:
        raise StudyError(
            "--app takes the place of a study; leave the study file, --resume or --queue out."
        )
    if len(modes) != 1:
        raise StudyError(
            "Give study files to start their runs, --resume RUN to continue one (with the study"
            " file, if it was corrected before the run began), or --queue FOLDER to run the studies"
            " in it."
        )
    names = {*GOES_WITH, *TAKES_THE_PLACE_OF, *TAKES_THE_PLACE_OF.values()}
    written = command.given(options, names, _server_arguments)
    for option, wanted in GOES_WITH.items():
        if option in written and modes[0] not in wanted:
            named = " or ".join(MODES[mode] for mode in wanted)
            raise StudyError(f"{command.flag(option)} goes with {named}; see --help.")
    for option, other in TAKES_THE_PLACE_OF.items():
        if {option, other} <= written:
            raise StudyError(
                f"{command.flag(option)} takes the place of {command.flag(other)}; leave one out."
            )
    if options.run_folder and len(options.study) > 1:
        raise StudyError("--run-folder is for one study; give --runs FOLDER for several.")


def _setup(options: argparse.Namespace) -> "Setup":
    from erosion_server.coordination.run_study import Setup

    return Setup(
        options.address,
        federation_of(options),
        options.updates,
        options.weights,
        options.longest_wait,
        options.start_with_quorum,
        can_resume=not options.until_stdin_closes,
    )


def _run_app(options: argparse.Namespace) -> int:
    from flwr.serverapp import ServerApp

    from erosion_common.support.software import load_app
    from erosion_server.coordination.run_app import run_app, run_config_of

    app = load_app(options.app, ServerApp, StudyError)
    run_app(app, run_config_of(options.run_config), options.address, federation_of(options))
    return 0


SERVER = Command(
    name="server",
    summary="coordinate studies, at the hospital that wants the model",
    details="Waits for the hospitals, runs every arm of the study, and writes the report.",
    examples="""\
  erosion server STUDY.toml             after: erosion enroll init and erosion enroll site NAME
  erosion server STUDY.toml --insecure  without keys, for sites on this machine
  erosion server A.toml B.toml          two studies at the same time, over one port
  erosion server --resume runs/20260101T120000-mine
  erosion server --queue studies/       one study after another, for sites that stay connected
  erosion server STUDY.toml --output metrics --output mlflow=http://127.0.0.1:5000
  erosion server STUDY.toml --metrics 9464   figures for Prometheus
  erosion server --app our_app.server_app:app --run-config 'rounds=20 lr=0.1'
""",
    add_arguments=_server_arguments,
    run=_run_server,
)
