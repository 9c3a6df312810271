"""What the hospitals of a testbed or a simulation allow: who starts it has their data."""

from pathlib import Path
from typing import Any

from erosion.client.site_file import Budget, Site
from erosion.common.learning.installed import Installed
from erosion.common.study.study import Study

# [budget] of its site file: nobody's patients are used up, however long or often a study runs.
TESTBED_BUDGET = {
    name: 1_000_000_000 for name, key in Budget.model_fields.items() if key.annotation is int
}


def testbed_limits(study: Study, hospital: str) -> dict[str, Any]:
    """[limits] of its site file, so far as they are not the usual ones."""
    limits: dict[str, Any] = {}
    if isinstance(study.model, Installed):  # it runs on this machine
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
    if study.privacy is not None and hospital == study.user:
        limits["min_local_steps"] = 1  # its own coordinator's step, without noise
    return limits


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
