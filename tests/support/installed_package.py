"""A package outside the program, as if it were installed: its folder and metadata on the path."""

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from textwrap import dedent

import pytest

from erosion_common.settings import packages
from erosion_common.settings.packages import installed_names, installed_part

SMALL_NET = """
    from torch import nn

    def make(input_shape, num_outputs, width=4):
        return nn.Sequential(
            nn.Flatten(), nn.Linear(input_shape[0], width), nn.Tanh(), nn.Linear(width, num_outputs)
        )
"""


@cache
def arm_of(method: str) -> dict[str, str]:
    """The arm of a study with this method and its defaults, also where a package has it."""
    is_ours = method not in installed_names("method")
    return {} if is_ours else {"sha256": installed_part("method", method).sha256}


def write_package(
    folder: Path, package: str, modules: Mapping[str, str], entries: Mapping[str, str]
) -> None:
    """Modules of a package, and the text of each group of its entry points."""
    code, about = folder / package, folder / f"{package}-1.0.dist-info"
    code.mkdir(parents=True)
    about.mkdir()
    for name, source in {"__init__": "", **modules}.items():
        (code / f"{name}.py").write_text(dedent(source))
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    groups = (f"[erosion.{group}]\n{text}\n" for group, text in entries.items())
    (about / "entry_points.txt").write_text("\n".join(groups))


def install(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str = SMALL_NET,
    *,
    package: str,
    name: str = "small-net",
    target: str | None = None,
) -> str:
    """Write a package with a model and put it on the path; gives its hash.

    `package`: another one in every test.
    """
    entries = {"models": f"{name} = {target or package + ':make'}"}
    write_package(folder, package, {"__init__": source}, entries)
    monkeypatch.syspath_prepend(folder)
    return installed_part("model", name).sha256


def forgotten_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of a fixture: packages named ward_... that the test imports are gone after it."""
    before = set(sys.modules)
    monkeypatch.setattr(packages, "_loaded", {})
    monkeypatch.setattr(packages, "_allowed", {})
    yield
    for name in set(sys.modules) - before:
        if name.startswith("ward_"):
            del sys.modules[name]
