"""Studies for Python programs: from a file, a name, or a dictionary."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erosion.common.errors import StudyError
from erosion.common.settings.base import validate
from erosion.common.study import study as study_file
from erosion.common.study.study import Study
from erosion.interface.checked import check
from erosion.interface.replaced import told_of_replaced


@told_of_replaced()
def load_study(source: str | os.PathLike[str] | Mapping[str, Any] | Study) -> Study:
    """A checked study, with every default filled in.

    Args:
        source: The path of a study file, or of a folder with study.toml; the name of a study that
            comes with the program (as `breast-cancer`); or the same keys as a dictionary.

    Raises:
        ErosionError: With every problem, its place and its remedy.
    """
    if isinstance(source, Study):  # pydantic's model_copy(update=...) checks nothing
        return validate(Study, source.model_dump(), "Study", StudyError)
    check(
        "study",
        source,
        "the path of a study file, a study's name, a dictionary or a Study",
        *(str, os.PathLike, Mapping),
    )
    if isinstance(source, Mapping):
        return validate(Study, source, "Study", StudyError)
    return study_file.load_study(path_of(source))


def path_of(source: str | os.PathLike[str]) -> Path:
    """The study file that a path or a name stands for. Raises StudyError."""
    from erosion.experiments.testbed import study_path

    is_name = isinstance(source, str) or Path(source).is_dir()
    return study_path(os.fspath(source)) if is_name else Path(source)
