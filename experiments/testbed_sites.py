"""The sites of a testbed, for programs that call its hospitals without a network."""

from collections.abc import Mapping
from pathlib import Path

from erosion.client.dataset.sources import AnySource  # noqa: F401 - the site file's kinds of data
from erosion.client.site_file import Site
from erosion.common.study.study import Study
from erosion.experiments.every_user import site_of
from erosion.experiments.own_data import own_data
from erosion.experiments.sources import make_hospitals


def testbed_sites(
    study: Study, folder: Path, made: Path, data_dir: Path | None
) -> Mapping[str, Site]:
    """Every hospital's site: from the study's [testbed] table, else from the tables in `folder`.

    What a [testbed] table makes is written to `made`. Raises StudyError, SiteError, DataError.
    """
    if study.testbed is not None:
        files = make_hospitals(study, made, data_dir)
        return {name: site_of(name, place, study) for name, place in files.items()}
    return {
        name: Site.model_validate(
            {"name": name, "data": data, "coordinator": {"address": "127.0.0.1:1"}}
        )
        for name, data in own_data(study, folder).items()
    }
