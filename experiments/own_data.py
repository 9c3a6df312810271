"""A testbed's hospitals from one's own tables: a folder of them beside the study file."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erosion.client.dataset.sources.table_file import TableFile
from erosion.client.scaffold.patient_key import rows_of_patients, undeclared_key
from erosion.client.scaffold.table_folder import SUFFIXES, shared_rows, tables_in
from erosion.client.site_file import load_site
from erosion.common.errors import DataError, StudyError
from erosion.common.study.study import Study

logger = logging.getLogger("erosion.testbed")


def own_data(study: Study, folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """[data] of every hospital's site file: that of sites/NAME.toml, else NAME.csv as it is.

    Of a site file nothing but [data] is taken over. Warns of rows that seem to be of one patient,
    and of tables that share rows. Raises StudyError where a hospital has
    neither, SiteError for a site file, DataError for a folder without tables.
    """
    sites = {name: folder / "sites" / f"{name}.toml" for name in study.hospitals}
    drafted = {name: path for name, path in sites.items() if path.exists()}
    tables = tables_in(folder) if len(drafted) < len(sites) else {}
    missing = [name for name in study.hospitals if name not in drafted and name not in tables]
    if missing:
        raise StudyError(
            f"There are no data of {', '.join(missing)} for a testbed: put a table of that name"
            f" (such as {missing[0]}.csv) or a site file (sites/{missing[0]}.toml) into {folder},"
            " or say with a [testbed] table where they come from."
        )
    for name in study.hospitals:
        if name not in drafted:
            warn_of_rows(study, name, tables[name])
    sources = {
        name: load_site(drafted[name]).data if name in drafted else TableFile(path=tables[name])
        for name in study.hospitals
    }
    for warning in shared_rows(sources):
        logger.warning("%s", warning)
    return {
        name: _as_written(drafted[name]) if name in drafted else {"path": str(tables[name])}
        for name in study.hospitals
    }


def warn_of_rows(study: Study, hospital: str, table: Path) -> None:
    """Say where a table without a site file seems to have several rows of one patient."""
    if table.suffix.lower() not in SUFFIXES:
        return
    try:
        key = undeclared_key(TableFile(path=table), study)
    except DataError:  # the hospital itself says it when it reads the table
        return
    if key is not None:
        logger.warning(
            "%s, %s, and each row is counted as a patient: let `erosion site new` write a site"
            " file for it",
            hospital,
            rows_of_patients(key),
        )


def _as_written(site_file: Path) -> dict[str, Any]:
    data = load_site(site_file).data
    written = {"source": getattr(data, "source"), **data.model_dump(exclude_defaults=True)}  # noqa: B009
    return {key: str(value) if isinstance(value, Path) else value for key, value in written.items()}
