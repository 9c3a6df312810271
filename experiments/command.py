"""`erosion experiment`, in a checkout: repeats a paper's tables and figures."""

import argparse
from pathlib import Path

from erosion_common.program.command import Command, add_data_dir

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
        "--device",
        default="cpu",
        help='what hospitals train on: "cpu", "cuda" or "cuda:N" (default: cpu); mnist and'
        " image-sites take a GPU, and name it with each cell",
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
            device=options.device,
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
