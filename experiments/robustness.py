"""The effect of one harmful hospital on the user, for every method: a simulated table of attacks.

    python -m experiments.robustness --study breast-cancer --seeds 10
    python -m experiments.robustness --study heart-disease --seeds 5 --data-dir data
    python -m experiments.robustness --draw-only --markdown docs/robustness.md

Every cell (method, attack, seed) is trained once and kept in a file below experiments/results;
delete that file after a change of a method or an attack. Tables are drawn from what it holds.
"""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path

from erosion.common.support.files import write_atomically
from erosion.experiments.benchmarks.report_line import command_line
from erosion.experiments.data_dir import add_data_dir
from erosion.experiments.robustness_cells import ATTACKERS, METHODS, complete, read_cells
from erosion.experiments.robustness_summary import Summary, summarise
from erosion.experiments.robustness_table import page
from erosion.server.run import provenance

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Read the command line, train what is missing, draw."""
    options = _options()
    logging.getLogger("erosion.site").setLevel(logging.ERROR)  # it reports dropped patients
    summaries = []
    for name in options.study or ATTACKERS:
        path = options.cells / f"robustness-{name}.jsonl"
        if not options.draw_only:
            methods = options.method or METHODS
            complete(path, name, range(options.seeds), options.data_dir, methods)
        if summary := summarise(name, read_cells(path)):
            summaries.append(summary)
    text, figures = page(summaries, command_line()), as_json(summaries)
    if options.markdown:
        write_atomically(options.markdown, text)
    else:
        print(text)
    if options.json:
        write_atomically(options.json, figures)
    return 0


def as_json(summaries: Sequence[Summary]) -> str:
    """All figures of the page, with what made them; one line for each method under one attack."""
    head = {
        "command": command_line(),
        "commit": provenance.commit(),
        "versions": provenance.versions(),
        "studies": [{**asdict(summary), "rows": []} for summary in summaries],
    }
    rows = [{"study": s.study, **asdict(row)} for s in summaries for row in s.rows]
    lines = ",\n".join(json.dumps(_rounded(row)) for row in rows)
    return json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n{lines}\n ]\n}}\n'


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, float):
        return round(value, 6) if isfinite(value) else None
    return value


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--study", action="append", choices=list(ATTACKERS), help="may be repeated; default: all"
    )
    parser.add_argument(
        "--method", action="append", choices=list(METHODS), help="may be repeated; default: all"
    )
    add_data_dir(parser)
    parser.add_argument("--seeds", type=int, default=5, help="how many: 0 to N - 1")
    parser.add_argument("--cells", type=Path, default=RESULTS, help="folder of the kept cells")
    parser.add_argument("--draw-only", action="store_true", help="train nothing")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--markdown", type=Path, help="write the page here; default: print it")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
