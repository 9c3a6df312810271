"""Damaged and strange data of every source: an error with what, where and a remedy, or patients."""

import gzip
import os
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image
from pydicom import dcmread
from pydicom.encaps import encapsulate
from pydicom.uid import (
    ExplicitVRBigEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    SecondaryCaptureImageStorage,
    generate_uid,
)

from erosion_client.dataset import text_table
from erosion_client.dataset.load import load_patients
from erosion_client.dataset.sources.databases import DuckdbFiles
from erosion_client.dataset.sources.dicom import DicomImages
from erosion_client.dataset.sources.file_content import FileContent
from erosion_client.dataset.sources.image_files import ImageFiles
from erosion_client.dataset.sources.nifti import NiftiImages
from erosion_client.dataset.sources.table_file import TableFile
from erosion_client.site_file import Site
from erosion_common.errors import DataError, SiteError
from erosion_common.settings.base import validate
from tests.support.said import raises, says
from tests.support.scans import NAME, write_dicom, write_nifti
from tests.support.small_study import make_study
from tests.support.tasks import image

GREY = image(classes=["cold", "warm"], shape=[1, 6, 8])


def read_quietly(read: Callable[[], Any]) -> str:
    """What is said of data, or "" where they can be read; anything but a DataError fails a test."""
    try:
        read()
    except DataError as problem:
        text = str(problem)
        assert len(text) < 3000
        assert "Traceback" not in text
        assert "\n\n" not in text
        return text
    return ""


# --- damaged files: every kind, cut anywhere and with single bytes changed


def png(folder: Path) -> tuple[Path, Callable[[], Any]]:
    path = folder / "cold/a.png"
    path.parent.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8)).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    return path, lambda: ImageFiles(path=folder).read(GREY)


def npz(folder: Path) -> tuple[Path, Callable[[], Any]]:
    path = folder / "a.npz"
    pixels = np.arange(96, dtype=np.uint8).reshape(2, 6, 8)
    np.savez_compressed(path, images=pixels, labels=np.array(["cold", "warm"]))
    return path, lambda: ImageFiles(path=path).read(GREY)


def dicom(folder: Path) -> tuple[Path, Callable[[], Any]]:
    path = write_dicom(folder / "cold/a.dcm", WindowCenter=40, WindowWidth=400)
    return path, lambda: DicomImages(path=folder).read(GREY)


def compressed_dicom(folder: Path) -> tuple[Path, Callable[[], Any]]:
    path = write_dicom(folder / "cold/a.dcm", np.full((6, 8), 7, np.uint8))
    data = dcmread(path)
    data.compress("1.2.840.10008.1.2.5")  # RLE
    data.save_as(path)
    return path, lambda: DicomImages(path=folder).read(GREY)


def nifti(folder: Path) -> tuple[Path, Callable[[], Any]]:
    write_nifti(folder / "cold/a.nii", np.ones((8, 6, 5), np.float32))
    return folder / "cold/a.nii", lambda: NiftiImages(path=folder).read(GREY)


def zipped_nifti(folder: Path) -> tuple[Path, Callable[[], Any]]:
    values = np.random.default_rng(0).normal(size=(8, 6, 5)).astype(np.float32)
    write_nifti(folder / "cold/a.nii.gz", values)
    return folder / "cold/a.nii.gz", lambda: NiftiImages(path=folder).read(GREY)


def parquet(folder: Path) -> tuple[Path, Callable[[], Any]]:
    path = folder / "a.parquet"
    pa.parquet.write_table(pa.table({"age": [1.0, 2], "dose": [3, 4], "ill": [0, 1]}), path)
    return path, lambda: TableFile(path=path).read(["age", "dose", "ill"])


def queried_parquet(folder: Path) -> tuple[Path, Callable[[], Any]]:
    path, _ = parquet(folder)
    query = "SELECT * FROM a"
    return path, lambda: DuckdbFiles(path=path, query=query).read(["age", "dose", "ill"])


def csv(folder: Path) -> tuple[Path, Callable[[], Any]]:
    path = folder / "a.csv"
    path.write_text('age,dose,ill\n"1",3,0\n2,"4 5",1\n')
    return path, lambda: TableFile(path=path).read(["age", "dose", "ill"])


KINDS = [png, npz, dicom, compressed_dicom, nifti, zipped_nifti, parquet, queried_parquet, csv]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_file_that_is_cut_off_anywhere_is_explained(tmp_path: Path, kind: Any) -> None:
    path, read = kind(tmp_path)
    whole = path.read_bytes()
    assert read_quietly(read) == ""
    said = []
    for length in np.linspace(0, len(whole) - 1, 15).astype(int).tolist():
        path.write_bytes(whole[:length])
        said.append(read_quietly(read))
        if said[-1]:
            assert str(tmp_path) in said[-1]
            assert NAME not in said[-1]
    assert sum(map(bool, said)) >= (2 if kind is csv else 12)  # a text that is cut may be a text


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_file_with_changed_bytes_is_read_or_explained(tmp_path: Path, kind: Any) -> None:
    path, read = kind(tmp_path)
    whole = path.read_bytes()
    draws = np.random.default_rng(1)
    for _ in range(25):
        damaged = bytearray(whole)
        for place in draws.integers(0, len(whole), 4).tolist():
            damaged[place] = int(draws.integers(0, 256))
        path.write_bytes(damaged)
        read_quietly(read)


# --- strange ones


def test_dicom_in_other_encodings_gives_the_same_pixels(tmp_path: Path) -> None:
    stored = np.arange(48, dtype=np.uint16).reshape(6, 8) + 1024
    big = stored.astype(">u2").tobytes()
    write_dicom(tmp_path / "cold/a.dcm", stored)
    write_dicom(tmp_path / "cold/b.dcm", stored, syntax=ExplicitVRBigEndian, PixelData=big)
    found = DicomImages(path=tmp_path, window=(24, 48)).read(GREY).images
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize(
    ("syntax", "form", "lossless"),
    [(JPEGBaseline8Bit, "JPEG", False), (JPEG2000Lossless, "JPEG2000", True)],
)
def test_dicom_is_decompressed(tmp_path: Path, syntax: Any, form: str, lossless: bool) -> None:
    pixels = np.full((6, 8), 90, np.uint8)
    picture = tmp_path / "picture"
    Image.fromarray(pixels).save(picture, format=form)
    write_dicom(
        tmp_path / "scans/cold/a.dcm",
        pixels,
        syntax=syntax,
        PixelData=encapsulate([picture.read_bytes()]),
    )
    found = DicomImages(path=tmp_path / "scans").read(GREY).images
    assert np.abs(found.astype(int) - 90).max() <= (0 if lossless else 2)


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ({"Rows": 60000, "Columns": 60000}, "says that it has 60000 x 60000 pixels"),
        ({"Rows": 0}, "cold/a.dcm "),
        ({"RescaleSlope": 0, "RescaleIntercept": 0}, ""),
        ({"WindowWidth": -5, "WindowCenter": 1}, "has no window"),
        (
            {"PixelData": None, "SOPClassUID": "1.2.840.10008.5.1.4.1.1.88.11"},
            "is no image but Basic Text SR Storage; remove it",
        ),
        ({"SOPClassUID": SecondaryCaptureImageStorage, "Modality": "OT"}, "has no window"),
    ],
)
def test_strange_tags_are_explained(tmp_path: Path, tags: dict[str, Any], message: str) -> None:
    write_dicom(tmp_path / "cold/a.dcm", **tags)
    given = (40.0, 400.0) if "has no window" not in message else "file"
    source = DicomImages.model_validate({"path": tmp_path, "window": given})
    said = read_quietly(lambda: source.read(GREY))
    assert message in said
    assert NAME not in said


def test_a_disc_with_series_of_other_patients_keeps_them_apart(tmp_path: Path) -> None:
    for number, patient in enumerate(["p1", "p1", "p2"]):
        write_dicom(
            tmp_path / f"cold/s{number}/a.dcm",
            np.full((6, 8), number, np.uint8),
            PatientID=patient,
            SeriesInstanceUID=generate_uid(),
        )
    (tmp_path / "cold/s0/DICOMDIR").write_text("an index")
    found = DicomImages(path=tmp_path, slice="middle").read(GREY)
    assert found.patients is not None
    assert found.patients.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((8, 6, 5, 3), "is of shape 8 x 6 x 5 x 3; give volumes of three dimensions"),
        ((8, 6), "is of shape 8 x 6; give volumes of three dimensions"),
        ((6, 8, 5), "has 6 x 8 pixels; the study wants 8 x 6"),
        ((8, 6, 5, 1), ""),
    ],
)
def test_another_nifti_is_explained(tmp_path: Path, shape: tuple[int, ...], message: str) -> None:
    write_nifti(tmp_path / "cold/a.nii.gz", np.ones(shape, np.float32))
    assert message in read_quietly(lambda: NiftiImages(path=tmp_path).read(GREY))


@pytest.mark.parametrize("source", [ImageFiles, DicomImages, NiftiImages])
def test_links_in_a_circle_and_empty_folders_are_explained(tmp_path: Path, source: Any) -> None:
    (tmp_path / "cold").mkdir()
    (tmp_path / "cold/again").symlink_to(tmp_path / "cold")
    (tmp_path / "cold/self.png").symlink_to(tmp_path / "cold/self.png")
    (tmp_path / "warm").symlink_to(tmp_path / "warm")
    if source is ImageFiles:
        said = read_quietly(lambda: source(path=tmp_path).read(GREY))
        assert says(said, "cold/again", "folders")
        (tmp_path / "cold/again").unlink()
    if source is not NiftiImages:  # which have a suffix
        said = read_quietly(lambda: source(path=tmp_path).read(GREY))
        assert says(said, "cold/self.png", "remove")
    (tmp_path / "cold/self.png").unlink()
    said = read_quietly(lambda: source(path=tmp_path).read(GREY))
    assert says(said, "holds no", "make one")
    circle = source(path=tmp_path / "warm")
    assert str(tmp_path / "warm") in read_quietly(lambda: circle.read(GREY))
    assert [finding.outcome.value for finding in circle.check()] == ["failed"]


@pytest.mark.parametrize("source", [DicomImages, NiftiImages])
def test_scans_in_folders_that_are_linked_are_read_too(tmp_path: Path, source: Any) -> None:
    name = "a.dcm" if source is DicomImages else "a.nii"
    for place in ("data/cold", "elsewhere"):
        if source is DicomImages:
            write_dicom(tmp_path / place / name, np.ones((6, 8), np.uint8))
        else:
            write_nifti(tmp_path / place / name, np.ones((8, 6, 5), np.float32))
    (tmp_path / "data/cold/more").symlink_to(tmp_path / "elsewhere")
    found = source(path=tmp_path / "data").read(GREY)
    assert found.places == (f"cold/{name}", f"cold/more/{name}")
    (tmp_path / "data/cold/lost.nii").symlink_to(tmp_path / "nowhere.nii")
    said = read_quietly(lambda: source(path=tmp_path / "data").read(GREY))
    assert "cold/lost.nii " in said


def test_an_unreadable_folder_is_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dicom(tmp_path / "cold/a.dcm")
    (tmp_path / "cold/locked").mkdir()
    scandir = os.scandir

    def as_another_account(path: Any) -> Any:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", as_another_account)
    said = read_quietly(lambda: DicomImages(path=tmp_path).read(GREY))
    assert says(said, f"{tmp_path}/cold/locked", "Permission")


@pytest.mark.parametrize("file", ["a.csv", "a.parquet", "a.csv.gz"])
def test_an_unreadable_file_is_named_once(
    tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / file
    path.write_text("age\n1\n")

    def as_another_account(*args: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(FileContent, "open", as_another_account)
    monkeypatch.setattr(gzip, "open", as_another_account)
    said = read_quietly(lambda: TableFile(path=path).read(["age"]))
    assert (said.count(str(path)), said.count("Permission denied")) == (1, 1)


@pytest.mark.parametrize("place", [".", "cold"])
def test_an_unreadable_folder(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cold").mkdir()
    locked = tmp_path / place
    listdir = os.listdir

    def as_another_account(path: Any) -> Any:
        if Path(path) == locked:
            raise PermissionError(13, "Permission denied", str(path))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", as_another_account)
    said = read_quietly(lambda: ImageFiles(path=tmp_path).read(GREY))
    assert says(said, f"{locked} cannot", "Permission")


@pytest.mark.parametrize("path", ["", "a.csv"])
def test_a_pipe_is_not_waited_for_by_duckdb_either(tmp_path: Path, path: str) -> None:
    os.mkfifo(tmp_path / "a.csv")
    source = DuckdbFiles(path=tmp_path / path, query="select * from a")
    assert says(read_quietly(lambda: source.read(["age"])), "a.csv", "ordinary")


@pytest.mark.parametrize("name", ["a.csv", "a.npz", "a.parquet", "cold/b.nii"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / name)
    reads: dict[str, Callable[[], Any]] = {
        "a.npz": lambda: ImageFiles(path=tmp_path / name).read(GREY),
        "cold/b.nii": lambda: NiftiImages(path=tmp_path).read(GREY),
    }
    read = reads.get(name, lambda: TableFile(path=tmp_path / name).read(["age"]))
    assert name in read_quietly(read)


def test_arrays_of_objects_are_not_unpickled(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return os.mkdir, (str(tmp_path / "RAN"),)

    for name in ("images", "labels"):
        arrays: dict[str, Any] = {
            "images": np.zeros((2, 6, 8), np.uint8),
            "labels": np.array(["cold", "warm"]),
        }
        harmful = np.empty(2, dtype=object)
        harmful[:] = [Harm(), Harm()]
        arrays[name] = harmful
        np.savez(tmp_path / "a.npz", **arrays)
        assert says(
            read_quietly(lambda: ImageFiles(path=tmp_path / "a.npz").read(GREY)),
            "without",
            "objects",
        )
    assert not (tmp_path / "RAN").exists()


def test_too_large_archives_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("erosion_client.dataset.sources.labelled_images.MAX_DECODED_BYTES", 10_000)
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", b"\0" * 20_000)
    said = read_quietly(lambda: ImageFiles(path=tmp_path / "a.npz").read(GREY))
    assert "more than" in said
    assert says(said, "smaller", "images")


# --- a database


def database(folder: Path, query: str, **keys: Any) -> Site:
    path = folder / "a.sqlite"
    if not path.exists():
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE patients (age REAL, sex TEXT, ill INTEGER)")
        connection.commit()
        connection.close()
    data = {"url": f"sqlite:///{path}", "query": query, **keys}
    raw = {"name": "a", "data": data, "coordinator": {"address": "127.0.0.1:1"}}
    return validate(Site, raw, "Site file x", SiteError)


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT * FROM patients", "gives no rows"),
        (f"{ENDLESS} SELECT i AS age, 'f' AS sex, 0 AS ill FROM n", "gives more than 9,000 rows"),
        ("SELECT x'00ff' AS age, 'f' AS sex, 0 AS ill", "column 'age' holds bytes"),
        ("SELECT CAST(x'ff' AS TEXT) AS age, 'f' AS sex, 0 AS ill", "Correct data.query"),
        ("SELECT 1e999 AS age, 'f' AS sex, 0 AS ill", "column age: "),
        ("SELECT 'NaN' AS age, 'f' AS sex, 0 AS ill", "column age: missing values, which the st"),
        ("SELECT 50 AS age, 'f' AS sex", "column ill is missing"),
        ("SELECT 50 AS age, 'f' AS sex, 7 AS ill", "column ill: not a value of the study"),
        ("SELECT 1; SELECT 2", "You can only execute one statement at a time"),
        ("PRAGMA nonsense", "gives no table. Write one SELECT"),
    ],
)
def test_a_query_result_is_bounded(tmp_path: Path, query: str, message: str) -> None:
    site = database(tmp_path, query, max_rows=9_000)
    assert message in read_quietly(lambda: load_patients(site, make_study()))


def test_an_empty_query_is_refused(tmp_path: Path) -> None:
    with raises(SiteError, "data.query = ''", "empty"):
        database(tmp_path, "")


def test_documents_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_table, "MOST_CHARACTERS", 100_000)
    query = f"{ENDLESS} SELECT hex(randomblob(1000)) AS age, 'f' AS sex, 0 AS ill FROM n LIMIT 500"
    said = read_quietly(lambda: load_patients(database(tmp_path, query), make_study()))
    assert says(said, "column 'age'", "100,000")


# --- maps
