"""`python -m experiments.faults.page`: docs/faults.md from the rows that were measured."""

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from erosion_common.support.files import write_atomically
from erosion_common.support.logs import configure_logging
from experiments.cells import committed
from experiments.page import TEMPLATES
from experiments.program import output_file, run_program

RESULTS = Path(__file__).resolve().parents[1] / "results"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
Rows = Mapping[str, Mapping[str, Any]]  # by the fault's short name


def read(path: Path) -> dict[str, Mapping[str, Any]]:
    """Return the rows of a file."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def make_rows(program: str, about: str, known: Sequence[str], play: Callable[..., object]) -> int:
    """Read the command line, and play what is asked for; the exit code is 1 where one failed.

    `play` takes a name of `known`, a folder, and the options; it returns a row, or why not.
    """
    parser = argparse.ArgumentParser(prog=f"python -m experiments.{program}", description=about)
    parser.add_argument("names", nargs="*", help=f"default: all of {', '.join(known)}")
    parser.add_argument("--connections", type=int, default=5000, help="of a hostile load")
    parser.add_argument("--json", type=output_file, help="rows to add to, or to replace")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # taking everything down, as Ctrl-C does
    configure_logging(0)
    rows = read(options.json) if options.json and options.json.exists() else {}
    failed, commit = 0, committed()
    for name in options.names or known:
        try:
            with tempfile.TemporaryDirectory(prefix="erosion-fault-") as folder:
                row = play(name, Path(folder), options)
        except (TimeoutError, AssertionError, OSError) as problem:
            failed += 1
            print(f"{name}: FAILED: {problem}", file=sys.stderr, flush=True)
            continue
        if isinstance(row, str):
            print(f"{name}: left out, {row}", flush=True)
            continue
        rows[name] = {**asdict(row), "commit": commit}  # type: ignore[call-overload]
        print(f"{name}: {json.dumps(rows[name])}", flush=True)
        if options.json:
            kept = {name: rows[name] for name in known if name in rows}
            text = json.dumps(kept, indent=2, ensure_ascii=False) + "\n"
            options.json.write_text(text, encoding="utf-8")
    return 1 if failed else 0


def markdown(rows: Rows, attacks: Rows) -> str:
    """Return the tables of faults and of attacks, and below them what people see."""
    every = [*rows.values(), *attacks.values()]
    text = TEMPLATES.get_template("faults.md").render(
        faults=list(rows.values()),
        attacks=list(attacks.values()),
        commits=list(dict.fromkeys(row["commit"] for row in every)),
        count=lambda value: "–" if value is None else value,
        seconds=lambda value: "–" if value is None else f"{value:.1f} s",
    )
    return f"{text}\n"


def main() -> None:
    """Write the page."""
    text = markdown(read(RESULTS / "faults.json"), read(RESULTS / "hostile_load.json"))
    write_atomically(PAGE, text)


if __name__ == "__main__":
    run_program(main)
