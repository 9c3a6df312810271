"""Patients by the names of their files."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from erosion.client.dataset.sources.image_targets import SHOWN, faults


def _checked_pattern(value: str) -> str:
    try:
        groups = re.compile(value).groups
    except re.error as problem:
        raise ValueError(f"it is no regular expression: {problem}") from None
    if groups != 1:
        raise ValueError('put one group ( ) around the patient, for example "^(.+?)_"')
    return value


PatientPattern = Annotated[str, AfterValidator(_checked_pattern)]


def patients_in_names(
    path: Path, pattern: str | None, names: Sequence[str]
) -> NDArray[np.int64] | None:
    """A number for the patient in each file's name; raises DataError where a name has none."""
    if pattern is None:
        return None
    found = [re.search(pattern, name) for name in names]
    keys = ["" if match is None else match.group(1) or "" for match in found]
    unnamed = [name for name, key in zip(names, keys, strict=True) if not key]
    if unnamed:
        problem = (
            f"{len(unnamed)} names of files do not fit patient_pattern = {pattern!r}:"
            f" {', '.join(unnamed[:SHOWN])}; correct it"
        )
        raise faults(path, [problem])
    return np.unique(keys, return_inverse=True)[1]
