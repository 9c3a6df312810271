"""A package with models in it, as if it were installed: its folder and its metadata on the path."""

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from erosion.common.learning import installed
from erosion.common.learning.installed import GROUP, installed_model

SMALL_NET = """
    from torch import nn

    def make(input_shape, num_outputs, width=4):
        return nn.Sequential(
            nn.Flatten(), nn.Linear(input_shape[0], width), nn.Tanh(), nn.Linear(width, num_outputs)
        )
"""


def install(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str = SMALL_NET,
    *,
    package: str,
    name: str = "small-net",
    target: str | None = None,
) -> str:
    """Write the package and put it on the path; gives its hash. `package`: new in every test."""
    code = folder / package
    code.mkdir(parents=True)
    (code / "__init__.py").write_text(dedent(source))
    about = folder / f"{package}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {target or package + ':make'}\n")
    monkeypatch.syspath_prepend(folder)
    return installed_model(name).sha256


def forgotten_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of a fixture: packages named ward_... that the test imports are gone after it."""
    before = set(sys.modules)
    monkeypatch.setattr(installed, "_loaded", {})
    yield
    for name in set(sys.modules) - before:
        if name.startswith("ward_"):
            del sys.modules[name]
