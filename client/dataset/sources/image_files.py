"""Labelled images in an npz file, or in one folder per class."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from erosion.client.dataset.checked_targets import checked_targets
from erosion.client.dataset.sources.data_source import (
    ImageSource,
    LabelledImages,
    check_path,
    entries_of,
    is_there,
    revision_of,
)
from erosion.client.dataset.sources.faulty_files import FaultyFiles
from erosion.client.dataset.sources.image_targets import (
    IS_MASK,
    SHOWN,
    beside_classes,
    class_folders,
    faults,
    is_mask,
    target_names,
)
from erosion.client.dataset.sources.npz_images import read_npz
from erosion.client.dataset.sources.patient_pattern import PatientPattern, patients_in_names
from erosion.client.dataset.sources.picture import read_picture
from erosion.client.dataset.sources.pixels import Resize, check_decoded
from erosion.client.finding import Finding
from erosion.common.errors import DataError
from erosion.common.tasks.inputs import ImageTask


class ImageFiles(ImageSource):
    """Images in an .npz file, or in one folder per class.

    An .npz file has the array `images` and one array for each target of the study (`labels` for a
    class); under [data.columns] they can be called otherwise. `patient` names an array in it, too.
    """

    source: Literal["images"] = "images"
    path: Path = Field(
        description="An .npz file with `images` and one array for each target, or a folder with "
        "one folder of images per class."
    )
    patient_pattern: PatientPattern | None = Field(
        default=None,
        description="Regular expression; its group in a file's name is the patient, such as "
        "`^(.+?)_` for `p12_left.png`.",
    )
    # regular expression; its group in a file's name is the patient, e.g. "^(.+?)_" for p12_left.png
    resize: Resize = Field(
        default="refuse",
        description="What becomes of an image in a folder that is of another size.",
    )

    @model_validator(mode="after")
    def _key_fits(self) -> Self:
        is_npz = self.path.suffix.lower() == ".npz"
        if self.patient is not None and not is_npz:
            raise ValueError(
                "patient names an array in an .npz file; for folders of images give patient_pattern"
            )
        if self.patient_pattern is not None and is_npz:
            raise ValueError("patient_pattern is for folders of images; for an .npz give patient")
        if self.resize != "refuse" and is_npz:
            raise ValueError("resize is for folders of images; store the .npz at the right size")
        return self

    def describe(self) -> str:
        """The file or folder."""
        return f"Data in {self.path}"

    def check(self) -> Iterator[Finding]:
        """The file or folder is there and can be read."""
        yield check_path(self.path)

    def revision(self) -> str:
        """Of the file or folder."""
        return revision_of(self.path)

    def read(self, task: ImageTask) -> LabelledImages:
        """The images as the study wants them."""
        path = self.path
        if not is_there(path):
            raise DataError(
                f"There is no data file {path}. Check the path (data.path in a site file)."
            )
        if path.is_dir():
            return _read_folders(self, task)
        if path.suffix.lower() != ".npz" or not path.is_file():
            raise DataError(
                f"Data file {path} is no .npz file, but the study wants images: give an .npz with"
                f" images and {target_names(task)}, or a folder with one folder of images per"
                " class."
            )
        return read_npz(self, path, task)


def _read_folders(source: ImageFiles, task: ImageTask) -> LabelledImages:
    path = source.path
    inside = [
        (file, code)
        for folder, code in class_folders(source, path, task)
        for file in entries_of(folder)
        if not file.name.startswith(".")
    ]
    files = [(file, code) for file, code in inside if not file.is_dir()]
    deeper = [f"{file.parent.name}/{file.name}" for file, _ in inside if file.is_dir()]
    if deeper:
        more = ", ..." if len(deeper) > SHOWN else ""
        problem = (
            f"{', '.join(deeper[:SHOWN])}{more}: folders in the folder of a class are not read;"
            " move their images up into it"
        )
        raise faults(path, [problem])
    if not files:
        raise faults(path, ["it holds no images; make one folder of images per class"])
    check_decoded(path, len(files) * int(np.prod(task.shape)))
    images = np.zeros((len(files), *task.shape), dtype=np.uint8)
    hashes = np.zeros(len(files), dtype=np.uint64)
    faulty = FaultyFiles(path, source.unreadable)
    places = [f"{file.parent.name}/{file.name}" for file, _ in files]
    for index, (file, _) in enumerate(files):
        image = IS_MASK if is_mask(file) else read_picture(file, task, source.resize)
        if isinstance(image, str):
            faulty.add(index, places[index], image)
        else:
            images[index], hashes[index] = image
    kept = faulty.kept(len(files))
    used = [files[index] for index in kept.tolist()]
    return LabelledImages(
        images[kept],
        checked_targets(task, np.array([[code] for _, code in used], dtype=np.float64)),
        tuple(places[index] for index in kept.tolist()),
        patients_in_names(path, source.patient_pattern, [file.name for file, _ in used]),
        (*faulty.notes, *beside_classes(path)),
        row_hashes=hashes[kept],
        left_out=faulty.left_out,
    )
