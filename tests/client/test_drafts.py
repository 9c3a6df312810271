"""Drafts of study and site files from tables that hospitals really have."""

import os
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from erosion_client.dataset.load import load_patients
from erosion_client.scaffold.column_match import match_columns
from erosion_client.scaffold.column_profile import Profile
from erosion_client.scaffold.column_roles import is_numbered, why_no_feature
from erosion_client.scaffold.site_draft import OPEN, is_written
from erosion_client.scaffold.value_words import direction
from erosion_client.site_file import load_site
from erosion_common.errors import DataError, SiteError
from erosion_common.program.command_line import main
from erosion_common.rounds import bounds
from erosion_common.study.study import load_study
from erosion_common.tasks.features import CategoryFeature, NumberFeature
from erosion_common.tasks.inputs import TabularTask
from tests.support.drafts import column, drafted, features_of, one_match, profiles_of, site_of
from tests.support.said import raises, says

DATA = Path(os.environ.get("EROSION_DATA", "data"))
HEART = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num\n"  # of UCI
NORMAL = np.random.default_rng(3).normal(size=200)

UNITS = [
    # haemoglobin of 9 mmol/l is within any range for g/dl: the middle of the values tells
    ("haemoglobin", "g/dl", [13, 15], "hb", 8.7 + 0.6 * NORMAL, 1.611, 0),
    ("glucose", "", [90, 120], "Glukose", 5.8 + 0.8 * NORMAL, 18.016, 0),
    ("creatinine", "mg/dl", [0.8, 1.2], "Kreatinin [µmol/l]", 88 + 10 * NORMAL, 1 / 88.42, 0),
    ("hba1c", "%", [5.5, 7], "HbA1c (mmol/mol)", 45 + 5 * NORMAL, 0.09148, 2.152),
    ("temperature", "°C", [36.5, 37.5], "temp (F)", 98.6 + NORMAL, 5 / 9, -160 / 9),
    ("height", "cm", [165, 180], "Größe", 1.72 + 0.08 * NORMAL, 100, 0),
    ("weight", "kg", [65, 85], "weight (lb)", 165 + 20 * NORMAL, 0.4536, 0),
    ("age", "years", [50, 70], "age_months", 720 + 100 * NORMAL, 1 / 12, 0),
]


@pytest.mark.parametrize("case", UNITS, ids=lambda case: case[0])
def test_a_change_of_unit_is_proposed_by_where_the_values_lie(tmp_path: Path, case: Any) -> None:
    name, unit, typical, local, values, factor, offset = case
    feature = {"name": name, "unit": unit, "range": [0, 400], "typical": typical}
    match = one_match(tmp_path, feature, column(local, values.round(4)))
    assert match.local == local
    assert match.unit is not None
    assert match.unit.factor == pytest.approx(factor, rel=1e-3)
    assert match.unit.offset == pytest.approx(offset, abs=1e-3)


def test_odd_sizes_and_long_names_make_a_study_all_the_same(tmp_path: Path) -> None:
    long = "how do you feel " * 20
    rows = "".join(
        f"{int(9e13 + value * 20)},{value:.3f},{value * 1e-12!r}\n" for value in NORMAL.tolist()
    )
    study = drafted(tmp_path, f"stamp,{long},outcome\n{rows}", "outcome")
    (stamp,) = features_of(study)
    assert isinstance(stamp, NumberFeature)
    assert stamp.range is not None
    assert stamp.range[0] < 9e13 - 40 < 9e13 + 40 < stamp.range[1] < 9e13 + 200
    assert 5e-13 < study.task.model_dump()["spread"] < 2e-12


def test_no_change_of_unit_against_header_or_values(tmp_path: Path) -> None:
    feature = {"name": "cholesterol", "unit": "mg/dl", "range": [0, 400], "typical": [180, 220]}
    same = column("Chol (mg/dl)", (5.2 + 0.5 * NORMAL).round(2))  # an error, but no unit
    assert one_match(tmp_path, feature, same).unit is None
    alike = column("cholesterol", (210 + 40 * NORMAL).round(1))
    assert one_match(tmp_path, feature, alike).unit is None
    assert one_match(tmp_path, feature, alike).confidence == 1.0
    lower = column("cholesterol", (165 + 40 * NORMAL).round(1))  # other patients, the same unit
    match = one_match(tmp_path, feature, lower)
    assert match.unit is None
    assert 0.7 < match.confidence < 1.0


def test_what_people_write_for_not_known_is_proposed_as_missing(tmp_path: Path) -> None:
    cells = [*map(str, range(100, 140)), "k.A.", "999", "-", "999"]
    match = one_match(tmp_path, {"name": "sbp", "range": [50, 300]}, column("sbp", [*cells]))
    assert set(match.unsaid) == {"k.A.", "-", "999"}
    sex = {"name": "sex", "categories": ["f", "m"]}
    match = one_match(tmp_path, sex, column("sex", ["F", "M", "unbekannt", "F", "M", "M"] * 4))
    assert match.values == {"F": "f", "M": "m"}
    assert match.unsaid == ("unbekannt",)
    known = {"name": "stage", "categories": ["1", "2", "unknown"]}
    match = one_match(tmp_path, known, column("stage", ["1", "2", "unknown"] * 8))
    assert not match.unsaid  # to this study it is a category
    protein = {"name": "protein", "categories": ["neg", "pos"]}
    match = one_match(tmp_path, protein, column("protein", ["neg", "pos", "-"] * 9))
    assert match.unsaid == ("-",)
    match = one_match(tmp_path, protein, column("protein", ["-", "+"] * 9))
    assert match.values == {"-": "neg", "+": "pos"}


@pytest.mark.parametrize("values", ["- + ++", "- +", "(-) (+)", "-- + ++", "- pos", "- +/- +"])
def test_dash_is_negative(tmp_path: Path, values: str, capsys: pytest.CaptureFixture[str]) -> None:
    cells = values.split()
    rows = "".join(f"{40 + 7 * i % 41},{cells[i % len(cells)]},{i % 2}\n" for i in range(60))
    study = drafted(tmp_path, "age,protein,ill\n" + rows, "protein")
    classes = [label.name for label in getattr(study.task, "classes")]  # noqa: B009
    assert classes[0] == cells[0]
    assert {*classes} == {*cells}
    assert "no class" not in capsys.readouterr().out
    site = site_of(tmp_path)
    assert "-" not in {line.split(" =")[0] for line in site.read_text().splitlines()}
    site.write_text(site.read_text().replace("# ? ", ""))
    assert len(load_patients(load_site(site), study).targets) == 60


def test_nulls_of_other_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nulls = ["\\N", "(null)", ".", "#DIV/0!"]
    rows = "".join(
        f"{nulls[i % 4] if i % 3 == 0 else 40 + 7 * i % 41},{['yes', 'no', nulls[0]][i % 3]},"
        f"{['high', 'low', 5 + i][i % 7 % 3] if i % 2 else 1.5 * i},{i % 2}\n"
        for i in range(90)
    )
    study = drafted(tmp_path, "age,smoker,score,ill\n" + rows, "ill")
    age, smoker = features_of(study)
    assert isinstance(age, NumberFeature)
    assert isinstance(smoker, CategoryFeature)
    assert smoker.categories == ("no", "yes")
    told = capsys.readouterr().out
    assert says(told, "score", "numbers")


def test_ages_and_stays_are_proposed_from_dates(tmp_path: Path) -> None:
    rows = "".join(
        f"0{1 + i % 9}.05.19{40 + i},01.02.2020,1{i % 9}.02.2020,{i % 2}\n" for i in range(30)
    )
    text = "Geburtsdatum,Aufnahme,Entlassung,ill\n" + rows
    age = one_match(tmp_path, {"name": "age", "range": [18, 110]}, text).between
    assert age is not None
    assert (age.kind, age.start, age.end) == ("years_between", "Geburtsdatum", "Aufnahme")
    assert age.date_format == "%d.%m.%Y"
    stay = one_match(tmp_path, {"name": "length_of_stay"}, text).between
    assert stay is not None
    assert (stay.kind, stay.start, stay.end) == ("days_between", "Aufnahme", "Entlassung")
    assert one_match(tmp_path, {"name": "cholesterol"}, text).between is None
    rows = "".join(f"202103{1 + i % 20:02},202104{1 + i % 20:02},{i % 2}\n" for i in range(60))
    text = "admitted,discharged,ill\n" + rows  # without marks
    stay = one_match(tmp_path, {"name": "stay", "range": [0, 99]}, text).between
    assert stay is not None
    assert stay.date_format == "%Y%m%d"


@pytest.mark.parametrize(
    ("cell", "forms"),
    [
        ("{1}/{2}/19{0}", {"%d/%m/%Y", "%m/%d/%Y"}),
        ("{1}-{2}-19{0}", {"%d-%m-%Y", "%m-%d-%Y"}),
        ("{1}/{2}/{0}", {"%d/%m/%y", "%m/%d/%y"}),
        ("{1}{2}19{0}", {"%d%m%Y", "%m%d%Y"}),
        ("{1}.{2}.19{0}", {"%d.%m.%Y"}),
        ("19{0}年{1}月{2}日", {"%Y年%m月%d日"}),
    ],
)
def test_dates_that_may_be_of_two_forms_are_taken_in_neither(
    tmp_path: Path, cell: str, forms: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    study = drafted(tmp_path, column("age", range(30, 90)), "ill")
    dates = [
        (cell.format(35 + i % 30, f"{1 + i % 12:02}", f"{1 + i % 11:02}"), f"{1 + i % 12:02}")
        for i in range(60)
    ]
    rows = "".join(
        f"{born},{cell.format(96, month, '09')},{i % 2}\n" for i, (born, month) in enumerate(dates)
    )
    (tmp_path / "trial.csv").write_text("birth_date,admission_date,ill\n" + rows, encoding="utf-8")
    capsys.readouterr()
    site = site_of(tmp_path)
    told, text = capsys.readouterr().out, site.read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if "date_format" in line]
    assert {*line.split('"')[1].split(" OR ")} == forms
    site.write_text(text.replace("# ? ", ""), encoding="utf-8")
    if len(forms) == 1:
        assert len(load_patients(load_site(site), study).targets) == 60
        return
    assert all(form in told for form in forms)
    with raises(SiteError, "give", "form"):
        load_site(site)


def test_an_outcome_in_a_row_of_its_own_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"P{i},{what},{i % 9}\n" for i in range(30) for what in ("age", "died"))
    (tmp_path / "a.csv").write_text("pid,parameter,value\n" + rows)
    assert main(["study", "new", str(tmp_path / "a.csv"), "--target", "died"]) == 4
    assert says(capsys.readouterr().err, "'died'", "'parameter'", "row")


@pytest.mark.parametrize(
    "key",
    [
        "hasta_no",
        "numer_pacjenta",
        "rodné číslo",
        "ID пациента",
        "病历号",
        "患者番号",
        "رقم المريض",
    ],
)
def test_keys_and_places_in_several_languages(
    tmp_path: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Patients counted as rows, or their numbers as measured."""
    header = f"{key},hastane,oddział,больница,病院,age,ill"
    rows = "".join(
        f"{7 + i // 3},A{i % 4},B{i % 4},C{i % 4},D{i % 4},{30 + i % 40},{i % 2}\n"
        for i in range(90)
    )
    study = drafted(tmp_path, f"{header}\n{rows}", "ill")
    assert says(capsys.readouterr().out, f"{key}: 90 rows of 30 patients")
    assert [feature.name for feature in getattr(study.task, "features")] == ["age"]  # noqa: B009


def test_codes_are_asked_about_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two values no column measures anything: 38 of 39 columns of a study had a line."""
    rows = "".join(f"{i % 3},{1 + i % 4},{i % 5 % 2},{i % 2}\n" for i in range(60))
    drafted(tmp_path, "stage,grade,smoker,ill\n" + rows, "ill")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "taken for" in line]
    assert says(line, "stage, grade:")
    assert "smoker" not in line


def test_mixed_dates_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(
        f"{[f'2020-03-{1 + i % 28:02}', f'{1 + i % 28}.4.{1900 + i}'][i % 2]},{30 + i},{i % 2}\n"
        for i in range(60)
    )
    drafted(tmp_path, "seen,age,ill\n" + rows, "ill")
    assert says(capsys.readouterr().out, "dates", "several")
    assert "patient" not in site_of(tmp_path).read_text().replace("patients", "")


def test_a_time_until_an_event_is_predicted_by_survival(tmp_path: Path) -> None:
    rows = "".join(f"{40 + i % 40},{10 * i + 3},{i % 3 == 0:d}\n" for i in range(60))
    study = drafted(tmp_path, "age,days (days),death\n" + rows, "death", "--time", "days (days)")
    task = study.task.model_dump(mode="json")
    assert task["outcome"] == "survival"
    assert task["target"] == {
        "time": "days (days)",
        "event": "death",
        "unit": "days",
        "happened": ["1"],
        "censored": ["0"],
    }
    assert len(task["cut_points"]) == 4
    assert not {3.0 + 10 * i for i in range(60)} & set(task["cut_points"])  # nobody's time
    wrong = ["study", "new", str(tmp_path / "trial.csv"), "-o", str(tmp_path / "other.toml")]
    assert main([*wrong, "--target", "death", "--time", "week"]) == 4
    assert main([*wrong, "--target", "age", "--time", "days (days)"]) == 4


@pytest.mark.parametrize("name", ["diag_1", "ICD-10", "zip code", "Hauptdiagnose", "reason"])
def test_codes_of_diagnoses_and_addresses_are_no_numbers(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = [250 + i % 70 for i in range(200)]
    letters = {7: "V57", 19: "E885.9"} if name == "reason" else {}
    rows = "".join(
        f"{30 + i % 50}.5,{letters.get(i, code)},{1 + i % 9},{'no' if i % 3 else 'yes'}\n"
        for i, code in enumerate(codes)
    )
    study = drafted(tmp_path, f"age,{name},ward_unit_id,outcome\n{rows}", "outcome")
    features = {each["name"]: each for each in study.task.model_dump(mode="json")["features"]}
    assert features.keys() == {"age", "ward_unit_id"}
    assert features["ward_unit_id"]["categories"] == [*"123456789"]
    assert says(capsys.readouterr().out, name, "codes, too many")


@pytest.mark.parametrize("name", ["age_at_diagnosis", "diagonal", "n_dx", "measure"])
def test_numbers_that_only_sound_like_codes_are_features(tmp_path: Path, name: str) -> None:
    rows = "".join(f"{20 + i % 60},{'no' if i % 3 else 'yes'}\n" for i in range(200))
    drafted(tmp_path, f"{name},outcome\n{rows}V57,no\n", "outcome")


def test_a_table_without_the_outcome_of_another_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, outcome in (("few", "no"), ("many", "yes")):
        rows = "".join(f"{30 + i},{'no' if i % 2 else outcome}\n" for i in range(40))
        (tmp_path / f"{name}.csv").write_text(f"age,outcome\n{rows}")
    arguments = ["study", "new", str(tmp_path), "--target", "outcome"]
    assert main(arguments) == 4
    assert says(capsys.readouterr().err, "few.csv", "'outcome'", "all its values", "--user", "many")
    assert main([*arguments, "--user", "many"]) == 0


def test_unknown_and_rare_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = ["dead", "alive"] * 20 + ["unknown"] * 3 + ["lost"] * 2
    rows = "".join(f"{30 + i},{cell}\n" for i, cell in enumerate(cells))
    study = drafted(tmp_path, "age,outcome\n" + rows, "outcome")
    task = study.task.model_dump(mode="json")
    assert [c["name"] for c in task["classes"]] == ["alive", "dead", "lost"]
    said = capsys.readouterr().out
    assert says(said, "outcome", "'unknown'")
    assert says(said, "'lost'", "10 patients")


@pytest.mark.parametrize(
    "codes", ["1E1 10 2E1 20 1_0 01 1", "1e5 100000 Infinity 0 inf", "01 1 02 2 10"]
)
def test_codes_that_floating_point_would_make_one_stay_apart(tmp_path: Path, codes: str) -> None:
    values = codes.split()
    study = drafted(tmp_path, column("unit_code", values * 12), "ill")
    (feature,) = features_of(study)
    assert isinstance(feature, CategoryFeature)
    assert {*feature.categories} == {*values}
    found = load_patients(load_site(site_of(tmp_path)), study)
    assert len(np.unique(found.rows[:, 0])) == len(values)


def test_numbers_with_zeros_before_or_with_exponents_may_still_be_measured(tmp_path: Path) -> None:
    for cells in (["1E3", "1.5E3", "2.5E3"], ["0.5", "07", "12.5"], ["1.0", "2.50", "3.25"]):
        values = [*(f"{40 + i / 4}" for i in range(40)), *cells]
        assert profiles_of(tmp_path, column("x", values))[0].kind == "number"


SHIPPED = [
    ("indo-rct/indo_rct.csv", "outcome", None),
    ("titanic/titanic3.csv", "survived", None),
    ("tcga-brca/brca.csv", "E", "T"),
    ("heart-disease/processed.cleveland.data", "num", None),
    ("heart-disease/processed.va.data", "num", None),
]


@pytest.mark.parametrize(("name", "target", "time"), SHIPPED)
def test_drafts_of_shipped_tables(tmp_path: Path, name: str, target: str, time: str | None) -> None:
    source = DATA / name
    if not source.exists():
        pytest.skip(f"{source} is not there")
    text = source.read_text(encoding="utf-8", errors="replace")
    table = tmp_path / "trial.csv"
    table.write_text(HEART + text if source.suffix == ".data" else text, encoding="utf-8")
    more = ["--time", time] if time else []
    assert main(["study", "new", str(table), "--target", target, *more]) == 0
    study = load_study(tmp_path / "study.toml")
    assert isinstance(study.task, TabularTask)
    assert study.task.features
    data = ["--study", str(tmp_path / "study.toml"), "--data", str(table), "--name", "hospital-1"]
    assert main(["site", "new", *data]) == 0
    # As it is written, once a person confirms that what is no number is missing.
    path = tmp_path / "sites" / "hospital-1.toml"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(x.removeprefix("# ? ") if "# no number" in x else x for x in lines))
    site = load_site(path)
    found = load_patients(site, study)
    assert len(found.targets) > 50
    for feature, values in zip(study.task.features, found.rows.T, strict=True):
        if isinstance(feature, NumberFeature):
            assert feature.range is not None
            low, high = feature.range
            assert low <= np.nanmin(values)
            assert high >= np.nanmax(values)
            exact = {float(v) for v in (np.nanmin(values), np.nanmax(values)) if v != 0}
            assert not exact & {low, high}, f"{feature.name}: a range tells a patient's value"
        else:
            assert isinstance(feature, CategoryFeature)


@pytest.mark.parametrize("event", ["12", "01"])
@pytest.mark.parametrize("missing", ["", "30,,40\n"])
def test_what_follows_from_an_event_is_asked_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], event: str, missing: str
) -> None:
    lines = [f"{50 + n * 7 % 90},{event[n % 2]},{40 + n % 2}" for n in range(80)]
    (tmp_path / "a.csv").write_text("\n".join(["days,status,score", *lines]) + f"\n{missing}")
    named = ["--target", "status", "--time", "days"]
    assert main(["study", "new", str(tmp_path / "a.csv"), *named]) == 0
    assert says(capsys.readouterr().out, "score", "AUROC")


@pytest.mark.parametrize(
    ("patients", "target", "folds"),
    [(50, "ill", None), (200, "ill", 5), (1500, "ill", None), (200, "weight", None)],
)
def test_when_to_crossfit(tmp_path: Path, patients: int, target: str, folds: int | None) -> None:
    table = tmp_path / "a.csv"
    lines = [f"{30 + n % 40},{n % 2},{60 + n % 37}.5" for n in range(patients)]
    table.write_text("\n".join(["age,ill,weight", *lines]) + "\n")
    assert main(["study", "new", str(table), "--target", target]) == 0
    evaluation = load_study(tmp_path / "study.toml").evaluation
    assert evaluation.folds == folds
    assert evaluation.repeats == (5 if folds else 1)


def test_a_draft_that_could_not_be_sent_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "LARGEST_HEAD_BYTES", 1000)
    table = tmp_path / "a.csv"
    lines = [f"{30 + n % 40},{n % 2}" for n in range(200)]
    table.write_text("\n".join(["age,ill", *lines]) + "\n")
    assert main(["study", "new", str(table), "--target", "ill"]) == 0
    assert says(capsys.readouterr().out, "1 columns", "message")


def test_a_limit_is_never_missing(tmp_path: Path) -> None:
    cells = [
        *("<0.05" if i % 3 == 0 else f"{0.1 + i % 37 / 10:.1f}" for i in range(90)),
        *("> 9", "1.3 (haem.)", "2.1 ng/ml", "undetectable", "typo", "n.d."),
    ]
    study = drafted(tmp_path, column("troponin", cells), "ill")
    site = site_of(tmp_path)
    text = site.read_text(encoding="utf-8")
    missing = [line for line in text.splitlines() if line.endswith('""') or '= ""  #' in line]
    assert [line.partition(" =")[0] for line in missing] == ['# ? "n.d."']
    assert '# ? "n.d." = ""  # not known, or below a limit?' in text
    assert '# ? "1.3 (haem.)" = "1.3"' in text
    assert '# ? "2.1 ng/ml" = "2.1"' in text
    assert '\n# ? "troponin" = "half"' in text
    confirmed = text.replace("# ? ", "").replace("A NUMBER", "0.02")
    for limit, low in (("half", 0.025), ("limit", 0.05)):
        site.write_text(confirmed.replace('= "half"', f'= "{limit}"'), encoding="utf-8")
        found = load_patients(load_site(site), study)
        values = found.rows[:, 0]
        assert values[0] == values[87] == low
        assert values[90:94].tolist() == [9, 1.3, 2.1, 0.02]
        assert any(says(note, "31 values", "beyond") for note in found.notes)


@pytest.mark.parametrize(
    ("name", "no", "event"),
    [
        *(
            ("ill", *pair.split("|"))
            for pair in ("nein|ja", "0|1", "survived|dead", "-|+", "Non|Oui")
        ),
        *(("result", *pair.split("|")) for pair in ("No disease|Disease", "benign|malignant")),
        *(("result", *pair.split("|")) for pair in ("kein Befund|Befund", "disease-free|disease")),
        *(("result", *pair.split("|")) for pair in ("Non-diabetic|Diabetic", "normal|abnormal")),
        *(("result", *pair.split("|")) for pair in ("survived|not survived", "control|case")),
        *(("result", *pair.split("|")) for pair in ("sans récidive|récidive", "ohne|mit")),
        ("readmission", "not readmitted", "readmitted"),
        ("survival", "alive", "dead"),
        ("os_status", "0:LIVING", "1:DECEASED"),
        ("no_disease", "No disease", "Disease"),
        *(
            (name, "1", "0")
            for name in ("survived", "Überlebt", "disease_free", "no event", "alive")
        ),
        *((name, "yes", "no") for name in ("event-free", "healthy", "non_smoker", "censored")),
        *((name, "0", "1") for name in ("no_of_events", "free T4 high", "died")),
        *(("status", "żyje", "zmarł"), ("転帰", "生存", "死亡"), ("生存", "1", "0")),
        *(("жив", "да", "нет"), ("ziv", "ano", "ne"), ("przeżył", "tak", "nie")),
        *(("durum", "sağ", "ex"), ("исход", "выжил", "умер"), ("status", "vid liv", "död")),
        *(("hayatta", "evet", "hayır"), ("absence_of_relapse", "yes", "no"), ("alive28", "1", "0")),
        *(("tumour absent", "yes", "no"), ("libre_de_enfermedad", "sí", "no")),
        *(
            ("no_of_lesions", "no", "yes"),
            ("病理", "良性", "恶性"),
            ("diagnoza", "zdrowy", "chory"),
        ),
    ],
)
def test_the_event_is_the_last_class(name: str, no: str, event: str) -> None:
    for codes in ((no, event), (event, no)):
        found = direction(name, codes)
        assert (found.codes, found.is_sure) == ((no, event), True)


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        *(("status", pair) for pair in ("1 2", "A B", "low high", "m f", "E A")),
        *((name, "0 1") for name in ("remission", "survival", "response", "cured", "vital_status")),
        *((name, "nie tak") for name in ("przeżycie", "sopravvivenza")),
        *((name, "no yes") for name in ("komplikationslos", "good_outcome")),
    ],
)
def test_where_words_do_not_tell_the_event_a_draft_asks(
    tmp_path: Path, name: str, codes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{30 + i},{codes.split()[i % 2]}\n" for i in range(40))
    drafted(tmp_path, f"age,{name}\n" + rows, name)
    assert "is the event" in capsys.readouterr().out
    text = (tmp_path / "study.toml").read_text(encoding="utf-8")
    assert any(line.startswith("# ? ") and name in line for line in text.splitlines())


def test_outcomes_by_name_and_negation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def classes(name: str, values: str, *more: str) -> list[str]:
        (tmp_path / "study.toml").unlink(missing_ok=True)
        cells = values.split("|")
        rows = "".join(f"{30 + i},{cells[i % 2]},{3 * i + 1}\n" for i in range(60))
        task = drafted(tmp_path, f"age,{name},days\n" + rows, name, *more).task
        if more:
            return [*getattr(task, "target").happened]  # noqa: B009
        return [label.name for label in getattr(task, "classes")]  # noqa: B009

    assert classes("result", "Disease|No disease") == ["No disease", "Disease"]
    assert classes("survived", "yes|no") == ["yes", "no"]
    assert says(capsys.readouterr().out, "'no'", "column's")
    assert classes("alive", "1|0", "--time", "days") == ["0"]
    assert classes("died", "1|0", "--time", "days") == ["1"]


def test_the_number_of_a_row_is_no_feature(tmp_path: Path) -> None:
    rows = "".join(f"{i},{30 + i % 50},P{i // 2},{i // 50}\n" for i in range(100))
    kinds = {p.name: p.kind for p in profiles_of(tmp_path, ",age,pid,ill\n" + rows)}
    assert kinds == {
        "(column 1)": "identifier",
        "age": "number",
        "pid": "identifier",
        "ill": "category",
    }
    study = drafted(tmp_path, "row,age,pid,ill\n" + rows, "ill")
    assert [feature.name for feature in features_of(study)] == ["age"]
    assert says(site_of(tmp_path).read_text(), "patient", '"pid"')


def test_names_and_values_may_hold_line_ends_and_quotation_marks(tmp_path: Path) -> None:
    rows = "".join(f'{30 + i},"a\n{"<b>"[: i % 2]}",x\ty,{i % 2}\n' for i in range(40))
    study = drafted(tmp_path, '"age\n(years)","say ""x""\\","\x7f\n",ill\n' + rows, "ill")
    assert [feature.name for feature in features_of(study)] == ["age\n(years)", 'say "x"\\']
    site = load_site(site_of(tmp_path))
    assert len(load_patients(site, study).targets) == 40


def test_cut_points_of_times(tmp_path: Path) -> None:
    rows = "".join(f"{30 + i};{i},5;{['ja', 'nein'][i % 2]}\n" for i in range(60))
    study = drafted(tmp_path, "age;os_days;death\n" + rows, "death", "--time", "os_days")
    assert getattr(study.task, "target").unit == "days"  # noqa: B009
    assert getattr(study.task, "cut_points") == (10.0, 25.0, 35.0, 50.0)  # noqa: B009
    assert getattr(study.task, "target").happened == ("ja",)  # noqa: B009
    (tmp_path / "study.toml").unlink()
    rows = "".join(f"{30 + i},{0 if i < 24 else i},{i % 2}\n" for i in range(60))
    study = drafted(tmp_path, "age,days,death\n" + rows, "death", "--time", "days")
    assert getattr(study.task, "cut_points") == (15.0, 35.0, 45.0)  # noqa: B009


SIX_DIGITS = np.random.default_rng(5).choice(900_000, 200, replace=False) + 100_000
DAYS = np.random.default_rng(6).integers(0, 900, 200)  # since 2021


def drafted_profile(folder: Path, name: str, values: Iterable[object]) -> Profile:
    return profiles_of(folder, column(name, values))[0]


PATIENTS = [
    "PatientID", "patient_id", "MRN", "CaseNo", "study_subject_id", "patient_nbr",
    "SubjectKey", "pid", "pseudonym", "Patientennummer", "Pat-Nr.", "Fallnummer", "FallNr",
    "Aufnahmenummer", "IPP", "identifiant", "patiëntnummer", "volgnr", "BSN",
    "numero_paciente", "patient", "Subject", "participant", "codigo_paciente", "visit_nr",
    "ID Patient", "case number", "Patient #", "record no", "lfd. Nr.", "N° dossier",
    "numéro de dossier", "Code patient", "N° séjour",
]  # fmt: skip
COUNTED = [
    "no_fall", "number_inpatient", "mrna", "case_mix", "patients_seen", "hospital_days",
    "nr_of_days", "nbr_enfants", "numero_ingresos", "wards", "services", "patient_days",
    "PT",
]  # fmt: skip
LIKE_PSEUDONYMS = [f"{number * 7919:012x}" for number in SIX_DIGITS[:60]] * 2
ANSWERS = ["yes", "no"] * 30


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        *((name, SIX_DIGITS, "identifier") for name in PATIENTS),
        # Several rows of a patient, and others who lack a number.
        *((n, [*SIX_DIGITS[:60], *SIX_DIGITS[:60], ""], "identifier") for n in PATIENTS),
        ("x", LIKE_PSEUDONYMS, "identifier"),
        ("x", [f"{text}-4c2d-8e3f-0123456789ab" for text in LIKE_PSEUDONYMS], "identifier"),
        *((name, ANSWERS, "category") for name in (*COUNTED, "doctor", "patient", "fall_nr")),
        *((name, "ABC" * 20, "category") for name in ("drug_name", "surgeon_grade")),
        *((name, [i * i % 61 for i in range(60)], "number") for name in COUNTED),
    ],
)
def test_a_column_is_known_for_what_it_is(
    tmp_path: Path, name: str, values: Iterable[object], kind: str
) -> None:
    found = drafted_profile(tmp_path, name, values)
    assert found.kind == kind
    assert bool(why_no_feature(found)) == (kind == "identifier")


@pytest.mark.parametrize(
    "name",
    ["Name", "nom", "apellidos", "Name_Patient", "surgeon", "treating physician", "Arztname"],
)
def test_nobody_is_named(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    people = ["Abel", "Bach", "Curie", "Dunant"]
    rows = "".join(f"{people[i % 4]},{40 + 7 * i % 41},{i % 2}\n" for i in range(60))
    study = drafted(tmp_path, f"{name},age,ill\n" + rows, "ill")
    assert [feature.name for feature in features_of(study)] == ["age"]
    assert "Curie" not in (tmp_path / "study.toml").read_text()
    assert says(capsys.readouterr().out, name, "people's")


PSEUDONYMS = [f"{number:08x}" for number in range(0xABCD0, 0xABCDC)]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ID", [f"K{text}" for text in PSEUDONYMS]),
        ("pid", [f"K{text}" for text in PSEUDONYMS]),
        ("x", PSEUDONYMS),
        ("patient_id", [*map(str, SIX_DIGITS[:5])]),
        ("remark", [*(f"fell on day {i}" for i in range(12)), *[""] * 48]),
    ],
)
def test_nothing_of_few_patients_leaves(tmp_path: Path, name: str, values: list[str]) -> None:
    rows = "".join(f"{values[i % len(values)]},{40 + 7 * i % 41},{i % 2}\n" for i in range(60))
    study = drafted(tmp_path, f"{name},age,ill\n" + rows, "ill")
    assert [feature.name for feature in features_of(study)] == ["age"]
    text = (tmp_path / "study.toml").read_text()
    assert not any(value in text for value in values if value)


def test_numbering_is_known_by_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = np.random.default_rng(7)
    running = draw.permutation(np.arange(1001, 1201))
    five_digits = draw.choice(90_000, 2000, replace=False) + 10_000
    twice = np.concatenate([SIX_DIGITS, SIX_DIGITS[:5]])  # rows that were exported again
    for numbers in (running, five_digits, SIX_DIGITS, twice):
        assert is_numbered(drafted_profile(tmp_path, "x", numbers))
    rows = "".join(f"{n},{40 + 7 * i % 41},{i % 2}\n" for i, n in enumerate(running))
    study = drafted(tmp_path, "x,age,ill\n" + rows, "ill")
    assert [feature.name for feature in features_of(study)] == ["age"]
    assert says(capsys.readouterr().out, "values", "patients")


def test_measurements_that_are_nearly_all_different_are_features(tmp_path: Path) -> None:
    draw = np.random.default_rng(8)
    measured: dict[str, NDArray[np.float64]] = {
        "crp": draw.lognormal(1, 1, 200).round(3),
        "bnp": draw.lognormal(7, 1, 200).round(),
        "cells": draw.normal(7000, 1500, 200).round(),
        "dose": draw.integers(100, 900, 200).astype(np.float64) * 1000,
        "pulse": np.arange(40.0, 100.0),
        "brain (mm3)": draw.normal(1_450_000, 120_000, 200).round(),
    }
    for name, values in measured.items():
        texts = [f"{value:g}" if value < 1e5 else f"{value:.0f}" for value in values]
        assert not why_no_feature(drafted_profile(tmp_path, name, texts)), name


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("seen", [44197 + day for day in DAYS]),  # a spreadsheet's days since 1900
        ("AdmissionDate", [f"{44197 + day}.5" for day in DAYS]),
        ("dob", [20000 + 11 * day for day in DAYS]),
        ("t0", [1609459200 + 86400 * day + 60 for day in DAYS]),
        ("t0", [1609459200000 + 86400000 * day for day in DAYS]),
        ("t0", [date.fromordinal(737791 + day).strftime("%Y%m%d") for day in DAYS]),
        ("t0", [date.fromordinal(737791 + day).strftime("%d%m%Y") for day in DAYS]),
    ],
)
def test_numeric_dates_are_no_feature(tmp_path: Path, name: str, values: Sequence[object]) -> None:
    found = drafted_profile(tmp_path, name, values)
    assert found.kind == "date"
    assert "dates" in why_no_feature(found)
    for usual, numbers in (("birth_weight", [2500 + day for day in DAYS]), ("days", DAYS)):
        assert drafted_profile(tmp_path, usual, numbers).kind == "number"


@pytest.mark.parametrize(
    ("form", "time"),
    [
        *(("%Y-%m-%d", time) for time in ("T10:05:00Z", "T10:05:00.000+01:00", " 10:05:00+02")),
        *(("%d.%m.%Y", time) for time in (" 08:15", "  8:15:00")),
        ("%m/%d/%Y", " 12:00:00 AM"),
    ],
)
def test_a_stay_from_dates_with_times(tmp_path: Path, form: str, time: str) -> None:
    days = [date(2021, 3, 1 + i % 28) for i in range(60)]
    stays = "".join(f"{i % 40},{40 + i % 30},{i % 2}\n" for i in range(60))
    study = drafted(tmp_path, "stay,age,ill\n" + stays, "ill")
    until = date(2021, 4, 2).strftime(form) + time
    rows = "".join(
        f"{day.strftime(form)}{time},{until},{40 + i % 30},{i % 2}\n" for i, day in enumerate(days)
    )
    (tmp_path / "trial.csv").write_text("admitted,discharged,age,ill\n" + rows)
    path = site_of(tmp_path)
    path.write_text(path.read_text().replace("# ? ", ""))
    found = load_patients(load_site(path), study)
    assert found.rows[:3, 0].tolist() == [32, 31, 30]


@pytest.mark.parametrize(
    "name", ["hospital", "Klinik", "Station", "centre_id", "hôpital", "StudySite", "ziekenhuisnaam"]
)
def test_no_hospital_feature(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for values in ("ABC", "123"):
        rows = "".join(f"{40 + 7 * i % 41},{values[i % 3]},{i % 2}\n" for i in range(60))
        (tmp_path / "study.toml").unlink(missing_ok=True)
        study = drafted(tmp_path, f"age,{name},ill\n" + rows, "ill")
        assert [feature.name for feature in features_of(study)] == ["age"]
        assert says(capsys.readouterr().out, name, "hospital")


def test_a_point_in_codes(tmp_path: Path) -> None:
    rows = "".join(f"{250 + i % 9}.{i % 7};{60 + i % 37},5;{i % 2}\n" for i in range(60))
    study = drafted(tmp_path, "dose;Gewicht;ill\n" + rows, "ill")
    assert [feature.name for feature in features_of(study)] == ["dose", "Gewicht"]
    amounts = "".join(f'"{1 + i % 9},{i + 100}",{60 + i % 37}.5,{i % 2}\n' for i in range(60))
    found = profiles_of(tmp_path, "cells,weight,ill\n" + amounts)
    assert [profile.thousands for profile in found] == [",", "", ""]


def test_points_may_group_thousands(tmp_path: Path) -> None:
    rows = "".join(
        f"{4 + i % 5}.{101 + 7 * i % 899};{i * 37 % 900};{10 + i % 7},5;{i % 2}\n"
        for i in range(60)
    ).replace(";0;", ";1.000;")
    study = drafted(tmp_path, "cells;crp;hb;ill\n" + rows, "ill")
    path = site_of(tmp_path)
    path.write_text(path.read_text().replace("# ? thousands", "thousands"))
    assert load_patients(load_site(path), study).rows[0].tolist() == [4101, 1000, 10.5]


def test_a_common_code_is_no_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{i},{i % 25},{40 + 7 * i % 41},{i % 2}\n" for i in range(2000))
    drafted(tmp_path, "visit_id,disposition_id,age,ill\n" + rows, "ill")
    told = capsys.readouterr().out
    assert says(told, "disposition_id", "categories")
    assert says(told, "visit_id", "patients")
    assert says(site_of(tmp_path).read_text(), "patient", '"visit_id"')


def test_a_suspicious_zero_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{0 if i % 10 == 3 else 170 + 7 * i % 83},{i % 4},{i % 2}\n" for i in range(90))
    drafted(tmp_path, "chol,drinks,ill\n" + rows, "ill")
    told = capsys.readouterr().out
    assert says(told, "chol", "'0'", "9 of 90")
    assert '"0" = "" under [data.values.chol]' in told
    site = site_of(tmp_path).read_text()
    assert '[data.values."chol"]' in site
    assert says(site, '"0"', '""', "9 rows")
    assert "drinks" not in site


@pytest.mark.parametrize(
    ("known", "odd"),
    [("0 1", "9"), ("1 2 3 4", "9"), ("1 2", "8"), ("ja nein", "-"), ("I II", "x")],
)
def test_categories_that_may_be_not_known_are_asked_about(
    tmp_path: Path, known: str, odd: str, capsys: pytest.CaptureFixture[str]
) -> None:
    values = known.split() * 40
    drafted(tmp_path, column("finding", values), "ill")
    assert "[data.values.finding]" not in capsys.readouterr().out
    (tmp_path / "study.toml").unlink()
    drafted(tmp_path, column("finding", [*values, *[odd] * 12]), "ill")
    assert f'"{odd}" = "" under [data.values.finding]' in capsys.readouterr().out


def test_limits_may_be_common_and_numbers_have_both_marks(tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    rate = [">=90" if v >= 90 else f"{v:.0f}" for v in draw.normal(80, 20, 200)]
    (found, _) = profiles_of(tmp_path, column("egfr", rate))
    assert (found.kind, found.limits) == ("number", (">=90",))
    both = [f'"1.{v},5"' for v in draw.integers(100, 999, 60)]
    (found, _) = profiles_of(tmp_path, column("ferritin", both))
    assert (found.kind, found.decimal, found.thousands) == ("number", ",", ".")
    assert 1100 < found.numbers.min() < 2000


@pytest.mark.parametrize(("name", "yes"), [("alive", "yes"), ("survived", "1")])
def test_an_outcome_of_the_opposite_name_is_turned(tmp_path: Path, name: str, yes: str) -> None:
    study = drafted(tmp_path, "age,died\n" + "".join(f"{40 + i % 30},{['yes', 'no'][i % 2]}\n"
                    for i in range(60)), "died")  # fmt: skip
    assert isinstance(study.task, TabularTask)
    no = {"yes": "no", "1": "0"}[yes]
    text = f"age,{name}\n" + "".join(f"{40 + i % 30},{yes if i % 3 else no}\n" for i in range(60))
    (found,) = (m for m in match_columns(study.task, profiles_of(tmp_path, text))
                if m.column == "died")  # fmt: skip
    assert found.values == {yes: "no", no: "yes"}
    assert found.asked == {yes, no}


def test_letters_with_two_meanings_are_named(tmp_path: Path) -> None:
    sex = {"name": "sex", "categories": ["M", "V"]}  # man and vrouw, or mujer and varón
    found = one_match(tmp_path, sex, column("sex", ["M", "V"] * 30))
    assert found.others == ({"M": "V", "V": "M"},)
    assert not found.values


def test_merged_cells_of_patients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(
        f"{f'p{i // 3}' if i % 3 == 0 else ''},{40 + i % 30},{i % 2}\n" for i in range(90)
    )
    drafted(tmp_path, f"patient_id,age,ill\n{rows}", "ill")
    assert says(capsys.readouterr().out, "patient_id", "60 of 90")


DIED = ["No", "no", "Yes", "no", "yes", "YES"]
SMOKES = ["ja", "No", "n", "Y", "nein", "yes", "0", "1"]
GRADE = ["low", "Low", "mid", "high", "HIGH", "Mid"]


def spelt_table() -> str:
    rows = "".join(
        f"{40 + 7 * i % 41},{DIED[i % 6]},{SMOKES[i % 8]},{GRADE[i // 5 % 6]},{20 + 11 * i % 970}\n"
        for i in range(240)
    )
    return "age,died,smokes,grade,days\n" + rows


@pytest.mark.parametrize("codes", ["F H", "F N", "E K", "A O", "A I", "E N O S"])
def test_letters_that_are_answers_in_several_languages_stay_apart(
    tmp_path: Path, codes: str
) -> None:
    (feature,) = features_of(drafted(tmp_path, column("code", codes.split() * 15), "ill"))
    assert isinstance(feature, CategoryFeature)
    assert feature.categories == tuple(codes.split())


def test_spellings_become_one(tmp_path: Path) -> None:
    study = drafted(tmp_path, spelt_table(), "died")
    assert [label.name for label in getattr(study.task, "classes")] == ["no", "Yes"]  # noqa: B009
    found = {f.name: f.categories for f in features_of(study) if isinstance(f, CategoryFeature)}
    assert {text.casefold() for text in found["grade"]} == {"mid", "high", "low"}
    assert {text.casefold() for text in found["smokes"]} == {"no", "ja"}
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
        (["no", "yes"], "1.0 0.0", {"1.0": "yes", "0.0": "no"}, False),
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
    written = {text for text in meant if is_written(match, text)}
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


@pytest.mark.parametrize("codes", [("1", "2"), ("1.0", "2.0")])
def test_codes_that_are_no_others_subset_are_all_asked_about(
    tmp_path: Path, codes: Sequence[str]
) -> None:
    """1 and 2 here, 0 and 1 in the study: its 1 may be another."""
    study = drafted(tmp_path, column("smoker", [0, 1] * 20), "ill")
    (tmp_path / "trial.csv").write_text(column("smoker", [*codes] * 20), encoding="utf-8")
    path = site_of(tmp_path)
    text = path.read_text(encoding="utf-8")
    asked = [line.split(" =")[0] for line in text.splitlines() if OPEN in line]
    assert asked == [f'# ? "{code}"' for code in codes]
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


def test_a_header_may_have_line_breaks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = "".join(f"{40 + 7 * i % 41},{['no', 'yes'][i % 3 == 0]}\n" for i in range(120))
    study = drafted(tmp_path, f'"age\n(years)","died\n(30 d)"\n{cells}', "died\n(30 d)")
    assert [feature.name for feature in features_of(study)] == ["age\n(years)"]
    assert "died (30 d)" in capsys.readouterr().out
    other = cells.replace("no", "maybe")
    (tmp_path / "trial.csv").write_text(f'"age\n(years)","died\n(30 d)"\n{other}')
    with pytest.raises(DataError) as problem:
        load_patients(load_site(site_of(tmp_path)), study)
    assert len(str(problem.value).splitlines()) == 2


@pytest.mark.parametrize("point", ["", ".0"])
@pytest.mark.parametrize(
    ("cells", "is_count"), [("0 1 2", True), (" ".join(map(str, range(30))), True), ("0 1", False)]
)
@pytest.mark.parametrize("unknown", ["", "9"])
def test_a_count_is_asked_about(
    tmp_path: Path,
    cells: str,
    is_count: bool,
    point: str,
    unknown: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    codes = [*cells.split() * 6, unknown] if unknown else cells.split()
    rows = "".join(f"{50 + i % 37},{codes[i % len(codes)]}{point}\n" for i in range(300))
    drafted(tmp_path, "age,falls\n" + rows, "falls")
    assert ('"count"' in capsys.readouterr().out) == is_count


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
        (["F", "M"], "Sexo", "男 女", {"男": "M", "女": "F"}),
        (["yes", "no"], "stage", "var yok", {"var": "yes", "yok": "no"}),
        (["F", "M"], "Sexo", "m w m w m w m w m u", {"m": "M", "w": "F"}),  # unbekannt, not uomo
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


def test_numbers_with_a_unit_that_are_not_read_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ages = [f"{30 + number % 50}岁" for number in range(60)]
    # 1.5- is what SAP writes for -1.5
    cells = [f"{i % 41}.5{'-' * (i % 3 == 1)}" for i in range(58)] + ["LT 7"] * 2
    rows = "".join(f"{ages[i]},{cell},{i % 2}\n" for i, cell in enumerate(cells))
    drafted(tmp_path, "年龄,x,ill\n" + rows, "ill")
    told = capsys.readouterr().out
    assert says(told, "年龄", "with a unit")
    study = tmp_path / "study.toml"
    study.write_text(study.read_text().replace("features = [", 'features = [ "age",'))
    site = site_of(tmp_path).read_text()
    assert says(site, "年龄: not read", "with a unit")
    assert says(site, '"LT 7" = "A NUMBER"', '"1.5-" = "-1.5"')
