"""DICOM and NIfTI: made here, read as a hospital's."""

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate
from pydicom.sequence import Sequence
from pydicom.uid import DeflatedExplicitVRLittleEndian, JPEGLSLossless, generate_uid

from erosion_client.dataset.load import load_patients
from erosion_client.dataset.preprocessing import image_inputs
from erosion_client.dataset.same_patient import same_patient
from erosion_client.dataset.sources import dicom
from erosion_client.dataset.sources.data_source import ImageSource
from erosion_client.dataset.sources.dicom import DicomImages
from erosion_client.dataset.sources.image_files import ImageFiles
from erosion_client.dataset.sources.labelled_images import fitted_volume
from erosion_client.dataset.sources.nifti import NiftiImages
from erosion_client.training.hospital import Hospital
from erosion_common.errors import DataError, ModelError
from erosion_common.learning.batch_statistics import SiteBatchNorm
from erosion_common.learning.models import build_model, check_model
from erosion_common.learning.networks import Logistic, MnistCnn, MonaiNetwork
from tests.support.said import raises, says
from tests.support.scans import NAME, write_dicom, write_nifti
from tests.support.small_study import make_site, make_study
from tests.support.tasks import image

GREY = image(classes=["cold", "warm"], shape=[1, 6, 8])
COLOUR = image(classes=["cold", "warm"], shape=[3, 6, 8])


def problem_of(source: ImageSource, task: Any = GREY) -> str:
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


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("centre", "width"), [("nan", 400), (40, "nan"), (40, "inf"), (1e300, 4)])
def test_a_window_without_usable_numbers_is_none(tmp_path: Path, centre: Any, width: Any) -> None:
    """The pictures were black."""
    write_dicom(tmp_path / "cold/a.dcm", WindowCenter=centre, WindowWidth=width)
    assert "WindowCenter" in problem_of(DicomImages(path=tmp_path))


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
    table.write_text("image,diagnosis\nscans/z.dcm,W\nscans/x.dcm,?\n")
    message = problem_of(source)
    assert says(message, "line 2", "'scans/z.dcm'")
    assert says(message, "missing", "1 images")
    table.write_text("file,labels\nscans/y.dcm,W\n")
    assert says(problem_of(source), "column 'image'", "column 'diagnosis'")
    table.write_text("image,diagnosis\nscans/y.dcm,W\nscans/x.dcm,C\n./scans/y.dcm,C\n")
    assert says(problem_of(source), "labels.csv", "scans/y.dcm", "once")


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ({"PatientID": None}, "names nobody in the tag PatientID"),
        ({"PatientID": ""}, "names nobody in the tag PatientID"),
        ({"PatientID": "NA"}, "names nobody in the tag PatientID"),
        ({"Rows": None, "PixelData": None}, "lacks the tags Rows, PixelData; export it again"),
        (
            {"syntax": JPEGLSLossless, "PixelData": encapsulate([b"damaged"])},
            "is compressed (JPEG-LS Lossless Image Compression), and what decodes that is not inst",
        ),
        ({"PixelData": b"12"}, "has pixels that cannot be read"),
        ({"BitsAllocated": 13}, "has pixels that cannot be read"),
        ({"RescaleSlope": None}, "says RescaleSlope = None and RescaleIntercept = -1024.0, by"),
        ({"RescaleSlope": 1e20}, "says RescaleSlope = 1e+20 and RescaleIntercept = -1024.0, by"),
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


def test_a_volume_without_a_unit_is_shown_from_its_own_percentiles(tmp_path: Path) -> None:
    write_nifti(tmp_path / "cold/a.nii", volume())
    write_nifti(tmp_path / "cold/b.nii", volume() * 1000)
    found = NiftiImages(path=tmp_path).read(GREY).images
    np.testing.assert_array_equal(found[0], found[1])
    write_nifti(tmp_path / "cold/c.nii", volume() * 0)
    assert len(np.unique(NiftiImages(path=tmp_path).read(GREY).images[2])) == 1


@pytest.mark.parametrize("is_volume", [False, True])
def test_voxels_that_are_not_square_in_the_slice_are_refused(
    tmp_path: Path, is_volume: bool
) -> None:
    """As DICOM's are; a slice may be thicker than its voxels are wide."""
    task = image(classes=["cold", "warm"], shape=[1, 5, 6, 8]) if is_volume else GREY
    write_nifti(tmp_path / "cold/a.nii", volume(), np.diag([1, 1, 5, 1]))
    assert len(NiftiImages(path=tmp_path).read(task).images) == 1
    write_nifti(tmp_path / "cold/a.nii", volume(), np.diag([0.5, 1, 5, 1]))
    assert says(problem_of(NiftiImages(path=tmp_path), task), "cold/a.nii", "1 x 0.5")
    assert len(NiftiImages(path=tmp_path, resize="stretch").read(task).images) == 1


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
    assert says(found.notes, "age", "1,5")
    [note] = ages(tmp_path, "60", "61", "999").read(AGE).notes
    assert "'999'" in note
    grouped = ages(tmp_path, "980", "1.250")
    assert says(problem_of(grouped, AGE), "980", "1.250")
    unknown = ages(tmp_path, "60", "", "NA", "old")
    message = problem_of(unknown, AGE)
    assert says(message, "missing", "2 images")
    assert says(message, "'old'", "[data.values.age]")


VOLUME = image(classes=["cold", "warm"], shape=[1, 3, 6, 8])
SHOWN = {"WindowCenter": 128, "WindowWidth": 256, "RescaleIntercept": 0}
CORNERS = np.zeros((6, 8), np.uint16)
CORNERS[0, 0], CORNERS[0, -1], CORNERS[-1, 0] = 250, 150, 50


def write_volume(folder: Path, **of_slices: list[Any]) -> None:
    """Three axial slices, 100 apart in what they measure."""
    series = generate_uid()
    for i in range(3):
        tags = {**SHOWN, **{tag: values[i] for tag, values in of_slices.items()}}
        slope = float(tags.get("RescaleSlope", 1))
        write_dicom(
            folder / f"{i}.dcm",
            np.full((6, 8), round(100 * (i + 1) / slope), np.uint16),
            SeriesInstanceUID=series,
            ImageOrientationPatient=AXIAL,
            ImagePositionPatient=[0, 0, 5 * i],
            **{"Modality": "PT", **tags},
        )


@pytest.mark.parametrize("slice_", ["all", "middle", "each"])
def test_slices_keep_their_proportions(tmp_path: Path, slice_: str) -> None:
    windows = {"WindowCenter": [50, 100, 150], "WindowWidth": [100, 200, 300]}
    write_volume(tmp_path / "cold/s", RescaleSlope=[1, 2, 4], **windows)
    task = VOLUME if slice_ == "all" else GREY
    of_files = DicomImages.model_validate({"path": tmp_path, "slice": slice_})
    assert says(problem_of(of_files, task), "[centre", "width]")
    one = of_files.model_copy(update={"window": (200, 400)})
    greys = one.read(task).images.reshape(-1, 48)[:, 0].tolist()
    assert greys == ([128] if slice_ == "middle" else [64, 128, 191])


def test_slices_with_one_window_may_be_rescaled_each_by_itself(tmp_path: Path) -> None:
    write_volume(tmp_path / "cold/s", RescaleSlope=[1, 2, 4], WindowCenter=[200] * 3)
    found = DicomImages(path=tmp_path, slice="all").read(VOLUME).images
    assert found[0, 0, :, 0, 0].tolist() == [28, 128, 228]
    write_volume(tmp_path / "cold/s", Units=["BQML", "BQML", "GML"])
    assert "different units" in problem_of(DicomImages(path=tmp_path, slice="all"), VOLUME)


def test_a_deflated_file_is_read_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 MB took 6 GiB of memory."""
    values = np.arange(48, dtype=np.uint8).reshape(6, 8)
    write_dicom(tmp_path / "cold/a.dcm", values, syntax=DeflatedExplicitVRLittleEndian)
    assert (DicomImages(path=tmp_path).read(GREY).images[0, 0] == values).all()
    monkeypatch.setattr(dicom, "MOST_UNPACKED", 2**21)
    values = np.zeros((2**11, 2**11), np.uint8)
    write_dicom(tmp_path / "cold/b.dcm", values, syntax=DeflatedExplicitVRLittleEndian)
    assert (tmp_path / "cold/b.dcm").stat().st_size < 2**14
    message = problem_of(DicomImages(path=tmp_path, resize="pad"))
    assert says(message, "cold/b.dcm unpacks to")
    assert not says(message, "cold/a.dcm")


LUT = Dataset()
LUT.LUTDescriptor = [256, 0, 16]
LUT.LUTData = np.arange(0, 512, 2, dtype=np.uint16).tobytes()
LUT.ModalityLUTType = "US"


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ({"VOILUTFunction": "SIGMOID"}, "SIGMOID"),
        ({"VOILUTSequence": Sequence([LUT]), "WindowCenter": None}, "VOILUTSequence"),
        ({"PresentationLUTShape": "INVERSE"}, "contradict"),
        ({"PresentationLUTSequence": Sequence([LUT])}, "PresentationLUTSequence"),
        ({"PixelSpacing": [0.5, 1.0]}, "not square"),
        ({"PixelAspectRatio": [4, 3]}, "not square"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "PALETTE COLOR"),
        ({"SharedFunctionalGroupsSequence": Sequence([Dataset()])}, "classic file per frame"),
        ({"NumberOfFrames": 3}, "3 frames"),
        ({"BitsStored": 12, "HighBit": 15}, "export it again"),
        ({"Modality": "SEG"}, "no image but of modality SEG"),
        ({"ImageType": ["ORIGINAL", "PRIMARY", "LOCALIZER"]}, "is a localizer"),
        ({"BitsAllocated": 1, "BitsStored": 1, "HighBit": 0, "PixelData": bytes(6)}, "single bits"),
    ],
)
def test_unusable_keys_are_refused(tmp_path: Path, tags: dict[str, Any], message: str) -> None:
    write_dicom(tmp_path / "cold/a.dcm", CORNERS, **{**SHOWN, **tags})
    told = problem_of(DicomImages(path=tmp_path))
    assert message in told
    assert told.count("\n") == 1


def test_what_can_be_honoured_is(tmp_path: Path) -> None:
    def grey(**tags: Any) -> list[int]:
        write_dicom(tmp_path / "cold/a.dcm", CORNERS, **{**SHOWN, **tags})
        found: list[int] = DicomImages(path=tmp_path).read(GREY).images[0, 0, 0].tolist()
        return found

    assert grey()[::7] == [250, 150]
    assert grey(VOILUTFunction="LINEAR_EXACT")[::7] == [249, 149]
    assert grey(PhotometricInterpretation="MONOCHROME1", PresentationLUTShape="INVERSE")[0] == 5
    assert grey(PixelPaddingValue=250)[::7] == [0, 150]
    assert grey(PixelPaddingValue=140, PixelPaddingRangeLimit=160)[::7] == [250, 0]
    doubled = {"ModalityLUTSequence": Sequence([LUT]), "RescaleSlope": None, "WindowWidth": 512}
    assert grey(**doubled, RescaleIntercept=None, WindowCenter=256)[::7] == [250, 150]


@pytest.mark.parametrize(
    "directions",
    [[-1, 0, 0, 0, 1, 0], [1, 0, 0, 0, -1, 0], [-1, 0, 0, 0, -1, 0], [0, 1, 0, 1, 0, 0]],
)
def test_scans_of_one_plane_lie_alike(tmp_path: Path, directions: list[int]) -> None:
    usual = CORNERS[:, :6].copy()
    usual[0, -1] = 150
    turned = usual.T if directions[1] else usual[:: directions[4], :: directions[0]]
    for name, values, way in (("a", usual, AXIAL), ("b", turned, directions)):
        for i in range(3):
            # Slices lie from the feet to the head, whatever way the rows and columns lead.
            write_dicom(
                tmp_path / f"cold/{name}/{i}.dcm",
                np.ascontiguousarray(values) // (i + 1),
                SeriesInstanceUID=f"1.2.{ord(name)}",
                ImageOrientationPatient=way,
                ImagePositionPatient=[0, 0, i],
                **SHOWN,
            )
    task = image(classes=["cold", "warm"], shape=[1, 3, 6, 6])
    found = DicomImages(path=tmp_path, slice="all").read(task).images
    assert found[0, 0, :, 0, 0].tolist() == [250, 125, 83]
    assert np.array_equal(found[0], found[1])


def test_files_of_another_format_are_named_and_masks_are_no_images(tmp_path: Path) -> None:
    values = np.arange(6 * 8 * 2, dtype=np.int16).reshape(8, 6, 2)
    write_nifti(tmp_path / "cold/a.nii.gz", values)
    write_nifti(tmp_path / "warm/b.nii", values)
    for name in ("cold/c.mgz", "cold/d.nrrd", "warm/e.mha", "f.csv", "warm/.hidden"):
        (tmp_path / name).write_bytes(b"x")
    source = NiftiImages(path=tmp_path)
    said = "\n".join(source.read(GREY).notes)
    assert "3 files" in said
    assert all(name in said for name in ("c.mgz", "d.nrrd", "e.mha", "f.csv"))
    write_nifti(tmp_path / "warm/b_seg.nii.gz", values)
    assert says(problem_of(source), "warm/b_seg.nii.gz", "mask")
    (tmp_path / "warm/b_seg.nii.gz").unlink()
    for kind in (np.float32, np.uint8):
        write_nifti(tmp_path / "warm/g.nii.gz", (values % 3).astype(kind))
        assert "warm/g.nii.gz" in problem_of(source)
    (tmp_path / "l.csv").write_text("file,label\nwarm/g.nii.gz,warm\ncold/a.nii.gz,cold\n")
    task = image(classes=["cold", "warm"], shape=[1, 6, 8], target="label")
    assert len(NiftiImages(path=tmp_path, labels=tmp_path / "l.csv").read(task).images) == 2


def test_a_mask_beside_a_picture_is_no_picture(tmp_path: Path) -> None:
    (tmp_path / "cold").mkdir()
    for name in ("benign (1).png", "benign (1)_mask.png", "benign (1)_mask_1.png"):
        Image.fromarray(np.zeros((6, 8), np.uint8)).save(tmp_path / "cold" / name)
    told = problem_of(ImageFiles(path=tmp_path))
    assert told.count("is a mask") == 2


def test_a_file_without_dicoms_header_is_not_thrown_away(tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "cold/a.dcm", CORNERS, **SHOWN)
    whole = path.read_bytes()
    meta = dcmread(path).file_meta
    path.write_bytes(whole[128 + 4 + 12 + meta.FileMetaInformationGroupLength :])
    told = problem_of(DicomImages(path=tmp_path))
    assert says(told, "DICOM's", "header")
    assert "dcmconv" in told
    assert "remove it" not in told


@pytest.mark.parametrize(("name", "from_end"), [("a.nii.gz", 8), ("a.png", 16)])
def test_pixels_that_contradict_their_checksum_are_refused(
    tmp_path: Path, name: str, from_end: int
) -> None:
    """They can be decoded: the fault is in the checksum, as if a bit of the pixels had turned."""
    source: Any = NiftiImages(path=tmp_path) if ".nii" in name else ImageFiles(path=tmp_path)
    for folder in ("cold", "warm"):
        (tmp_path / folder).mkdir()
        if ".nii" in name:
            write_nifti(tmp_path / folder / name, np.arange(96, dtype=np.int16).reshape(8, 6, 2))
        else:
            Image.fromarray(np.full((6, 8), 5, np.uint8)).save(tmp_path / folder / name)
    assert len(source.read(GREY).images) == 2
    content = bytearray((tmp_path / "warm" / name).read_bytes())
    content[-from_end] ^= 1
    (tmp_path / "warm" / name).write_bytes(content)
    with raises(DataError, f"warm/{name}"):
        source.read(GREY)


@pytest.mark.parametrize("kind", ["dicom", "nifti", "images"])
def test_damaged_files_are_all_listed_or_left_out_and_counted(tmp_path: Path, kind: str) -> None:
    suffix = {"dicom": ".dcm", "nifti": ".nii", "images": ".png"}[kind]
    for i in range(30):
        file = tmp_path / "data" / ("warm" if i % 2 else "cold") / f"{i:02d}{suffix}"
        file.parent.mkdir(parents=True, exist_ok=True)
        if kind == "dicom":
            write_dicom(file, CORNERS, PatientID=f"p{i}", **SHOWN)
        elif kind == "nifti":
            write_nifti(file, i + np.arange(96, dtype=np.int16).reshape(8, 6, 2))
        else:
            Image.fromarray(np.full((6, 8), 5 * i, np.uint8)).save(file)
        if i < 14:
            file.write_bytes(file.read_bytes()[: 40 if i % 2 else 0])
    data = {"source": kind, "path": tmp_path / "data"}
    records = tmp_path / "records"
    study = make_study(task=GREY.model_dump(mode="json"))
    with raises(DataError, "4", "problems") as told:
        load_patients(make_site(tmp_path, name="b", data=data, records=records), study)
    (listed,) = tmp_path.glob("**/unusable-files.txt")
    assert str(listed) in str(told.value)
    assert len(listed.read_text().splitlines()) == 14
    assert listed.stat().st_mode & 0o077 == 0
    listed.unlink()
    lenient = {**data, "unreadable": "leave out"}
    found = load_patients(make_site(tmp_path, name="b", data=lenient, records=records), study)
    assert len(found.rows) == 16
    assert any("14 files" in note and "left out" in note for note in found.notes)
    assert len(listed.read_text().splitlines()) == 14
    assert found.num_unreadable == 14
    if kind == "images":  # elsewhere too many are alike
        described = Hospital(make_site(tmp_path, name="b", data=lenient)).summarise(study)
        assert described.num_unreadable == 15  # rounded up to a multiple of the smallest cell


VOLUMES = image(classes=["cold", "warm"], shape=[1, 5, 6, 8])  # 5 slices of 6 x 8


def volume_problem(source: Any, task: Any = VOLUMES) -> str:
    with pytest.raises(DataError) as problem:
        source.read(task)
    return str(problem.value)


def test_a_nifti_volume_is_its_axial_slices_from_below_to_above(tmp_path: Path) -> None:
    x, y, z = np.meshgrid(np.arange(8), np.arange(6), np.arange(5), indexing="ij")
    values = (x + 10 * y + 40 * z).astype(np.float32)
    write_nifti(tmp_path / "cold/a.nii.gz", values)
    write_nifti(tmp_path / "warm/b.nii", values[::-1, :, ::-1], np.diag([-1.0, 1, -1, 1]))
    found = NiftiImages(path=tmp_path, window=(127.5, 255)).read(VOLUMES).images
    assert found.shape == (2, 1, 5, 6, 8)
    assert found[0, 0, 2].tolist() == [
        [80 + 10 * y + x for x in range(7, -1, -1)] for y in range(5, -1, -1)
    ]
    np.testing.assert_array_equal(found[0], found[1])  # the header says how it lies
    axial = image(classes=["cold", "warm"], shape=[1, 6, 8])
    slices = NiftiImages(path=tmp_path, window=(127.5, 255)).read(axial).images
    np.testing.assert_array_equal(slices[0, 0], found[0, 0, 2])


@pytest.mark.parametrize(
    ("plane", "directions", "axes"),
    [  # of rows and columns in DICOM's axes (to the left, to the back, up); and as axes of NIfTI's
        ("axial", [1, 0, 0, 0, 1, 0], (2, 1, 0)),
        ("coronal", [1, 0, 0, 0, 0, -1], (1, 2, 0)),
        ("sagittal", [0, 1, 0, 0, 0, -1], (0, 2, 1)),
    ],
)
def test_nifti_and_dicom_show_a_patient_the_same_way_round(
    tmp_path: Path, plane: Any, directions: list[int], axes: tuple[int, int, int]
) -> None:
    """Of an even number of coronal slices, each took another one of the two in the middle."""
    for shape in ((5, 7, 3), (6, 8, 4)):
        values = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
        write_nifti(tmp_path / "nifti/cold/a.nii", values)  # to the right, to the front, up
        # A scanner's pixels go to the left, to the back and down.
        stored = np.ascontiguousarray(np.transpose(values, axes)[:, ::-1, ::-1])
        for number, pixels in enumerate(stored):
            position = [0, 0, 0]
            position[axes[0]] = number if plane == "axial" else -number
            tags = {"ImageOrientationPatient": directions, "ImagePositionPatient": position}
            write_dicom(tmp_path / f"dicom/cold/a/{number}.dcm", pixels, **tags)
        task = image(classes=["cold", "warm"], shape=[1, *stored[0].shape])
        nifti = NiftiImages(path=tmp_path / "nifti", plane=plane, window=(127.5, 255)).read(task)
        dicom = DicomImages(path=tmp_path / "dicom", slice="middle", window=(127.5, 255)).read(task)
        np.testing.assert_array_equal(nifti.images, dicom.images)


def series(folder: Path, values: list[int], places: list[float], **tags: Any) -> None:
    uid = generate_uid()
    for number, (value, place) in enumerate(zip(values, places, strict=True)):
        write_dicom(
            folder / f"{number}.dcm",
            np.full((6, 8), value, np.uint8),
            **{
                "ImagePositionPatient": [0, 0, place],
                "ImageOrientationPatient": [1, 0, 0, 0, 1, 0],
                "SeriesInstanceUID": uid,
                **tags,
            },
        )


def test_a_dicom_series_is_a_volume_in_the_order_of_its_places(tmp_path: Path) -> None:
    series(tmp_path / "cold/p1", [30, 10, 50, 20, 40], [6.0, 2.0, 10.0, 4.0, 8.0])
    series(tmp_path / "warm/p2", [9] * 5, [1, 2, 3, 4, 5], PatientID="p2")
    found = DicomImages(path=tmp_path, slice="all").read(VOLUMES)
    assert found.images[0, 0, :, 0, 0].tolist() == [10, 20, 30, 40, 50]
    assert found.places == ("cold/p1", "warm/p2")
    assert found.patients is not None
    assert found.patients.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("values", "places", "message"),
    [
        ([1, 2, 3, 4, 5], [1, 2, 2, 3, 4], "cold/p1 has two slices at one place; keep one series"),
        ([1, 2, 3, 4, 5], [1, 2, 3, 5, 6], "cold/p1 lacks a slice: two are 2 mm apart, most 1"),
        ([1, 2, 3], [1, 2, 3], "cold/p1 has 3 x 6 x 8 voxels; the study wants 5 x 6 x 8 (depth"),
    ],
)
def test_lost_slices(tmp_path: Path, values: list[int], places: list[float], message: str) -> None:
    series(tmp_path / "cold/p1", values, places)
    assert message in volume_problem(DicomImages(path=tmp_path, slice="all"))


AXIAL, CORONAL = [1, 0, 0, 0, 1, 0], [1, 0, 0, 0, 0, -1]
UNSAID = {"ImagePositionPatient": None, "ImageOrientationPatient": None}


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ([{}, {}, {"ImageOrientationPatient": CORONAL}], "has slices in different directions, or"),
        ([{}, {}, UNSAID], "has slices in different directions, or some that do not say theirs"),
        ([{}, {}, {"ImagePositionPatient": None}], "has slices that do not say where they lie"),
        ([UNSAID] * 3, "has two slices at one place"),  # in the order of the files' names
        ([UNSAID | {"InstanceNumber": n} for n in (1, 2, 4)], "lacks a slice: two are 2 apart"),
        ([UNSAID | {"InstanceNumber": n} for n in (1, 1, 2)], "has two slices at one place"),
    ],
)
def test_unordered_slices(tmp_path: Path, tags: list[dict[str, Any]], message: str) -> None:
    for place, given in enumerate(tags):
        known = {"ImageOrientationPatient": AXIAL, "ImagePositionPatient": [0, 0, place]}
        write_dicom(tmp_path / f"cold/p1/{place}.dcm", np.ones((6, 8), np.uint8), **known | given)
    found = volume_problem(DicomImages(path=tmp_path, slice="all"))
    assert f"cold/p1 {message}" in found


def test_the_numbers_of_slices_give_their_order_where_none_says_its_place(tmp_path: Path) -> None:
    for number in (3, 1, 5, 2, 4):
        pixels = np.full((6, 8), number, np.uint8)
        write_dicom(tmp_path / f"cold/p1/{9 - number}.dcm", pixels, InstanceNumber=number)
    found = DicomImages(path=tmp_path, slice="all").read(VOLUMES)
    assert found.images[0, 0, :, 0, 0].tolist() == [1, 2, 3, 4, 5]


def test_series_in_different_planes_are_told_of(tmp_path: Path) -> None:
    series(tmp_path / "cold/p1", [1] * 5, [1, 2, 3, 4, 5])
    source = DicomImages(path=tmp_path, slice="all")
    assert source.read(VOLUMES).notes == ()
    for place in range(5):
        write_dicom(
            tmp_path / f"warm/p2/{place}.dcm",
            np.ones((6, 8), np.uint8),
            PatientID="p2",
            ImageOrientationPatient=CORONAL,
            ImagePositionPatient=[0, place, 0],
        )
    assert says(source.read(VOLUMES).notes, "axial (cold/p1)", "coronal (warm/p2)")


def test_slices_of_other_sizes_and_several_series_are_refused(tmp_path: Path) -> None:
    series(tmp_path / "cold/p1", [1, 2, 3, 4], [1, 2, 3, 4])
    write_dicom(tmp_path / "cold/p1/x.dcm", np.full((4, 8), 1, np.uint8), SeriesInstanceUID="1.2.3")
    assert says(volume_problem(DicomImages(path=tmp_path, slice="all")), "cold/p1", "2 series")
    for path in (tmp_path / "cold/p1").iterdir():
        path.unlink()
    write_dicom(tmp_path / "cold/p1/x.dcm", np.full((4, 8), 1, np.uint8), InstanceNumber=1)
    write_dicom(tmp_path / "cold/p1/y.dcm", np.full((6, 8), 1, np.uint8), InstanceNumber=2)
    message = volume_problem(DicomImages(path=tmp_path, slice="all"))
    assert says(message, "cold/p1", "8 x", "6 pixels")


def test_images_for_a_study_of_volumes_and_the_other_way_round_are_refused(tmp_path: Path) -> None:
    series(tmp_path / "cold/p1", [1, 2], [1, 2])
    flat = image(classes=["cold", "warm"], shape=[1, 6, 8])
    assert says(volume_problem(DicomImages(path=tmp_path)), "volumes", '"all"')
    wrong = DicomImages(path=tmp_path, slice="all")
    assert says(volume_problem(wrong, flat), "images", '"each"')
    with raises(ValueError, "[1", "width]"):
        image(classes=["cold", "warm"], shape=[3, 5, 6, 8])


def test_arrays_of_volumes_are_read_with_or_without_a_channel(tmp_path: Path) -> None:
    pixels = np.arange(2 * 5 * 6 * 8, dtype=np.uint8).reshape(2, 5, 6, 8)
    for images in (pixels, pixels[:, None], pixels[..., None]):
        np.savez(tmp_path / "v.npz", images=images, labels=np.array(["cold", "warm"]))
        found = ImageFiles(path=tmp_path / "v.npz").read(VOLUMES).images
        np.testing.assert_array_equal(found, pixels[:, None])
    np.savez(tmp_path / "v.npz", images=pixels[:, :4], labels=np.array(["cold", "warm"]))
    message = volume_problem(ImageFiles(path=tmp_path / "v.npz"))
    assert says(message, "2", "4", "1")


def test_a_volume_can_be_stretched_or_padded() -> None:
    half = np.full((5, 3, 4), 200, np.uint8)
    stretched = fitted_volume(half, VOLUMES, "stretch")
    assert isinstance(stretched, np.ndarray)
    assert stretched.shape == VOLUMES.shape
    assert (stretched == 200).all()
    padded = fitted_volume(half, VOLUMES, "pad")
    assert isinstance(padded, np.ndarray)
    assert (padded == 200).sum() == half.size  # it fits as it is, with black around
    assert padded[0, 2, 1:4, 2:6].min() == 200


def test_scaling_and_repeats_know_the_depth() -> None:
    task = image(classes=["cold", "warm"], shape=[1, 5, 6, 8], mean=[0.5], deviation=[0.25])
    pixels = np.zeros((1, 1, 5, 6, 8), np.uint8)
    assert bool((image_inputs(task, pixels) == -2).all())
    draws = np.random.default_rng(0)
    volumes = draws.integers(0, 256, (3, 1, 5, 6, 8)).astype(np.uint8)
    volumes[2] = volumes[0]
    found = same_patient(volumes, np.array([0, 1, 0]), None)
    assert found.exact.tolist() == [2]
    assert found.groups[0] == found.groups[2] != found.groups[1]


def test_plain_networks_for_images_refuse_volumes_and_flat_ones_take_them() -> None:
    with raises(ValueError, "'mnist_cnn'", "volumes"):
        MnistCnn().check_task((1, 5, 6, 8))
    assert build_model(Logistic(), (1, 5, 6, 8), 2)(torch.zeros(3, 1, 5, 6, 8)).shape == (3, 2)


@pytest.mark.parametrize(
    ("network", "shape"),
    [("resnet10", (1, 8, 16, 16)), ("resnet10", (3, 16, 16)), ("densenet121", (3, 32, 32))],
)
def test_networks_of_monai_take_images_and_volumes(network: Any, shape: tuple[int, ...]) -> None:
    pytest.importorskip("monai", reason="MONAI is an extra: pip install '.[monai]'")
    settings = MonaiNetwork(network=network)
    settings.check_task(shape)
    model = build_model(settings, shape, 2, seed=1)
    if network == "densenet121":
        with raises(ModelError, "densenet121", "MONAI"):
            check_model(settings, (3, 8, 8), 2)
    assert model(torch.zeros(2, *shape)).shape == (2, 2)
    assert not list(model.buffers())  # group normalisation has no statistics
    if network == "resnet10":
        with_sites = build_model(MonaiNetwork(network=network, normalisation="site"), shape, 2)
        assert not list(with_sites.buffers())
        assert any(isinstance(module, SiteBatchNorm) for module in with_sites.modules())
    with raises(ValueError, "images", "volumes"):
        settings.check_task((13,))


def test_a_site_reads_volumes_for_a_study(tmp_path: Path) -> None:
    for name, label in (("a", "cold"), ("b", "warm"), ("c", "cold"), ("d", "warm")):
        values = np.random.default_rng(ord(name)).normal(size=(8, 6, 5)).astype(np.float32)
        write_nifti(tmp_path / f"scans/{label}/{name}.nii.gz", values)
    task = {"kind": "image", "target": "labels", "classes": ["cold", "warm"], "shape": [1, 5, 6, 8]}
    study = make_study(task=task)
    site = make_site(tmp_path, file="scans", data={"source": "nifti"})
    assert load_patients(site, study).rows.shape == (4, 1, 5, 6, 8)
