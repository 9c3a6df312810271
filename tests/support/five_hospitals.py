"""A small study of five hospitals, to be simulated."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from erosion.simulation.testbed_sites import site_of
from erosion_client.training.hospital import Hospital
from erosion_common.study.study import Study
from tests.support.federation import small_study, write_site

NAMES = ["alice", "bob", "carol", "dave", "erin"]


def study_with(**changes: Any) -> Study:
    return small_study(hospitals=NAMES, **changes)


def hospitals(
    folder: Path, of: Mapping[str, Callable[..., Hospital]] | None = None, **limits: Any
) -> dict[str, Hospital]:
    """By default honest ones, with the limits that a site file leaves."""
    found = {}
    for name in NAMES:
        data = write_site(folder, name, "127.0.0.1:1").parent / "data.csv"
        found[name] = (of or {}).get(name, Hospital)(site_of(name, {"path": data}, **limits))
    return found
