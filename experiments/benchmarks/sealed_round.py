"""Benchmark of sealed rounds against plain ones: seconds and bytes at each party.

    python -m experiments.benchmarks.sealed_round --json sealed_round.json

Every run is a real deployment on this machine. The figures are the journal's: medians over the
rounds after the first. Processor seconds are of all threads and hardly depend on the machine's
load; on a busy machine, trust only the ratio of those of all programs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from experiments.benchmarks.deployment import MODELS, Deployed, measure, study_of
from experiments.benchmarks.harness import ReportLine, parser_of, report, say
from experiments.program import run_program


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


def summarised(found: Deployed) -> Measured:
    """Return medians over the rounds."""
    records = found.records
    exchanges = [{step["step"]: step["seconds"] for step in record["steps"]} for record in records]
    outside = [r["seconds"] - sum(s.values()) for r, s in zip(records, exchanges, strict=True)]
    peers = [name for name in records[0]["hospitals"] if name != "user"]
    return Measured(
        seconds=median(record["seconds"] for record in records),
        seconds_by_step={step: median(e[step] for e in exchanges) for step in exchanges[0]},
        coordinator_seconds=median(outside) if exchanges[0] else 0.0,
        processor_seconds=found.processor_seconds,
        peer=_party(records, peers),
        user=_party(records, ["user"]),
    )


def _party(records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Party:
    def typical(figure: str) -> float:
        return float(median(r["hospitals"][name][figure] for r in records for name in names))

    return Party(typical("site_seconds"), typical("bytes_sent"), typical("bytes_received"))


def _row(name: str, kind: str, found: Measured) -> str:
    steps = ", ".join(f"{step} {s:.2f}" for step, s in found.seconds_by_step.items())
    return (
        f"{name:9} {kind:6} {found.seconds:7.2f} s  peer {found.peer.site_seconds:.3f} s"
        f" {found.peer.bytes_down / 1e3:.1f} kB down {found.peer.bytes_up / 1e3:.1f} kB up"
        f"  user {found.user.site_seconds:.3f} s"
        f"  processors {found.processor_seconds['all']:.2f} s"
        f"  {f'({steps}; elsewhere {found.coordinator_seconds:.2f})' if steps else ''}"
    )


def main() -> None:
    """Read the command line, measure each size, plain and sealed in turn, and report."""
    parser = parser_of(__doc__)
    parser.add_argument("--peers", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=5, help="of each; the first is not counted")
    options = parser.parse_args()
    if options.rounds < 3 or min(options.peers) < 3:
        parser.error("--rounds must be 3 or more, and --peers 3 or more")
    lines, details = [], {}
    for model in options.models:
        for peers in options.peers:
            name, kinds = f"{peers}x{model}", {}
            for kind in ("plain", "sealed"):
                say(f"{name}, {kind} ...")
                study = study_of(peers, model, options.rounds, sealed=kind == "sealed")
                kinds[kind] = summarised(measure(study))
                print(_row(name, kind, kinds[kind]), flush=True)
            ours, plain = kinds["sealed"], kinds["plain"]
            lines += [
                ReportLine(f"sealed_round.{name}.vs_plain", ours.seconds, plain.seconds, "s/round"),
                ReportLine(
                    f"sealed_round.{name}.processors",
                    ours.processor_seconds["all"],
                    plain.processor_seconds["all"],
                    "processor s/round",
                ),
            ]
            details[name] = {kind: asdict(found) for kind, found in kinds.items()}
    report(lines, json_path=options.json, details=details)


if __name__ == "__main__":
    run_program(main)
