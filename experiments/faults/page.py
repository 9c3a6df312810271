"""`python -m experiments.faults.page`: docs/faults.md from the rows that were measured."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erosion.simulation.program import run_program
from erosion_common.support.files import write_atomically

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


def hostile_section(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the hostile_section, with its heading."""
    lines = [
        f"| {row['kind']} | {row['by']} | {row['connections']:,} | {row['rounds_under']}"
        f" | {row['seconds_under']:.2f} s | {row['seconds_before']:.2f} s | {row['skipped']}"
        f" | {row['seconds_to_join']:.0f} s | {row['coordinator_megabytes']:.0f} MB |"
        for row in rows.values()
    ]
    return HOSTILE_HEAD + "\n".join(lines) + "\n"


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


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Return the rows by the fault's short name."""
    rows: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return rows


def write(path: Path, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Keep the rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def markdown(
    rows: Mapping[str, Mapping[str, Any]], attacks: Mapping[str, Mapping[str, Any]]
) -> str:
    """Return the tables of faults and of attacks, and below them what people see."""
    lines = [
        f"| {row['fault']} | {row['rounds_lost']} | {_count(row['rounds_without_site'])}"
        f" | {_seconds(row['seconds_to_go_on'])} | {_seconds(row['seconds_to_recover'])} |"
        for row in rows.values()
    ]
    parts = [HEAD + "\n".join(lines), "", hostile_section(attacks), "## What people see", ""]
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
