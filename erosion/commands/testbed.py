"""On one machine: `erosion testbed` and `erosion data`."""

import argparse
import os

from erosion_common.errors import StudyError
from erosion_common.program.command import (
    DEFAULT_RUNS,
    Command,
    add_data_dir,
    add_runs,
    add_weights,
)
from erosion_common.support.logs import configure_logging
from erosion_common.support.process import imports_for_good
from erosion_server.commands.options import add_outputs


def _testbed_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "study",
        nargs="?",
        default="breast-cancer",
        help="a study file; a folder with study.toml and site files or tables; or the"
        " name of a study that comes with the program (default: breast-cancer)",
    )
    add_runs(parser, default=None)
    add_data_dir(parser)
    add_weights(parser)
    add_outputs(parser)
    parser.add_argument(
        "--device",
        default="cpu",
        help='what every hospital trains on: "cpu", "cuda" or "cuda:N" (default: cpu)',
    )
    parser.add_argument(
        "--simulate",
        action="store_true",
        help="run everything in this program, without a network or a run folder, and print only the"
        " figures, which are the same",
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="with --simulate: how many processes the hospitals train in (default: 1 while rounds"
        " are short, else one for each core)",
    )


def _run_testbed(options: argparse.Namespace) -> int:
    if not options.simulate:  # one thread for each of the programs that are forked from this one
        os.environ["OMP_NUM_THREADS"] = "1"
    with imports_for_good():
        from erosion.simulation.testbed import run_testbed, study_path
        from erosion_client.site_file import checked_device
        from erosion_common.study.study import load_study

    configure_logging(options.verbose)
    try:
        checked_device(options.device)
    except ValueError as problem:
        raise StudyError(f"{problem}.", where=f"--device {options.device}") from None
    if options.simulate:
        if options.output or options.runs is not None:
            raise StudyError("--output and --runs go without --simulate, which keeps no run.")
        from erosion.simulation.simulated_testbed import simulate_testbed

        simulate_testbed(
            study_path(options.study),
            data_dir=options.data_dir,
            weights=options.weights,
            device=options.device,
            workers=options.workers,
        )
        return 0
    if options.workers is not None:
        raise StudyError("--workers goes with --simulate: without it, every site is a process.")
    study_file = study_path(options.study)
    _, code = run_testbed(
        load_study(study_file),
        study_file.resolve().parent,
        runs=options.runs or DEFAULT_RUNS,
        data_dir=options.data_dir,
        verbosity=options.verbose,
        outputs=options.output,
        weights=options.weights,
        device=options.device,
        fork=options.device == "cpu",  # CUDA was asked whether it is there, and is lost in a fork
    )
    return code


TESTBED = Command(
    name="testbed",
    summary="run a study with all its hospitals on this machine",
    details="Starts the same server and clients as a deployment, each in a process, and"
    " stops them at the end.",
    examples="""\
  erosion testbed                       five hospitals; nothing to download
  erosion testbed heart-disease         after: erosion data heart-disease
  erosion testbed mnist --simulate      in one program, trained by as many processes as cores
  erosion testbed my-study.toml         a study of your own, from its [testbed] table
""",
    add_arguments=_testbed_arguments,
    run=_run_testbed,
)


def _data_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="heart-disease or mnist")
    add_data_dir(parser)


def _run_data(options: argparse.Namespace) -> int:
    from erosion.simulation.download import DATA_SETS, fetch

    folder = fetch(options.name, options.data_dir)
    print(f"{DATA_SETS[options.name].about}: in {folder}, with the right checksums.")
    return 0


DATA = Command(
    name="data",
    summary="download a public data set and check it",
    add_arguments=_data_arguments,
    run=_run_data,
)
