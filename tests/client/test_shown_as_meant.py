"""What image files say of how they are to be shown is honoured, or refused in a sentence."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence
from pydicom.uid import generate_uid

from erosion_client.dataset.load import load_patients
from erosion_client.dataset.sources.dicom import DicomImages
from erosion_client.dataset.sources.image_files import ImageFiles
from erosion_client.dataset.sources.nifti import NiftiImages
from erosion_client.training.hospital import Hospital
from erosion_common.errors import DataError
from tests.support.said import raises, says
from tests.support.scans import write_dicom, write_nifti
from tests.support.small_study import make_site, make_study
from tests.support.tasks import image

GREY = image(classes=["cold", "warm"], shape=[1, 6, 8])
VOLUME = image(classes=["cold", "warm"], shape=[1, 3, 6, 8])
AXIAL = [1, 0, 0, 0, 1, 0]
SHOWN = {"WindowCenter": 128, "WindowWidth": 256, "RescaleIntercept": 0}
CORNERS = np.zeros((6, 8), np.uint16)
CORNERS[0, 0], CORNERS[0, -1], CORNERS[-1, 0] = 250, 150, 50


def problem_of(source: Any, task: Any = GREY) -> str:
    with pytest.raises(DataError) as problem:
        source.read(task)
    return str(problem.value)


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
