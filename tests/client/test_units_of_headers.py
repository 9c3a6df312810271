"""A column whose header names a unit, and a study that names another one."""

from pathlib import Path
from typing import Any

import pytest

from erosion_client.dataset.load import load_patients
from tests.support.said import says
from tests.support.small_study import make_site, make_study


def notes(folder: Path, header: str, feature: dict[str, Any], **data: Any) -> list[str]:
    task = {**make_study().task.model_dump(mode="json"), "features": [feature]}
    rows = "".join(f"{7 + i % 5 / 10},{i % 3}\n" for i in range(30))
    columns = {} if header == feature["name"] else {feature["name"]: header}
    site = make_site(folder, f"{header},ill\n{rows}", data={"columns": columns, **data})
    return [note for note in load_patients(site, make_study(task=task)).notes if "calls it" in note]


def test_a_header_in_another_unit_than_the_studys_is_asked_about(tmp_path: Path) -> None:
    feature = {"name": "haemoglobin", "unit": "g/dl", "range": [3, 25]}
    assert notes(tmp_path, "Hb (mmol/l)", feature) == [
        "column haemoglobin: the study has it in g/dl, and the file calls it 'Hb (mmol/l)'; if that"
        " is its unit, write haemoglobin = 1.611 under [data.units]"
    ]
    named = {"name": "creatinine (mg/dl)", "range": [0, 25]}
    told = notes(tmp_path, "Kreatinin [µmol/l]", named)
    assert says(told[0], '"creatinine', 'mg/dl)"', "[data.units]")


@pytest.mark.parametrize(
    ("header", "data"),
    [
        ("Hb (mmol/l)", {"units": {"haemoglobin": 1.611}}),
        ("Hb (g/100ml)", {}),
        ("Hb (capillary)", {}),
        ("Hb", {}),
    ],
)
def test_equal_headers_are_silent(tmp_path: Path, header: str, data: dict[str, Any]) -> None:
    feature = {"name": "haemoglobin", "unit": "g/dl", "range": [3, 25]}
    assert notes(tmp_path, header, feature, **data) == []
