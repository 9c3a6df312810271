"""The baseline in Flower's layout gives the figures of the experiment's cells."""

import importlib
import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

from experiments.cells import read_cells
from experiments.experiment import RESULTS
from experiments.papers import titanic
from tests.support.flower_grid import InProcessGrid, Node

ROOT = Path(__file__).parents[2]
DATA = os.environ.get("EROSION_DATA")  # which a fixture hides from tests
BASELINE = ROOT / "experiments" / "flower_baseline"


def final(split: str, rule: str, user: int) -> float:
    cells = read_cells(ROOT / RESULTS / "titanic", titanic.plans())
    cell = cells[f"corrected-{split.lower()}-278"]
    return float(cell.figures["users"][str(user)][rule]["accuracy"][-1])


@pytest.mark.skipif(DATA is None, reason="needs the data sets: EROSION_DATA")
@pytest.mark.parametrize(("rule", "user"), [("weight_erosion", 2), ("fedavg", 0), ("local", 1)])
def test_its_accuracy_is_the_cells(
    rule: str, user: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(str(BASELINE))
    client_app, server_app = (
        importlib.import_module(f"weighterosion.{name}").app
        for name in ("client_app", "server_app")
    )
    config: dict[str, Any] = {
        "data-dir": str(DATA),
        **{"split": "AGE_SOME", "user": user, "rule": rule, "seed": 278, "num-rounds": 30},
        **{"learning-rate": 3.0, "distance-penalty": 0.01, "size-penalty": 0.2},
    }

    def node(number: int) -> Node:
        def answer(request: Message) -> Any:
            context = Context(1, number, {"partition-id": number}, RecordDict(), dict(config))
            return client_app(request, context).content

        return answer

    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)  # our programs end that
    caplog.set_level(logging.INFO, logger="flwr")
    grid = InProcessGrid({10 + number: node(number) for number in range(4)})
    server_app(grid, Context(1, 1, {}, RecordDict(), dict(config)))
    accuracies = re.findall(r"'accuracy': '([0-9.e+-]+)'", caplog.text)
    assert float(accuracies[-1]) == pytest.approx(final("AGE_SOME", rule, user), abs=5e-5)


def test_the_readme_has_the_cells_figures() -> None:
    rows = re.findall(r"^\| (AGE_\w+), (.*?) \|(.*)\|$", (BASELINE / "README.md").read_text(), re.M)
    names = {name: rule for rule, name in titanic.NAMES.items()}
    assert len(rows) == 6
    for split, scheme, entries in rows:
        published = titanic.PUBLISHED["reference"][split][names[scheme]]
        expected = [
            f"{final(split, names[scheme], user):.3f} [{published[user]:.3f}]" for user in range(4)
        ]
        assert [entry.strip() for entry in entries.split("|")] == expected
