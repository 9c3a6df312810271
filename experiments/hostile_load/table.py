"""The attacks' rows as a section of the page about faults."""

from collections.abc import Mapping
from typing import Any

HEAD = """\
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


def section(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The section, with its heading."""
    lines = [
        f"| {row['kind']} | {row['by']} | {row['connections']:,} | {row['rounds_under']}"
        f" | {row['seconds_under']:.2f} s | {row['seconds_before']:.2f} s | {row['skipped']}"
        f" | {row['seconds_to_join']:.0f} s | {row['coordinator_megabytes']:.0f} MB |"
        for row in rows.values()
    ]
    return HEAD + "\n".join(lines) + "\n"
