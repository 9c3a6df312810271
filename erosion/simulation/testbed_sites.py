"""The sites of a testbed or a simulation: their data, and what they allow.

The patients come from the study's [testbed] table, or from one's own tables and site files in the
folder of the study file. What reads and checks tables is imported where it is used: a testbed of a
[testbed] table starts without it.
"""

import logging
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from erosion.sources import Data, make_hospitals
from erosion_client.dataset.sources.table_file import TableFile
from erosion_client.site_file import Budget, Site, load_site
from erosion_common.errors import DataError, ErosionError, SiteError, StudyError
from erosion_common.learning.installed import InstalledModel
from erosion_common.settings.base import read_toml
from erosion_common.study.study import Study, load_study
from erosion_server.output.description import Descriptions

logger = logging.getLogger("erosion.testbed")

# [budget] of its site file: nobody's patients are used up, however long or often a study runs.
TESTBED_BUDGET = {
    name: 1_000_000_000 for name, key in Budget.model_fields.items() if key.annotation is int
}


def testbed_limits(study: Study, hospital: str) -> dict[str, Any]:
    """[limits] of its site file, so far as they are not the usual ones."""
    limits: dict[str, Any] = {}
    if isinstance(study.model, InstalledModel):  # it runs on this machine
        limits["installed_models"] = {study.model.entry_point: study.model.sha256}
    methods = {
        arm.algorithm: getattr(arm, "sha256")  # noqa: B009 - of a package's alone
        for arm in study.arms.values()
        if hasattr(arm, "sha256")
    }
    if methods:
        limits["installed_methods"] = methods
    if sha256 := getattr(study.task, "sha256", None):
        limits["installed_tasks"] = {study.task.outcome: sha256}
    is_users_step = study.privacy is not None and hospital == study.user  # without noise
    if is_users_step or any(arm.sends_gradients for arm in study.arms.values()):
        limits["min_local_steps"] = 1
    return limits


def site_of(
    name: str,
    data: Data,
    study: Study | None = None,
    *,
    min_local_steps: int | None = None,
    weights: Path | None = None,
    device: str = "cpu",
) -> Site:
    """Return a site that is never connected to anything, with [data] of a site file.

    It allows what a testbed of `study` does. `min_local_steps` takes the place of the usual limit,
    for papers that take one step a round. `weights`, `device`: its compute.weights and .device.
    """
    limits = {} if study is None else testbed_limits(study, name)
    if min_local_steps is not None:
        limits["min_local_steps"] = min_local_steps
    return Site.model_validate(
        {
            "name": name,
            "data": data,
            "coordinator": {"address": "127.0.0.1:1"},
            "limits": limits,
            # a simulation's hospitals have no secret
            "compute": {"public_order": True, "weights": weights, "device": device},
        }
    )


def sites_of_testbed(
    study: Study,
    folder: Path,
    made: Path,
    data_dir: Path | None,
    weights: Path | None,
    *,
    min_local_steps: int | None = None,
    device: str = "cpu",
) -> Mapping[str, Site]:
    """Return the hospitals' sites, from the study's [testbed] table or the files in `folder`.

    What a [testbed] table makes is written to `made`. `weights`: the folder with the files that
    models start from. `min_local_steps`, `device`: see `site_of`. Raises StudyError, SiteError,
    DataError.
    """
    hospitals = (
        own_data(study, folder) if study.testbed is None else make_hospitals(study, made, data_dir)
    )
    return {
        name: site_of(
            name, data, study, min_local_steps=min_local_steps, weights=weights, device=device
        )
        for name, data in hospitals.items()
    }


def describe_here(study_file: Path, data_dir: Path) -> Descriptions:
    """Return what a deployment would give. Raises StudyError, DataError."""
    from erosion_client.training.hospital import Hospital

    study = load_study(study_file)
    replies, declined = {}, {}
    with tempfile.TemporaryDirectory() as made:
        sites = sites_of_testbed(study, study_file.resolve().parent, Path(made), data_dir, None)
        for name, site in sites.items():
            try:
                replies[name] = Hospital(site).summarise(study)
            except ErosionError as problem:
                declined[name] = str(problem)
    return Descriptions(study, replies, declined)


def in_a_simulation(site: Site, study: Study, weights: Path | None) -> Site:
    """Return a hospital's own site, in a program that shows nobody anything.

    What it keeps and counts is not touched: a simulation uses nothing up. Its limits hold, but for
    the user's own step in a study with differential privacy. `weights` None: the site file's.
    """
    compute = {"state": None} | ({} if weights is None else {"weights": weights})
    limits = {}
    if study.privacy is not None and site.name == study.user:
        limits = {"min_local_steps": 1}
    return site.model_copy(
        update={
            "compute": site.compute.model_copy(update=compute),
            "limits": site.limits.model_copy(update=limits),
        }
    )


def own_data(study: Study, folder: Path) -> Mapping[str, Data]:
    """[data] of every hospital's site file, else its table as it is: see `own_files`."""
    sites, tables = own_files(study, folder, study.everyone)
    warn_of_rows(study, sites, tables)
    return {
        name: _as_written(sites[name]) if name in sites else {"path": str(tables[name])}
        for name in study.everyone
    }


def own_files(
    study: Study, folder: Path, needed: Sequence[str]
) -> tuple[Mapping[str, Site], Mapping[str, Path]]:
    """Return the hospitals' site files, and the tables of those with NAME.csv alone.

    A site file is sites/NAME.toml, or else site.toml in a separate folder; it names its hospital
    itself. Those of others than the study's hospitals are passed over. Raises StudyError where one
    that is needed has neither, SiteError for a site file, DataError for the tables.
    """
    from erosion_client.scaffold.table_folder import table_files, tables_in

    sites: dict[str, Site] = {}
    for pattern in ("sites/*.toml", "*/site.toml"):
        found = site_files(path for path in sorted(folder.glob(pattern)) if _is_of(study, path))
        sites = {**found, **sites}
    without = [name for name in study.everyone if name not in sites]
    in_folder = tables_in(folder) if without and table_files(folder) else {}
    tables = {name: in_folder[name] for name in without if name in in_folder}
    if missing := [name for name in needed if name not in {*sites, *tables}]:
        raise StudyError(
            f"There are no data of {', '.join(missing)} for a testbed: put a table of that name"
            f" (such as {missing[0]}.csv) or a site file (sites/{missing[0]}.toml, or"
            f" {missing[0]}/site.toml) into {folder}, or say with a [testbed] table where they come"
            " from."
        )
    return sites, tables


def _is_of(study: Study, path: Path) -> bool:
    """Return whether a site file is of the study, as it says; one without a name, by its place."""
    try:
        said = read_toml(path, "site file", SiteError).get("name")
    except SiteError:
        said = None
    names = (path.stem, path.parent.name) if said is None else (said,)
    return any(name in study.everyone for name in names)


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


def warn_of_rows(study: Study, sites: Mapping[str, Site], tables: Mapping[str, Path]) -> None:
    """Warn of rows that seem to be of one patient, and of hospitals that share rows."""
    from erosion_client.scaffold.column_roles import rows_of_patients, undeclared_key
    from erosion_client.scaffold.table_folder import shared_rows

    of_tables = {name: TableFile(path=table) for name, table in tables.items()}
    for hospital, table in of_tables.items():
        try:
            key = undeclared_key(table, study)
        except DataError:  # the hospital itself says it when it reads the table
            continue
        if key is not None:
            logger.warning(
                "%s, %s, and each row is counted as a patient: let `erosion site new` write a site"
                " file for it",
                hospital,
                rows_of_patients(key),
            )
    for warning in shared_rows({**{name: site.data for name, site in sites.items()}, **of_tables}):
        logger.warning("%s", warning)


def _as_written(site: Site) -> dict[str, Any]:
    data = site.data
    written = {"source": getattr(data, "source"), **data.model_dump(exclude_defaults=True)}  # noqa: B009
    return {key: str(value) if isinstance(value, Path) else value for key, value in written.items()}
