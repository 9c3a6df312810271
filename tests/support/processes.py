"""Processes for tests: forked from one that has imported everything, they start in milliseconds."""

import ctypes
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from types import MappingProxyType

import pytest

from experiments.faults import stepped_clock
from experiments.faults.stepped_clock import compiled, why_no_steps
from tests.support import full_disk

FORKED = multiprocessing.get_context("forkserver")
_SERVER = forkserver.ForkServer()  # apart from that of `erosion testbed`
_SERVER.set_forkserver_preload(["tests.support.preloaded"])


def start(
    program: Callable[..., None],
    *arguments: object,
    daemon: bool = True,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> BaseProcess:
    """Run `program` in a process of its own; a daemon ends with this one, and starts no others.

    `environment` is added to this process's own; a `SteppedClock`'s or a `FullDisk`'s works, too.
    """
    process = FORKED.Process(
        target=_run, args=({**os.environ, **environment}, program, *arguments), daemon=daemon
    )
    with from_our_server():
        process.start()
    return process


@contextmanager
def from_our_server() -> Iterator[None]:
    """Processes of `FORKED` that start in here start in milliseconds."""
    _begin_to_fork()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forkserver, "connect_to_new_process", _SERVER.connect_to_new_process)
        yield


@cache
def _begin_to_fork() -> None:
    """Begin what all are forked from, with the libraries that only a new program can load."""
    with pytest.MonkeyPatch.context() as patch:
        if why_no_steps() is None:
            libraries = [str(compiled(each)) for each in (stepped_clock.SOURCE, full_disk.SOURCE)]
            patch.setenv("LD_PRELOAD", ":".join(libraries))
        _SERVER.ensure_running()


def _run(environment: Mapping[str, str], program: Callable[..., None], *arguments: object) -> None:
    """Call it in this test's environment, not in that of the first test that forked one."""
    os.environ.clear()
    os.environ.update(environment)
    if "STEPPED_CLOCK" in environment:
        ctypes.CDLL(None).follow_stepped_clock()
    program(*arguments)
