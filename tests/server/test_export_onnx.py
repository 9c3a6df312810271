"""A model as ONNX: by another program it predicts what `erosion predict` does."""

import json
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from erosion_client.dataset.preprocessing import image_inputs
from erosion_common.errors import CheckpointError
from erosion_common.learning.local_sgd import predictions_of
from erosion_common.program.command_line import main
from erosion_common.tasks.inputs import ImageTask, TabularTask
from erosion_server.export import onnx_file
from erosion_server.export.onnx_file import TOLERANCE, TRIED, as_onnx, relative_difference
from erosion_server.export.saved_run import SavedRun, load_saved_run
from tests.support.exported import (
    CLASSES,
    OF_PAIRS,
    PAIRS,
    PREPARED,
    predicted,
    random_patients,
    table_task,
    write_run,
)
from tests.support.html_page import EVIL, Page

runtime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module", autouse=True)
def described_once() -> Iterator[None]:
    """Torch describes ONNX's operators once, not for each model: a third of the time."""
    from torch.onnx._internal._lazy_import import onnxscript_apis

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnxscript_apis, "get_torchlib_ops", cache(onnxscript_apis.get_torchlib_ops))
        yield


SURVIVAL = {"target": {"time": "t", "event": "e"}, "cut_points": [5, 10, 20]}
NUMBER = {"target": "y", "centre": 3000, "spread": 800}


def loaded(folder: Path) -> SavedRun:
    return load_saved_run(folder, None, Path("weights"))


def as_arrays(task: TabularTask, columns: dict[str, list[str]]) -> dict[str, NDArray[Any]]:
    """The same patients as a program that has ONNX alone gives them."""
    found: dict[str, NDArray[Any]] = {}
    for feature in task.features:
        texts = columns[feature.name]
        if hasattr(feature, "categories"):
            found[feature.name] = np.array(texts, dtype=object)
        else:
            found[feature.name] = np.array([float(text or "nan") for text in texts])
    return found


@pytest.mark.parametrize(
    ("task", "options", "outputs"),
    [
        (CLASSES, {}, ["probability_no", "probability_yes"]),
        (
            {**CLASSES, "features": PREPARED, **PAIRS},
            {"scaling": OF_PAIRS, "replaced": None},
            ["probability_no", "probability_yes"],
        ),
        (
            {**CLASSES, "classes": ["a", "b", "c"]},
            {"model": {"name": "mlp", "hidden": [8]}, "members": 2},
            ["probability_a", "probability_b", "probability_c"],
        ),
        (
            {"outcome": "survival", **SURVIVAL},
            {},
            ["event_free_at_5", "event_free_at_10", "event_free_at_20", "risk"],
        ),
        ({"outcome": "regression", **NUMBER}, {"scaling": None}, ["predicted"]),
        ({"outcome": "count", "target": "y", "centre": 2, "spread": 2}, {}, ["predicted"]),
        (
            CLASSES,
            {"model": {"name": "mlp", "hidden": [8], "ensemble_of": 3}, "is_finished": True},
            ["probability_no", "probability_yes"],
        ),
    ],
)
def test_it_predicts_as_the_program_does(
    tmp_path: Path, task: dict[str, Any], options: dict[str, Any], outputs: list[str]
) -> None:
    folder = write_run(tmp_path / "run", table_task(**task), **options)
    saved = loaded(folder)
    assert isinstance(saved.card.task, TabularTask)
    columns = random_patients(saved.card.task)
    session = runtime.InferenceSession(as_onnx(saved))
    assert [each.name for each in session.get_outputs()] == outputs
    names = [feature.name for feature in saved.card.task.features]
    assert [each.name for each in session.get_inputs()] == names
    found = np.stack(session.run(None, as_arrays(saved.card.task, columns)), axis=1)
    expected = predicted(folder, columns)
    np.testing.assert_allclose(found[:, : expected.shape[1]], expected, rtol=1e-5, atol=1e-5)
    if outputs[-1] == "risk":
        np.testing.assert_array_equal(found[:, -1], 1 - found[:, -2])


def test_who_cannot_be_predicted_has_no_number_and_the_file_says_what_it_is(tmp_path: Path) -> None:
    features = [{"name": "x", "range": [0, 1]}, {"name": "c", "categories": ["", "b"]}, "linear"]
    task = {"kind": "tabular", **CLASSES, "features": features, "missing": "drop"}
    folder = write_run(tmp_path / "run", task, scaling=None, replaced=None)
    content = as_onnx(loaded(folder))
    session = runtime.InferenceSession(content)
    columns = {
        "x": np.array([0.5, 2.0, 0.5, 0.5, np.nan, 1.0]),
        "c": np.array(["b", "b", "?", "b", "b", ""], dtype=object),
        "linear": np.array([0.0, 0.0, 0.0, np.inf, 0.0, 0.0]),
    }
    found = session.run(["probability_yes"], columns)[0]
    assert np.isnan(found).tolist() == [False, True, True, True, True, False]
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == ["no", "yes"]
    assert json.loads(about["model.json"])["sha256"] == about["sha256"]
    assert str(Path.cwd()).encode() not in content


def test_an_image_goes_in_as_pixels(tmp_path: Path) -> None:
    task = {"kind": "image", **CLASSES, "target": "labels", "shape": [1, 12, 12], "mean": [0.4]}
    folder = write_run(
        tmp_path / "run", task, {"name": "mnist_cnn", "width": 2}, scaling=None, replaced=None
    )
    saved = loaded(folder)
    assert isinstance(saved.card.task, ImageTask)
    pixels = np.random.default_rng(0).integers(0, 256, (7, 1, 12, 12), dtype=np.uint8)
    session = runtime.InferenceSession(as_onnx(saved))
    found = np.stack(session.run(None, {"image": pixels}), axis=1)
    (network,) = saved.members
    parameters = torch.cat([each.detach().reshape(-1) for each in network.parameters()])
    inputs = image_inputs(saved.card.task, pixels)
    expected = predictions_of(saved.card.task, network, parameters, inputs)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_what_cannot_be_exported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run", table_task(**CLASSES))
    assert main(["export", str(folder)]) == 1
    task = table_task(target="y", outcome="regression", centre=1, spread=1)
    same = {**task, "features": ["predicted", "x", "a", "b", "c", "d"]}
    with pytest.raises(CheckpointError, match="predicted"):
        as_onnx(loaded(write_run(tmp_path / "same", same)))
    monkeypatch.setattr(onnx_file, "_traced", lambda *_: 1 / 0)
    assert main(["export", str(folder), "--onnx"]) == CheckpointError.exit_code
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert not (folder / "export").exists()


def test_a_file_that_predicts_otherwise_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = loaded(write_run(tmp_path / "run", table_task(**CLASSES)))
    traced = getattr(onnx_file, "_traced")  # noqa: B009

    def of_another(whole: Any, columns: Any) -> Any:
        other = deepcopy(whole)
        for each in other.parameters():
            each.data *= 1.01
        return traced(other, columns)

    monkeypatch.setattr(onnx_file, "_traced", of_another)
    with pytest.raises(CheckpointError, match="otherwise"):
        as_onnx(saved)


def test_a_wide_table_is_tried_out_too(tmp_path: Path) -> None:
    task = table_task(**CLASSES, missing="refuse", features=[f"x{n}" for n in range(300)])
    saved = loaded(write_run(tmp_path / "run", task, scaling=None, replaced=None))
    made_up = getattr(onnx_file, "_made_up")(saved.card.task)  # noqa: B009
    assert int((~torch.stack(made_up).isnan().any(dim=0)).sum()) >= TRIED // 2


def test_the_command_writes_a_model_card_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = table_task(target="ill", classes=["no", EVIL])
    folder = write_run(tmp_path / "run", task)
    import erosion_server.export.onnx_file as module

    monkeypatch.setattr(module, "as_onnx", lambda _: b"a model")
    assert main(["export", str(folder), "--onnx", "-o", str(tmp_path / "out")]) == 0
    assert main(["export", str(folder), "--onnx", "-o", str(folder / "model.json")]) == 74
    told = capsys.readouterr().out.split()
    assert [Path(line).name for line in told] == ["model.onnx", "model-card.html"]
    page = Page((tmp_path / "out/model-card.html").read_text("utf-8"))
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert loaded(folder).card.sha256 in page.text
    assert "0 to 120" in page.text


def test_rounding_near_0_is_nothing_for_an_outcome_in_thousands_but_an_error_for_a_risk() -> None:
    costs = np.array([[-2.846, 2000.0, 4000.0, 6000.0]])
    rounding = np.array([[3.8e-4, 0.0, 0.0, 0.0]])
    assert relative_difference(costs + rounding, costs) == pytest.approx(3.8e-4 / 3000.7115)
    assert relative_difference(costs + rounding, costs) < TOLERANCE
    risks = costs / 10_000
    assert relative_difference(risks + rounding, risks) > 30 * TOLERANCE
    assert relative_difference(costs[:, :0], costs[:, :0]) == 0.0
