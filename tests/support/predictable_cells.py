"""Cells with figures that a test can predict; other processes import no more than these."""

import logging
import os
import signal
import threading
import time
from pathlib import Path

from erosion_common.support.files import write_atomically
from experiments.cells import CellPlan, Values

REST_SECONDS = 0.3


def plans(offset: int = 0) -> list[CellPlan]:
    return [CellPlan(f"seed-{s}", {"seed": s, "offset": offset}) for s in range(3)]


def double(config: Values, data_dir: Path | None) -> Values:
    return {"value": 2 * config["seed"] + config["offset"]}


def resting_with_notes(config: Values, data_dir: Path | None) -> Values:
    """Its hospitals note what those of every cell do, and something of its own."""
    for note in ("33 of 294 rows dropped", f"the row of seed {config['seed']}"):
        logging.getLogger("erosion.site").warning("%s: %s", "hungary", note)
    began = time.monotonic()
    time.sleep(REST_SECONDS)
    return {**double(config, data_dir), "clock": time.monotonic() - began}


def ended(config: Values, data_dir: Path | None) -> Values:
    """What the kernel does to a process that asks for too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def waits(config: Values, data_dir: Path | None) -> Values:
    """Leaves its process's number in the data folder and goes on for ever."""
    assert data_dir is not None
    write_atomically(data_dir / f"{config['seed']}.pid", str(os.getpid()))
    threading.Event().wait()
    return {}


def slow_but_for_the_first(config: Values, data_dir: Path | None) -> Values:
    """Leaves a file of its own in the data folder when it has run to its end."""
    assert data_dir is not None
    if config["seed"]:
        time.sleep(20)
        (data_dir / str(config["seed"])).touch()
    return double(config, data_dir)
