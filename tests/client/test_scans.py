"""DICOM and NIfTI: made here, read as a hospital's."""

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from pydicom.encaps import encapsulate
from pydicom.uid import JPEGLSLossless, generate_uid

from erosion_client.dataset.sources.dicom import DicomImages
from erosion_client.dataset.sources.nifti import NiftiImages
from erosion_common.errors import DataError
from tests.support.said import says
from tests.support.scans import NAME, write_dicom, write_nifti
from tests.support.tasks import image

GREY = image(classes=["cold", "warm"], shape=[1, 6, 8])
COLOUR = image(classes=["cold", "warm"], shape=[3, 6, 8])


def problem_of(source: DicomImages | NiftiImages, task: Any = GREY) -> str:
    with pytest.raises(DataError) as problem:
        source.read(task)
    assert NAME not in str(problem.value)
    return str(problem.value)


def test_values_are_rescaled_and_shown_through_the_window(tmp_path: Path) -> None:
    hounsfield = np.tile(np.array([-1000, -160, 40, 240, 3000, 40, 40, 40]), (6, 1))
    write_dicom(tmp_path / "warm/a.dcm", (hounsfield + 1024).astype(np.uint16))
    write_dicom(tmp_path / "cold/b.dcm", PatientID="p2")
    found = DicomImages(path=tmp_path, window=(40, 400)).read(GREY)
    assert found.images[1, 0, 0].tolist() == [0, 0, 128, 255, 255, 128, 128, 128]
    assert found.targets.tolist() == [0, 1]
    assert found.places == ("cold/b.dcm", "warm/a.dcm")
    assert found.patients is not None
    assert found.patients.tolist() == [1, 0]


def test_a_files_own_window_serves_where_none_is_given(tmp_path: Path) -> None:
    write_dicom(tmp_path / "cold/a.dcm", WindowCenter=[40, 300], WindowWidth=[400, 1500])
    assert DicomImages(path=tmp_path).read(GREY).images[0, 0, 0, 0] == 128
    write_dicom(tmp_path / "cold/b.dcm")
    message = problem_of(DicomImages(path=tmp_path))
    assert says(message, "cold/b.dcm", "WindowCenter", "WindowWidth")


def test_small_values_can_be_white_and_colours_stay(tmp_path: Path) -> None:
    grey = np.full((6, 8), 10, np.uint8)
    write_dicom(tmp_path / "grey/cold/a.dcm", grey, PhotometricInterpretation="MONOCHROME1")
    write_dicom(tmp_path / "grey/cold/b.dcm", grey)
    found = DicomImages(path=tmp_path / "grey").read(GREY)
    assert found.images[:, 0, 0, 0].tolist() == [245, 10]
    colours = np.random.default_rng(0).integers(0, 256, (6, 8, 3)).astype(np.uint8)
    write_dicom(tmp_path / "colour/cold/a.dcm", colours)
    found = DicomImages(path=tmp_path / "colour").read(COLOUR)
    np.testing.assert_array_equal(found.images[0], np.moveaxis(colours, 2, 0))


def test_images_of_another_size_can_be_resized(tmp_path: Path) -> None:
    write_dicom(tmp_path / "cold/a.dcm", np.full((12, 12), 200, np.uint8))
    assert says(problem_of(DicomImages(path=tmp_path)), "12 x", "12 pixels", "6")
    stretched = DicomImages(path=tmp_path, resize="stretch").read(GREY).images[0, 0]
    assert (stretched == 200).all()
    padded = DicomImages(path=tmp_path, resize="pad").read(GREY).images[0, 0]
    assert padded[0].tolist() == [0, 200, 200, 200, 200, 200, 200, 0]


@pytest.mark.parametrize("kind", ["dicom", "nifti"])
@pytest.mark.parametrize("has_table", [False, True])
def test_scans_are_hashed_as_stored(tmp_path: Path, kind: str, has_table: bool) -> None:
    draws = np.random.default_rng(0)
    for number in range(2):
        if kind == "dicom":
            values = draws.integers(0, 256, (6, 8)).astype(np.uint8)
            write_dicom(tmp_path / f"cold/{number}.dcm", values)
        else:
            write_nifti(tmp_path / f"cold/{number}.nii", draws.normal(size=(8, 6, 5)))
    keys: dict[str, Any] = {"path": tmp_path, "resize": "pad"}
    if has_table:
        suffix = "dcm" if kind == "dicom" else "nii"
        rows = [f"cold/{number}.{suffix},cold" for number in range(2)]
        keys["labels"] = tmp_path / "labels.csv"
        keys["labels"].write_text("\n".join(["file,labels", *rows]) + "\n")
    source = DicomImages(**keys) if kind == "dicom" else NiftiImages(**keys)
    before = source.read(GREY).row_hashes
    assert before is not None
    assert before[0] != before[1]
    other = image(classes=["warm", "cold"], shape=[1, 5, 5])
    np.testing.assert_array_equal(source.read(other).row_hashes, before)


def test_the_middle_of_a_series_is_found_by_position(tmp_path: Path) -> None:
    for number, z in enumerate([30.0, 10.0, 50.0, 20.0, 40.0]):
        write_dicom(
            tmp_path / f"cold/series/{number}.dcm",
            np.full((6, 8), int(z), np.uint8),
            ImagePositionPatient=[0, 0, z],
            ImageOrientationPatient=[1, 0, 0, 0, 1, 0],
        )
    found = DicomImages(path=tmp_path, slice="middle").read(GREY)
    assert found.places == ("cold/series",)
    assert found.images[0, 0, 0, 0] == 30


def test_a_folder_of_several_series_is_refused_until_one_is_named(tmp_path: Path) -> None:
    for name, value in (("scout", 10), ("axial thin", 20)):
        write_dicom(
            tmp_path / f"cold/p1/{name}.dcm",
            np.full((6, 8), value, np.uint8),
            SeriesInstanceUID=generate_uid(),
            SeriesDescription=name,
        )
    message = problem_of(DicomImages(path=tmp_path, slice="middle"))
    assert says(message, "cold/p1", "2 series")
    named = DicomImages(path=tmp_path, slice="middle", series="axial*")
    assert named.read(GREY).images[0, 0, 0, 0] == 20
    other = DicomImages(path=tmp_path, slice="middle", series="coronal")
    assert says(problem_of(other), "series", "'coronal'")


def test_a_table_of_labels_can_name_the_files(tmp_path: Path) -> None:
    for name in ("x", "y"):
        write_dicom(tmp_path / f"scans/{name}.dcm", np.full((6, 8), 7, np.uint8))
    table = tmp_path / "labels.csv"
    table.write_text("image,diagnosis\nscans/y.dcm,W\nscans/x.dcm,C\n")
    source = DicomImages(
        path=tmp_path,
        labels=table,
        columns={"file": "image", "labels": "diagnosis"},
        values={"labels": {"W": "warm", "C": "cold"}},
    )
    found = source.read(GREY)
    assert found.places == ("scans/y.dcm", "scans/x.dcm")
    assert found.targets.tolist() == [1, 0]
    assert found.notes == ()
    write_dicom(tmp_path / "scans/z.dcm", np.full((6, 8), 7, np.uint8))
    notes = source.read(GREY).notes
    assert says(notes, "1 scans", "labels.csv", "scans/z.dcm")
    (tmp_path / "scans/z.dcm").unlink()
    table.write_text("image,diagnosis\nscans/z.dcm,W\nscans/x.dcm,C\n")
    assert says(problem_of(source), "line 2", "'scans/z.dcm'")
    table.write_text("image,diagnosis\nscans/y.dcm,W\nscans/x.dcm,?\n")
    assert says(problem_of(source), "missing", "'?' on line 3")
    table.write_text("file,labels\nscans/y.dcm,W\n")
    assert "column 'image'" in problem_of(source)


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ({"PatientID": None}, "lacks the tag PatientID, which identifies patients"),
        ({"PatientID": ""}, "lacks the tag PatientID"),
        ({"Rows": None, "PixelData": None}, "lacks the tags Rows, PixelData; export it again"),
        (
            {"syntax": JPEGLSLossless, "PixelData": encapsulate([b"damaged"])},
            "is compressed (JPEG-LS Lossless Image Compression), and what decodes that is not inst",
        ),
        ({"PixelData": b"12"}, "has pixels that cannot be read"),
        ({"BitsAllocated": 13}, "has pixels that cannot be read"),
        ({"RescaleSlope": None}, "says RescaleSlope = None and RescaleIntercept = -1024.0, by"),
        ({"RescaleSlope": 0}, "says RescaleSlope = 0.0 and RescaleIntercept = -1024.0, by"),
    ],
)
def test_what_a_file_lacks_is_said(tmp_path: Path, tags: dict[str, Any], message: str) -> None:
    write_dicom(tmp_path / "cold/a.dcm", **tags)
    assert f"cold/a.dcm {message}" in problem_of(DicomImages(path=tmp_path, window=(40, 400)))


def test_modalities_are_not_mixed(tmp_path: Path) -> None:
    write_dicom(tmp_path / "cold/a.dcm", np.full((6, 8), 7, np.uint8))
    write_dicom(tmp_path / "warm/b.dcm", np.full((6, 8), 7, np.uint8), Modality="MR")
    message = problem_of(DicomImages(path=tmp_path))
    assert says(message, "CT", "cold/a.dcm", "warm/b.dcm")


def test_what_is_no_dicom_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "cold").mkdir()
    assert says(problem_of(DicomImages(path=tmp_path)), "holds", "images")
    (tmp_path / "cold/notes.txt").write_text("not a scan")
    (tmp_path / "cold/.hidden").write_text("not a scan")
    assert says(problem_of(DicomImages(path=tmp_path)), "cold/notes.txt", "DICOM")
    assert says(problem_of(DicomImages(path=tmp_path / "absent")), "There", "folder")
    (tmp_path / "tepid").mkdir()
    assert says(problem_of(DicomImages(path=tmp_path)), "'tepid'", "study's")


def volume() -> Any:
    """8 to the right, 6 forwards, 5 up: each voxel is 10 times its height."""
    return np.broadcast_to(np.arange(5) * 10.0, (8, 6, 5)).astype(np.float32).copy()


def test_a_volume_gives_the_slice_through_its_middle(tmp_path: Path) -> None:
    write_nifti(tmp_path / "cold/a.nii.gz", volume())
    flipped = np.diag([1.0, 1, -1, 1])
    write_nifti(tmp_path / "warm/b.nii", volume()[:, :, ::-1], flipped)
    found = NiftiImages(path=tmp_path, window=(20, 40), patient_pattern="^(.)").read(GREY)
    assert found.images.shape == (2, 1, 6, 8)
    assert (found.images == 128).all()
    assert found.targets.tolist() == [0, 1]
    assert found.patients is not None
    assert found.patients.tolist() == [0, 1]
    coronal = image(classes=["cold", "warm"], shape=[1, 5, 8])
    upright = NiftiImages(path=tmp_path, plane="coronal", window=(20, 40)).read(coronal)
    assert upright.images[0, 0, :, 0].tolist() == [255, 191, 128, 64, 0]  # the top is superior
    np.testing.assert_array_equal(upright.images[0], upright.images[1])


def test_a_volume_without_a_unit_is_shown_from_its_own_percentiles(tmp_path: Path) -> None:
    write_nifti(tmp_path / "cold/a.nii", volume())
    write_nifti(tmp_path / "cold/b.nii", volume() * 1000)
    found = NiftiImages(path=tmp_path).read(GREY).images
    np.testing.assert_array_equal(found[0], found[1])
    write_nifti(tmp_path / "cold/c.nii", volume() * 0)
    assert len(np.unique(NiftiImages(path=tmp_path).read(GREY).images[2])) == 1


def test_values_that_cannot_be_shown_are_refused(tmp_path: Path) -> None:
    for values in ((volume() * 1j).astype(np.complex64), np.full((8, 6, 5), np.nan, np.float32)):
        write_nifti(tmp_path / "cold/a.nii", values)
        kind = "complex" if np.iscomplexobj(values) else "finite"
        assert says(problem_of(NiftiImages(path=tmp_path)), "cold/a.nii", kind)


def test_a_volume_that_does_not_say_how_it_lies_is_told_of(tmp_path: Path) -> None:
    write_nifti(tmp_path / "cold/a.nii", volume())
    assert NiftiImages(path=tmp_path).read(GREY).notes == ()
    image_without: Any = nibabel.Nifti1Image
    nibabel.save(image_without(volume(), None), tmp_path / "cold/b.nii")
    [note] = NiftiImages(path=tmp_path).read(GREY).notes
    assert says(note, "1 volumes", "qform_code", "cold/b.nii")


AGE = image(outcome="regression", target="age", centre=60, spread=10, shape=[1, 6, 8])


def ages(folder: Path, *texts: str) -> NiftiImages:
    lines = []
    for number, text in enumerate(texts):
        write_nifti(folder / f"scans/{number}.nii", volume() + number)
        lines.append(f"{number}.nii;{text}\n")
    (folder / "ages.csv").write_text("file;age\n" + "".join(lines))
    return NiftiImages(path=folder / "scans", labels=folder / "ages.csv")


def test_numbers_in_a_table_of_labels_are_read_as_those_of_patients_are(tmp_path: Path) -> None:
    found = ages(tmp_path, "60,5", "61,5").read(AGE)
    assert found.targets.tolist() == [60.5, 61.5]
    assert says(found.notes, "1,5")
    assert says(ages(tmp_path, "60", "61", "999").read(AGE).notes, "'999'")
    grouped = ages(tmp_path, "980", "1.250")
    assert says(problem_of(grouped, AGE), "980", "1.250")
    unknown = ages(tmp_path, "60", "", "NA", "old")
    message = problem_of(unknown, AGE)
    assert says(message, "missing", "line 3", "line 4")
    assert says(message, "'old'", "[data.values.age]")
