"""Volumes: NIfTI, series of DICOM slices, and arrays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydicom.uid import generate_uid

from erosion_client.dataset.load import load_patients
from erosion_client.dataset.preprocessing import image_inputs
from erosion_client.dataset.same_patient import same_patient
from erosion_client.dataset.sources.dicom import DicomImages
from erosion_client.dataset.sources.image_files import ImageFiles
from erosion_client.dataset.sources.labelled_images import fitted_volume
from erosion_client.dataset.sources.nifti import NiftiImages
from erosion_common.errors import DataError, ModelError
from erosion_common.learning.models import build_model, check_model
from erosion_common.learning.networks import Logistic, MnistCnn, MonaiNetwork
from tests.support.said import raises, says
from tests.support.scans import write_dicom, write_nifti
from tests.support.small_study import make_site, make_study
from tests.support.tasks import image

TASK = image(classes=["cold", "warm"], shape=[1, 5, 6, 8])  # 5 slices of 6 x 8


def problem_of(source: Any, task: Any = TASK) -> str:
    with pytest.raises(DataError) as problem:
        source.read(task)
    return str(problem.value)


def test_a_nifti_volume_is_its_axial_slices_from_below_to_above(tmp_path: Path) -> None:
    x, y, z = np.meshgrid(np.arange(8), np.arange(6), np.arange(5), indexing="ij")
    values = (x + 10 * y + 40 * z).astype(np.float32)
    write_nifti(tmp_path / "cold/a.nii.gz", values)
    write_nifti(tmp_path / "warm/b.nii", values[::-1, :, ::-1], np.diag([-1.0, 1, -1, 1]))
    found = NiftiImages(path=tmp_path, window=(127.5, 255)).read(TASK).images
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
    values = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    write_nifti(tmp_path / "nifti/cold/a.nii", values)  # to the right, to the front, up
    # A scanner's pixels go to the left, to the back and down.
    stored = np.ascontiguousarray(np.transpose(values, axes)[:, ::-1, ::-1])
    middle = stored[len(stored) // 2]
    write_dicom(tmp_path / "dicom/cold/a.dcm", middle, ImageOrientationPatient=directions)
    task = image(classes=["cold", "warm"], shape=[1, *middle.shape])
    nifti = NiftiImages(path=tmp_path / "nifti", plane=plane, window=(127.5, 255)).read(task)
    dicom = DicomImages(path=tmp_path / "dicom", window=(127.5, 255)).read(task)
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
    found = DicomImages(path=tmp_path, slice="all").read(TASK)
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
    assert message in problem_of(DicomImages(path=tmp_path, slice="all"))


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
    found = problem_of(DicomImages(path=tmp_path, slice="all"))
    assert f"cold/p1 {message}" in found


def test_the_numbers_of_slices_give_their_order_where_none_says_its_place(tmp_path: Path) -> None:
    for number in (3, 1, 5, 2, 4):
        pixels = np.full((6, 8), number, np.uint8)
        write_dicom(tmp_path / f"cold/p1/{9 - number}.dcm", pixels, InstanceNumber=number)
    found = DicomImages(path=tmp_path, slice="all").read(TASK)
    assert found.images[0, 0, :, 0, 0].tolist() == [1, 2, 3, 4, 5]


def test_series_in_different_planes_are_told_of(tmp_path: Path) -> None:
    series(tmp_path / "cold/p1", [1] * 5, [1, 2, 3, 4, 5])
    source = DicomImages(path=tmp_path, slice="all")
    assert source.read(TASK).notes == ()
    for place in range(5):
        write_dicom(
            tmp_path / f"warm/p2/{place}.dcm",
            np.ones((6, 8), np.uint8),
            PatientID="p2",
            ImageOrientationPatient=CORONAL,
            ImagePositionPatient=[0, place, 0],
        )
    assert says(source.read(TASK).notes, "axial (cold/p1)", "coronal (warm/p2)")


def test_slices_of_other_sizes_and_several_series_are_refused(tmp_path: Path) -> None:
    series(tmp_path / "cold/p1", [1, 2, 3, 4], [1, 2, 3, 4])
    write_dicom(tmp_path / "cold/p1/x.dcm", np.full((4, 8), 1, np.uint8), SeriesInstanceUID="1.2.3")
    assert says(problem_of(DicomImages(path=tmp_path, slice="all")), "cold/p1", "2 series")
    for path in (tmp_path / "cold/p1").iterdir():
        path.unlink()
    write_dicom(tmp_path / "cold/p1/x.dcm", np.full((4, 8), 1, np.uint8), InstanceNumber=1)
    write_dicom(tmp_path / "cold/p1/y.dcm", np.full((6, 8), 1, np.uint8), InstanceNumber=2)
    message = problem_of(DicomImages(path=tmp_path, slice="all"))
    assert says(message, "cold/p1", "8 x", "6 pixels")


def test_images_for_a_study_of_volumes_and_the_other_way_round_are_refused(tmp_path: Path) -> None:
    series(tmp_path / "cold/p1", [1, 2], [1, 2])
    flat = image(classes=["cold", "warm"], shape=[1, 6, 8])
    assert says(problem_of(DicomImages(path=tmp_path)), "volumes", '"all"')
    wrong = DicomImages(path=tmp_path, slice="all")
    assert says(problem_of(wrong, flat), "images", '"each"')
    with raises(ValueError, "[1", "width]"):
        image(classes=["cold", "warm"], shape=[3, 5, 6, 8])


def test_arrays_of_volumes_are_read_with_or_without_a_channel(tmp_path: Path) -> None:
    pixels = np.arange(2 * 5 * 6 * 8, dtype=np.uint8).reshape(2, 5, 6, 8)
    for images in (pixels, pixels[:, None], pixels[..., None]):
        np.savez(tmp_path / "v.npz", images=images, labels=np.array(["cold", "warm"]))
        found = ImageFiles(path=tmp_path / "v.npz").read(TASK).images
        np.testing.assert_array_equal(found, pixels[:, None])
    np.savez(tmp_path / "v.npz", images=pixels[:, :4], labels=np.array(["cold", "warm"]))
    message = problem_of(ImageFiles(path=tmp_path / "v.npz"))
    assert says(message, "2", "4", "1")


def test_a_volume_can_be_stretched_or_padded() -> None:
    half = np.full((5, 3, 4), 200, np.uint8)
    stretched = fitted_volume(half, TASK, "stretch")
    assert isinstance(stretched, np.ndarray)
    assert stretched.shape == TASK.shape
    assert (stretched == 200).all()
    padded = fitted_volume(half, TASK, "pad")
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
