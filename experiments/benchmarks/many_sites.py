"""Measures a round of a tiny model with many sites: what each further site costs the coordinator.

    python -m experiments.benchmarks.many_sites --json many_sites.json

The coordinator is a separate process with mutual TLS and enrolled keys. The sites are coroutines
of other processes, so that only the coordinator is measured. A line compares a site's share of the
coordinator's processor seconds with that among the fewest sites.
"""

import numpy as np

from experiments.benchmarks import bare
from experiments.benchmarks.harness import ReportLine, parser_of, report
from experiments.benchmarks.round_overhead import TINY_DIM
from experiments.program import run_program


def main() -> None:
    """Measure and report."""
    parser = parser_of(__doc__)
    parser.add_argument("--sites", type=int, nargs="+", default=[4, 64, 256])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--processes", type=int, default=1, help="that the sites are shared among")
    parser.add_argument("--insecure", action="store_true", help="without TLS and enrolment")
    options = parser.parse_args()
    details, shares = {}, {}
    for num_sites in options.sites:
        found = bare.run(
            num_sites,
            options.rounds,
            TINY_DIM,
            site_processes=options.processes,
            encrypted=not options.insecure,
        )
        p95 = float(np.percentile(found.rounds.seconds_per_round, 95))
        shares[num_sites] = found.processor_seconds / num_sites
        details[f"{num_sites} sites"] = {
            "median_seconds": found.rounds.median_seconds,
            "p95_seconds": p95,
            "coordinator_processor_seconds": found.processor_seconds,
        }
        print(
            f"{num_sites} sites: {found.rounds.median_seconds:.4f} s a round"
            f" (95 of 100 within {p95:.4f} s), of which the coordinator's processor time is"
            f" {found.processor_seconds:.4f} s",
            flush=True,
        )
    fewest, *more = options.sites
    unit = "processor s/site and round"
    lines = [
        ReportLine(f"many_sites.{n}.vs_{fewest}", shares[n], shares[fewest], unit) for n in more
    ]
    report(lines, json_path=options.json, details=details)


if __name__ == "__main__":
    run_program(main)
