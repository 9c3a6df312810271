"""Runs for Python programs: simulated, on this machine, or read from a folder."""

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erosion.interface.arguments import check, check_path
from erosion.interface.run import Run
from erosion_common.errors import RunError, StudyError
from erosion_common.learning.pretrained import FOLDER
from erosion_common.settings.base import validate
from erosion_common.settings.packages import faults_of_packages
from erosion_common.study import study as study_file
from erosion_common.study.study import Study

if TYPE_CHECKING:
    from erosion_client.site_file import Site


@faults_of_packages()
def load_study(source: str | os.PathLike[str] | Mapping[str, Any] | Study) -> Study:
    """Return a checked study, with every default filled in.

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
    check_path("study", source)
    return study_file.load_study(path_of(source))


def path_of(source: str | os.PathLike[str]) -> Path:
    """Return the study file that a path or a name stands for. Raises StudyError."""
    from erosion.simulation.testbed import study_path

    is_name = isinstance(source, str) or Path(source).is_dir()
    return study_path(os.fspath(source)) if is_name else Path(source)


AnyPath = str | os.PathLike[str]
_SITES = (Mapping, Sequence, str, os.PathLike, type(None))
AnyStudy = AnyPath | Mapping[str, Any] | Study


@faults_of_packages()
def read_run(folder: AnyPath) -> Run:
    """Return a finished run, from its folder.

    Raises:
        ErosionError: Where the folder holds no finished run, or one of another version.
    """
    from erosion_server.output.run_data import read_run as read
    from erosion_server.run.run_folder import USERS, RunFolder

    check_path("folder", folder)
    path = Path(folder)
    if not RunFolder(path).study.exists():
        raise RunError(
            f"There is no run in {path}",
            remedy="Give the folder of a run that finished (runs/TIME-STUDY).",
        )
    found = read(RunFolder(path))
    whole = RunFolder(path.resolve().parents[1])
    is_part = path.resolve().parent.name == USERS and whole.study.exists()
    overview = whole.report if is_part else None
    return Run(found.study, found.result, path, tuple(found.records), overview)


@faults_of_packages()
def testbed(
    study: AnyStudy,
    *,
    runs: AnyPath = "runs",
    data_dir: AnyPath | None = None,
    weights: AnyPath = FOLDER,
    outputs: Sequence[str] | str = (),
) -> Run:
    """Run a study with all its hospitals on this machine, as `erosion testbed` does.

    Args:
        study: As for `erosion.load_study`; the patients are those of its [testbed] table, or of
            site files or tables in the folder of its file.
        runs: The folder in which the run's own folder is made.
        data_dir: The folder with downloaded data sets; by default $EROSION_DATA, else data/.
        weights: The folder with the file that the study's model starts from, where it has one.
        outputs: As after `erosion server --output`, for example ["metrics"].

    Raises:
        ErosionError: Also, before anything is run, for a study with every hospital as its user.
    """
    from erosion.simulation.testbed import run_testbed

    check_path("runs", runs)
    check_path("data_dir", data_dir, or_none=True)
    check_path("weights", weights)
    check("outputs", outputs, "a list of names", str, Sequence)
    outputs = [outputs] if isinstance(outputs, str) else list(outputs)
    for output in outputs:
        check("an output", output, "a name", str)
    checked = load_study(study)
    if checked.has_every_user:
        raise StudyError(
            f"Study {checked.name} has every hospital as its user, and a Run is of one",
            remedy="Give one name as its user, or use `erosion testbed` and read what it leaves"
            " in users/HOSPITAL.",
        )
    folder, code = run_testbed(
        checked,
        _folder_of(study, checked),
        runs=Path(runs),
        data_dir=_data_dir(data_dir),
        outputs=outputs,
        weights=Path(weights),
    )
    if code != 0:
        raise RunError(
            f"The coordinator of the testbed ended with exit code {code}; it said why. What it left"
            f" is in {folder.path}."
        )
    return read_run(folder.path)


@faults_of_packages()
def simulate(
    study: AnyStudy,
    sites: Mapping[str, AnyPath] | Sequence[AnyPath] | AnyPath | None = None,
    *,
    data_dir: AnyPath | None = None,
    weights: AnyPath | None = None,
    progress: bool = True,
    workers: int | None = None,
) -> Run:
    """Run a study on this machine, without a network; the figures are those of a testbed.

    Sites in the field draw the order of their patients from secrets, so theirs differ a little.

    Args:
        study: As for `erosion.load_study`.
        sites: Where the hospitals' patients are: a data file (or a folder of images) by hospital, a
            list of site files, or a folder with `HOSPITAL/site.toml`, `sites/HOSPITAL.toml` or a
            table for each. By default the study's [testbed] table makes the patients; without one
            they are those in the folder of the study file, as for `erosion testbed`. Of site files
            that are given here, the limits hold, too; what sites keep and count is left alone.
        data_dir: The folder with downloaded data sets; by default $EROSION_DATA, else data/.
        weights: The folder with the file that the study's model starts from, where it has one; by
            default what the site files say, else weights/.
        progress: Whether to show a progress bar on standard error.
        workers: Processes, forked from this one, in which the hospitals train; 1: in this one, in
            turn. By default in this one until a round shows that processes would save time, then in
            as many as there are cores. The figures are the same.

    Raises:
        ErosionError: Also, before anything is read, for a study with every hospital as its user.
    """
    from erosion.simulation import simulator
    from erosion_client.evaluation.held_out import PREDICTIONS
    from erosion_client.training.hospital import Hospital
    from erosion_server.coordination.run_end import result_of

    check("sites", sites, "paths by hospital, a list of paths, or a path", *_SITES)
    check("progress", progress, "True or False", bool)
    for hospital in sites if isinstance(sites, Mapping) else ():
        check("a hospital of sites", hospital, "a name", str)
    if isinstance(sites, str | os.PathLike):
        check_path("sites", sites)
    else:
        for path in sites.values() if isinstance(sites, Mapping) else sites or ():
            check_path("a site", path)
    check_path("data_dir", data_dir, or_none=True)
    check_path("weights", weights, or_none=True)
    check("workers", workers, "a whole number or None", int, type(None))
    checked = load_study(study)
    if checked.has_every_user:
        where = "" if checked.testbed is not None else ", sites"  # no file, no folder with tables
        raise StudyError(
            f"Study {checked.name} has every hospital as its user, and a Run is of one",
            remedy="Simulate it for each hospital in turn:"
            f" erosion.simulate(study.for_user(name){where}) for every name in"
            " study.hospitals; or use `erosion testbed`.",
        )
    start = None if weights is None else Path(weights)
    began, clock = datetime.now(UTC), time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        if sites is None:
            found = _sites_of_study(study, checked, Path(made), _data_dir(data_dir), start)
        else:
            found = _sites_given(checked, sites, start)
        kept = Path(made) / "held-out"
        hospitals = {name: Hospital(site, held_out=kept) for name, site in found.items()}
        with _bar(checked, shown=progress) as advance:
            outcome = simulator.simulate(
                checked,
                hospitals,
                lambda _record: advance(),
                start,
                workers=workers,
            )
        # In a separate folder, for a worker process may have written it.
        (table,) = kept.glob(f"*/*/{PREDICTIONS}")
        held_out = table.read_text(encoding="utf-8")
    result = result_of(outcome, began.isoformat("T", "seconds"), time.monotonic() - clock)
    records = tuple(record for arm in outcome.records.values() for record in arm)
    return Run(checked, result, None, records, held_out=held_out)


def _data_dir(given: AnyPath | None) -> Path:
    from erosion_common.program.command import default_data_dir

    return default_data_dir() if given is None else Path(given)


def _folder_of(study: AnyStudy, checked: Study) -> Path:
    """Return the folder of the study's file; one with a [testbed] table needs none."""
    if checked.testbed is not None:
        return Path()
    if isinstance(study, str | os.PathLike):
        return path_of(study).resolve().parent
    raise StudyError(
        f"Study {checked.name} has no [testbed], and no file with its hospitals' patients in the"
        " same folder: give the path of a study file with site files or tables, or simulate"
        " it with sites=."
    )


def _sites_of_study(
    study: AnyStudy, checked: Study, made: Path, data_dir: Path, weights: Path | None
) -> "Mapping[str, Site]":
    from erosion.simulation.testbed_sites import sites_of_testbed

    return sites_of_testbed(checked, _folder_of(study, checked), made, data_dir, weights)


def _sites_given(
    study: Study, sites: Mapping[str, AnyPath] | Sequence[AnyPath] | AnyPath, weights: Path | None
) -> "Mapping[str, Site]":
    from erosion.simulation.testbed_sites import (
        in_a_simulation,
        own_files,
        site_files,
        site_of,
        warn_of_rows,
    )

    files: Mapping[str, Site] = {}
    tables: Mapping[str, Path] = {}
    if isinstance(sites, str | os.PathLike):
        if not Path(sites).is_dir():
            raise StudyError(
                f"sites = {os.fspath(sites)!r} is no folder",
                remedy="Give a folder of all hospitals' files, a list of site files, or a data"
                " file by hospital.",
            )
        needed = study.hospitals if study.federation.start == "all" else [study.user]
        files, tables = own_files(study, Path(sites), needed)
    elif isinstance(sites, Mapping):
        tables = {name: Path(path) for name, path in sites.items()}
    else:
        files = site_files([Path(path) for path in sites])
    unknown = sorted({*files, *tables} - {*study.everyone})
    if unknown or study.user not in {*files, *tables}:
        trouble = f"does not name {', '.join(unknown)}" if unknown else f"is for {study.user}"
        raise StudyError(
            f"Study {study.name} {trouble}; its hospitals are {', '.join(study.everyone)}",
            remedy="Give the sites by these names, the user's included.",
        )
    missing = [name for name in study.hospitals if name not in {*files, *tables}]
    if missing and study.federation.start == "all":
        raise StudyError(
            f"Study {study.name} waits for all of its hospitals, and there are no sites of"
            f" {', '.join(missing)}: give them, leave them out of the study's hospitals, or begin"
            ' without them (federation.start = "quorum").'
        )
    warn_of_rows(study, files, tables)
    return {
        **{name: in_a_simulation(site, study, weights) for name, site in files.items()},
        **{
            name: site_of(name, {"path": path}, study, weights=weights)
            for name, path in tables.items()
        },
    }


@contextmanager
def _bar(study: Study, *, shown: bool) -> Iterator[Any]:
    """Called once a round; the total is known unless a selection stops arms early."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not shown) as bar:
        task = bar.add_task(study.name, total=study.rounds * len(study.arms))
        yield lambda: bar.advance(task)
