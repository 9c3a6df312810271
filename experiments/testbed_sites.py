"""The sites of a testbed, for programs that call its hospitals without a network."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erosion.client.site_file import Site
from erosion.client.training.hospital import Hospital
from erosion.common.errors import ErosionError
from erosion.common.study.study import Study, load_study
from erosion.experiments.every_user import site_of
from erosion.experiments.own_data import own_data
from erosion.experiments.sources import HospitalFiles, make_hospitals
from erosion.server.description.description import Description


def sites_of_testbed(
    study: Study,
    folder: Path,
    made: Path,
    data_dir: Path | None,
    weights: Path | None,
    *,
    min_local_steps: int | None = None,
) -> Mapping[str, Site]:
    """Return the hospitals' sites, from the study's [testbed] table or the files in `folder`.

    What a [testbed] table makes is written to `made`. `weights`: the folder with the files that
    models start from. `min_local_steps`: see `site_of`. Raises StudyError, SiteError, DataError.
    """
    hospitals: Mapping[str, HospitalFiles | Mapping[str, Any]] = (
        own_data(study, folder) if study.testbed is None else make_hospitals(study, made, data_dir)
    )
    return {
        name: site_of(name, data, study, min_local_steps=min_local_steps, weights=weights)
        for name, data in hospitals.items()
    }


def describe_here(study_file: Path, data_dir: Path) -> Description:
    """Return what a deployment would give. Raises StudyError, DataError."""
    study = load_study(study_file)
    replies, declined = {}, {}
    with tempfile.TemporaryDirectory() as made:
        sites = sites_of_testbed(study, study_file.resolve().parent, Path(made), data_dir, None)
        for name, site in sites.items():
            try:
                replies[name] = Hospital(site).summarise(study)
            except ErosionError as problem:
                declined[name] = str(problem)
    return Description(study, replies, declined)
