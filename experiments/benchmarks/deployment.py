"""A real deployment on this machine under measurement: the programs that hospitals run.

A process for the coordinator and one for each hospital, over the loopback, with consent, records,
logs and checkpoints. Only the data are made up, and the training is short, so that the round is
what is measured.
"""

import json
import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Self

import numpy as np

from erosion.simulation.testbed import deploy
from erosion.sources.source import write_table
from erosion_common.study.study import Study
from erosion_server.run.journal import read_journal
from erosion_server.run.run_folder import new_run_folder
from experiments.benchmarks.harness import BenchmarkError

FEATURES = [f"x{number}" for number in range(30)]
PATIENTS = 40  # of each hospital
LARGE_DIM = 11_202_122
MODELS: dict[str, dict[str, Any]] = {  # parameters -> model
    "62": {"name": "logistic"},
    "356k": {"name": "mlp", "hidden": [580, 580]},  # 356,122
    "11.2M": {"name": "mlp", "hidden": [3330, 3330]},  # LARGE_DIM
}
_TICKS = os.sysconf("SC_CLK_TCK")
_EVERY = 0.05  # seconds between two looks


@dataclass(frozen=True, slots=True)
class Deployed:
    """The rounds after the first."""

    seconds_per_round: tuple[float, ...]  # from the end of one to the end of the next
    records: Sequence[Mapping[str, Any]]  # lines of the journal
    processor_seconds: Mapping[str, float]  # a round, of coordinator, user, a peer, and all


def study_of(peers: int, model: str, rounds: int, *, sealed: bool = False) -> Study:
    """Everyone trains on two mini-batches of two patients."""
    names = ["user", *(f"peer{number}" for number in range(peers))]
    return Study.model_validate(
        {
            "name": "benchmark",
            "user": "user",
            "hospitals": names,
            "rounds": rounds,
            "task": {"kind": "tabular", "target": "y", "classes": ["0", "1"], "features": FEATURES},
            "scaling": "local",
            "model": MODELS[model],
            "training": {"steps": 2, "batch_size": 2, "learning_rate": 0.01},
            "arms": {"fedavg": {"weighting": "uniform"}},
            "evaluation": {"bootstrap": 100},
            "federation": {
                "sealed": sealed,
                "quorum": len(names),
                "round_deadline_seconds": 600,
                "join_deadline_seconds": 600,
            },
        }
    )


def measure(study: Study) -> Deployed:
    """Run it to its end. Raises BenchmarkError where it fails."""
    with tempfile.TemporaryDirectory(prefix="erosion-benchmark-") as name:
        folder = Path(name)
        run = new_run_folder(folder / "runs", study)
        hospitals = {name: _patients(folder / "data" / name, name) for name in study.hospitals}
        said = folder / "coordinator.jsonl"
        with _CpuMeter(run.journal, study.rounds) as meter:
            code = deploy(
                study, run, hospitals, server_flags=["--log-format=json"], server_log=said
            )
        if code:
            tail = "\n".join(said.read_text().splitlines()[-5:])
            raise BenchmarkError(f"the deployment ended with exit code {code}:\n{tail}")
        events = (json.loads(line) for line in said.read_text().splitlines() if line[:1] == "{")
        ends = [
            datetime.fromisoformat(event["time"])
            for event in events
            if event.get("event") == "round_finished"
        ]
        return Deployed(
            tuple((after - before).total_seconds() for before, after in pairwise(ends)),
            list(read_journal(run.journal))[1:],
            meter.of_a_round(study.user),
        )


def _patients(folder: Path, name: str) -> dict[str, str]:
    draws = np.random.default_rng(sum(map(ord, name)))
    rows = draws.normal(size=(PATIENTS, len(FEATURES)))
    cells = [[*(f"{x:.4f}" for x in row), int(row[0] > 0)] for row in rows]
    write_table(folder / "patients.csv", [*FEATURES, "y"], cells)
    return {"path": str(folder / "patients.csv")}


class _CpuMeter:
    """Follows the programs of a deployment from the end of the first round to the last but one."""

    def __init__(self, journal: Path, rounds: int) -> None:
        """`journal` has a line for each round; at least three are needed."""
        self._journal, self._last = journal, rounds - 1
        self._seen: dict[int, dict[str, float]] = {}  # by rounds done, then by program
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def of_a_round(self, user: str) -> dict[str, float]:
        """Of the coordinator, of the user's site, of a peer's (median), and of all together."""
        if len(self._seen) < 2:
            raise BenchmarkError(f"the rounds end within {_EVERY:g} s here; give more --rounds")
        begun, *_, ended = (self._seen[number] for number in sorted(self._seen))
        rounds = max(self._seen) - min(self._seen)
        spent = {who: (ended[who] - begun[who]) / rounds for who in begun if who in ended}
        peers = [seconds for who, seconds in spent.items() if who not in ("coordinator", user)]
        return {
            "coordinator": spent["coordinator"],
            "user": spent[user],
            "peer": median(peers),
            "all": sum(spent.values()),
        }

    def _watch(self) -> None:
        while not self._stop.wait(_EVERY):
            try:
                done = len(self._journal.read_bytes().splitlines())
            except OSError:  # nothing is there yet
                continue
            if 0 < done <= self._last and done not in self._seen:
                self._seen[done] = _processor_seconds()


def _processor_seconds() -> dict[str, float]:
    """Return those of every program of the deployment so far, by name."""
    parents, found = {}, {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (process / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:  # it has ended
            continue
        figures = rest.split()
        parents[int(process.name)] = int(figures[1])
        found[int(process.name)] = name, (int(figures[11]) + int(figures[12])) / _TICKS
    # A program's parent is the process that all are forked from, which this one started.
    return dict(found[pid] for pid in found if parents.get(parents[pid]) == os.getpid())
