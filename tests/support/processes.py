"""Processes for tests: forked from one that has imported everything, they start in milliseconds."""

import multiprocessing
import os
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess

FORKED = multiprocessing.get_context("forkserver")
multiprocessing.set_forkserver_preload(
    [
        "torch",
        "torch._dynamo",  # what the first optimiser imports
        "erosion_server.coordination.run_study",
        "pyarrow.compute",  # what the first table imports
        "tests.support.programs",
        "tests.support.killed_coordinator",
    ]
)


def start(program: Callable[..., None], *arguments: object, daemon: bool = True) -> BaseProcess:
    """Run `program` in a process of its own; a daemon ends with this one, and starts no others."""
    process = FORKED.Process(
        target=_run, args=(dict(os.environ), program, *arguments), daemon=daemon
    )
    process.start()
    return process


def _run(environment: Mapping[str, str], program: Callable[..., None], *arguments: object) -> None:
    """Call it in this test's environment, not in that of the first test that forked one."""
    os.environ.clear()
    os.environ.update(environment)
    program(*arguments)
