"""The project files of the four packages."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("common", "client", "server", ".")
PROJECTS = {
    folder: tomllib.loads((ROOT / folder / "pyproject.toml").read_text()) for folder in FOLDERS
}


def is_ours(text: str) -> bool:
    return Requirement(text).name.startswith("erosion-")


DEPENDENCIES = sorted(
    {
        text
        for project in PROJECTS.values()
        for text in project["project"]["dependencies"]
        if not is_ours(text)
    }
)
EXTRAS: dict[str, list[str]] = {}  # of all packages, with what others bring
for _project in PROJECTS.values():
    for _name, _texts in _project["project"]["optional-dependencies"].items():
        EXTRAS.setdefault(_name, []).extend(text for text in _texts if not is_ours(text))
