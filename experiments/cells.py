"""A table as a grid of cells: each cell is one run, and one line of the experiment's file.

Running and drawing are separate. A run that was cut off continues with the cells that are missing,
and repeats those that would differ today."""

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from errno import EACCES
from functools import cached_property
from multiprocessing import active_children, get_context, parent_process
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

from erosion_common.errors import ErosionError
from erosion_common.support.files import MOST_KEPT_BYTES, held, read_named, write_atomically
from erosion_common.support.text import shown
from erosion_server.run import provenance
from experiments.basis import Basis, digest_of


def _on_standard_error(note: str) -> None:
    print(shown(note), file=sys.stderr)


class NotesOnce(logging.Handler):
    """Says each sentence of the program's log when it comes first."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say, self._said = say, set[str]()

    def emit(self, record: logging.LogRecord) -> None:
        """Say what was logged in this process."""
        self.tell(record.getMessage())

    def tell(self, note: str) -> None:
        """Say it, unless it was said."""
        if note not in self._said:
            self._said.add(note)
            self._say(note)


@contextmanager
def notes_once(say: Callable[[str], None] = _on_standard_error) -> Iterator[NotesOnce]:
    """Say what the program logs meanwhile, each sentence once."""
    log, notes = logging.getLogger("erosion"), NotesOnce(say)
    log.addHandler(notes)
    try:
        yield notes
    finally:
        log.removeHandler(notes)


FILE_NAME = "cells.jsonl"
_KEPT = "The cells that ended are kept, and the same command continues with the others"
_CHANGED = "made by a checkout with changes that no commit holds"

Values = Mapping[str, Any]  # what JSON can hold


class ExperimentError(ErosionError):
    """An experiment cannot be run or drawn as asked."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class CellPlan:
    """One run of an experiment: all that decides its figures."""

    name: str  # letters, digits, dots and hyphens
    config: Values  # the seed included


def planned(name: str, points: Iterable[Values], **same: Any) -> list[CellPlan]:
    """Return a cell for each point of a grid; its name is put together from its settings."""
    configs = ({**point, **same} for point in points)
    return [CellPlan(name.format(**config), config) for config in configs]


@dataclass(frozen=True)
class Cell:
    """A cell that was run."""

    plan: CellPlan
    figures: Values  # per-round records and results, as the experiment wrote them
    commit: str
    command: str
    seconds: float  # of a processor; of a clock in the first cells
    machine: str = "a machine that was not written down"  # processor or GPU, where it was
    basis: Basis = field(default_factory=Basis)
    stale: str = ""  # why it would differ today

    @property
    def key(self) -> str:
        """Of all that decides its figures."""
        return digest_of({"config": self.plan.config, "basis": self.basis.digest})

    @cached_property
    def line(self) -> str:
        """For the file."""
        values = {
            "cell": self.plan.name,
            "key": self.key,
            "config": self.plan.config,
            "basis": self.basis.digest,
            "commit": self.commit,
            "command": self.command,
            "seconds": self.seconds,
            "machine": self.machine,
            "figures": self.figures,
        }
        return _line(values)


_Ended = tuple[Values, float, list[str]]  # of a cell: figures, seconds, what hospitals noted

# (configuration, data folder) -> figures. A module's function, so that a process can call it. Some
# take a `device` to train on.
RunCell = Callable[..., Values]
BasisOf = Callable[[Values], Basis]  # what a cell of this configuration rests on today


def _on_nothing_else(_config: Values) -> Basis:
    return Basis()


@dataclass(slots=True)
class CellFile:
    """The cells of one experiment, sorted by name; what they rest on stands before them."""

    path: Path
    bases: dict[str, Basis]  # by digest
    cells: dict[str, Cell]

    @classmethod
    def read(cls, folder: Path) -> "CellFile":
        """Return all cells of a folder; raises ExperimentError."""
        found = cls(folder / FILE_NAME, {}, {})
        if not found.path.exists():
            return found
        number = 0
        try:
            text = read_named(found.path, most_bytes=MOST_KEPT_BYTES).decode()
            for number, line in enumerate(text.splitlines(), start=1):  # noqa: B007 - it is reported
                found._take(json.loads(line))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
            raise ExperimentError(
                f"{found.path}, line {number}: it cannot be read ({type(problem).__name__}:"
                f" {problem}). Delete that line: the cell is then run again."
            ) from None
        return found

    def _take(self, raw: Values) -> None:
        """A line; raises ValueError, KeyError or TypeError."""
        if "cell" not in raw:
            basis = Basis.read(raw)
            self.bases[basis.digest] = basis
            return
        figures = dict(raw["figures"])
        if not figures:
            raise ValueError("it has no figures")
        json.dumps(figures, allow_nan=False)  # no figure may be "not a number"
        cell = Cell(
            CellPlan(str(raw["cell"]), dict(raw["config"])),
            figures,
            str(raw["commit"]),
            str(raw["command"]),
            float(raw["seconds"]),
            str(raw["machine"]),
            self.bases[raw["basis"]],
        )
        if raw["key"] != cell.key:
            raise ValueError("its configuration was edited")
        self.cells[cell.plan.name] = cell

    def write(self) -> None:
        """Replace the file; raises OSError."""
        cells = [self.cells[name] for name in sorted(self.cells)]
        bases = {
            cell.basis.digest: {"basis": cell.basis.digest, **cell.basis.values} for cell in cells
        }
        lines = [_line(bases[digest]) for digest in sorted(bases)]
        write_atomically(self.path, "".join([*lines, *(cell.line for cell in cells)]))


def _line(values: Values) -> str:
    return json.dumps(values, separators=(",", ":"), allow_nan=False) + "\n"


def read_cells(
    folder: Path, plans: Iterable[CellPlan], basis_of: BasisOf | None = None
) -> dict[str, Cell]:
    """Return the planned cells that were run, by name; raises ExperimentError.

    A cell with other settings than the plan's was not run. `basis_of` says which are stale; without
    it none is.
    """
    kept, found = CellFile.read(folder).cells, {}
    for plan in plans:
        cell = kept.get(plan.name)
        if cell is None or cell.plan.config != json.loads(json.dumps(plan.config)):
            continue
        stale = ""
        if basis_of is not None:
            is_committed = not cell.commit.endswith(provenance.CHANGES)
            stale = (
                cell.basis.stale(basis_of(plan.config), plan.config) if is_committed else _CHANGED
            )
        found[plan.name] = replace(cell, plan=plan, stale=stale)
    return found


def run_cells(
    folder: Path,
    plans: Sequence[CellPlan],
    run: RunCell,
    *,
    title: str,
    data_dir: Path | None,
    basis_of: BasisOf = _on_nothing_else,
    jobs: int = 1,
    device: str = "cpu",
) -> dict[str, Cell]:
    """Run the cells that are missing or stale, in `jobs` processes, and return all by name.

    `device`: what `run` trains on. Each cell is written as soon as it has ended. There are no more
    processes than cores. Raises ExperimentError for a checkout with changes, a folder that cannot
    be written to or that another run writes to, a disk that is full, and a process that was ended.
    """
    if _to_run(folder, plans, basis_of):
        commit = committed()
        with _folder_of_its_own(folder), _bar() as progress, notes_once() as told:
            missing = _to_run(folder, plans, basis_of)  # another run may have ended meanwhile
            file, done = CellFile.read(folder), len(plans) - len(missing)
            command, machine = provenance.command(), _machine(device)
            cells = progress.add_task(f"{title}: cells", total=len(plans), completed=done)
            work = (missing, run, data_dir)
            ended = _in_turn(*work) if jobs == 1 else _in_processes(*work, jobs)
            with closing(ended):
                for plan, (figures, seconds, notes) in ended:
                    for note in notes:
                        told.tell(note)
                    basis, took = basis_of(plan.config), round(seconds, 3)
                    file.cells[plan.name] = Cell(
                        plan, figures, commit, command, took, machine, basis
                    )
                    _write(file, plan)
                    progress.advance(cells)
    return read_cells(folder, plans, basis_of)


def _machine(device: str) -> str:
    """Return the processor, or the GPU and the release of torch for it."""
    if device == "cpu":
        return provenance.machine()
    return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"


def committed() -> str:
    """Return the commit behind figures; raises ExperimentError where the checkout has changes."""
    commit = provenance.commit()
    if commit.endswith(provenance.CHANGES):
        raise ExperimentError(
            "This checkout holds changes that no commit has (`git status` lists them), so nobody"
            " could say later which program the figures are of. Commit them, or put them aside with"
            " `git stash -u`; then give the same command."
        )
    return commit


def _to_run(folder: Path, plans: Sequence[CellPlan], basis_of: BasisOf) -> list[CellPlan]:
    fresh = {name for name, c in read_cells(folder, plans, basis_of).items() if not c.stale}
    return [plan for plan in plans if plan.name not in fresh]


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def _in_turn(
    plans: Sequence[CellPlan], run: RunCell, data_dir: Path | None
) -> Generator[tuple[CellPlan, _Ended], None, None]:
    """Cells as they end in this process, where notes are said as they come."""
    for plan in plans:
        before = _processor_seconds()
        figures = run(plan.config, data_dir)
        yield plan, (figures, _processor_seconds() - before, [])


def _in_processes(
    plans: Sequence[CellPlan], run: RunCell, data_dir: Path | None, jobs: int
) -> Generator[tuple[CellPlan, _Ended], None, None]:
    """Cells as they end, each process with one thread: more would only compete for the cores."""
    others = set(active_children())
    jobs = max(1, min(jobs, len(plans), len(os.sched_getaffinity(0))))
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_begin_process) as pool:
        running: dict[Future[_Ended], CellPlan] = {}
        try:
            # Ctrl-C reaches all: the first process ends the others, which begin with this mask.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                for plan in plans:
                    running[pool.submit(_timed, run, plan.config, data_dir)] = plan
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
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
        figures = run(config, data_dir)
    return figures, _processor_seconds() - before, notes


def _processor_seconds() -> float:
    """Return what this process has used, and those that it started and that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _end_with_parent() -> None:
    """End this process of `multiprocessing` with its parent: a worker would wait for ever."""
    parent = parent_process()
    if parent is None:
        raise RuntimeError("this process was not started by multiprocessing")

    def watch() -> None:
        parent.join()
        os._exit(1)  # not sys.exit, which ends this thread alone

    threading.Thread(target=watch, daemon=True).start()


def _begin_process() -> None:
    torch.set_num_threads(1)
    _end_with_parent()


def _write(file: CellFile, plan: CellPlan) -> None:
    try:
        file.write()
    except ValueError:
        raise ExperimentError(
            f"The cell {plan.name} ended with a figure that is not a finite number, and was"
            f" not kept: its training went astray. {_KEPT}; name those with --cells."
        ) from None
    except OSError as problem:
        raise ExperimentError(
            f"{file.path} cannot be written ({problem.strerror or problem}). {_KEPT}; free some"
            " space or give another folder (--results)."
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
