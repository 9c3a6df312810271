"""Peak memory of a deployed coordinator, in models, for a growing number of hospitals.

    python -m experiments.benchmarks.coordinator_memory --json coordinator_memory.json

Real rounds over gRPC on loopback: the coordinator is one process, the sites are threads of
another. Counted is what the rounds add to the coordinator's resident memory once all have joined:
parameters, messages under way, updates, the aggregate, the checkpoint. Ours keeps the updates on
the disk (`erosion server --updates disk`), the peer is ours with updates in memory.
"""

import json
import sys
from collections.abc import Sequence

from erosion.simulation.free_ports import LOOPBACK, free_ports
from erosion.simulation.program import run_program
from experiments.benchmarks.measurement import expected_shift, read_rounds
from experiments.benchmarks.ours import PROGRAMS
from experiments.benchmarks.processes import Processes
from experiments.benchmarks.report_line import ReportLine, parser_of, report

DIM = 11_181_642  # torchvision's resnet18 with ten classes: 45 MB
HOSPITALS = (4, 16, 64)
ROUNDS = 2


def measure(
    num_sites: int, dim: int, *, on_disk: bool, deadline_seconds: float = 1800
) -> tuple[float, float]:
    """Peak memory in models, and the median round's seconds."""
    (port,) = free_ports(1)
    address = f"{LOOPBACK}:{port}"
    with Processes(deadline_seconds=deadline_seconds) as processes:
        folder = processes.folder
        counts = (str(num_sites), str(ROUNDS), str(dim))
        place = ["--on-disk"] if on_disk else []
        server = processes.start_module(
            "server", PROGRAMS, "server", address, *counts, folder, *place
        )
        sites = map(str, range(num_sites))
        processes.start_module("client", PROGRAMS, "client", address, *sites, "--dim", str(dim))
        processes.wait_for_exit([server])
        seconds = read_rounds(
            folder / "clock.jsonl",
            num_rounds=ROUNDS,
            expected=expected_shift(num_sites, ROUNDS),
        )
        memory = json.loads((folder / "memory.json").read_text())
    return (memory["peak"] - memory["before"]) / (4 * dim), sorted(seconds)[len(seconds) // 2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    parser = parser_of(__doc__)
    parser.add_argument("--dim", type=int, default=DIM, help="float32 parameters")
    parser.add_argument("--hospitals", type=int, nargs="+", default=HOSPITALS)
    options = parser.parse_args(arguments)
    lines, details = [], {}
    for num_sites in options.hospitals:
        found = {}
        for place in ("disk", "memory"):
            found[place] = measure(num_sites, options.dim, on_disk=place == "disk")
            models, seconds = found[place]
            print(
                f"{num_sites} hospitals, updates in {place}: {models:.2f} models,"
                f" {seconds:.2f} s a round",
                file=sys.stderr,
                flush=True,
            )
        details[f"{num_sites} hospitals"] = {
            f"{place}, {what}": value
            for place, values in found.items()
            for what, value in zip(("models", "seconds a round"), values, strict=True)
        }
        name = f"coordinator_memory.{num_sites}_hospitals"
        lines.append(ReportLine(name, found["disk"][0], found["memory"][0], "models"))
    report(lines, json_path=options.json, details={"dim": options.dim, **details})
    return 0


if __name__ == "__main__":
    run_program(main)
