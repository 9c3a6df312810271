"""Runs for Python programs: simulated, on this machine, or read from a folder."""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erosion.common.errors import RunError, SiteError, StudyError
from erosion.common.study.study import Study
from erosion.interface.checked import check, check_path
from erosion.interface.run import Run
from erosion.interface.studies import load_study

if TYPE_CHECKING:
    from erosion.client.training.hospital import Hospital

AnyPath = str | os.PathLike[str]
_SITES = (Mapping, Sequence, str, os.PathLike, type(None))
AnyStudy = AnyPath | Mapping[str, Any] | Study


def read_run(folder: AnyPath) -> Run:
    """A finished run, from its folder.

    Raises:
        ErosionError: Where the folder holds no finished run, or one of another version.
    """
    from erosion.server.output.report.run_data import read_run as read
    from erosion.server.run.run_folder import RunFolder

    check_path("folder", folder)
    path = Path(folder)
    if (path / "users").is_dir():
        raise RunError(f"{path} holds a run for each hospital: give {path}/users/HOSPITAL.")
    if not RunFolder(path).study.exists():
        raise RunError(
            f"There is no run in {path}. Give the folder of a run that finished (runs/TIME-STUDY)."
        )
    found = read(RunFolder(path))
    metrics = {arm: ended.metrics for arm, ended in found.result.arms.items()}
    return Run(
        found.study, found.result.verdict.text, found.result, path, tuple(found.records), metrics
    )


def testbed(
    study: AnyStudy,
    *,
    runs: AnyPath = "runs",
    data_dir: AnyPath | None = None,
    outputs: Sequence[str] | str = (),
) -> Run:
    """Run a study with all its hospitals on this machine, as `erosion testbed` does.

    Args:
        study: As for `erosion.load_study`; it needs a [testbed] table.
        runs: The folder in which the run's own folder is made.
        data_dir: The folder with downloaded data sets; by default $EROSION_DATA, else data/.
        outputs: As after `erosion server --output`, for example ["metrics"].

    Raises:
        ErosionError: Also, before anything is run, for a study with every hospital as its user.
    """
    from erosion.experiments.testbed import run_in_testbed
    from erosion.server.output.registry import check_outputs
    from erosion.server.run.run_folder import new_run_folder

    check_path("runs", runs)
    check_path("data_dir", data_dir, or_none=True)
    check("outputs", outputs, "a list of names", str, Sequence)
    outputs = [outputs] if isinstance(outputs, str) else list(outputs)
    for output in outputs:
        check("an output", output, "a name", str)
    checked = load_study(study)
    if checked.has_every_user:
        raise StudyError(
            f"Study {checked.name} has every hospital as its user, and a Run is of one. Give one"
            " name as its user, or use `erosion testbed` and read what it leaves in users/HOSPITAL."
        )
    check_outputs(outputs)
    folder = new_run_folder(Path(runs), checked)
    code = run_in_testbed(checked, folder, data_dir=_data_dir(data_dir), outputs=outputs)
    if code != 0:
        raise RunError(
            f"The coordinator of the testbed ended with exit code {code}; it said why. What it left"
            f" is in {folder.path}."
        )
    return read_run(folder.path)


def simulate(
    study: AnyStudy,
    sites: Mapping[str, AnyPath] | Sequence[AnyPath] | AnyPath | None = None,
    *,
    data_dir: AnyPath | None = None,
    progress: bool = True,
    workers: int | None = None,
    stacked: bool | None = None,
) -> Run:
    """Run a study on this machine, without a network; the figures are those of a deployment.

    Args:
        study: As for `erosion.load_study`.
        sites: Where the hospitals' patients are: a data file (or a folder of images) by hospital, a
            list of site files, or a folder with `HOSPITAL/site.toml`. By default the study's
            [testbed] table makes the patients.
        data_dir: The folder with downloaded data sets; by default $EROSION_DATA, else data/.
        progress: Whether to show a progress bar on standard error.
        workers: Processes, forked from this one, in which the hospitals train; 1: in this one, in
            turn. By default in this one until a round shows that processes would save time, then in
            as many as there are cores. The figures are the same.
        stacked: Whether the hospitals of one process are trained as one stack (`torch.func`); the
            figures are the same but for the rounding of float32. By default on a GPU, and with many
            hospitals and a small model.
    """
    from erosion.experiments import simulator
    from erosion.server.run.result import verdict, whom_it_tests

    check("sites", sites, "paths by hospital, a list of paths, or a path", *_SITES)
    if not isinstance(sites, str | os.PathLike):
        for path in sites.values() if isinstance(sites, Mapping) else sites or ():
            check_path("a site", path)
    check_path("data_dir", data_dir, or_none=True)
    check("workers", workers, "a whole number or None", int, type(None))
    check("stacked", stacked, "True, False or None", bool, type(None))
    checked = load_study(study)
    with tempfile.TemporaryDirectory() as made:
        hospitals = _hospitals(checked, sites, Path(made), _data_dir(data_dir))
        with _bar(checked, shown=progress) as advance:
            found = simulator.simulate(
                checked, hospitals, lambda _record: advance(), workers=workers, stacked=stacked
            )
    metrics = dict(found.evaluation.arms)
    records = tuple(record for arm in found.records.values() for record in arm)
    ended = found.evaluation
    said = verdict(
        type(checked.task),
        ended.comparison,
        metrics,
        ended.base_rate,
        tested=whom_it_tests(checked),
        shifted_by=checked.task.shifted_by,
    )
    return Run(checked, said.text, None, None, records, metrics)


def _data_dir(given: AnyPath | None) -> Path:
    from erosion.experiments.data_dir import default_data_dir

    return default_data_dir() if given is None else Path(given)


def _hospitals(
    study: Study,
    sites: Mapping[str, AnyPath] | Sequence[AnyPath] | AnyPath | None,
    made: Path,
    data_dir: Path,
) -> "dict[str, Hospital]":
    from erosion.client.site_file import load_site
    from erosion.client.training.hospital import Hospital
    from erosion.experiments.every_user import site_of
    from erosion.experiments.own_data import warn_of_rows
    from erosion.experiments.sources import HospitalFiles, make_hospitals

    if sites is None or isinstance(sites, Mapping):
        files = (
            make_hospitals(study, made, data_dir)
            if sites is None
            else {name: HospitalFiles(data=Path(path)) for name, path in sites.items()}
        )
        if sites is not None:
            for name, place in files.items():
                warn_of_rows(study, name, place.data)
        found = {name: site_of(name, place, study) for name, place in files.items()}
    else:
        if isinstance(sites, str | os.PathLike):
            paths = sorted(Path(sites).glob("*/site.toml"))
            if not paths:
                raise SiteError(f"There is no HOSPITAL/site.toml in {sites}. Check the folder.")
        else:
            paths = [Path(path) for path in sites]
        loaded = [load_site(path) for path in paths]
        found = {site.name: site for site in loaded}
        if len(found) < len(loaded):
            raise SiteError("Two of the site files have the same name. Give each hospital once.")
    unknown = sorted(found.keys() - set(study.hospitals))
    if unknown or (study.user not in found and not study.has_every_user):
        trouble = f"does not name {', '.join(unknown)}" if unknown else f"is for {study.user}"
        raise StudyError(
            f"Study {study.name} {trouble}; its hospitals are {', '.join(study.hospitals)}."
            " Give the sites by these names, the user's included."
        )
    return {name: Hospital(site) for name, site in found.items()}


@contextmanager
def _bar(study: Study, *, shown: bool) -> Iterator[Any]:
    """Called once a round; the total is known unless a selection stops arms early."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not shown) as bar:
        task = bar.add_task(study.name, total=study.rounds * len(study.arms))
        yield lambda: bar.advance(task)
