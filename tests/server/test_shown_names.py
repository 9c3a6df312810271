"""What people call hospitals: on pages and in the status, and never by another one's name."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from erosion_client.consent.review import review
from erosion_client.records.records import Records
from erosion_common.support.status import lines_of_status
from erosion_server.output.report import write_report
from erosion_server.output.watched import WatchedRuns
from erosion_server.run.status import CoordinatorStatus
from tests.support.html_page import EVIL, Page
from tests.support.small_study import make_site, make_study, twenty_patients
from tests.support.synthetic_run import HOSPITALS, make_run


def test_the_report_shows_them_and_files_keep_the_ids(tmp_path: Path) -> None:
    run, (home, peer, *_) = make_run(), HOSPITALS
    called = {home: "Basel University Hospital", peer: EVIL[:60].replace("\x1b", "").strip()}
    study = type(run.study).model_validate({**run.study.model_dump(), "names": called})
    path = write_report(replace(run, study=study).write(tmp_path / "run"))
    page = Page(path.read_text("utf-8"))
    assert called[home] in page.text
    assert not {"script", "b-evil"} & {tag for tag, _ in page.tags}
    assert f"test patients of {home}" not in page.text
    kept = (path.parent / "result.json").read_text()
    assert home in kept
    assert called[home] not in kept


def test_the_status_shows_them(tmp_path: Path) -> None:
    study = make_study(names={"a": "Aarau", "b": "Bern"})
    status = CoordinatorStatus(tmp_path / "status.json", study)
    (part,) = WatchedRuns(tmp_path)()["parts"]
    assert part["title"].endswith("Aarau")
    values = {"study": "small", "user": "a", "names": study.names, "missing": ["b", "c"]}
    assert {"Bern, c", "small for Aarau"} <= {text for _, text in lines_of_status(values)}
    status.ended()


@pytest.mark.parametrize(
    "names",
    [
        {"a": "b"},
        {"a": "Bern", "b": "Βern"},  # its first letter is Greek
        {"a": "Bern", "b": "bern"},
        {"c": "Chur"},
        {"a": ""},
        {"a": "x" * 61},
        {"a": "two\nlines"},
        {"a": "turned \u202eround"},
    ],
)
def test_names_that_would_mislead_are_refused(names: Mapping[str, str]) -> None:
    with pytest.raises(ValueError, match="names"):
        make_study(names=names)


def test_a_hospital_may_be_called_as_it_is_and_review_marks_letters(tmp_path: Path) -> None:
    assert make_study(names={"a": "A"}).shown("a") == "A"
    study = make_study(names={"b": "Вern"})  # its first letter is Cyrillic
    site = make_site(tmp_path, twenty_patients())
    lines = review(site, study, Records.of(site))
    hospitals = next(line for line in lines if line.startswith("  hospitals  "))
    assert "\\u0412" in hospitals
