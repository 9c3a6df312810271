"""Models of packages that are installed here, and everything that can be wrong with one."""

import hashlib
import py_compile
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from erosion_common.errors import ModelError
from erosion_common.learning.installed import InstalledModel
from erosion_common.learning.models import build_model, flat_parameters, parameter_layout
from erosion_common.settings import packages
from erosion_common.settings.packages import every_installed, installed_part
from tests.support.installed_package import (
    SMALL_NET,
    forgotten_afterwards,
    install,
    write_package,
)
from tests.support.refusals import refused


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test imports is forgotten after it."""
    yield from forgotten_afterwards(monkeypatch)


def built(sha256: str, name: str = "small-net", **options: Any) -> torch.nn.Module:
    settings = InstalledModel(entry_point=name, sha256=sha256, options=options)
    return build_model(settings, (3,), 2, seed=7)


def problem_of(sha256: str, **options: Any) -> str:
    with pytest.raises(ModelError) as problem:
        built(sha256, **options)
    assert not {"ward", "small-net", "Error"} & set(re.findall(r"[\w-]+", problem.value.public))
    assert "\n" not in str(problem.value)
    return str(problem.value)


def test_a_factory_gets_shapes_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sha256 = install(tmp_path, monkeypatch, package="ward_a")
    assert len(flat_parameters(built(sha256))) == 3 * 4 + 4 + 4 * 2 + 2
    assert len(flat_parameters(built(sha256, width=5))) == 3 * 5 + 5 + 5 * 2 + 2
    assert torch.equal(flat_parameters(built(sha256)), flat_parameters(built(sha256)))
    settings = InstalledModel(entry_point="small-net", sha256=sha256, options={"width": 6})
    assert parameter_layout(settings, (3,), 2)["3.bias"] == slice(36, 38)
    assert [m.name for m in every_installed("model") if not isinstance(m, ModelError)] == [
        "small-net"
    ]


def test_the_hash_covers_every_file_and_nothing_that_python_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256 = install(tmp_path, monkeypatch, package="ward_b")
    package = tmp_path / "ward_b"
    (package / "__pycache__").mkdir(exist_ok=True)
    (package / "__pycache__/x.pyc").write_bytes(b"made")
    (package / ".hidden").write_text("of an editor")
    assert installed_part("model", "small-net").sha256 == sha256
    for place in ("more.py", "inner/__init__.py", "table.csv", "alone.pyc"):
        (package / place).parent.mkdir(exist_ok=True)
        (package / place).write_text("x = 1\n")
        changed = installed_part("model", "small-net").sha256
        assert changed != sha256
        sha256 = changed
    (package / "linked.py").symlink_to(package / "more.py")
    with refused(ModelError, "link"):
        installed_part("model", "small-net")


def test_nothing_is_imported_under_another_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "ran"
    source = f"from pathlib import Path\nPath({str(marker)!r}).touch()\n"
    sha256 = install(tmp_path, monkeypatch, source, package="ward_c")
    message = problem_of("0" * 64)
    assert re.findall("[0-9a-f]{64}", message) == [sha256, "0" * 64]
    assert not marker.exists()
    assert "ward_c" not in sys.modules


def test_a_package_that_was_replaced_is_not_mixed_with_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(install(tmp_path, monkeypatch, package="ward_d"))
    (tmp_path / "ward_d/__init__.py").write_text("make = None\n")
    message = problem_of(installed_part("model", "small-net").sha256)
    assert "ward_d was replaced" in message


@pytest.mark.parametrize("how", ["compiled", "replaced"])
def test_only_the_code_that_was_hashed_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Compiled code is not in the hash, and Python may run it in place of the source."""
    package = "ward_compiled" if how == "compiled" else "ward_replaced"
    source = f"from {package}.more import make\n"
    write_package(
        tmp_path,
        package,
        {"__init__": source, "more": SMALL_NET},
        {"models": f"small-net = {package}:make"},
    )
    monkeypatch.syspath_prepend(tmp_path)
    sha256, more = installed_part("model", "small-net").sha256, tmp_path / package / "more.py"
    own = more.read_text()
    more.write_text("raise SystemExit('it ran')\n")
    if how == "compiled":
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(more), invalidation_mode=mode)
        more.write_text(own)
        built(sha256)
        return
    part = installed_part("model", "small-net")
    hashed = {**part.contents, str(more): hashlib.sha256(own.encode()).hexdigest()}
    known = replace(part, sha256=sha256, contents=hashed)
    monkeypatch.setattr(packages, "installed_part", lambda *_: known)
    assert "more.py was replaced" in problem_of(sha256)


def test_what_is_not_installed_or_installed_twice_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "erosion.models: none" in problem_of("0" * 64)
    sha256 = install(tmp_path / "1", monkeypatch, package="ward_e")
    install_again = {"package": "ward_f"}
    with refused(ModelError, "ward_e", "ward_f"):
        install(tmp_path / "2", monkeypatch, **install_again)
    assert "(ward_e:make, ward_f:make)" in problem_of(sha256)


@pytest.mark.parametrize(
    ("target", "message"),
    [("ward_absent:make", "ward_absent"), ("not an object", "'not an object'")],
)
def test_an_entry_point_to_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, message: str
) -> None:
    with refused(ModelError, message):
        install(tmp_path, monkeypatch, package="ward_g", target=target)


def of_body(body: str) -> str:
    """A factory with this body."""
    lines = ["import torch", "from torch import nn", "def make(input_shape, num_outputs):"]
    return "\n".join([*lines, *(f"    {line}" for line in body.splitlines())]) + "\n"


def forward_of(outputs: str) -> str:
    """The body of a factory of a linear layer f that gives `outputs` for its inputs i."""
    return f"x = nn.Linear(3, 2)\nf = x.forward\nx.forward = lambda i: {outputs}\nreturn x"


TIED_VIEWS = """a = nn.Linear(3, 2)
b = nn.Linear(3, 2)
b.weight = nn.Parameter(a.weight.data)
return nn.Sequential(a, nn.Linear(2, 3), b)"""

COUNTING = """class Net(nn.Linear):
    n = 0
    def forward(self, i):
        self.n += self.training
        return super().forward(i) * (1 + self.n)
return Net(3, 2)"""

# A running mean of the patients that is no buffer.
REMEMBERING = """class Net(nn.Linear):
    m = torch.zeros(3)
    def forward(self, i):
        if self.training:
            self.m = 0.99 * self.m + 0.01 * i.mean(0).detach()
        return super().forward(i - self.m)
return Net(3, 2)"""

FIRST_SEEN = """class Net(nn.Linear):
    m = None
    def forward(self, i):
        if self.training and self.m is None:
            self.m = i.mean(0).detach()
        return super().forward(i if self.m is None else i - self.m)
return Net(3, 2)"""

FAULTY = {
    "raise ValueError('no luck')": "could not be made: ValueError: no luck. Correct the package",
    "return type('Net', (nn.Module,), {'__init__': lambda self: None})()": "super().__init__()",
    "return None": "gave a NoneType; it must give an nn.Module",
    "return nn.Flatten()": "has no parameter that is trained",
    "return nn.LazyLinear(2)": "has no shape yet. Give lazy layers their sizes",
    "return nn.Linear(3, 2).double()": "weight is torch.float64; what is trained travels as",
    "return nn.Linear(4, 2)": "cannot be trained on inputs of shape ('n', 3): RuntimeError: ",
    "return nn.Linear(3, 5)": "gives a tensor of shape (2, 5) for 2 patients; the study's task",
    "return nn.LSTM(3, 2)": "gives a tuple for 2 patients",
    "return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))": "1 (BatchNorm1d) has running stat",
    "return nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2))": "buffer parametrizations",
    "x = nn.Linear(3, 2)\nnn.init.constant_(x.bias, float('nan'))\nreturn x": "not finite numbers",
    "x = nn.Linear(3, 2)\nx.requires_grad_(False)\nreturn x": "has no parameter that is trained",
    "x = nn.Linear(3, 2)\nx.forward = lambda i: i[:, :2].detach()\nreturn x": "no gradient reaches",
    "a = nn.BatchNorm1d(3, track_running_stats=False)\nreturn nn.Sequential(a, nn.Linear(3, 2))": (
        "0 (BatchNorm1d) normalises a patient by other patients"
    ),
    forward_of("nn.functional.dropout(f(i))"): "predicts something else for a patient alone",
    forward_of("f(i - i.mean(dim=0))"): "predicts something else for a patient alone",
    forward_of("f(i).squeeze()"): "gives a tensor of shape (2,) for 1 patient; the study's task",
    forward_of("f(i) if x.training else (f(i), i)"): "gives a tuple for 2 patients",
    COUNTING: "predicts something else by the same parameters once it was trained",
    REMEMBERING: "predicts something else by the same parameters once it was trained",
    FIRST_SEEN: "predicts something else by the same parameters once it was trained",
    "import numpy as np\nx = nn.Linear(3, 2)\nx.register_buffer('r', torch.tensor("
    "np.random.default_rng().normal(size=3)))\nreturn x": "r is not the same when the model is",
    TIED_VIEWS: "2.weight and 0.weight are different parameters in the same memory",
}


@pytest.mark.parametrize("body", FAULTY)
def test_a_model_that_cannot_be_trained_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    sha256 = install(tmp_path, monkeypatch, of_body(body), package="ward_h")
    message = problem_of(sha256)
    assert "'small-net'" in message
    assert FAULTY[body] in message


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import absent_module\n", "cannot be imported: ModuleNotFoundError: No module named"),
        ("raise RuntimeError('broken')\n", "cannot be imported: RuntimeError: broken"),
        ("def make(:\n", "cannot be imported: SyntaxError"),
        ("make = 5\n", "is a int; it must be a function or class"),
        ("other = 5\n", "cannot be imported: AttributeError"),
        ("def make(shape): pass\n", "does not take input_shape, num_outputs: TypeError: missing a"),
    ],
)
def test_a_package_that_cannot_be_used_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    assert message in problem_of(install(tmp_path, monkeypatch, source, package="ward_i"))


def test_a_tied_parameter_travels_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "a, b = nn.Linear(3, 3), nn.Linear(3, 3)\nb.weight = a.weight\n"
    body += "return nn.Sequential(a, b, nn.Linear(3, 2))"
    model = built(install(tmp_path, monkeypatch, of_body(body), package="ward_k"))
    assert len(flat_parameters(model)) == 9 + 3 + 3 + 8


def test_constant_buffers_and_frozen_parts_are_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "a = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))\n"
    body += "a[1].running_mean.fill_(0.5)\na.requires_grad_(False)\n"
    body += "b = nn.Linear(3, 2)\nb.register_buffer('scale', torch.ones(2))\n"
    body += "return nn.Sequential(a, nn.Dropout(0.5), b)"
    model = built(install(tmp_path, monkeypatch, of_body(body), package="ward_l"))
    assert len(flat_parameters(model)) == 8
