"""The methods' own words on their rounds, as a section of the report.

GEMS says here which hospitals have a model in common, and whose own check the model passes.
"""

from erosion.server.output.plain_text import ranges_text
from erosion.server.output.report.html_table import text
from erosion.server.output.report.run_data import RunData
from erosion.server.output.round_news import NewsGroup, grouped

MOST_FINDINGS = 20  # groups of rounds; the journal has them all


def findings(run: RunData) -> str:
    """The section; empty where no method said anything."""
    groups = [group for group in grouped(run.records) if group.first.kind == "note"]
    if not groups:
        return ""
    more = len(groups) - MOST_FINDINGS
    rest = f'<p class="note">And {more} more: see rounds.jsonl.</p>\n' if more > 0 else ""
    said = "\n".join(_said(group) for group in groups[:MOST_FINDINGS])
    return f"<h2>What the methods found</h2>\n{said}\n{rest}"


def _said(group: NewsGroup) -> str:
    """One group's sentences, one below the other."""
    rounds = "round" if len(group.rounds) == 1 else "rounds"
    varies = " (the first time; then with other numbers)" * group.varies
    where = f"{group.first.arm}, {rounds} {ranges_text(group.rounds)}{varies}"
    sentences = "".join(f"<li>{text(part)}</li>" for part in group.first.text.split("; "))
    return f"<p>{text(where)}:</p>\n<ul>{sentences}</ul>"
