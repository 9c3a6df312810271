"""A testbed's hospitals from one's own tables, in the folder of the study file."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from erosion.client.dataset.sources.table_file import TableFile
from erosion.client.scaffold.column_roles import rows_of_patients, undeclared_key
from erosion.client.scaffold.table_folder import shared_rows, table_files, tables_in
from erosion.client.site_file import Site, load_site
from erosion.common.errors import DataError, SiteError, StudyError
from erosion.common.settings.base import read_toml
from erosion.common.study.study import Study

logger = logging.getLogger("erosion.testbed")


def own_data(study: Study, folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """[data] of every hospital's site file, else its table as it is: see `own_files`."""
    sites, tables = own_files(study, folder, study.hospitals)
    return {
        name: _as_written(sites[name]) if name in sites else {"path": str(tables[name])}
        for name in study.hospitals
    }


def own_files(
    study: Study, folder: Path, needed: Sequence[str]
) -> tuple[Mapping[str, Site], Mapping[str, Path]]:
    """Return the hospitals' site files, and the tables of those with NAME.csv alone.

    A site file is sites/NAME.toml, or else site.toml in a separate folder; it names its hospital
    itself. Those of others than the study's hospitals are passed over. Warns of rows that seem to
    be of one patient, and of tables that share rows. Raises StudyError where one that is needed has
    neither, SiteError for a site file, DataError for the tables.
    """
    sites: dict[str, Site] = {}
    for pattern in ("sites/*.toml", "*/site.toml"):
        found = site_files(path for path in sorted(folder.glob(pattern)) if _is_of(study, path))
        sites = {**found, **sites}
    without = [name for name in study.hospitals if name not in sites]
    in_folder = tables_in(folder) if without and table_files(folder) else {}
    tables = {name: in_folder[name] for name in without if name in in_folder}
    if missing := [name for name in needed if name not in {*sites, *tables}]:
        raise StudyError(
            f"There are no data of {', '.join(missing)} for a testbed: put a table of that name"
            f" (such as {missing[0]}.csv) or a site file (sites/{missing[0]}.toml, or"
            f" {missing[0]}/site.toml) into {folder}, or say with a [testbed] table where they come"
            " from."
        )
    for name, table in tables.items():
        warn_of_rows(study, name, table)
    of_tables = {name: TableFile(path=table) for name, table in tables.items()}
    for warning in shared_rows({**{name: site.data for name, site in sites.items()}, **of_tables}):
        logger.warning("%s", warning)
    return sites, tables


def _is_of(study: Study, path: Path) -> bool:
    """Return whether a site file is of the study, as it says; one without a name, by its place."""
    try:
        said = read_toml(path, "site file", SiteError).get("name")
    except SiteError:
        said = None
    names = (path.stem, path.parent.name) if said is None else (said,)
    return any(name in study.hospitals for name in names)


def site_files(paths: Iterable[Path]) -> Mapping[str, Site]:
    """Site files by the hospital's name in them. Raises SiteError, also where two have the same."""
    found: dict[str, tuple[Path, Site]] = {}
    for path in paths:
        site = load_site(path)
        if site.name in found:
            raise SiteError(
                f"{path} and {found[site.name][0]} are both of the hospital {site.name!r}: remove"
                " one, or correct its name."
            )
        found[site.name] = path, site
    return {name: site for name, (_, site) in found.items()}


def warn_of_rows(study: Study, hospital: str, table: Path) -> None:
    """Say where a table without a site file seems to have several rows of one patient."""
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


def _as_written(site: Site) -> dict[str, Any]:
    data = site.data
    written = {"source": getattr(data, "source"), **data.model_dump(exclude_defaults=True)}  # noqa: B009
    return {key: str(value) if isinstance(value, Path) else value for key, value in written.items()}
