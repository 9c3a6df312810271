"""What a message says to install is what the extra needs, by its own name."""

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from erosion_client.dataset.sources.dicom import DicomImages
from erosion_client.dataset.sources.nifti import NiftiImages
from erosion_common.errors import DataError
from erosion_common.support.software import install_command
from tests.support.projects import EXTRAS, PROJECTS
from tests.support.refusals import refused


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata of this program's packages, whose extras are those of the project files."""

    def requires(name: str) -> list[str]:
        (project,) = (p["project"] for p in PROJECTS.values() if p["project"]["name"] == name)
        extras = project["optional-dependencies"].items()
        return [
            "numpy>=2",
            *(f'{text}; extra == "{name}"' for name, texts in extras for text in texts),
        ]

    monkeypatch.setattr(metadata, "requires", requires)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("extra", [name for name in EXTRAS if name != "dev"])
def test_an_extra_is_installed_by_its_packages(extra: str) -> None:
    words = install_command(extra).replace("'", "").removeprefix("pip install ").split()
    assert list(map(Requirement, words)) == list(map(Requirement, EXTRAS[extra]))


@pytest.mark.usefixtures("installed")
def test_the_command_is_quoted_for_a_shell() -> None:
    assert install_command("sql") == "pip install 'psycopg[binary]>=3.2' 'sqlalchemy>=2.0'"


def test_what_only_lies_in_a_folder_installs_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> Any:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "requires", missing)
    assert install_command("sql") == "pip install '.[sql]'"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("source", "extra", "package"),
    [(DicomImages, "dicom", "pydicom"), (NiftiImages, "nifti", "nibabel")],
)
def test_a_source_without_its_package_says_how_to_install_it(
    source: Any, extra: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("erosion_client.dataset.sources.labelled_images.find_spec", lambda _: None)
    with refused(DataError, f"pip install '{package}>="):
        source(path=Path("images")).require(package, extra)
