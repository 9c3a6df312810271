"""`erosion describe`."""

import argparse
import json
from pathlib import Path

from erosion_common.program.command import CHECK_FAILED, Command, add_data_dir, flag, given
from erosion_common.program.commands import is_installed, optional
from erosion_server.commands.options import add_link, federation_of

TESTBED, SITES = "erosion.simulation.testbed", "erosion.simulation.testbed_sites"

NETWORK = ("federation", "insecure", "address")  # options that --simulate has no use for


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "study", help="a study file, or the name of a study that comes with the program"
    )
    add_link(parser)
    parser.add_argument(
        "--simulate",
        action="store_true",
        help="without a network: describe the study's testbed, or the tables in its folder",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("description.html"),
        help="the page (default: %(default)s)",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="also write the figures as JSON, with their ranges",
    )
    add_data_dir(parser)


def _run(options: argparse.Namespace) -> int:
    from rich.console import Console

    from erosion_common.errors import RunError, StudyError
    from erosion_common.study.study import load_study
    from erosion_common.support.files import write_atomically
    from erosion_common.support.logs import configure_logging
    from erosion_server.output.description import description_page, show

    configure_logging(options.verbose)
    goes = "without" if options.simulate else "with"
    for option in NETWORK if options.simulate else ("data_dir",):
        if given(options, [option], _add_arguments):
            raise StudyError(f"{flag(option)} goes {goes} --simulate; see --help.")
    if options.insecure and given(options, ["federation"], _add_arguments):
        raise StudyError("--insecure takes the place of --federation; leave one out.")
    console, study_file = Console(), Path(options.study)
    if is_installed(TESTBED):  # it knows studies by name
        study_file = optional(TESTBED, "A study's name").study_path(options.study)
    if options.simulate:
        found = optional(SITES, "--simulate").describe_here(study_file, options.data_dir)
    else:
        from erosion_common.rounds.bounds import check_sizes
        from erosion_server.coordination.description import ask_all
        from erosion_server.link.link import make_link

        study = load_study(study_file)
        check_sizes(study)
        link = make_link(study.hospitals, options.address, federation_of(options))
        link.start()
        try:
            console.print(f"Listening on {link.address} for {', '.join(study.hospitals)} ...")
            seconds = study.federation.join_deadline_seconds
            found = ask_all(study, link, seconds, lambda line: console.print(line, markup=False))
        finally:
            link.stop()
    show(found, console)
    written = {options.output: description_page(found)}
    if options.json is not None:
        written[options.json] = json.dumps(found.figures, indent=2) + "\n"
    for path, content in written.items():
        try:
            write_atomically(path, content)
        except OSError as problem:
            raise RunError(
                f"{path} cannot be written: {problem}", remedy="Name another file."
            ) from None
    console.print(f"The page: {options.output}", markup=False)
    return CHECK_FAILED if found.misfits or len(found.replies) < len(found.study.hospitals) else 0


DESCRIBE = Command(
    name="describe",
    summary="compare the hospitals' patients before any training",
    details="Every site where somebody has approved the study sends counts, missing values, means"
    " and quantiles of its columns, rounded so that none is about a few patients. The page points"
    " out hospitals with values that are off by a factor, as in another unit, or with a number that"
    " seems to stand for missing values, such as a cholesterol of 0. Exit code 1 if something looks"
    " wrong or a hospital gave no description.",
    examples="""\
  erosion describe STUDY.toml                 at the coordinator; sites run `erosion client`
  erosion describe STUDY.toml --simulate      the testbed's hospitals, or tables in its folder
  erosion describe breast-cancer --simulate   a study that comes with the program
""",
    add_arguments=_add_arguments,
    run=_run,
)
