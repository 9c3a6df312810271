"""The calculator, in a real browser: it predicts as `erosion predict` does."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from erosion_common.errors import CheckpointError
from erosion_common.formats.json_file import write_json
from erosion_common.program.command_line import main
from erosion_common.protocol.performance import ModelFigures, Performance
from erosion_common.tasks.inputs import TabularTask
from erosion_server.export.calculator import calculator_page
from erosion_server.export.saved_run import load_saved_run
from erosion_server.run.result import read_result
from tests.support.browser import DESKTOP, Tab, browser
from tests.support.exported import (
    CLASSES,
    FEATURES,
    OF_PAIRS,
    OF_PREPARED,
    PAIRS,
    PREPARED,
    predicted,
    random_patients,
    table_task,
    write_run,
)
from tests.support.html_page import EVIL, Page
from tests.support.patience import PATIENCE

ASK = """(() => {
const found = [];
for (const patient of ASKED) {
  patient.forEach((text, i) => {
    const field = document.getElementById("f" + i);
    const option = [...(field.options || [])].find((each) => each.textContent === text);
    field.value = option ? option.value : text;
  });
  document.getElementById("form").dispatchEvent(new Event("input"));
  const result = document.getElementById("result");
  found.push([result.dataset.values || null, result.textContent,
    document.querySelectorAll('[aria-invalid="true"]').length,
    [...document.querySelectorAll("#thresholds td:nth-child(2)")].map((cell) => cell.textContent)]);
}
return found; })()"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


def page_of(folder: Path) -> str:
    return calculator_page(load_saved_run(folder, None, Path("weights")))


def ask(tab: Tab, folder: Path, columns: dict[str, list[str]]) -> list[Any]:
    """Fill the form in, patient after patient, and return what it says."""
    path = folder / "calculator.html"
    path.write_text(page_of(folder))
    tab.open(path.as_uri(), DESKTOP)
    patients = json.dumps([*zip(*columns.values(), strict=True)])
    found: list[Any] = tab.run(ASK.replace("ASKED", patients))
    return found


@pytest.mark.parametrize(
    ("task", "options"),
    [
        (CLASSES, {}),
        (CLASSES, {"is_finished": True}),
        ({**CLASSES, "features": PREPARED}, {"scaling": OF_PREPARED, "replaced": None}),
        ({**CLASSES, "features": PREPARED, **PAIRS}, {"scaling": OF_PAIRS, "replaced": None}),
        ({**CLASSES, "classes": ["a", "b", "c"]}, {"scaling": None, "members": 2}),
        (
            {
                "outcome": "survival",
                "target": {"time": "t", "event": "e"},
                "cut_points": [5, 10, 20],
            },
            {},
        ),
        ({"outcome": "count", "target": "y", "centre": 3, "spread": 0.8}, {}),
        ({"outcome": "regression", "target": "y", "centre": 3, "spread": 0.8, "unit": "d"}, {}),
    ],
)
def test_it_predicts_as_the_program_does(
    tmp_path: Path, tab: Tab, task: dict[str, Any], options: dict[str, Any]
) -> None:
    folder = write_run(tmp_path / "run", table_task(**task), **options)
    read = load_saved_run(folder, None, Path("weights")).card.task
    assert isinstance(read, TabularTask)
    columns = random_patients(read)
    found = ask(tab, folder, columns)
    values = np.array([json.loads(each[0]) for each in found])
    np.testing.assert_allclose(values, predicted(folder, columns), rtol=1e-6, atol=1e-6)
    risks = values[:, -1] if read.predicts == "classes" else 1 - values[:, -1]
    for (_, _, num_wrong, sides), risk in zip(found, risks, strict=True):
        assert num_wrong == 0
        if sides:
            assert sides == [
                "at or above" if risk >= each else "below" for each in (0.1, 0.2, 0.3, 0.5)
            ]
    is_one_risk = read.predicts == "times" or "no" in str(task.get("classes"))
    assert bool(found[0][3]) == is_one_risk


def test_a_risk_is_by_when_its_figures_count_the_event(tmp_path: Path, tab: Tab) -> None:
    """Few were followed to the last cut point: the figures are by the one before."""
    survival = {"outcome": "survival", "target": {"time": "t", "event": "e"}}
    folder = write_run(tmp_path / "run", table_task(**survival, cut_points=[5, 10, 20]))
    figures = ModelFigures(model="weight_erosion", event="event", horizon=10, num_patients=40)
    result = read_result(folder / "result.json")
    measured = {"performance": Performance(models=(figures,))}
    write_json(folder / "result.json", result.model_copy(update=measured))
    assert "Risk of the event by 10" in page_of(folder)
    read = load_saved_run(folder, None, Path("weights")).card.task
    assert isinstance(read, TabularTask)
    for shown, _, _, sides in ask(tab, folder, random_patients(read)):
        risk = 1 - json.loads(shown)[1]
        assert sides == [
            "at or above" if risk >= each else "below" for each in (0.1, 0.2, 0.3, 0.5)
        ]


def test_a_value_that_the_study_does_not_allow_has_no_result(tmp_path: Path, tab: Tab) -> None:
    features = [FEATURES[0], {"name": "x"}]
    task = {"kind": "tabular", **CLASSES, "features": features, "missing": "refuse"}
    folder = write_run(tmp_path / "run", task, scaling=None, replaced=None)
    found = ask(
        tab,
        folder,
        {
            "age": ["50", "121", "", "5o", "50,5", "50.5", "50"],
            "x": ["1", "1", "1", "1", "-.5", "-5e-1", "1,250"],
        },
    )
    assert [each[0] is not None for each in found] == [True, *[False] * 3, True, True, False]
    assert [each[2] for each in found] == [0, 1, 0, 1, 0, 0, 1]
    assert found[4][0] == found[5][0]


def test_no_word_becomes_markup_and_nothing_is_loaded(tmp_path: Path, tab: Tab) -> None:
    features = [{"name": EVIL, "unit": EVIL}, {"name": "c", "categories": ["</script>", EVIL]}]
    task = {"kind": "tabular", "target": "y", "classes": ["no", EVIL], "features": features}
    folder = write_run(tmp_path / "run", task, scaling=None, replaced=None)
    html = page_of(folder)
    page = Page(html.replace("{", " ").replace("}", " "))
    tags = [tag for tag, _ in page.tags]
    assert (tags.count("script"), tags.count("img"), tags.count("link")) == (2, 0, 0)
    assert not any({"src", "href"} & attributes.keys() for _, attributes in page.tags)
    assert "default-src 'none'" in html
    found = ask(tab, folder, {EVIL: ["1"], "c": ["</script>"]})
    assert found[0][0] is not None
    path = folder / "calculator.html"  # whose own script runs under the page's own policy
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--timeout=30000", "--dump-dom"]
    command = ["chromium", *flags, f"--user-data-dir={tmp_path}/chromium", path.as_uri()]
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE).stdout
    assert "No result" in drawn.partition('id="result"')[2]


@pytest.mark.parametrize(
    "task",
    [
        table_task(**CLASSES, features=[f"x{n}" for n in range(31)], missing="drop"),
        {"kind": "image", **CLASSES, "target": "labels", "shape": [1, 2, 2]},
    ],
)
def test_what_is_no_calculator_is_refused(tmp_path: Path, task: dict[str, Any]) -> None:
    folder = write_run(tmp_path / "run", task, scaling=None, replaced=None)
    with pytest.raises(CheckpointError, match="--onnx"):
        page_of(folder)


def test_the_command_writes_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", table_task(**CLASSES))
    assert main(["export", str(folder), "--calculator"]) == 0
    assert sorted(path.name for path in (folder / "export").iterdir()) == [
        "calculator.html",
        "model-card.html",
    ]
