"""`erosion describe --simulate`: the hospitals of a testbed describe their patients here."""

import tempfile
from pathlib import Path

from erosion.client.dataset.sources import AnySource  # noqa: F401 - the site file's kinds of data
from erosion.client.site_file import Site
from erosion.client.training.hospital import Hospital
from erosion.common.errors import ErosionError
from erosion.common.study.study import load_study
from erosion.experiments.every_user import site_of
from erosion.experiments.own_data import own_data
from erosion.experiments.sources import make_hospitals
from erosion.server.description.description import Description


def describe_here(study_file: Path, data_dir: Path) -> Description:
    """What a deployment would give. Raises StudyError, DataError."""
    study = load_study(study_file)
    replies, declined = {}, {}
    with tempfile.TemporaryDirectory() as made:
        if study.testbed is None:
            own = own_data(study, study_file.resolve().parent)
            sites = {
                name: Site.model_validate(
                    {"name": name, "data": data, "coordinator": {"address": "127.0.0.1:1"}}
                )
                for name, data in own.items()
            }
        else:
            files = make_hospitals(study, Path(made), data_dir)
            sites = {name: site_of(name, place) for name, place in files.items()}
        for name, site in sites.items():
            try:
                replies[name] = Hospital(site).summarise(study)
            except ErosionError as problem:
                declined[name] = str(problem)
    return Description(study, replies, declined)
