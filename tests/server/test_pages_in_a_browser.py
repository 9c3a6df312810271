"""The pages for people, in Chromium at two widths: axe, keys, and what runs off an edge."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pytest

from erosion_common.protocol.messages import ColumnSummary, SummaryReply
from erosion_common.support import live_page
from erosion_common.support.live_page import LivePage
from erosion_server.export.calculator import calculator_page
from erosion_server.export.saved_run import load_saved_run
from erosion_server.output.description import Descriptions, description_page
from erosion_server.output.report import write_report
from erosion_server.output.watched import WatchedRuns
from erosion_server.run.status import CoordinatorStatus
from tests.support.browser import DESKTOP, PHONE, Tab, browser
from tests.support.exported import CLASSES, table_task, write_run
from tests.support.patience import wait_until
from tests.support.small_study import make_study
from tests.support.synthetic_run import Run, make_run, performance, play, with_performance

pytest.importorskip("axe_core_python")
AXE = (files("axe_core_python") / "axe.min.js").read_text("utf-8")
FOUND = """axe.run(document, {resultTypes: ["violations"]}).then(
  found => found.violations.map(each => [each.impact, each.id, each.nodes[0].html]))"""
GRAVE = {"serious", "critical"}
STOPS = """[...document.querySelectorAll('a[href], button, input, select, summary, [tabindex="0"]')]
  .filter(each => each.checkVisibility({visibilityProperty: true}))"""
SEEN = """(() => { const at = document.activeElement, box = at.getBoundingClientRect(),
  style = getComputedStyle(at);
  return [STOPS.indexOf(at), style.outlineStyle !== "none",
          box.left >= -1 && box.right <= innerWidth + 1 && box.width > 0]; })()""".replace(
    "STOPS", STOPS
)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


def report(folder: Path) -> str:
    run = with_performance(performance())
    return write_report(run.write(folder / "run")).as_uri()


def calculator(folder: Path) -> str:
    saved = write_run(folder / "run", table_task(**CLASSES))
    path = folder / "calculator.html"
    path.write_text(calculator_page(load_saved_run(saved, None, Path("weights"))))
    return path.as_uri()


def description(folder: Path) -> str:
    replies = {}
    for name, middle in (("a", 50.0), ("b", 500.0)):
        quantiles = tuple(middle + 10.0 * z for z in (-1.3, -0.7, 0, 0.7, 1.3))
        columns = (
            ColumnSummary(
                name="age", kind="number", count=60, missing=10, mean=middle, deviation=10.0,
                quantiles=quantiles,
            ),
            ColumnSummary(
                name="sex", kind="category", count=60, missing=0, shares={"f": 40, "m": 20}
            ),
        )  # fmt: skip
        replies[name] = SummaryReply(
            hospital=name,
            min_cell=10,
            num_samples=60,
            num_patients=60,
            columns=columns,
            software="",
        )
    path = folder / "description.html"
    path.write_text(description_page(Descriptions(make_study(), replies, {"c": "is away"})))
    return path.as_uri()


@contextmanager
def watched(folder: Path, run: Run) -> Iterator[str]:
    run.write(folder)
    play(CoordinatorStatus(folder / "status.json", run.study), run, folder)
    with LivePage(WatchedRuns(folder)) as page:
        yield page.url


@contextmanager
def page(kind: str, folder: Path) -> Iterator[str]:
    """The address of a page, for as long as it is looked at."""
    if kind == "watch":
        with watched(folder / "run", make_run(rounds=4)) as url:
            yield url
        return
    yield {"report": report, "calculator": calculator, "description": description}[kind](folder)


PAGES = ("report", "watch", "calculator", "description")


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
@pytest.mark.parametrize("kind", PAGES)
def test_nobody_is_shut_out(tmp_path: Path, tab: Tab, kind: str, size: tuple[int, int]) -> None:
    with page(kind, tmp_path) as url:
        tab.open(url, size)
        tab.run("document.querySelectorAll('details').forEach(each => { each.open = true })")
        tab.run(f"{AXE}; 0")
        found = tab.run(FOUND)
        assert [each for each in found if each[0] in GRAVE] == []
        wide, visible = tab.run("[document.documentElement.scrollWidth, innerWidth]")
        assert wide <= visible  # nothing runs off the page


@pytest.mark.parametrize("kind", PAGES)
def test_every_part_can_be_reached_by_key(tmp_path: Path, tab: Tab, kind: str) -> None:
    with page(kind, tmp_path) as url:
        tab.open(url, DESKTOP)
        for stop in range(tab.run(f"{STOPS}.length")):  # a description has none
            tab.press("Tab", 9)
            assert tab.run(SEEN) == [stop, True, True]


def test_an_explanation_opens_by_key(tmp_path: Path, tab: Tab) -> None:
    tab.open(report(tmp_path), DESKTOP)
    tab.run("document.querySelector('summary').focus()")
    tab.press("Enter", 13)
    assert tab.run("document.querySelector('details').open")


def test_a_calculator_is_filled_in_by_key(tmp_path: Path, tab: Tab) -> None:
    tab.open(calculator(tmp_path), DESKTOP)
    result = "document.getElementById('result').textContent"
    assert "%" not in tab.run(result)  # nothing is known of the patient
    tab.run("document.getElementById('f0').focus()")
    tab.call("Input.insertText", text="50")
    assert re.match(r"\d", tab.run(result))


def test_news_do_not_take_the_keys_away(
    tmp_path: Path, tab: Tab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that is scrolled by key stays in focus when the page is drawn again."""
    monkeypatch.setattr(live_page, "LOOK_SECONDS", 0.01)
    count = iter(range(10**9))

    def snapshot() -> dict[str, object]:
        rows = [[str(next(count)), *["wide" * 30] * 20]]
        return {"parts": [{"title": "A run", "tables": [{"title": "T", "head": [], "rows": rows}]}]}

    first = "document.querySelector('tbody th').textContent"
    with LivePage(snapshot) as served:
        tab.open(served.url, PHONE)
        tab.run("document.querySelector('.scroll').focus()")
        tab.run("document.querySelector('.scroll').scrollLeft = 200")
        seen = tab.run(first)
        wait_until(lambda: tab.run(first) != seen)
        assert tab.run("document.activeElement.className") == "scroll"
        assert tab.run("document.querySelector('.scroll').scrollLeft") == 200
