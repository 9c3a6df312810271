"""The three commands from a folder of tables, renamed and damaged, to a running study."""

import csv
import shlex
from pathlib import Path

import numpy as np
import pytest

from erosion.simulation.testbed_sites import own_data
from erosion_client.dataset.load import load_patients
from erosion_client.dataset.sources.table_file import TableFile
from erosion_client.scaffold.column_match import match_columns
from erosion_client.scaffold.column_profile import read_whole
from erosion_client.scaffold.table_folder import shared_rows, tables_in
from erosion_client.site_file import load_site
from erosion_common.errors import DataError
from erosion_common.program.command_line import main
from erosion_common.study.study import Study, load_study
from erosion_common.tasks.inputs import TabularTask
from tests.support.said import raises, says

ALPHA = ["patient_id", "age", "sex", "cholesterol", "smoker", "visit", "outcome"]
BETA = ["Fall-Nr", "Alter", "Geschlecht", "Cholesterin", "Raucher", "Besuch", "Ergebnis"]


def write(path: Path, header: list[str], rows: list[list[object]], mark: str = ",") -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=mark)
        writer.writerow(header)
        writer.writerows(rows)


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    """Two hospitals: the second with its own words, units, marks and duplicates."""
    draw = np.random.default_rng(0)
    rows: list[list[object]] = []
    for i in range(60):
        age, chol = int(draw.integers(30, 90)), int(draw.integers(130, 290))
        rows.append(
            [f"A{i}", age, "fm"[i % 2], chol, ["no", "yes"][i % 3 == 0], "2020-01-01", i % 2]
        )
    write(tmp_path / "alpha.csv", ALPHA, rows)
    other: list[list[object]] = [
        [
            f"B{i}",
            row[1],
            {"f": "W", "m": "M"}[str(row[2])],
            f"{int(str(row[3])) / 38.67:.2f}".replace(".", ","),
            {"no": "nein", "yes": "ja"}[str(row[4])],
            "01.02.2020",
            {"0": "nein", "1": "ja"}[str(row[6])],
        ]
        for i, row in enumerate(rows)
    ]
    write(tmp_path / "beta.csv", BETA, other + other[:20], ";")
    return tmp_path


def drafted(trial: Path) -> Study:
    assert main(["study", "new", str(trial), "--target", "outcome"]) == 0
    return load_study(trial / "study.toml")


def test_a_draft_is_a_valid_study(trial: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = drafted(trial)
    assert study.hospitals == ("alpha", "beta")
    assert study.user == "alpha"
    assert isinstance(study.task, TabularTask)
    assert [feature.name for feature in study.task.features] == [
        "age",
        "sex",
        "cholesterol",
        "smoker",
    ]
    text = (trial / "study.toml").read_text()
    assert says(text, "patient_id", "patients")
    assert says(text, "visit", "values")
    assert says(capsys.readouterr().out, "'1'", "positive")
    assert main(["study", "new", str(trial), "--target", "outcome"]) == 2  # not overwritten


def test_uncertain_things_are_proposed(trial: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = drafted(trial)
    command = ["site", "new", "--study", str(trial / "study.toml"), "--data", str(trial)]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert '  "age" = "Alter"  # confidence 0.97' in said
    assert '  # ? "cholesterol" = 38.67' in said
    path = trial / "sites/beta.toml"
    text = path.read_text()
    assert '# ? "cholesterol" = 38.67' in text
    with raises(DataError, "cholesterol", "outside"):
        load_patients(load_site(path), study)
    path.write_text(text.replace("# ? ", ""))  # a person confirms
    found = load_patients(load_site(path), study)
    assert (len(found.targets), found.num_patients) == (80, 60)
    first = load_patients(load_site(trial / "sites/alpha.toml"), study)
    np.testing.assert_allclose(found.rows[:60], first.rows, rtol=0.01)
    assert found.targets[:60].tolist() == first.targets.tolist()
    assert main(command) == 3  # not overwritten


@pytest.mark.parametrize("header", [BETA[:-2], BETA[1:3]])
def test_an_outcome_that_is_missing_is_asked_for(trial: Path, header: list[str]) -> None:
    study = drafted(trial)
    rows: list[list[object]] = [
        [f"B{age}", age, "WM"[age % 2], 200, ["nein", "ja"][age % 3 == 0]] for age in range(30, 90)
    ]
    start = BETA.index(header[0])
    write(trial / "beta.csv", header, [row[start : start + len(header)] for row in rows])
    command = ["site", "new", "--study", str(trial / "study.toml")]
    assert main([*command, "--data", str(trial / "beta.csv")]) == 0
    path = trial / "sites/beta.toml"
    text = path.read_text()
    assert says(text, "column seems", '"outcome"')
    proposed = [line for line in text.splitlines() if line.startswith("# ? absent")]
    features = ['# ? absent = ["cholesterol", "smoker"]'] if header == BETA[1:3] else []
    assert [line.partition("  #")[0] for line in proposed] == features
    path.write_text(text.replace("# ? ", ""))
    with raises(DataError, "column outcome", "missing"):
        load_patients(load_site(path), study)


def test_values_stand_as_in_the_file(trial: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drafted(trial)
    rows: list[list[object]] = [[age, "Wm"[age % 2], "01"[age % 3 == 0]] for age in range(30, 90)]
    write(trial / "beta.csv", ["age", "sex", "smoker"], rows)
    command = ["site", "new", "--study", str(trial / "study.toml")]
    assert main([*command, "--data", str(trial / "beta.csv")]) == 0
    said = capsys.readouterr().out.replace("\n  ", "\n")
    for text in (said, (trial / "sites/beta.toml").read_text()):
        assert '\n"W" = "f"\n' in text
        assert '# ? "0" = "no"\n# ? "1" = "yes"\n' in text


def test_a_testbed_takes_the_drafted_sites_or_the_tables_as_they_are(trial: Path) -> None:
    study = drafted(trial)
    assert own_data(study, trial) == {
        "alpha": {"path": str(trial / "alpha.csv")},
        "beta": {"path": str(trial / "beta.csv")},
    }
    main(["site", "new", "--study", str(trial / "study.toml"), "--data", str(trial / "beta.csv")])
    beta = own_data(study, trial)["beta"]
    assert beta["source"] == "table"
    assert beta["path"] == str(trial / "beta.csv")
    assert beta["columns"]["age"] == "Alter"
    (trial / "beta.csv").rename(trial / "other.csv")
    (trial / "sites/beta.toml").unlink()
    assert main(["testbed", str(trial)]) == 2


def test_each_column_is_proposed_once_and_none_for_its_values_alone(trial: Path) -> None:
    study = drafted(trial)
    assert isinstance(study.task, TabularTask)
    write(
        trial / "gamma.csv",
        ["x1", "gender", "pdstent", "outcome"],
        [[50 + i, "fm"[i % 2], i % 2, i % 2] for i in range(30)],
    )
    matches = {m.column: m for m in match_columns(study.task, read_whole(trial / "gamma.csv")[1])}
    assert matches["sex"].local == "gender"
    assert matches["outcome"].local == "outcome"
    assert matches["smoker"].local is None  # though pdstent holds 0 and 1
    assert matches["age"].local is None


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--target", "death"], 4),
        (["--target", "patient_id"], 4),
        (["--target", "outcome", "--user", "delta"], 2),
    ],
)
def test_what_cannot_be_drafted_is_explained(
    trial: Path, arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", "new", str(trial), *arguments]) == code
    assert "erosion: " in capsys.readouterr().err
    assert not (trial / "study.toml").exists()


def test_a_folder_of_tables_may_hold_notes_and_names_in_any_language(tmp_path: Path) -> None:
    for name in (
        "St. Anna Zürich.csv",
        "Łódź 2.tsv",
        f"{'Spital' * 8} Bern.csv",
        "README.txt",
        ".~lock.St. Anna.csv#",
        ".hidden.csv",
        "data_dictionary.csv",
        "notes.docx",
    ):
        (tmp_path / name).touch()
    (tmp_path / "folder.csv").mkdir()
    assert list(tables_in(tmp_path)) == ["spital" * 8, "st-anna-zurich", "lodz-2"]
    (tmp_path / "st. anna zurich.parquet").touch()
    with raises(DataError, "hospital", "'st-anna-zurich'"):
        tables_in(tmp_path)


def test_printed_commands_are_quoted(trial: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trial.rename(trial.with_name("our trial"))
    drafted(folder)
    copied = shlex.split(capsys.readouterr().out.splitlines()[-1].partition(": ")[2])
    assert copied[:3] == ["erosion", "site", "new"]
    assert main([*copied[1:-1], str(folder / "beta.csv")]) == 0
    copied = shlex.split(capsys.readouterr().out.splitlines()[-1].partition(": ")[2])
    assert copied[:2] == ["erosion", "check"]
    assert [Path(copied[2]).stem, Path(copied[4]).name] == ["beta", "study.toml"]
    assert Path(copied[2]).is_file()
    assert Path(copied[4]).is_file()


def test_check_names_open_proposals(trial: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study_file, site_file = trial / "study.toml", trial / "sites" / "beta.toml"
    drafted(trial)
    text = study_file.read_text()
    drawn = text[text.index("range = [", text.index('"cholesterol"')) :].partition("]")[0] + "]"
    study_file.write_text(text.replace(drawn, "range = [0, 600]"))
    new = ["site", "new", "--study", str(study_file), "--data", str(trial / "beta.csv")]
    assert main(new) == 0
    check = ["check", str(site_file), "--study", str(study_file)]

    def checked() -> str:
        capsys.readouterr()
        main(check)
        return " ".join(capsys.readouterr().out.split())

    proposed = site_file.read_text()
    lines = [n for n, line in enumerate(proposed.splitlines(), 1) if line.startswith("# ?")]
    said = checked()
    assert says(said, "proposals", f"line {', '.join(map(str, lines))}")
    assert says(said, "60 patients", "meet")
    assert says(said, "column cholesterol", "5.5")
    site_file.write_text(proposed.replace("# ? ", ""))
    said = checked()
    assert "still open" not in said
    assert "typically" not in said


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    """Two hospitals of sixty patients, each of whom has two or three rows."""
    draw = np.random.default_rng(1)
    for name in ("alpha", "beta"):
        rows: list[list[object]] = []
        for i in range(60):
            age, ill = int(draw.integers(30, 90)), i % 2
            for _ in range(3 if i < 24 else 2):
                measured = round(float(draw.normal(5 + ill, 1)), 3)
                rows.append([f"{name}-{i}", age, measured, "yes" if ill else "no"])
        write(tmp_path / f"{name}.csv", ["patient_id", "age", "sugar", "ill"], rows)
    return tmp_path


def test_shared_patients_count_once(visits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "patient_id: 144 rows of 60 patients, it seems"
    study_file = visits / "study.toml"
    assert main(["study", "new", str(visits), "--target", "ill"]) == 0
    assert said in capsys.readouterr().out
    text = study_file.read_text()
    assert says(text, "folds", "5")
    study_file.write_text(
        text.replace("rounds = 30", "rounds = 1")
        .replace("repeats = 5", "repeats = 1\nreferences = []")
        .replace("folds = 5", "folds = 2")
    )
    new = ["site", "new", "--study", str(study_file), "--data", str(visits)]
    assert main(new) == 0
    assert 'patient = "patient_id"' in capsys.readouterr().out
    site_file = visits / "sites" / "alpha.toml"
    check = ["check", str(site_file), "--study", str(study_file)]
    main(check)
    assert says(" ".join(capsys.readouterr().out.split()), "144 rows", "60 patients")
    assert main(["testbed", str(visits), "--simulate", "--workers", "1"]) == 0
    verdict = " ".join(capsys.readouterr().out.split())
    assert says(verdict, "60 patients", "predicted")
    site_file.write_text(site_file.read_text().replace("patient =", "# patient ="))
    main(check)
    warned = " ".join(capsys.readouterr().out.split())
    assert says(warned, said, "counted")
    assert says(warned, '"patient_id"', "[data]")


def test_patients_of_tables_without_sites(visits: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert main(["study", "new", str(visits), "--target", "ill"]) == 0
    own_data(load_study(visits / "study.toml"), visits)
    warned = [line for line in caplog.messages if "144 rows of 60 patients" in line]
    assert [line.partition(",")[0] for line in warned] == ["alpha", "beta"]
    assert "erosion site" in warned[0]


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines(keepends=True)


@pytest.mark.parametrize("kind", ["pooled", "with the hospital's name", "a copy"])
def test_tables_of_a_folder_that_share_rows_are_told_of(
    visits: Path, kind: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    head, *alpha = lines_of(visits / "alpha.csv")
    beta = lines_of(visits / "beta.csv")[1:] if kind != "a copy" else []
    pool = [head, *alpha, *beta]
    if kind == "with the hospital's name":
        pool = [f"{'centre' if line is head else 'x'},{line}" for line in pool]
    (visits / "pool.csv").write_text("".join(pool))
    assert main(["study", "new", str(visits), "--target", "ill"]) == 0
    said = " holds 144 of alpha's 144 rows: patients of one are then tested by models"
    told = capsys.readouterr().out
    own_data(load_study(visits / "study.toml"), visits)
    for text in (told, "\n".join(caplog.messages)):
        assert f"pool{said}" in text.replace("alpha holds 144 of pool", "pool holds 144 of alpha")
        assert text.count("are then tested by models") == (1 if kind == "a copy" else 2)


def test_coarse_columns_alone_make_no_shared_rows(tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    for name in ("alpha", "beta", "gamma"):
        ages, ill = draw.integers(30, 90, 80), draw.integers(0, 2, 80)
        rows: list[list[object]] = [[i, *row] for i, row in enumerate(zip(ages, ill, strict=True))]
        write(tmp_path / f"{name}.csv", ["case", "age", "ill"], rows)
    tables = {name: TableFile(path=path) for name, path in tables_in(tmp_path).items()}
    assert list(shared_rows(tables)) == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "berlin.csv").write_text("Alter,tot\n" + "50,1\n60,0\n" * 20)
    (tmp_path / "home.csv").write_text("age,dead\n" + "50,1\n60,0\n" * 20)
    return tmp_path


def test_the_table_with_the_outcome(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "new", str(folder), "--target", "dead"]) == 4
    told = capsys.readouterr().err
    assert says(told, "--target", "--user")
    assert main(["study", "new", str(folder), "--target", "dead", "--user", "Home"]) == 0
    assert "user:" not in capsys.readouterr().out
    (folder / "study.toml").unlink()
    assert main(["study", "new", str(folder), "--target", "tot"]) == 0
    assert says(capsys.readouterr().out, "berlin", "another")


def test_units_and_yes_marks_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(
        f"{40 + i % 37},{20 + i % 41} %,{100 + i % 30}/70,{'x' * (i % 3 > 0)},note {i},{i % 2}\n"
        for i in range(90)
    )
    (tmp_path / "a.csv").write_text("age,ef,pressure,diabetes,remark,dead\n" + rows)
    assert main(["study", "new", str(tmp_path / "a.csv"), "--target", "dead"]) == 0
    told = capsys.readouterr().out
    assert says(told, "pressure", "numbers")
    assert says(told, "diabetes", "without")
    (remark,) = [line for line in told.splitlines() if "remark: left" in line]
    assert "numbers" not in remark
    assert main(["study", "new", str(tmp_path / "a.csv"), "--target", "diabetes"]) == 2
    (tmp_path / "study.toml").unlink()
    assert main(["study", "new", str(tmp_path / "a.csv"), "--target", "diabetes"]) == 4
    assert says(capsys.readouterr().err, "predicted", "without")
