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
from experiments.program import output_file, run_program

HOSTILE_HEAD = """\
## Hostile connections

Thousands of connections of one kind are opened against a running study, and opened again when they
are closed: idle ones, handshakes begun and left, or sent a byte a second, strangers without a
certificate, and by an enrolled site calls without a body, slow bodies, resets and pings by the
hundred. All come from one address, as the honest sites do. A round takes longer because attackers,
coordinator and hospitals share this machine's two cores, and other programs used them, too: "before"
is the measure, and most of the time until a hospital has joined goes into starting its program.
`tests/e2e/test_hostile_connections.py` does the same with 300.

| kind | by | connections | rounds done in 20 s | a round took | before | skipped | a hospital joined within | coordinator's peak |
|---|---|--:|--:|--:|--:|--:|--:|--:|
"""  # noqa: E501 - a table's line


RESULTS = Path(__file__).resolve().parents[1] / "results"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
COMMANDS = """\
python -m experiments.faults --json experiments/results/faults.json
python -m experiments.hostile_load --json experiments/results/hostile_load.json
python -m experiments.faults.page"""
HEAD = f"""\
# Faults and their cost

Every row was made by doing it to real processes: a coordinator and three hospitals (`alice` is the
user), with TLS and enrolment, each a separate process; for network faults, each on a separate
machine (a Linux network namespace). A round may take 5 s here; where a site's update is
large and its network slow, 60 s. A program that was killed is started again after 2 s, as systemd
does. All figures and all quotations are the programs' own; this page is made from them:

```sh
{COMMANDS}
```

*Rounds lost* were begun and did not change the model; no finished round is ever lost. *Goes on*:
from the fault to the next round that was done. *Recovers*: from the end of the cause (the program
is started again, the network is restored) to the site's next accepted update, or, where the
coordinator had the fault, to its next round. Starting a program takes most of it, and after a long
outage the wait of up to 10 s between two tries, which is random so that not all come back at once.
Many of these rows were made while other programs used both cores of the machine, where starting a
program takes far longer than otherwise.

The clock of one program is stepped by a small library that is loaded into it: 300 s ahead or
behind, and right again. Below the quorum a study waits, and names the missing hospitals.

[Thousands of hostile connections](#hostile-connections) have a separate table. In addition,
`tests/e2e` kills the coordinator at every phase of a round (`test_resume.py`), sends
it 200 malformed replies (`test_fuzz.py`), and lets certificates expire
(`test_admission.py`).

| fault | rounds lost | rounds done without the site | goes on after | recovers within |
|---|--:|--:|--:|--:|
"""


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
    hostile = [
        f"| {row['kind']} | {row['by']} | {row['connections']:,} | {row['rounds_under']}"
        f" | {row['seconds_under']:.2f} s | {row['seconds_before']:.2f} s | {row['skipped']}"
        f" | {row['seconds_to_join']:.0f} s | {row['coordinator_megabytes']:.0f} MB |"
        for row in attacks.values()
    ]
    lines = [
        f"| {row['fault']} | {row['rounds_lost']} | {_count(row['rounds_without_site'])}"
        f" | {_seconds(row['seconds_to_go_on'])} | {_seconds(row['seconds_to_recover'])} |"
        for row in rows.values()
    ]
    attacked = HOSTILE_HEAD + "\n".join(hostile)
    parts = [HEAD + "\n".join(lines), "", attacked, "", "## What people see", ""]
    for row in rows.values():
        parts += [f"**{row['fault'][0].upper()}{row['fault'][1:]}**", ""]
        parts += _quoted("the coordinator", row["coordinator_says"])
        parts += _quoted("the site", row["site_says"])
        parts += _quoted("the journal", row["journal_says"], where="In")
    commits = dict.fromkeys(row["commit"] for row in [*rows.values(), *attacks.values()])
    return "\n".join([*parts, f"Made at commit {', '.join(commits)}.", ""])


def _quoted(who: str, lines: list[str], *, where: str = "At") -> list[str]:
    if not lines:
        return []
    return [f"{where} {who}:", "", "```text", *lines, "```", ""]


def _count(value: int | None) -> str:
    return "–" if value is None else str(value)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"


def main() -> None:
    """Write the page."""
    text = markdown(read(RESULTS / "faults.json"), read(RESULTS / "hostile_load.json"))
    write_atomically(PAGE, text)


if __name__ == "__main__":
    run_program(main)
