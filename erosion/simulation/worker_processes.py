"""Hospitals that are called in processes of one thread each, all forked from this one.

A fork inherits the hospitals as they are: their data are loaded once and lie in memory once. From
then on each hospital lives in one of the processes, with all that it keeps between rounds. What it
answers is, bit by bit, what it would have answered here. Values travel through a pipe, pickled.
"""

import gc
import heapq
import io
import logging
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from multiprocessing.connection import Connection as PipeEnd
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, Self, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from erosion_common.errors import RunError
from erosion_common.rounds.channel import Connection, Request
from erosion_common.settings.packages import faults_of_packages
from erosion_common.study.study import Study


class _Pickler(pickle.Pickler):
    """Tensors as arrays, and a study as it travels over a network."""

    def reducer_override(self, value: object) -> Any:
        """Return how to make it again."""
        if isinstance(value, Tensor):
            return _tensor, (value.detach().contiguous().numpy(),)
        if isinstance(value, Study):
            return _study, (value.canonical_json(),)
        return NotImplemented


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array).clone()  # in torch's memory it is aligned as it was before


@lru_cache(maxsize=4)  # a study is named by every request
def _study(text: str) -> Study:
    return Study.model_validate_json(text)


def _send(pipe: PipeEnd, message: object) -> None:
    """Send to another process. Raises OSError where it has ended."""
    with io.BytesIO() as stream:
        _Pickler(stream, protocol=5).dump(message)
        pipe.send_bytes(stream.getbuffer())


def _receive(pipe: PipeEnd) -> Any:
    """Return the next message. Raises EOFError and OSError where the other process ended."""
    return pickle.loads(pipe.recv_bytes())  # noqa: S301 - of this program, forked


STOP_SECONDS = 5.0  # for a process to end when asked

A = TypeVar("A")  # what is made of a request


@dataclass(frozen=True, slots=True)
class _Raised:
    """An exception that is a fault of the program, from another process."""

    problem: Exception
    trace: str


@dataclass(frozen=True, slots=True)
class _Worker:
    """One process, seen from here."""

    process: BaseProcess
    pipe: PipeEnd


class WorkerProcesses(Generic[A]):
    """Calls `answers(requests)` in the processes that the hospitals live in, each with its own.

    As a context manager it ends every process; each also ends with this one.
    """

    def __init__(
        self,
        answers: Callable[[Mapping[Connection, Request]], Iterable[A]],
        loads: Mapping[Connection, int],
        num_workers: int,
    ) -> None:
        """Fork. `loads`: how much each connection's work is."""
        self._home = _shared_out(loads, num_workers)
        self._workers: list[_Worker] = []
        context = get_context("fork")
        reading, self._lifeline = os.pipe()  # its writing end is closed when this process ends
        try:
            for _ in range(num_workers):
                ours, theirs = context.Pipe()
                inherited = [*(worker.pipe for worker in self._workers), ours]
                process = context.Process(
                    target=_work,
                    args=(theirs, answers, inherited, (reading, self._lifeline)),
                    daemon=True,
                )
                process.start()
                theirs.close()
                self._workers.append(_Worker(process, ours))
        except BaseException:  # nobody else would end those that have started
            self.close()
            raise
        finally:
            os.close(reading)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def answers(self, requests: Mapping[Connection, Request]) -> Iterator[A]:
        """What `answers` gave for each, as it comes; to be followed to the end.

        Raises RunError where a process was ended, and what `answers` raised.
        """
        asked: dict[int, dict[Connection, Request]] = {}
        for connection, request in requests.items():
            asked.setdefault(self._home[connection], {})[connection] = request
        pending = {number: len(parts) for number, parts in asked.items()}
        for number, parts in asked.items():
            with self._alive(number):
                _send(self._workers[number].pipe, parts)
        while pending:
            ready = wait([self._workers[number].pipe for number in pending])
            for number in [n for n in pending if self._workers[n].pipe in ready]:
                with self._alive(number):
                    found = _receive(self._workers[number].pipe)
                if isinstance(found, _Raised):
                    found.problem.add_note(f"In a worker process:\n{found.trace}")
                    raise found.problem
                pending[number] -= 1
                if not pending[number]:
                    del pending[number]
                yield found
                del found  # it may be large

    def close(self) -> None:
        """End every process, at once."""
        with suppress(OSError):  # closed before
            os.close(self._lifeline)
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(STOP_SECONDS)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers.clear()

    @contextmanager
    def _alive(self, number: int) -> Iterator[None]:
        """Turn the end of a process into a RunError."""
        try:
            yield
        except (EOFError, OSError):
            process = self._workers[number].process
            process.join(STOP_SECONDS)
            raise RunError(
                f"Process {number + 1} of the {len(self._workers)} that the hospitals are"
                f" called in ended (exit code {process.exitcode}), often for want of memory",
                remedy="Give fewer workers, or 1: then they are called in this process.",
            ) from None


def _shared_out(loads: Mapping[Connection, int], num_workers: int) -> dict[Connection, int]:
    """Return a process for each hospital: largest first, each to the least loaded process."""
    homes = {}
    busy = [(0, number) for number in range(num_workers)]
    for connection in sorted(loads, key=lambda connection: -loads[connection]):
        load, number = heapq.heappop(busy)
        homes[connection] = number
        heapq.heappush(busy, (load + loads[connection], number))
    return homes


def _work(
    pipe: PipeEnd,
    answers: Callable[[Mapping[Connection, Request]], Iterable[object]],
    inherited: Sequence[PipeEnd],
    lifeline: tuple[int, int],
) -> None:
    """A process's whole life. The one that forked it speaks for it: it writes to no stream."""
    for number in (signal.SIGINT, signal.SIGHUP):  # for the other one, which ends this one
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    logging.disable(logging.CRITICAL)  # a lock of a handler may have been held during the fork
    torch.set_num_threads(1)  # more would only compete for the cores
    gc.freeze()  # what was inherited is not looked through, which would copy its pages
    for other in inherited:
        other.close()
    reading, writing = lifeline
    os.close(writing)
    threading.Thread(target=_end_with, args=(reading,), daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            for answered in _answered(answers, _receive(pipe)):
                _send(pipe, answered)
                del answered  # it may be large
    os._exit(0)


def _end_with(lifeline: int) -> None:
    """End this process, in the middle of its work, when the one that forked it has ended."""
    os.read(lifeline, 1)
    os._exit(0)


def _answered(
    answers: Callable[[Mapping[Connection, Request]], Iterable[object]],
    requests: Mapping[Connection, Request],
) -> Iterator[object]:
    try:
        with faults_of_packages():  # a traceback cannot be sent to the other process
            yield from answers(requests)
    except Exception as problem:  # noqa: BLE001 - it is raised in the other process
        trace = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(problem))  # noqa: S301 - made here
        except Exception:  # noqa: BLE001 - an exception's __init__ may raise anything
            problem = RunError(str(problem), where=type(problem).__name__)
        yield _Raised(problem, trace)
