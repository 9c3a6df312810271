"""Small studies and sites: the base of every study that the tests make."""

from pathlib import Path
from typing import Any

import numpy as np

from erosion_client.site_file import Site
from erosion_common.learning.local_work import PatientCounts
from erosion_common.study.study import Study

TASK: dict[str, Any] = {
    "kind": "tabular",
    "target": "ill",
    "classes": [{"name": "healthy", "values": [0]}, {"name": "ill", "values": [1, 2]}],
    "features": [
        {"name": "age", "range": [0, 120], "unit": "years"},
        {"name": "sex", "categories": ["f", "m"]},
    ],
}

TWO_NUMBERS: dict[str, Any] = {
    "kind": "tabular",
    "target": "ill",
    "classes": ["no", "yes"],
    "features": ["age", "dose"],
}

TEN_NUMBERS: dict[str, Any] = {  # of which updates have enough values for sealed rounds
    **TWO_NUMBERS,
    "features": ["age", "dose", *(f"value {letter}" for letter in "abcdefgh")],
}


def make_study(**changes: Any) -> Study:
    """A study of hospitals a (the user) and b; keyword arguments replace top-level keys.

    It has no local references unless `evaluation` names some: they take a second.
    """
    changes["evaluation"] = {"references": [], **changes.get("evaluation", {})}
    raw: dict[str, Any] = {
        "name": "small",
        "user": "a",
        "hospitals": ["a", "b"],
        "rounds": 3,
        "task": TASK,
        "scaling": "none",
        "model": {"name": "logistic"},
        "training": {"steps": 5, "batch_size": 4},
        "arms": ["fedavg", "local"],
    }
    return Study.model_validate({**raw, **changes})


def make_site(
    folder: Path, text: str | None = None, *, name: str = "a", file: str = "a.csv", **keys: Any
) -> Site:
    """A site with `text` in its data file; keyword arguments replace top-level keys.

    Twenty patients have a test part of six: the smallest cell is 3 unless `limits` says otherwise.
    """
    path = folder / file
    if text is not None:
        path.write_text(text, encoding="utf-8")
    data = {"path": path, **keys.pop("data", {})}
    keys["limits"] = {"min_cell": 3, **keys.get("limits", {})}
    return Site.model_validate(
        {"name": name, "data": data, "coordinator": {"address": "127.0.0.1:9092"}, **keys}
    )


def site_with_cell(folder: Path | None = None, cell: int = 10, **keys: Any) -> Site:
    """A site whose data nobody reads; `folder`: of its state."""
    values = {
        "name": "a",
        "data": {"path": "a.csv"},
        "coordinator": {"address": "127.0.0.1:1"},
        "limits": {"min_cell": cell},
        "compute": {} if folder is None else {"state": str(folder)},
    }
    return Site.model_validate({**values, **keys})


def twenty_patients(older: int = 0) -> str:
    """Twenty patients as CSV, ten of each class; the ill are older."""
    rows = [f"{30 + older + i},{'fm'[i % 2]},0" for i in range(10)]
    rows += [f"{55 + older + i},{'fm'[i % 2]},{1 + i % 2}" for i in range(10)]
    return "age,sex,ill\n" + "\n".join(rows) + "\n"


def sixty_patients(name: str) -> str:
    """Sixty patients of TEN_NUMBERS as CSV; who they are depends on the hospital's name alone.

    The first two of these numbers, those of TWO_NUMBERS, tell who is ill.
    """
    draws = np.random.default_rng(sum(map(ord, name)))
    rows = draws.normal(size=(60, 2)) + 1
    ill = np.where(rows @ [1.0, -0.5] + draws.normal(size=60) * 0.5 > 0.5, "yes", "no")
    further = draws.normal(size=(60, 8)) + 1
    lines = [
        ",".join([*(f"{value:.4f}" for value in (*numbers, *more)), is_ill])
        for numbers, more, is_ill in zip(rows, further, ill, strict=True)
    ]
    return "\n".join([",".join([*TEN_NUMBERS["features"], "ill"]), *lines]) + "\n"


def with_missing(missing: str) -> dict[str, Any]:
    """The task with a policy for missing numbers; a patient without a category is left out."""
    age, sex = TASK["features"]
    return {**TASK, "missing": missing, "features": [age, {**sex, "missing": "drop"}]}


def counts(num_patients: int, samples: int = 1) -> PatientCounts:
    """So many patients of one class, each of as many samples."""
    return PatientCounts((samples,) * num_patients, (num_patients,), num_patients)
