"""`erosion testbed`."""

import argparse

from erosion.commands.command import Command
from erosion.commands.options import add_outputs, add_runs, add_weights
from erosion.common.support.logs import configure_logging
from erosion.experiments.data_dir import add_data_dir


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "study",
        nargs="?",
        default="breast-cancer",
        help="a study file with a [testbed] table, or the name of one that comes with the program"
        " (default: breast-cancer)",
    )
    add_runs(parser)
    add_data_dir(parser)
    add_weights(parser)
    add_outputs(parser)


def _run(options: argparse.Namespace) -> int:
    from erosion.experiments.testbed import run_testbed, study_path

    configure_logging(options.verbose)
    return run_testbed(
        study_path(options.study),
        runs=options.runs,
        data_dir=options.data_dir,
        verbosity=options.verbose,
        outputs=options.output,
        weights=options.weights,
    )


COMMAND = Command(
    name="testbed",
    summary="run a study with all its hospitals on this machine",
    details="Starts the same server and clients as a deployment, each a process of its own, and"
    " stops them at the end.",
    examples="""\
  erosion testbed                       five hospitals; nothing to download
  erosion testbed heart-disease         after: erosion data heart-disease
  erosion testbed my-study.toml         a study of your own, from its [testbed] table
""",
    add_arguments=_add_arguments,
    run=_run,
)
