"""A finished run with any model, and patients for it as a file and as values."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from erosion_client.dataset.sources.table_file import TableFile
from erosion_client.evaluation.predict import apply_model, load_saved_model
from erosion_common.formats.model_card import ModelCard, write_model
from erosion_common.learning.finished import Finished, Predictor, layer_size
from erosion_common.learning.models import build_model, flat_parameters, parameter_layout
from erosion_common.protocol.messages import Scaling
from erosion_common.study.study import Study
from erosion_common.tasks.inputs import TabularTask
from tests.support.synthetic_run import make_run

FEATURES: list[dict[str, Any]] = [
    {"name": "age", "range": [0, 120], "unit": "years"},
    {"name": "dose, mg"},
    {"name": "sex", "categories": ["f", "m"], "missing": "mode"},
    {"name": "stage", "categories": ["I", "II", "III"], "missing": "indicator"},
]
PREPARED: list[dict[str, Any]] = [
    {"name": "age", "range": [0, 120], "knots": [30, 50, 65, 80], "missing": "indicator"},
    {"name": "dose", "winsorise": [0.5, 300], "log": True},
    {"name": "crp", "range": [0.1, 500], "log": True, "knots": [1, 5, 60]},
    {"name": "sex", "categories": ["f", "m"], "missing": "indicator"},
    {"name": "base excess", "range": [-30, 30], "missing": "indicator"},
]
OF_PREPARED = Scaling(
    mean=(50, 0.5, 0.2, 0, 3, 2, 1, 0, 0, 0.5, 0),
    deviation=(10, 0.8, 0.6, 1, 0.5, 1.5, 0.4, 1, 1, 4, 1),
)
PAIRS = {"interactions": [["age", "dose"], ["crp", "sex"]]}
OF_PAIRS = Scaling(mean=(*OF_PREPARED.mean, 0, 0), deviation=(*OF_PREPARED.deviation, 1, 1))
CLASSES: dict[str, Any] = {"target": "ill", "classes": ["no", "yes"]}
SCALING = Scaling(mean=(50, 2, 0, 0, 0, 0), deviation=(10, 0.5, 1, 1, 1, 1))
REPLACED = (51.5, 2.25, 1.0, 0.0, 0.0, 0.0)  # for missing values, per encoded column


def table_task(**keys: Any) -> dict[str, Any]:
    """A task of a table as a study file has it."""
    return {"kind": "tabular", "features": FEATURES, "missing": "impute", **keys}


def write_run(
    folder: Path,
    task: dict[str, Any],
    model: dict[str, Any] | None = None,
    *,
    members: int = 1,
    is_finished: bool = False,
    scaling: Scaling | None = SCALING,
    replaced: Sequence[float] | None = REPLACED,
) -> Path:
    """Write a finished run, with a model of this task whose parameters are drawn."""
    run = make_run()
    run.write(folder)
    raw = run.study.model_dump(mode="json", exclude_none=True)
    study = Study.model_validate({**raw, "task": task, "model": model or {"name": "logistic"}})
    network = build_model(study.model, study.task.input_shape, study.task.num_outputs)
    random = torch.Generator().manual_seed(7)
    shape = (members, len(flat_parameters(network)))
    parameters = 0.3 * torch.randn(shape, generator=random)
    card = ModelCard(
        study=study.name,
        arm="weight_erosion",
        user=study.user,
        task=study.task,
        model=study.model,
        scaling=scaling,
        missing_means=None if replaced is None else tuple(replaced),
        versions={"erosion": "0.1.0"},
    )
    predictor: Predictor = parameters[0] if members == 1 else parameters
    if is_finished:
        size = layer_size(
            parameter_layout(study.model, tuple(study.task.input_shape), study.task.num_outputs)
        )
        layers = 0.3 * torch.randn((3, 1 + size), generator=random)
        layers[:, 0].abs_()
        predictor = Finished(parameters[0], layers)
    write_model(folder, card, predictor)
    return folder


def random_patients(task: TabularTask, count: int = 200) -> dict[str, list[str]]:
    """Values as text by column, some of them missing, and some far away."""
    random = np.random.default_rng(3)
    columns: dict[str, list[str]] = {}
    for feature in task.features:
        codes = getattr(feature, "categories", None)
        if codes is not None:
            texts = [str(code) for code in random.choice(codes, count)]
        else:
            low, high = getattr(feature, "range", None) or (-5.0, 500.0)
            texts = [repr(float(value)) for value in random.uniform(low, high, count)]
            if low < -1 < high:
                texts[:5] = ["-1"] * 5  # in place of a category's code it says "missing"
        for place in random.choice(count, count // 10, replace=False):
            texts[place] = ""
        columns[feature.name] = texts
    return columns


def predicted(folder: Path, columns: dict[str, list[str]]) -> NDArray[np.float64]:
    """Predict them as `erosion predict` does: (n, k)."""
    path = folder / "patients.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["row", *columns])  # so that no line is empty
        writer.writerows(enumerate_rows(columns))
    return apply_model(load_saved_model(folder), TableFile(path=path)).predictions


def enumerate_rows(columns: dict[str, list[str]]) -> list[list[str]]:
    """Return the patients' lines, each with its number first."""
    return [[str(n), *row] for n, row in enumerate(zip(*columns.values(), strict=True))]
