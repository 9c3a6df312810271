"""Pages for people from Jinja2 templates: no script, no other file, every text escaped."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from erosion_server.output.words import printable

TEMPLATES = Path(__file__).parent / "templates"
LONGEST_TEXT = 2000  # characters of one value


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell with a remark in small print below; `link` is where its value leads."""

    value: str
    remark: str = ""
    link: str = ""


Row = Sequence[str | Cell]


def render_page(template: str, **values: Any) -> str:
    """Return the page. A hospital's words cannot become part of it, nor rewrite how it reads."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_made_safe,
        extensions=["jinja2.ext.do"],
    )
    made.filters["day"] = _day
    return made


def _made_safe(value: Any) -> Any:
    return printable(value, at_most=LONGEST_TEXT) if type(value) is str else value


def _day(started: str) -> str:
    try:
        return f"{datetime.fromisoformat(started):%-d %B %Y}"
    except ValueError:
        return started


def verbatim(text: str) -> Markup:
    """Return a file's text with its lines, escaped."""
    return Markup().join([text])
