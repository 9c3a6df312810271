"""`python -m experiments.faults`: does every fault to real processes and tables its cost."""

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path

from erosion.simulation.program import output_file, run_program
from erosion_common.support.logs import configure_logging
from experiments.cells import committed
from experiments.faults import page
from experiments.faults.scenes import SCENES, play


def main() -> int:
    """Run the faults that are asked for; the exit code is 1 where one went wrong."""
    parser = argparse.ArgumentParser(prog="python -m experiments.faults", description=__doc__)
    parser.add_argument("faults", nargs="*", help=f"default: all of {', '.join(SCENES)}")
    parser.add_argument("--json", type=output_file, help="rows to add to, or to replace")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # taking everything down, as Ctrl-C does
    configure_logging(0)
    rows = page.read(options.json) if options.json and options.json.exists() else {}
    failed, commit = 0, committed()
    for name in options.faults or SCENES:
        scene = SCENES[name]
        if reason := scene.why_not():
            print(f"{name}: left out, {reason}", flush=True)
            continue
        started = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="erosion-fault-") as folder:
                row = play(scene, Path(folder)).as_json()
        except (TimeoutError, AssertionError, OSError) as problem:
            failed += 1
            print(f"{name}: FAILED: {problem}", file=sys.stderr, flush=True)
            continue
        rows[name] = {**row, "commit": commit}
        print(f"{name}: {time.monotonic() - started:.0f} s: {json.dumps(rows[name])}", flush=True)
        if options.json:
            page.write(options.json, rows)
    rows = {name: rows[name] for name in SCENES if name in rows}
    if options.json:
        page.write(options.json, rows)
    return 1 if failed else 0


if __name__ == "__main__":
    run_program(main)
