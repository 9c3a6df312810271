"""A table as a grid of cells: each cell is one run, kept in a small JSON file of its own.

Running and drawing are separate. A run that was cut off goes on with the cells that are missing; a
folder with cells of another configuration is refused, so that no table mixes two programs.
"""

import hashlib
import json
import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from errno import EACCES
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from erosion.common.errors import ErosionError
from erosion.common.support.files import MOST_KEPT_BYTES, held, read_named, write_atomically
from erosion.common.support.parent_process import end_with_parent
from erosion.experiments.notes import notes_once
from erosion.server.run import provenance

FORMAT = 1  # of a cell's file
_KEPT = "The cells that ended are kept, and the same command goes on with the others"
_UNKNOWN_MACHINE = "a machine that was not written down"

Values = Mapping[str, Any]  # what JSON can hold
Tick = Callable[[], None]  # called after every round of a cell


class ExperimentError(ErosionError):
    """An experiment cannot be run or drawn as asked."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class CellPlan:
    """One run of an experiment: all that decides its figures."""

    name: str  # of its file; letters, digits, dots and hyphens
    config: Values  # the seed included
    rounds: int  # how often the run ticks

    @property
    def config_hash(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the configuration."""
        return _hash_of(self.config)


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that was run."""

    plan: CellPlan
    figures: Values  # per-round records and results, as the experiment wrote them
    commit: str
    command: str
    seconds: float  # of a processor; of a clock in the first cells
    machine: str = _UNKNOWN_MACHINE  # the processor, as the first cells did not say


def _hash_of(config: Values) -> str:
    text = json.dumps(config, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_Ended = tuple[Values, float, list[str]]  # of a cell: figures, seconds, what hospitals noted

# (configuration, data folder, tick) -> figures. A module's function, so that a process can call it.
RunCell = Callable[[Values, Path | None, Tick], Values]


def cell_path(folder: Path, plan: CellPlan) -> Path:
    """Where a cell's result lies."""
    return folder / "cells" / f"{plan.name}.json"


def read_cells(folder: Path, plans: Iterable[CellPlan]) -> dict[str, Cell]:
    """The cells that were run, by name. Raises ExperimentError for one of another configuration."""
    found = {}
    for plan in plans:
        path = cell_path(folder, plan)
        if not path.exists():
            continue
        try:
            raw = json.loads(read_named(path, most_bytes=MOST_KEPT_BYTES).decode())
            known = raw["format"] == FORMAT
            planned = known and raw["config_hash"] == _hash_of(raw["config"]) == plan.config_hash
            cell = _cell_of(raw, plan) if planned else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
            raise ExperimentError(
                f"{path} cannot be read ({type(problem).__name__}: {problem}). Delete it: the cell"
                " is then run again."
            ) from None
        if not known:
            raise ExperimentError(
                f"{path} has format {raw['format']}; this program writes {FORMAT}. Use the program"
                " that wrote it, or another folder (--results)."
            )
        if cell is None:
            raise ExperimentError(
                f"{path} was run with another configuration. Give another folder (--results), or"
                " delete that one to run its cells anew."
            )
        found[plan.name] = cell
    return found


def _cell_of(raw: Values, plan: CellPlan) -> Cell:
    """What a file holds; raises ValueError, KeyError or TypeError."""
    figures = dict(raw["figures"])
    if not figures:
        raise ValueError("it has no figures")
    json.dumps(figures, allow_nan=False)  # no figure may be "not a number"
    return Cell(
        plan,
        figures,
        str(raw["commit"]),
        str(raw["command"]),
        float(raw["seconds"]),
        str(raw.get("machine", _UNKNOWN_MACHINE)),
    )


def run_cells(
    folder: Path,
    plans: Sequence[CellPlan],
    run: RunCell,
    *,
    title: str,
    data_dir: Path | None,
    jobs: int = 1,
    console: Console | None = None,
) -> dict[str, Cell]:
    """Run the cells that the folder lacks, in `jobs` processes, and return all of them by name.

    Each is written as soon as it has ended. There are no more processes than cores. Raises
    ExperimentError for a folder of another configuration, one that cannot be written to or that
    another run writes to, a disk that is full, and a process that was ended.
    """
    done = read_cells(folder, plans)
    if len(done) < len(plans):
        with _folder_of_its_own(folder / "cells"):
            return _run_missing(folder, plans, run, title, data_dir, jobs, console)
    return done


def _run_missing(
    folder: Path,
    plans: Sequence[CellPlan],
    run: RunCell,
    title: str,
    data_dir: Path | None,
    jobs: int,
    console: Console | None,
) -> dict[str, Cell]:
    done = read_cells(folder, plans)
    missing = [plan for plan in plans if plan.name not in done]
    commit, command, machine = provenance.commit(), provenance.command(), provenance.machine()

    def keep(plan: CellPlan, figures: Values, seconds: float) -> None:
        cell = Cell(plan, figures, commit, command, round(seconds, 3), machine)
        _write(cell_path(folder, plan), cell)
        done[plan.name] = cell

    with _bar(console) as progress, notes_once() as told:
        cells = progress.add_task(f"{title}: cells", total=len(plans), completed=len(done))
        rounds = progress.add_task("rounds", total=sum(plan.rounds for plan in missing))
        if jobs == 1:
            for plan in missing:
                before = _processor_seconds()
                figures = run(plan.config, data_dir, lambda: progress.advance(rounds))
                keep(plan, figures, _processor_seconds() - before)
                progress.advance(cells)
        else:
            processes = min(jobs, len(missing), len(os.sched_getaffinity(0)))
            with closing(_in_processes(missing, run, data_dir, processes)) as ended:
                for plan, (figures, seconds, notes) in ended:
                    for note in notes:
                        told.tell(note)
                    keep(plan, figures, seconds)
                    progress.advance(cells)
                    progress.advance(rounds, plan.rounds)
    return {plan.name: done[plan.name] for plan in plans}


def _bar(console: Console | None) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console or Console(stderr=True),
    )


def _in_processes(
    plans: Sequence[CellPlan], run: RunCell, data_dir: Path | None, jobs: int
) -> Generator[tuple[CellPlan, _Ended], None, None]:
    """Cells as they end, each process with one thread: more would only compete for the cores."""
    others = set(active_children())
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_begin_process) as pool:
        running: dict[Future[_Ended], CellPlan] = {}
        try:
            for plan in plans:
                running[pool.submit(_timed, run, plan.config, data_dir)] = plan
            while running:
                ended, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    plan = running.pop(future)
                    yield plan, future.result()
        except BrokenProcessPool:
            raise ExperimentError(
                f"A process was ended from outside, often for want of memory. {_KEPT}; try fewer"
                " --jobs."
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            # Ctrl-C loses the cells under way; nobody waits for them, nor for those handed out.
            abandoned = set(active_children()) - others if running else set()
            for process in abandoned:
                process.terminate()
            for process in abandoned:
                process.join()


def _timed(run: RunCell, config: Values, data_dir: Path | None) -> _Ended:
    before, notes = _processor_seconds(), list[str]()
    with notes_once(notes.append):
        figures = run(config, data_dir, lambda: None)
    return figures, _processor_seconds() - before, notes


def _processor_seconds() -> float:
    """What this process has used, and those that it started and that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _begin_process() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the first process ends them
    end_with_parent()


def _write(path: Path, cell: Cell) -> None:
    content = {
        "format": FORMAT,
        "config": cell.plan.config,
        "config_hash": cell.plan.config_hash,
        "commit": cell.commit,
        "command": cell.command,
        "seconds": cell.seconds,
        "machine": cell.machine,
        "figures": cell.figures,
    }
    try:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError:
        raise ExperimentError(
            f"The cell {cell.plan.name} ended with a figure that is not a finite number, and was"
            f" not kept: its training went astray. {_KEPT}; name those with --cells."
        ) from None
    try:
        write_atomically(path, f"{text}\n")
    except OSError as problem:
        raise ExperimentError(
            f"{path} cannot be written ({problem.strerror or problem}). {_KEPT}; free some space or"
            " give another folder (--results)."
        ) from None


@contextmanager
def _folder_of_its_own(folder: Path) -> Iterator[None]:
    """A folder for the cells of this run alone, found wanting before hours of computing."""
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError(EACCES, os.strerror(EACCES))
            stack.enter_context(held(folder))
        except BlockingIOError:
            raise ExperimentError(
                f"Another run writes to {folder}. Wait until it has ended (its --jobs says in how"
                " many processes it computes), or give another folder (--results)."
            ) from None
        except OSError as problem:
            raise ExperimentError(
                f"{folder} cannot be written to ({problem.strerror or problem}). Give another"
                " folder (--results)."
            ) from None
        yield
