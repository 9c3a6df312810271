"""What one harmful hospital does to the user, for every method: a table of attacks, simulated.

    python -m experiments.robustness --study breast-cancer --seeds 10
    python -m experiments.robustness --study heart-disease --seeds 5 --data-dir data
    python -m experiments.robustness --draw-only --markdown docs/robustness.md

Every cell (method, attack, seed) is trained once and kept in a file below experiments/results;
delete that file after a change of a method or an attack. Tables are drawn from what it holds.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

from experiments.robustness_cells import ATTACKERS, complete

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Read the command line, train what is missing, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--study", action="append", choices=list(ATTACKERS), help="may be repeated; default: all"
    )
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("EROSION_DATA"))
    parser.add_argument("--seeds", type=int, default=5, help="0 to N - 1")
    parser.add_argument("--cells", type=Path, default=RESULTS, help="folder of the kept cells")
    options = parser.parse_args()
    studies = options.study or list(ATTACKERS)
    logging.getLogger("erosion.site").setLevel(logging.ERROR)  # it tells of dropped patients
    data_dir = Path(options.data_dir) if options.data_dir else None
    for name in studies:
        path = options.cells / f"robustness-{name}.jsonl"
        complete(path, name, range(options.seeds), data_dir)
    return 0


if __name__ == "__main__":
    sys.exit(main())
