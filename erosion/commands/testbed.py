"""On one machine: `erosion testbed`, `data` and `experiment`."""

import argparse
from pathlib import Path

from erosion.simulation.download import add_data_dir
from erosion_common.errors import StudyError
from erosion_common.program.command import DEFAULT_RUNS, Command, add_outputs, add_runs, add_weights
from erosion_common.support.logs import configure_logging
from erosion_common.support.process import imports_for_good


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
    parser.add_argument(
        "--stacked",
        action=argparse.BooleanOptionalAction,
        help="with --simulate: train the hospitals of a process together, as one stack; figures"
        " are the same but for rounding (default: on a GPU, and with many hospitals and a small"
        " model)",
    )


def _run_testbed(options: argparse.Namespace) -> int:
    with imports_for_good():
        from erosion.simulation.testbed import run_testbed, study_path

    configure_logging(options.verbose)
    if options.simulate:
        if options.output or options.runs is not None:
            raise StudyError("--output and --runs go without --simulate, which keeps no run.")
        from erosion.simulation.simulated_testbed import simulate_testbed

        simulate_testbed(
            study_path(options.study),
            data_dir=options.data_dir,
            weights=options.weights,
            workers=options.workers,
            stacked=options.stacked,
        )
        return 0
    for option in ("workers", "stacked"):
        if getattr(options, option) is not None:
            raise StudyError(
                f"--{option} goes with --simulate: without it, every site is a process."
            )
    return run_testbed(
        study_path(options.study),
        runs=options.runs or DEFAULT_RUNS,
        data_dir=options.data_dir,
        verbosity=options.verbose,
        outputs=options.output,
        weights=options.weights,
    )


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


EXPERIMENT_EXAMPLES = """\
  erosion experiment                               list them
  erosion experiment titanic                       run what is missing or stale, then draw
  erosion experiment mnist --cells 'C-10-*'        only some cells
  erosion experiment titanic --draw-only           draw again, train nothing
  erosion experiment quadratic --set zeta=3 --set beta=0.05 --results mine
                                                   with constants of your own
"""


def _experiment_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="which experiment (default: list them all)")
    parser.add_argument(
        "--cells",
        default="*",
        metavar="PATTERN",
        help="only cells with a name that matches (* and ?)",
    )
    parser.add_argument(
        "--list", action="store_true", help="list the cells, say which are stale, and run none"
    )
    parser.add_argument(
        "--draw-only", action="store_true", help="draw all the cells there are, and run none"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="how many processes, of one thread each (default: 1)"
    )
    parser.add_argument(
        "--set",
        dest="constants",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a constant of your own, where the experiment takes some (quadratic); may be given"
        " several times, and needs --results",
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FOLDER",
        help="where cells and page are kept (default: experiments/results/NAME)",
    )
    add_data_dir(parser)


def _run_experiment(options: argparse.Namespace) -> int:
    from experiments.cells import ExperimentError, read_cells
    from experiments.experiment import RESULTS, carry_out, chosen_plans, with_constants
    from experiments.papers import EXPERIMENTS, named

    if options.name is None:
        for experiment in EXPERIMENTS.values():
            print(f"{experiment.name}: {experiment.about}")
        return 0
    experiment = named(options.name)
    if options.constants:
        experiment = with_constants(experiment, options.constants)
        if options.results is None and not options.list:
            raise ExperimentError(
                "--set makes cells of another configuration: name another folder with"
                " --results FOLDER."
            )
    if options.list:
        plans = chosen_plans(experiment, options.cells)
        folder = options.results or RESULTS / experiment.name
        kept = read_cells(folder, plans, experiment.basis_of(options.data_dir))
        for plan in plans:
            stale = kept[plan.name].stale if plan.name in kept else ""
            print(f"{plan.name}: would come out otherwise today, {stale}" if stale else plan.name)
        return 0
    if options.draw_only and options.cells != "*":
        raise ExperimentError("--draw-only draws all the cells there are: leave --cells out.")
    if options.jobs < 1:
        raise ExperimentError(f"--jobs {options.jobs}; it must be 1 or more")
    try:
        page = carry_out(
            experiment,
            pattern=options.cells,
            folder=options.results,
            data_dir=options.data_dir,
            jobs=options.jobs,
            draw_only=options.draw_only,
        )
    except KeyboardInterrupt:
        print("The finished cells are kept: the same command continues with the others.")
        raise
    print(f"The tables and figures are in {page}.")
    return 0


EXPERIMENT = Command(
    name="experiment",
    summary="repeat a paper's tables and figures",
    add_arguments=_experiment_arguments,
    run=_run_experiment,
    examples=EXPERIMENT_EXAMPLES,
)
