"""Images from npz files and from class folders."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image

from erosion_client.dataset.load import load_patients
from erosion_client.dataset.preprocessing import image_inputs
from erosion_client.dataset.sources.image_files import ImageFiles
from erosion_common.errors import DataError
from erosion_common.tasks.inputs import ImageTask
from tests.support.said import raises, says
from tests.support.small_study import make_site, make_study
from tests.support.tasks import image

TASK = image(classes=["cat", "dog"], shape=[3, 4, 5])
GREY = image(classes=[0, 1], shape=[1, 4, 5])
PIXELS = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)


def saved(folder: Path, **arrays: Any) -> ImageFiles:
    np.savez(folder / "images.npz", **arrays)
    return ImageFiles(path=folder / "images.npz")


def problem_of(source: ImageFiles, task: ImageTask = TASK) -> str:
    with pytest.raises(DataError) as problem:
        source.read(task)
    return str(problem.value)


def test_npz_images_may_have_channels_first_or_last(tmp_path: Path) -> None:
    for images in (PIXELS, np.moveaxis(PIXELS, 1, 3)):
        found = saved(tmp_path, images=images, labels=np.array(["dog", "cat"])).read(TASK)
        np.testing.assert_array_equal(found.images, PIXELS)
        assert found.targets.tolist() == [1, 0]


def test_grey_npz_images_need_no_channel(tmp_path: Path) -> None:
    source = saved(tmp_path, images=PIXELS[:, 0], labels=np.array([[1.0], [0.0]]))
    found = source.read(GREY)
    np.testing.assert_array_equal(found.images, PIXELS[:, :1])
    assert found.targets.tolist() == [1, 0]


def test_arrays_and_labels_can_be_mapped(tmp_path: Path) -> None:
    path = saved(tmp_path, x=PIXELS, y=np.array([7, 9])).path
    source = ImageFiles.model_validate(
        {
            "path": path,
            "columns": {"images": "x", "labels": "y"},
            "values": {"labels": {"7": "cat", "9": "dog"}},
        }
    )
    assert source.read(TASK).targets.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": PIXELS}, "has no array 'labels'; it has images"),
        ({"images": PIXELS, "labels": [0, 1]}, "labels '0', '1' are not of the study's classes"),
        ({"images": PIXELS, "labels": ["cat", ""]}, "labels is missing for 1 images; leave them"),
        ({"images": PIXELS, "labels": [np.nan, 1]}, "labels is missing for 1 images; leave them"),
        ({"images": PIXELS / 255, "labels": ["cat", "dog"]}, "images are float64; store pixels"),
        ({"images": PIXELS[..., 1:], "labels": ["cat", "dog"]}, "images are of shape (2, 3, 4, 4)"),
        ({"images": PIXELS, "labels": ["cat"]}, "2 images and 1 labels"),
        ({"images": PIXELS[:0], "labels": []}, "there are no images"),
        ({"images": PIXELS, "labels": np.zeros((2, 2))}, "labels are of shape (2, 2)"),
        ({"images": np.array([{}, {}]), "labels": [0, 1]}, "cannot be read: Object arrays cannot"),
    ],
)
def test_npz_problems_are_explained(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    assert message in problem_of(saved(tmp_path, **arrays))


def test_class_folders_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for folder, name, index in (("dog", "b.png", 1), ("cat", "a.png", 0)):
        (tmp_path / folder).mkdir()
        Image.fromarray(np.moveaxis(PIXELS[index], 0, 2)).save(tmp_path / folder / name)
    (tmp_path / ".hidden").mkdir()
    found = ImageFiles(path=tmp_path).read(TASK)
    np.testing.assert_array_equal(found.images, PIXELS)
    assert found.targets.tolist() == [0, 1]


# What a picture was stored with, by the number that its notes give less 1.
TURNS = "NONE FLIP_LEFT_RIGHT ROTATE_180 FLIP_TOP_BOTTOM TRANSPOSE ROTATE_90 TRANSVERSE ROTATE_270"


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("kind", ["png", "webp", "tiff"])
def test_pictures_are_put_upright(tmp_path: Path, number: int, kind: str) -> None:
    shown = Image.fromarray(np.moveaxis(PIXELS[0], 0, 2))
    stored = shown.transpose(Image.Transpose[TURNS.split()[number]]) if number else shown
    notes = Image.Exif()
    notes[ExifTags.Base.Orientation] = number + 1
    (tmp_path / "cat").mkdir()
    options: dict[str, Any] = {"lossless": True} if kind == "webp" else {}
    stored.save(tmp_path / "cat" / f"a.{kind}", exif=notes, **options)
    found = ImageFiles(path=tmp_path).read(TASK)
    np.testing.assert_array_equal(found.images[0], PIXELS[0])


def test_pictures_have_hashes_of_what_is_stored_whatever_a_study_asks_for(tmp_path: Path) -> None:
    for number in range(4):
        folder = tmp_path / ("cat" if number % 2 else "dog")
        folder.mkdir(exist_ok=True)
        Image.fromarray(PIXELS[number % 2, number // 2]).save(folder / f"{number}.png")
    source = ImageFiles(path=tmp_path, resize="stretch")
    before = source.read(TASK).row_hashes
    assert before is not None
    assert len(set(before.tolist())) == 4
    for shape in ([1, 4, 5], [1, 9, 2]):
        read = source.read(image(classes=["dog", "cat"], shape=shape))
        np.testing.assert_array_equal(read.row_hashes, before)
    (tmp_path / "cat" / "1.png").rename(tmp_path / "dog" / "1.png")  # a corrected label
    after = source.read(TASK).row_hashes
    assert after is not None
    assert len(np.setdiff1d(after, before)) == 1


def test_the_rows_of_an_npz_have_hashes_of_every_array(tmp_path: Path) -> None:
    def hashes(**arrays: Any) -> Any:
        names = {"images": PIXELS, "labels": np.array(["dog", "cat"]), "ward": np.array([[1], [2]])}
        return saved(tmp_path, **{**names, **arrays}).read(TASK).row_hashes

    before = hashes()
    np.testing.assert_array_equal(hashes(version=np.array(3)), before)  # of no image
    changed = {
        "images": np.stack([PIXELS[0], PIXELS[1] + 1]),
        "labels": np.array(["dog", "dog"]),
        "ward": np.array([[1], [3]]),
    }
    for name, array in changed.items():
        assert (hashes(**{name: array}) == before).tolist() == [True, False]
    assert not (hashes(site=np.array(["one", "x"])) == before).any()


def test_damaged_notes_of_a_camera_are_no_reason_to_refuse_its_picture(tmp_path: Path) -> None:
    for folder, exif in (("cat", b"Exif\0\0II*\0\xff\xff\xff\xff"), ("dog", b"nonsense")):
        (tmp_path / folder).mkdir()
        pixels = Image.fromarray(np.moveaxis(PIXELS[0], 0, 2))
        pixels.save(tmp_path / folder / "a.png", exif=exif)
    np.testing.assert_array_equal(ImageFiles(path=tmp_path).read(TASK).images[0], PIXELS[0])


def test_class_folder_problems_are_explained(tmp_path: Path) -> None:
    assert says(problem_of(ImageFiles(path=tmp_path)), "holds", "images")
    (tmp_path / "a.csv").write_text("a")
    assert says(problem_of(ImageFiles(path=tmp_path / "a.csv")), ".npz", "file")
    (tmp_path / "a.csv").unlink()
    (tmp_path / "cat").mkdir()
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "cat/small.png")
    Image.fromarray(np.zeros((4, 5), np.uint16)).save(tmp_path / "cat/deep.png")
    (tmp_path / "cat/notes.txt").write_text("no image")
    (tmp_path / "cat/old\nnotes.txt").write_text("no image")
    message = problem_of(ImageFiles(path=tmp_path))
    assert len(message.splitlines()) == 5
    assert says(message, "cat/small.png", "4 x", "4")
    assert says(message, "cat/deep.png", "I;16", "8 bits")
    assert says(message, "cat/notes.txt", "image")
    white = Image.new("RGB", (5, 4), "white")
    Image.new("RGB", (5, 4)).save(tmp_path / "cat/film.gif", save_all=True, append_images=[white])
    assert says(problem_of(ImageFiles(path=tmp_path)), "cat/film.gif", "2 images")
    (tmp_path / "cat/patient-1").mkdir()  # whose images nobody would miss
    message = problem_of(ImageFiles(path=tmp_path))
    assert says(message, "cat/patient-1", "folders")
    (tmp_path / "bird").mkdir()
    assert says(problem_of(ImageFiles(path=tmp_path)), "'bird'", "study's")


def deep_png() -> bytes:
    """A PNG of 16 bits per channel, which Pillow does not write."""

    def chunk(name: bytes, content: bytes) -> bytes:
        checked = name + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    lines = (b"\0" + np.full((5, 3), 4095, ">u2").tobytes()) * 4
    head = struct.pack(">IIBBBBB", 5, 4, 16, 2, 0, 0, 0)
    chunks = (b"IHDR", head), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in chunks)


@pytest.mark.parametrize("kind", ["png", "ppm"])
def test_sixteen_bits_are_refused(tmp_path: Path, kind: str) -> None:
    """Of values up to 4095 nothing but 0 to 15 came in."""
    (tmp_path / "cat").mkdir()
    ppm = b"P6 5 4 65535\n" + np.full((4, 5, 3), 4095, ">u2").tobytes()
    (tmp_path / f"cat/deep.{kind}").write_bytes(deep_png() if kind == "png" else ppm)
    assert says(problem_of(ImageFiles(path=tmp_path)), f"cat/deep.{kind}", "8 bits", "RGB")


@pytest.mark.parametrize("suffix", ["png", "tiff", "ppm", "bmp", "gif", "jpg", "webp"])
def test_pictures_of_eight_bits_are_read(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "cat").mkdir()
    Image.new("RGB", (5, 4), "white").save(tmp_path / f"cat/white.{suffix}")
    assert ImageFiles(path=tmp_path).read(TASK).images.min() > 250


def test_a_picture_is_never_run_as_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For EPS, Pillow starts Ghostscript."""
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "all/cat").mkdir(parents=True)
    eps = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 4\n%%EndComments\nshowpage\n"
    (tmp_path / "all/cat/x.png").write_text(eps)
    assert says(problem_of(ImageFiles(path=tmp_path / "all")), "cat/x.png")
    assert not (tmp_path / "started").exists()


def test_colours_behind_transparent_pixels_are_not_trained_on(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    Image.new("RGBA", (5, 4), (10, 20, 30, 255)).save(tmp_path / "cat/full.png")
    found = ImageFiles(path=tmp_path).read(TASK).images
    assert found[0, :, 0, 0].tolist() == [10, 20, 30]
    Image.new("RGBA", (5, 4), (10, 20, 30, 0)).save(tmp_path / "cat/clear.png")
    Image.new("P", (5, 4)).save(tmp_path / "cat/index.png", transparency=0)
    message = problem_of(ImageFiles(path=tmp_path))
    assert says(message, "clear.png", "index.png", "transparent")
    assert not says(message, "full.png")


def test_pixels_are_scaled_by_the_study() -> None:
    task = GREY.model_copy(update={"mean": (0.5,), "deviation": (0.25,)})
    inputs = image_inputs(task, np.array([[[[0, 255]]]], dtype=np.uint8))
    assert inputs.tolist() == [[[[-2.0, 2.0]]]]


def test_an_image_study_wants_images(tmp_path: Path) -> None:
    study = make_study(task=TASK.model_dump())
    with raises(DataError, "study", "images"):
        load_patients(make_site(tmp_path, "age,ill\n1,0\n"), study)


def test_an_npz_can_name_the_patient_of_each_image(tmp_path: Path) -> None:
    source = saved(tmp_path, images=PIXELS, labels=["cat", "dog"], lesion=["a", "a"])
    keyed = source.model_copy(update={"patient": "lesion"})
    found = keyed.read(TASK).patients
    assert found is not None
    assert found.tolist() == [0, 0]
    assert says(problem_of(source.model_copy(update={"patient": "who"})), "array", "'who'")
    short = saved(tmp_path, images=PIXELS, labels=["cat", "dog"], lesion=["a"])
    message = problem_of(short.model_copy(update={"patient": "lesion"}))
    assert says(message, "1,", "2", "5")
    for unknown in ("", " ", "nan", np.nan):
        who = np.array([unknown, unknown])
        unsaid = saved(tmp_path, images=PIXELS, labels=["cat", "dog"], lesion=who)
        message = problem_of(unsaid.model_copy(update={"patient": "lesion"}))
        assert says(message, "2 images", "number 0")
    for kind, number in ((np.float16, 2049), (np.float32, 16777217), (np.float64, 2**53 + 1)):
        who = np.array([number - 1, number], dtype=kind)
        shared = saved(tmp_path, images=PIXELS, labels=["cat", "dog"], lesion=who)
        message = problem_of(shared.model_copy(update={"patient": "lesion"}))
        assert says(message, "lesion", np.dtype(kind).name)
    spaced = saved(tmp_path, images=PIXELS, labels=["cat", "dog"], lesion=["a", "a "])
    found = spaced.model_copy(update={"patient": "lesion"}).read(TASK).patients
    assert found is not None
    assert found.tolist() == [0, 0]


def test_the_patient_of_an_image_can_be_in_its_files_name(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    for name in ("p1_left.png", "p1_right.png", "p2_left.png", "\xe9_a.png", "e\u0301_b.png"):
        Image.fromarray(np.moveaxis(PIXELS[0], 0, 2)).save(tmp_path / "cat" / name)
    source = ImageFiles(path=tmp_path, patient_pattern="^(.+?)_")
    found = source.read(TASK).patients
    assert found is not None
    assert found.tolist() == [2, 0, 0, 1, 2]  # é in two forms
    for pattern in ("^([0-9]+)_", "^([0-9]+)?", "^([0-9]*)"):  # the last two: of nobody
        message = problem_of(ImageFiles(path=tmp_path, patient_pattern=pattern))
        assert says(message, "5 names", "patient_pattern", "p1_left")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"path": "x.npz", "patient_pattern": "(.)"}, "for an .npz give patient"),
        ({"path": "x", "patient": "id"}, "for folders of images give patient_pattern"),
        ({"path": "x", "patient_pattern": "("}, "it is no regular expression"),
        ({"path": "x", "patient_pattern": "a"}, "put one group ( ) around the patient"),
    ],
)
def test_patient_keys_that_do_not_fit_are_explained(keys: dict[str, str], message: str) -> None:
    with raises(ValueError, message):
        ImageFiles.model_validate(keys)
