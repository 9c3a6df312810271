"""What the pages of reports have in common: the frame, the box of the verdict, and a day."""

from collections.abc import Sequence
from datetime import datetime

from erosion.server.output.report.html_table import text
from erosion.server.output.report.style import STYLE
from erosion.server.output.result_words import verdict_sentences

# A second lock besides escaping: nothing in the page may run or be fetched.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def whole_page(title: str, sections: Sequence[str]) -> str:
    """A page of its own; `sections` are HTML."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(sections)
        + "\n</body>\n</html>\n"
    )


def verdict_box(heading: str, verdict: str, *, found: bool, cautions: Sequence[str] = ()) -> str:
    """The answer: the first sentence large, the figures below it. `heading` is HTML.

    `cautions`: what must be read before it.
    """
    finding, figures = verdict_sentences(verdict)
    listed = "".join(f"<li>{text(caution)}</li>\n" for caution in cautions)
    before = '<div class="verdict caution"><h2>Look at these first</h2>\n<ul>{}</ul></div>\n'
    return (
        f"<header><p>{heading}</p></header>\n{before.format(listed) if listed else ''}"
        f'<div class="{"verdict found" if found else "verdict"}">'
        f"<h1>{text(finding)}</h1><p>{text(figures)}</p></div>\n"
    )


def day(started: str) -> str:
    """An ISO 8601 time as people write the day."""
    try:
        return f"{datetime.fromisoformat(started):%-d %B %Y}"
    except ValueError:
        return started
