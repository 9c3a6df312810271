"""Patients are read once where several studies see the same of them."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from PIL import Image

from erosion_client.dataset.load import KeptPatients, load_patients
from erosion_client.dataset.sources import databases, image_files
from erosion_client.dataset.sources.data_source import TableSource, revision_of
from erosion_client.dataset.sources.databases import SqlQuery
from erosion_client.dataset.sources.table_file import TableFile
from erosion_client.dataset.text_table import TextTable
from erosion_client.site_file import Site
from erosion_client.training.hospital import Hospital
from erosion_common.errors import DataError, NotReady, Refusal
from erosion_common.protocol.messages import TrainRequest
from erosion_common.rounds.selection import fold_studies
from tests.support.said import raises, says
from tests.support.small_study import make_site, make_study, twenty_patients


@pytest.fixture
def num_reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often a source was read since the test began."""
    reads: list[str] = []

    def counted(kind: type[TableFile] | type[SqlQuery]) -> None:
        original = kind.read

        def read(source: TableSource, *asked: Any) -> TextTable:
            reads.append(source.describe())
            return original(source, *asked)

        monkeypatch.setattr(kind, "read", read)

    counted(TableFile)
    counted(SqlQuery)
    return lambda: len(reads)


def database(folder: Path) -> Site:
    """The twenty patients in an SQLite database."""
    path = folder / "hospital.sqlite"
    rows = [line.split(",") for line in twenty_patients().splitlines()[1:]]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE patients (age REAL, sex TEXT, ill INTEGER)")
        connection.executemany("INSERT INTO patients VALUES (?, ?, ?)", rows)
    connection.close()
    data = {"source": "sql", "url": f"sqlite:///{path}", "query": "SELECT * FROM patients"}
    return Site.model_validate(
        {"name": "a", "data": data, "coordinator": {"address": "127.0.0.1:1"}}
    )


@pytest.mark.parametrize("kind", ["file", "database"])
def test_folds_read_patients_once(tmp_path: Path, num_reads: Callable[[], int], kind: str) -> None:
    hospital = Hospital(site_with(tmp_path, kind))
    study = make_study(evaluation={"folds": 5, "bootstrap": 100}, user="a")
    folds = fold_studies(study)
    assert len(folds) == 5
    for each in (study, *folds, study):
        assert hospital._prepare(each).num_training > 0
    assert num_reads() == 1


def test_a_file_that_changed_is_read_again(tmp_path: Path, num_reads: Callable[[], int]) -> None:
    site = make_site(tmp_path, twenty_patients())
    kept = KeptPatients(site)
    before = kept.of(make_study())
    assert kept.of(make_study(seed=1)).rows is before.rows
    (tmp_path / "a.csv").write_text(twenty_patients(older=5))
    after = kept.of(make_study(seed=2))
    assert (after.rows[:, 0] - before.rows[:, 0]).tolist() == [5.0] * 20
    assert num_reads() == 2


@pytest.mark.parametrize("kind", ["file", "database"])
def test_a_run_keeps_its_patients(tmp_path: Path, kind: str) -> None:
    hospital = Hospital(site_with(tmp_path, kind))
    study = make_study(user="b", hospitals=["b", "a"])

    def num_disclosed(run: str) -> int:
        return hospital.describe(study, run).num_samples

    def num_described() -> int:
        return hospital.summarise(study).num_samples

    assert num_described() == 21
    assert num_disclosed("first") == 21
    if kind == "file":
        half = twenty_patients().splitlines()
        (tmp_path / "a.csv").write_text("\n".join([*half[:6], *half[-5:]]))
    else:
        with closing(sqlite3.connect(tmp_path / "hospital.sqlite")) as connection, connection:
            connection.execute("DELETE FROM patients WHERE age % 2")
        connection.close()
    assert num_disclosed("first") == 21
    assert num_described() == 12
    request = TrainRequest(study, "fedavg", 1, torch.zeros(6), None, run="first")
    assert hospital.train(request).header.num_samples == 21
    assert num_disclosed("second") == 12
    later = replace(request, run="second")
    assert hospital.train(later).header.num_samples == 12


def add_a_patient(folder: Path, kind: str) -> None:
    if kind == "file":
        (folder / "a.csv").write_text(f"{twenty_patients()}77,f,1\n")
        return
    with closing(sqlite3.connect(folder / "hospital.sqlite")) as connection, connection:
        connection.execute("INSERT INTO patients VALUES (77, 'f', 1)")
    connection.close()


def site_with(folder: Path, kind: str, **changes: Any) -> Site:
    site = make_site(folder, twenty_patients(), **changes)
    return site.model_copy(update={"data": database(folder).data}) if kind == "database" else site


@pytest.mark.parametrize("kind", ["file", "database"])
@pytest.mark.parametrize("user", ["a", "b"])
def test_every_fold_has_the_first_patients(tmp_path: Path, kind: str, user: str) -> None:
    hospital = Hospital(site_with(tmp_path, kind))
    study = make_study(user=user, hospitals=["a", "b"], evaluation={"folds": 5, "bootstrap": 100})
    first, second, third, *_ = fold_studies(study)
    known = [hospital._prepare(each, "run") for each in (study, first)]
    for dataset in known:
        dataset.begin()
    add_a_patient(tmp_path, kind)
    hospital._prepare(second, "run").begin()
    hospital.summarise(make_study(seed=5))  # as the data are now, between two folds
    later = hospital._prepare(third, "run")
    assert torch.equal(later.fingerprint, known[0].fingerprint)
    assert len(later.outcomes) == 20
    assert len(hospital._patients.of(study, "another run").targets) == 21


def test_the_folds_have_what_a_run_took_over_from_an_earlier_one(tmp_path: Path) -> None:
    hospital = Hospital(make_site(tmp_path, twenty_patients()))
    study = make_study(user="b", hospitals=["a", "b"], evaluation={"folds": 5, "bootstrap": 100})
    hospital._prepare(study, "first").begin()
    hospital._prepare(study, "second").begin()  # of data that have not changed
    add_a_patient(tmp_path, "file")
    assert len(hospital._prepare(fold_studies(study)[0], "second").outcomes) == 20


@pytest.mark.parametrize("kind", ["file", "database"])
def test_runs_share_patients(tmp_path: Path, num_reads: Callable[[], int], kind: str) -> None:
    hospital = Hospital(site_with(tmp_path, kind))
    study = make_study(user="all")
    hospital._prepare(study.for_user("a"), "run.a").begin()
    add_a_patient(tmp_path, kind)
    assert len(hospital._prepare(study.for_user("b"), "run.b").outcomes) == 20
    assert num_reads() == 1


def test_a_restarted_peer_sees_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    study = make_study(user="b", hospitals=["b", "a"])
    site = site_with(tmp_path, "file", compute={"state": tmp_path / "state"})
    request = TrainRequest(study, "fedavg", 1, torch.zeros(6), None, run="run")
    Hospital(site).train(request)
    Hospital(site).train(replace(request, round=2))
    assert "changed since" not in caplog.text
    (tmp_path / "a.csv").write_text(twenty_patients(older=5))
    Hospital(site).train(replace(request, run="another"))
    assert "changed since" not in caplog.text
    Hospital(site).train(replace(request, round=3))
    assert says(caplog.text, "changed", "since")


@pytest.mark.parametrize("kind", ["file", "database"])
def test_a_restarted_site_waits_for_data_that_come_later(tmp_path: Path, kind: str) -> None:
    site = site_with(tmp_path, kind, compute={"state": tmp_path / "state"})
    request = TrainRequest(make_study(), "fedavg", 1, torch.zeros(6), None, run="run")
    Hospital(site).train(request)
    data = tmp_path / {"file": "a.csv", "database": "hospital.sqlite"}[kind]
    data.rename(tmp_path / "away")
    for run, error in (("run", NotReady), ("another", DataError)):
        with pytest.raises(error):
            Hospital(site).describe(request.study, run)
    (tmp_path / "away").rename(data)
    assert Hospital(site).describe(request.study, "run").num_samples > 0


@pytest.mark.parametrize("change", ["patient key", "split column", "order"])
def test_no_run_tests_patients_whom_it_trained_on(tmp_path: Path, change: str) -> None:
    heading, *rows = twenty_patients().splitlines()

    def table(tested: int, step: int = 1) -> str:
        parts = ["test" if number % 3 == tested else "train" for number in range(20)]
        lines = [f"{row},p{n // 2},{parts[n]}" for n, row in enumerate(rows)]
        return "\n".join([f"{heading},mrn,part", *lines[::step]])

    keys: dict[str, Any] = {
        "compute": {"state": tmp_path / "state"},
        "limits": {"min_patients": 3},
    }
    evaluation = {"split_column": "part"} if change == "split column" else {}
    study = make_study(user="a", evaluation=evaluation)
    request = TrainRequest(study, "fedavg", 1, torch.zeros(6), None, run="run")
    Hospital(make_site(tmp_path, table(tested=0), **keys)).train(request)
    data = {"patient": "mrn"} if change == "patient key" else {}
    later = table(tested=int(change == "split column"), step=-1 if change == "order" else 1)
    restarted = Hospital(make_site(tmp_path, later, data=data, **keys))
    if change == "order":
        assert restarted.train(replace(request, round=2)).header.num_samples > 0
        return
    with raises(Refusal, "changed", "since", "new run"):
        restarted.train(replace(request, round=2))


@pytest.mark.parametrize("runs", [("one", "other"), ("run", "run")])
def test_each_of_two_studies_at_once_knows_its_patients_again(
    tmp_path: Path, runs: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """The other one's are read last, before either trains."""
    site = make_site(tmp_path, twenty_patients(), compute={"state": tmp_path / "state"})
    own, other = make_study(), make_study(user="b", name="other", seed=9)
    asked = zip((own, other), runs, strict=True)
    both = [TrainRequest(of, "fedavg", 1, torch.zeros(6), None, run) for of, run in asked]
    hospital = Hospital(site)
    for request in both:
        hospital.describe(request.study, request.run)
    for request in both:
        hospital.train(request)
    (tmp_path / "a.csv").write_text(twenty_patients(older=5))
    with raises(Refusal, "changed", "since", "new run"):
        Hospital(site).train(replace(both[0], round=2))
    assert "changed since" not in caplog.text
    Hospital(site).train(replace(both[1], round=2))  # the user's site is another
    assert "changed since" in caplog.text


def test_files_that_change_while_they_are_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(tmp_path, twenty_patients(), data={"source": "duckdb", "query": "FROM a"})
    assert load_patients(site, make_study()).num_patients == 20
    _changes_within(databases, "text_columns", tmp_path / "a.csv", monkeypatch)
    with raises(DataError, "a.csv", "changed while it was read"):
        load_patients(site, make_study())


def test_pictures_that_change_while_they_are_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no", "yes"):
        (tmp_path / "a.images" / name).mkdir(parents=True)
        Image.new("L", (4, 4), 7).save(tmp_path / "a.images" / name / "1.png")
    data = {"source": "images", "path": tmp_path / "a.images"}
    task = {"kind": "image", "classes": ["no", "yes"], "shape": [1, 4, 4]}
    site, study = make_site(tmp_path, data=data), make_study(user="b", task=task)
    assert len(load_patients(site, study).rows) == 2
    picture = tmp_path / "a.images/yes/2.png"
    _changes_within(image_files, "read_each", picture, monkeypatch)
    with raises(DataError, "a.images", "changed while it was read"):
        load_patients(site, study)


def _changes_within(
    module: ModuleType, name: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have another program write to the file before the module's function has read all."""
    original = getattr(module, name)

    def read(*arguments: Any) -> Any:
        with path.open("ab") as file:
            file.write(b"77,f,1\n")
        return original(*arguments)

    monkeypatch.setattr(module, name, read)


def test_another_study_reads_again(tmp_path: Path, num_reads: Callable[[], int]) -> None:
    kept = KeptPatients(database(tmp_path))
    for seed, run in ((1, "a"), (1, "a"), (2, "a"), (2, "b"), (2, "b"), (2, None), (2, None)):
        kept.of(make_study(seed=seed), run)
    assert num_reads() == 5


def test_kept_patients_are_held_against_every_study(tmp_path: Path) -> None:
    healthy = "".join(f"{30 + i},f,0\n" for i in range(20))
    kept = KeptPatients(make_site(tmp_path, f"age,sex,ill\n{healthy}", name="b"))
    assert says(kept.of(make_study()).notes, "patients", "'healthy'")
    with raises(DataError, "nothing", "measure"):
        kept.of(make_study(user="b"))


def test_a_revision_follows_every_file_below_a_folder(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "1.png").write_bytes(b"1")
    folder = tmp_path / "images"
    (folder / "ill").mkdir(parents=True)
    (folder / "well").symlink_to(elsewhere)
    (folder / "ill" / "above").symlink_to(folder)  # must not be followed for ever
    seen = [revision_of(folder), revision_of(folder)]
    assert seen[0] == seen[1]
    (folder / "ill" / "2.png").write_bytes(b"2")
    seen.append(revision_of(folder))
    (elsewhere / "1.png").write_bytes(b"3")
    os.utime(elsewhere / "1.png", ns=(1, 1))
    seen.append(revision_of(folder))
    (elsewhere / "1.png").unlink()
    seen.append(revision_of(folder))
    assert len(set(seen[1:])) == 4
    assert revision_of(tmp_path / "nothing") == revision_of()
