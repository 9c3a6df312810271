"""Benchmark of sealed rounds against plain ones: seconds and bytes at each party.

    python -m experiments.benchmarks.sealed_round --json sealed_round.json

Every run is a real deployment on this machine, a process for the coordinator and one for each
hospital, over the loopback. The figures are the journal's: medians over the rounds after the first.
Processor seconds are of all threads and hardly depend on the machine's load; on a busy machine,
trust only the ratio of those of all programs."""

import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

import numpy as np
import tomli_w

from erosion.simulation.program import run_program
from erosion.simulation.testbed import deploy
from erosion.sources import Data
from erosion_common.study.study import Study, load_study
from erosion_server.run.journal import read_journal
from erosion_server.run.run_folder import new_run_folder
from experiments.benchmarks.report_line import ReportLine, parser_of, report

_TICKS = os.sysconf("SC_CLK_TCK")
_EVERY = 0.05  # seconds between two looks


class CpuMeter:
    """Follows this process's children from the end of the first round to the last but one."""

    def __init__(self, journal: Path, rounds: int) -> None:
        """`journal` has a line for each round; at least three are needed."""
        self._journal, self._last = journal, rounds - 1
        self._seen: dict[int, dict[str, float]] = {}  # by rounds done, then by program
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def of_a_round(self, user: str) -> dict[str, float]:
        """Of the coordinator, of the user's site, of a peer's (median), and of all together."""
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
                self._seen[done] = _children()


def _children() -> dict[str, float]:
    """Processor seconds of every program of the deployment so far."""
    spent = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            figures = (process / "stat").read_text().rpartition(")")[2].split()
            arguments = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:  # it has ended
            continue
        if int(figures[1]) != os.getpid():
            continue
        sites = [argument for argument in arguments if argument.endswith("site.toml")]
        who = Path(sites[0]).parent.name if sites else "coordinator"
        spent[who] = (int(figures[11]) + int(figures[12])) / _TICKS
    return spent


FEATURES = [f"x{number}" for number in range(30)]
PATIENTS = 40  # of each hospital
MODELS: dict[str, dict[str, Any]] = {  # parameters -> model
    "62": {"name": "logistic"},
    "356k": {"name": "mlp", "hidden": [580, 580]},  # 356,122
    "11.2M": {"name": "mlp", "hidden": [3330, 3330]},  # 11,202,122
}


@dataclass(frozen=True, slots=True)
class Party:
    """One hospital, or all hospitals' median."""

    site_seconds: float  # of local work, training included
    bytes_down: float
    bytes_up: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One kind of round."""

    seconds: float  # wall clock, from making the requests to the aggregate
    seconds_by_step: Mapping[str, float]
    coordinator_seconds: float  # wall clock outside of the exchanges: its own arithmetic
    processor_seconds: Mapping[str, float]  # of coordinator, user, a peer, and all together
    peer: Party
    user: Party


def study_of(peers: int, model: str, rounds: int, *, sealed: bool) -> dict[str, Any]:
    """Everyone trains on two mini-batches, so that the round is what is measured."""
    names = ["user", *(f"peer{number}" for number in range(peers))]
    return {
        "name": "sealed-round",
        "user": "user",
        "hospitals": names,
        "rounds": rounds,
        "task": {
            "kind": "tabular",
            "target": "y",
            "classes": ["0", "1"],
            "features": FEATURES,
        },
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


def measure(peers: int, model: str, rounds: int, *, sealed: bool) -> Measured:
    """Run a deployment. Raises SystemExit where it fails: there is then nothing to compare."""
    folder = Path(tempfile.mkdtemp(prefix="sealed-round-"))
    try:
        path = folder / "study.toml"
        path.write_text(tomli_w.dumps(study_of(peers, model, rounds, sealed=sealed)))
        study = load_study(path)
        run = new_run_folder(folder / "runs", study)
        hospitals = {name: _patients(folder / "data" / name, name) for name in study.hospitals}
        with CpuMeter(run.journal, rounds) as meter:
            if code := deploy(study, run, hospitals):
                sys.exit(f"the deployment of {peers} x {model} ended with exit code {code}")
        records = list(read_journal(run.journal))[1:]
        return _measured(study, records, meter.of_a_round(study.user))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _patients(folder: Path, name: str) -> Data:
    folder.mkdir(parents=True)
    draws = np.random.default_rng(sum(map(ord, name)))
    rows = draws.normal(size=(PATIENTS, len(FEATURES)))
    lines = [",".join([*(f"{x:.4f}" for x in row), str(int(row[0] > 0))]) for row in rows]
    path = folder / "patients.csv"
    path.write_text("\n".join([",".join([*FEATURES, "y"]), *lines]) + "\n")
    return {"path": str(path)}


def _measured(
    study: Study, records: Sequence[Mapping[str, Any]], processor_seconds: Mapping[str, float]
) -> Measured:
    exchanges = [{step["step"]: step["seconds"] for step in record["steps"]} for record in records]
    steps = list(exchanges[0]) if exchanges[0] else []
    outside = [
        record["seconds"] - sum(step["seconds"] for step in record["steps"]) for record in records
    ]
    peers = [name for name in study.hospitals if name != study.user]
    return Measured(
        seconds=median(record["seconds"] for record in records),
        seconds_by_step={step: median(e[step] for e in exchanges) for step in steps},
        coordinator_seconds=median(outside) if steps else 0.0,
        processor_seconds=processor_seconds,
        peer=_party(records, peers),
        user=_party(records, [study.user]),
    )


def _party(records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Party:
    def typical(figure: str) -> float:
        values = [record["hospitals"][name][figure] for record in records for name in names]
        return float(median(values))

    return Party(typical("site_seconds"), typical("bytes_sent"), typical("bytes_received"))


def compare(
    peers: Sequence[int], models: Sequence[str], rounds: int
) -> Iterator[tuple[list[ReportLine], dict[str, Any]]]:
    """Each size, plain and sealed one after the other."""
    for model in models:
        for number in peers:
            name = f"{number}x{model}"
            kinds = {}
            for kind, sealed in (("plain", False), ("sealed", True)):
                print(f"{name}, {kind} ...", file=sys.stderr, flush=True)
                kinds[kind] = measure(number, model, rounds, sealed=sealed)
            print(_row(name, kinds), flush=True)
            ours, theirs = kinds["sealed"], kinds["plain"]
            ratios = [
                ReportLine(
                    f"sealed_round.{name}.vs_plain", ours.seconds, theirs.seconds, "s/round"
                ),
                ReportLine(
                    f"sealed_round.{name}.processors",
                    ours.processor_seconds["all"],
                    theirs.processor_seconds["all"],
                    "processor s/round",
                ),
            ]
            yield ratios, {name: {kind: asdict(found) for kind, found in kinds.items()}}


def _row(name: str, kinds: Mapping[str, Measured]) -> str:
    lines = []
    for kind, found in kinds.items():
        steps = ", ".join(f"{step} {s:.2f}" for step, s in found.seconds_by_step.items())
        lines.append(
            f"{name:9} {kind:6} {found.seconds:7.2f} s  peer {found.peer.site_seconds:.3f} s"
            f" {found.peer.bytes_down / 1e3:.1f} kB down {found.peer.bytes_up / 1e3:.1f} kB up"
            f"  user {found.user.site_seconds:.3f} s"
            f"  processors {found.processor_seconds['all']:.2f} s"
            f"  {f'({steps}; elsewhere {found.coordinator_seconds:.2f})' if steps else ''}"
        )
    return "\n".join(lines)


def main() -> None:
    """Read the command line, measure, and report."""
    parser = parser_of(__doc__)
    parser.add_argument("--peers", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=5, help="of each; the first is not counted")
    options = parser.parse_args()
    if options.rounds < 3 or min(options.peers) < 3:
        parser.error("--rounds must be 3 or more, and --peers 3 or more")
    lines, details = [], {}
    for found_lines, found in compare(options.peers, options.models, options.rounds):
        lines += found_lines
        details.update(found)
    report(lines, json_path=options.json, details=json.loads(json.dumps(details)))


if __name__ == "__main__":
    run_program(main)
