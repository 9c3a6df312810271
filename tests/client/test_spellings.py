"""Drafts from tables in which one category is spelt in several ways, and in several languages."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from erosion_client.dataset.load import load_patients
from erosion_client.scaffold.site_draft import OPEN, is_written
from erosion_client.site_file import load_site
from erosion_common.errors import DataError
from erosion_common.tasks.features import CategoryFeature
from tests.support.drafts import column, drafted, features_of, one_match, site_of
from tests.support.said import raises, says

DIED = ["No", "no", "Yes", "no", "yes", "YES"]
SMOKES = ["ja", "No", "n", "Y", "nein", "yes", "0", "1"]
GRADE = ["low", "Low", "mid", "high", "HIGH", "Mid"]


def spelt_table() -> str:
    rows = "".join(
        f"{40 + 7 * i % 41},{DIED[i % 6]},{SMOKES[i % 8]},{GRADE[i // 5 % 6]},{20 + 11 * i % 970}\n"
        for i in range(240)
    )
    return "age,died,smokes,grade,days\n" + rows


def categories(folder: Path, name: str, *more: str) -> Sequence[str]:
    study = drafted(folder, spelt_table(), "died", *more)
    feature = next(feature for feature in features_of(study) if feature.name == name)
    assert isinstance(feature, CategoryFeature)
    return feature.categories


def test_spellings_become_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = drafted(tmp_path, spelt_table(), "died")
    assert [label.name for label in getattr(study.task, "classes")] == ["no", "Yes"]  # noqa: B009
    assert says(capsys.readouterr().out, '"No"', '"no"', "new`")


@pytest.mark.parametrize(
    ("name", "meant"), [("grade", ["Mid", "high", "low"]), ("smokes", ["No", "ja"])]
)
def test_a_category_has_one_spelling(tmp_path: Path, name: str, meant: list[str]) -> None:
    assert {text.casefold() for text in categories(tmp_path, name)} == {
        text.casefold() for text in meant
    }


def test_the_site_file_that_is_proposed_for_it_has_the_same_patients(tmp_path: Path) -> None:
    study = drafted(tmp_path, spelt_table(), "died")
    site = site_of(tmp_path)
    site.write_text(site.read_text(encoding="utf-8").replace("# ? ", ""), encoding="utf-8")
    assert len(load_patients(load_site(site), study).rows) == 240


@pytest.mark.parametrize(
    ("categories", "cells", "meant", "is_certain"),
    [
        (["F", "M"], "H M", {"H": "M", "M": "F"}, False),  # hombre, mujer
        (["H", "M"], "F M", {"F": "M", "M": "H"}, False),
        (["F", "M"], "F H", {"H": "M"}, True),  # femme, homme
        (["F", "M"], "W M", {"W": "F"}, True),
        (["F", "M"], "K M", {"K": "F"}, True),
        (["F", "M"], "V M", {"V": "F"}, False),  # vrouw, man; or varón, mujer
        (["F", "M"], "F N", {"F": "M", "N": "F"}, False),  # férfi, nő
        (["F", "M"], "F M W", {"W": "F"}, False),
        (["female", "male"], "M F", {"M": "male", "F": "female"}, True),
        (["female", "male"], "Male male Female", {"Male": "male", "Female": "female"}, False),
        (["no", "yes"], "ja Ja nein", {"ja": "yes", "Ja": "yes", "nein": "no"}, False),
        (["no", "yes"], "1 0", {"1": "yes", "0": "no"}, False),
        (["no", "yes"], "1 2", {}, True),
        (["AA", "Aa", "aa"], "aa Aa AA", {}, True),
    ],
)
def test_a_map_that_makes_one_value_of_two_or_has_two_meanings_is_only_proposed(
    tmp_path: Path, categories: list[str], cells: str, meant: dict[str, str], is_certain: bool
) -> None:
    match = one_match(
        tmp_path, {"name": "sex", "categories": categories}, column("sex", cells.split() * 9)
    )
    assert match.values == meant
    written = {text for text in meant if is_written(match, text, 0.9)}
    proposed = [text for text in meant if text not in written]
    assert (written == {*meant}) == is_certain
    merged = [text for text in meant if [*meant.values()].count(meant[text]) > 1]
    assert {*merged} <= {*proposed}


def test_equal_letters_are_asked_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = drafted(tmp_path, column("sex", ["F", "M"] * 20), "ill")
    (tmp_path / "trial.csv").write_text(column("sex", ["H", "M"] * 20), encoding="utf-8")
    path = site_of(tmp_path)
    with raises(DataError, "among", "categories"):
        load_patients(load_site(path), study)
    text = path.read_text(encoding="utf-8")
    assert '\n# ? "H" = "M"\n# ? "M" = "F"\n' in text
    path.write_text(text.replace('# ? "H"', '"H"'), encoding="utf-8")  # the wrong half of it
    (note,) = load_patients(load_site(path), study).notes
    assert says(note, "'H'", "'M'", "'M'")


def test_codes_that_are_no_others_subset_are_all_asked_about(tmp_path: Path) -> None:
    """1 and 2 here, 0 and 1 in the study: its 1 may be another."""
    study = drafted(tmp_path, column("smoker", [0, 1] * 20), "ill")
    (tmp_path / "trial.csv").write_text(column("smoker", [1, 2] * 20), encoding="utf-8")
    path = site_of(tmp_path)
    text = path.read_text(encoding="utf-8")
    assert [line.split(" =")[0] for line in text.splitlines() if OPEN in line] == [
        '# ? "1"',
        '# ? "2"',
    ]
    path.write_text(text.replace("# ? ", ""), encoding="utf-8")
    with raises(DataError, "0", "1"):
        load_patients(load_site(path), study)


def test_an_event_may_be_spelt_in_several_ways(tmp_path: Path) -> None:
    task = drafted(tmp_path, spelt_table(), "died", "--time", "days").task.model_dump(mode="json")
    assert (task["target"]["happened"], task["target"]["censored"]) == (["Yes"], ["no"])


def test_spellings_of_an_outcome(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(
        f"{40 + 7 * i % 41},{['no', 'NO', 'yes', 'Yes'][i % 4]},{['home', 'exitus'][i // 2 % 2]}\n"
        for i in range(120)
    )
    drafted(tmp_path, "age,died,discharge\n" + rows, "died")
    assert says(capsys.readouterr().out, "discharge", "alone")


def test_three_classes_have_no_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drafted(tmp_path, spelt_table(), "grade")
    assert "positive" not in capsys.readouterr().out
    assert "positive" not in (tmp_path / "study.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("feature", "local", "cells", "meant"),
    [
        (["F", "M"], "Sexo", "Mujer Hombre", {"Mujer": "F", "Hombre": "M"}),
        (["no", "yes"], "stage", "Sí No", {"Sí": "yes", "No": "no"}),
        (
            ["current", "former", "never"],
            "Raucherstatus",
            "nie früher aktuell",
            {"nie": "never", "früher": "former", "aktuell": "current"},
        ),
        (["I", "II", "III"], "Stadium", "1 2 3", {"1": "I", "2": "II", "3": "III"}),
        (["alive", "dead"], "décès", "oui non", {"oui": "dead", "non": "alive"}),
        (["mild", "severe"], "stage", "Légér GRAVE", {"Légér": "mild", "GRAVE": "severe"}),
    ],
)
def test_words_of_hospitals_are_known_without_case_and_accents(
    tmp_path: Path, feature: list[str], local: str, cells: str, meant: dict[str, str]
) -> None:
    name = {"Sexo": "sex", "Raucherstatus": "smoking", "décès": "death"}.get(local, "stage")
    wanted = {"name": name, "categories": feature}
    match = one_match(tmp_path, wanted, column(local, cells.split() * 9))
    assert (match.local, match.values) == (local, meant)
    assert match.confidence >= 0.9
