"""Peak memory of a deployed coordinator, in models, for a growing number of hospitals.

    python -m experiments.benchmarks.coordinator_memory --json coordinator_memory.json

Counted is what the rounds add to the coordinator's resident memory once all have joined:
parameters, messages under way, updates, the aggregate, the checkpoint. Ours keeps the updates on
the disk (`erosion server --updates disk`), the peer is ours with updates in memory.
"""

from experiments.benchmarks import bare
from experiments.benchmarks.harness import ReportLine, parser_of, report, say
from experiments.program import run_program

DIM = 11_181_642  # torchvision's resnet18 with ten classes: 45 MB
ROUNDS = 2


def main() -> None:
    """Measure and report."""
    parser = parser_of(__doc__)
    parser.add_argument("--dim", type=int, default=DIM, help="float32 parameters")
    parser.add_argument("--hospitals", type=int, nargs="+", default=(4, 16, 64))
    options = parser.parse_args()
    lines, details = [], {}
    for num_sites in options.hospitals:
        models, figures = {}, {}
        for place in ("disk", "memory"):
            found = bare.run(num_sites, ROUNDS, options.dim, on_disk=place == "disk")
            models[place] = found.added_bytes / (4 * options.dim)
            figures[f"{place}, models"] = models[place]
            figures[f"{place}, seconds a round"] = found.rounds.median_seconds
            say(f"{num_sites} hospitals, updates in {place}: {models[place]:.2f} models")
        details[f"{num_sites} hospitals"] = figures
        name = f"coordinator_memory.{num_sites}_hospitals"
        lines.append(ReportLine(name, models["disk"], models["memory"], "models"))
    report(lines, json_path=options.json, details={"dim": options.dim, **details})


if __name__ == "__main__":
    run_program(main)
