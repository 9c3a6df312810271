"""The registry of testbed sources: one line for each that a study can name."""

from collections.abc import Mapping
from pathlib import Path

from erosion.sources.diabetes_130 import Diabetes130
from erosion.sources.flamby import HeartDisease, TcgaBrca
from erosion.sources.mnist import Mnist
from erosion.sources.pictures import Cifar10, Ham10000
from erosion.sources.shipped import BreastCancer, Diabetes
from erosion.sources.source import Data, SourceBase
from erosion.sources.titanic import Titanic
from erosion_common.errors import StudyError
from erosion_common.settings.base import validate
from erosion_common.study.study import Study

__all__ = ["REGISTRY", "Data", "make_hospitals", "source_of"]

REGISTRY: Mapping[str, type[SourceBase]] = {
    "breast_cancer": BreastCancer,
    "cifar10": Cifar10,
    "diabetes": Diabetes,
    "diabetes_130": Diabetes130,
    "ham10000": Ham10000,
    "heart_disease": HeartDisease,
    "mnist": Mnist,
    "tcga_brca": TcgaBrca,
    "titanic": Titanic,
}


def make_hospitals(study: Study, folder: Path, data_dir: Path | None) -> dict[str, Data]:
    """Write the data file of every hospital below `folder`/HOSPITAL; return [data] of each.

    `study.testbed` names the source and its options; `data_dir` holds the data sets that have to
    be downloaded, one folder each. The same study gives the same files. Raises StudyError for a
    source, option or hospital that does not exist, and DataError for data that are not there.
    """
    files = source_of(study).write(study, folder, data_dir)
    return {hospital: files[hospital] for hospital in study.everyone}


def source_of(study: Study) -> SourceBase:
    """Return the source that `study.testbed` names, with its options; raises StudyError."""
    if study.testbed is None:
        raise StudyError(
            f"Study {study.name} has no [testbed], so there are no hospitals to start",
            remedy=f'Add [testbed] with source = one of "{", ".join(REGISTRY)}", or deploy it to'
            " real ones.",
        )
    name = study.testbed.source
    if name not in REGISTRY:
        raise StudyError(
            f"testbed.source = {name!r}; it must be one of {', '.join(REGISTRY)}.",
            where=f"Study {study.name}",
        )
    where = f"Study {study.name}: testbed.options of the source {name}"
    return validate(REGISTRY[name], study.testbed.options, where, StudyError)
