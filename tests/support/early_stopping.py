"""The default study with a cone so narrow that Weight Erosion stops early."""

from pathlib import Path

import tomli_w

from erosion.simulation.testbed import study_path
from erosion.sources import make_hospitals
from erosion_common.study.study import Study, load_study

ROUND = 4  # in which it stops


def default_study() -> Study:
    """With fewer rounds, and two of its arms."""
    values = load_study(study_path("breast-cancer")).model_dump()
    eroding = {"algorithm": "weight_erosion", "cone": "stop", "cone_angle": 84}
    changes = {
        "rounds": 6,
        "arms": {"weight_erosion": eroding, "local": values["arms"]["local"]},
        "evaluation": {**values["evaluation"], "bootstrap": 100},
        "federation": {**values["federation"], "round_deadline_seconds": 600.0},
    }
    return Study.model_validate({**values, **changes})


def write_sites(study: Study, folder: Path, address: str) -> dict[str, Path]:
    """Its hospitals' site files, by name."""
    sites = {}
    for name, data in make_hospitals(study, folder, None).items():
        path = sites[name] = folder / name / "site.toml"
        site = {
            "name": name,
            "data": data,
            "coordinator": {"address": address},
            "approval": {"automatic": "within_limits"},
            "compute": {"public_order": True},  # so that a simulation is the same
        }
        path.write_text(tomli_w.dumps(site), encoding="utf-8")
    return sites
