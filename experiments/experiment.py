"""An experiment: a grid of cells, and the page of tables and figures that is drawn from them."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

from erosion_client.site_file import checked_device
from erosion_client.training.limits import problem_with_device
from erosion_common.settings.base import Settings
from erosion_common.study.study import Study
from erosion_common.support.files import write_atomically
from experiments.basis import Basis, Resolved, data_hashes, digest_of
from experiments.cells import (
    FILE_NAME,
    BasisOf,
    Cell,
    CellFile,
    CellPlan,
    ExperimentError,
    RunCell,
    Values,
    read_cells,
    run_cells,
)
from experiments.page import Page, constants

RESULTS = Path("experiments/results")
ONE_SEED = {"seed": 1, "seeds": [1], "split": 1}


@dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment that `erosion experiment NAME` runs and draws."""

    name: str
    title: str
    about: str  # a paragraph: the paper, what is repeated, and how long it takes
    plans: Callable[[], Sequence[CellPlan]]
    run: RunCell
    draw: Callable[[Mapping[str, Cell]], Page]  # from the cells there are, by name
    # What decides a cell's figures in addition to its configuration: the studies or rules with all
    # their settings, and the data sets that no study names.
    settings: Callable[[Values], Settings | Sequence[Settings]] = lambda _config: ()
    data_sets: Callable[[Values], Sequence[str]] = lambda _config: ()
    # Where a caller may give constants: the cells with these; raises ExperimentError.
    plans_with: Callable[[Mapping[str, Any]], Sequence[CellPlan]] | None = None

    def run_on(self, device: str) -> RunCell:
        """Return `run` with this device; raises ExperimentError where it cannot train there."""
        if device == "cpu":
            return self.run
        if "device" not in signature(self.run).parameters:
            raise ExperimentError(f"{self.name} runs on a processor; leave --device out.")
        try:
            problem = problem_with_device(checked_device(device))
        except ValueError as refused:
            raise ExperimentError(f"--device {device}: {refused}.") from None
        if problem:
            raise ExperimentError(
                f"--device {device}: {problem}. Install a build of torch for this GPU, or leave"
                " --device out."
            )
        return partial(self.run, device=device)

    def basis_of(self, data_dir: Path | None) -> BasisOf:
        """Return what its cells rest on today; files that `data_dir` lacks are left out."""
        made: dict[str, Basis] = {}

        def basis(config: Values) -> Basis:
            # Seeds stand in the configuration; without them many cells rest on one basis.
            same = {
                key: one if type(value) is type(one := ONE_SEED.get(key)) else value
                for key, value in config.items()
            }
            name = digest_of(same)
            if name not in made:
                found = self.settings(same)
                settings = [found] if isinstance(found, Settings) else found
                sources = {
                    each.testbed.source.replace("_", "-")
                    for each in settings
                    if isinstance(each, Study) and each.testbed
                }
                data_sets = sorted(sources | set(self.data_sets(same)))
                made[name] = Basis(
                    [Resolved.of(each) for each in settings], data_hashes(data_sets, data_dir)
                )
            return made[name]

        return basis


def experiment(name: str, *parts: Any, **more: Any) -> Experiment:
    """Return the experiment of that name, with title and paragraph of `papers/experiments.toml`."""
    words = constants("experiments")[name]
    return Experiment(name, words["title"], " ".join(words["about"].split()), *parts, **more)


def with_constants(experiment: Experiment, given: Sequence[str]) -> Experiment:
    """Return the same experiment with a caller's constants, each as `NAME=VALUE`."""
    if experiment.plans_with is None:
        raise ExperimentError(
            f"{experiment.name} takes no constants; leave --set out. What its cells are made of"
            " stands in the line of each."
        )
    constants: dict[str, Any] = {}
    for text in given:
        name, _, value = (part.strip() for part in text.partition("="))
        if name in constants:
            raise ExperimentError(f"--set gives {name} twice; give it once.")
        try:
            constants[name] = json.loads(value)
        except (ValueError, RecursionError):
            raise ExperimentError(
                f"--set {text:.80}: give NAME=NUMBER, for example zeta=2."
            ) from None
    plans = experiment.plans_with(constants)
    return replace(experiment, plans=lambda: plans)


def chosen_plans(experiment: Experiment, pattern: str) -> list[CellPlan]:
    """Return the cells with names that match a shell pattern; raises ExperimentError for none."""
    plans = list(experiment.plans())
    found = [plan for plan in plans if fnmatchcase(plan.name, pattern)]
    if not found:
        raise ExperimentError(
            f"No cell of {experiment.name} matches {pattern!r}. Its cells are"
            f" {_shortened(plan.name for plan in plans)}; `*` and `?` stand for any characters."
        )
    return found


def carry_out(
    experiment: Experiment,
    *,
    pattern: str = "*",
    folder: Path | None,
    data_dir: Path | None = None,
    jobs: int = 1,
    device: str = "cpu",
    draw_only: bool = False,
) -> Path:
    """Run the cells that are missing or stale, draw the page from all, and say where it is."""
    folder = folder or RESULTS / experiment.name
    _refuse_strangers(experiment, folder)
    if not draw_only:
        run_cells(
            folder,
            chosen_plans(experiment, pattern),
            experiment.run_on(device),
            title=experiment.title,
            data_dir=data_dir,
            basis_of=experiment.basis_of(data_dir),
            jobs=jobs,
            device=device,
        )
    return draw(experiment, folder, data_dir)


def draw(experiment: Experiment, folder: Path, data_dir: Path | None = None) -> Path:
    """Write the page and its pictures.

    The page begins with how many cells are missing and which are stale, if any are, and ends with
    what made it. Raises ExperimentError where no cell was run, or one was edited.
    """
    plans = experiment.plans()
    cells = read_cells(folder, plans, experiment.basis_of(data_dir))
    if not cells:
        raise ExperimentError(
            f"{folder} holds no cell of {experiment.name} yet. Run"
            f" `erosion experiment {experiment.name}` first."
        )
    try:
        page = experiment.draw(cells)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as problem:
        raise ExperimentError(
            f"The page cannot be drawn from {folder / FILE_NAME} ({type(problem).__name__}:"
            f" {problem}): a cell's figures are not those that this program writes. Delete a cell"
            " that was edited; the same command runs it again."
        ) from problem
    path = folder / "README.md"
    try:
        for name, content in page.pictures.items():
            write_atomically(folder / name, content)
        write_atomically(path, _with_origin(experiment, page.text, cells.values(), len(plans)))
    except OSError as problem:
        raise ExperimentError(
            f"The page cannot be written to {folder} ({problem.strerror or problem}). All cells are"
            " kept; free some space, and draw it with --draw-only."
        ) from None
    return path


def _refuse_strangers(experiment: Experiment, folder: Path) -> None:
    """No page is drawn over that of another experiment, nor over cells of a caller's constants."""
    known = {plan.name: plan.config for plan in experiment.plans()}
    strangers = sorted(
        name
        for name, cell in CellFile.read(folder).cells.items()
        if name not in known or (experiment.plans_with and cell.plan.config != known[name])
    )
    if strangers:
        raise ExperimentError(
            f"{folder / FILE_NAME} holds {_shortened(strangers)}, not planned by {experiment.name}."
            " Give another folder (--results), or delete the lines that older plans left."
        )


def _with_origin(experiment: Experiment, text: str, cells: Collection[Cell], planned: int) -> str:
    """Return the page with a note of missing or stale cells, and its provenance at the end."""
    title, _, rest = text.partition("\n")
    remarks = []
    if len(cells) < planned:
        remarks.append(f"**{len(cells)} of {planned} planned cells have been run.**")
    if stale := {cell.plan.name: cell.stale for cell in cells if cell.stale}:
        remarks.append(
            f"**{len(stale)} of {len(cells)} cells would come out otherwise today:**"
            f" {'; '.join(_by_reason(stale))}. `erosion experiment {experiment.name}` computes them"
            " again."
        )
    above = "".join(f"\n{remark}\n" for remark in remarks)
    return f"{title}\n{above}{rest}".rstrip() + f"\n\n{_made_by(cells)}\n"


def _by_reason(stale: Mapping[str, str]) -> Iterator[str]:
    """For each reason, how many cells and which."""
    for reason, many in Counter(stale.values()).most_common():
        names = [name for name, why in stale.items() if why == reason]
        yield f"{many} {reason} ({_shortened(names)})"


def _made_by(cells: Collection[Cell]) -> str:
    """Return the commands, commits and machines behind a page."""
    commands = sorted({f"`{cell.command}`" for cell in cells})
    commits = sorted({_short(cell.commit) for cell in cells})
    machines = sorted({cell.machine for cell in cells})
    seconds = sum(cell.seconds for cell in cells)
    return (
        f"Made by {_shortened(commands, rest='every cell names its own')} at {', '.join(commits)}"
        f" on {'; '.join(machines)}: {len(cells)} cells, {seconds:.0f} s of computing. The figures"
        f" of every cell, its configuration and its seed are in `{FILE_NAME}`."
    )


def _short(commit: str) -> str:
    """12 digits of a commit, and whether the checkout held changes that it lacks."""
    digits, changed, _ = commit.partition("+")
    return digits[:12] + (" with changes" if changed else "")


def _shortened(names: Iterable[str], *, rest: str = "see --list") -> str:
    """Return the first few names, and where the `rest` are."""
    names = list(names)
    return ", ".join(names[:6]) + (f", ... ({len(names)} in all, {rest})" if len(names) > 6 else "")
