"""The parts of docs/extending.md, as a package outside the program, run and hold the contracts."""

import dataclasses
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import tomli_w

import erosion
from erosion_client.site_file import load_site
from erosion_client.training.limits import allow_only_these
from erosion_client.training.request import faults_of
from erosion_common import algorithms
from erosion_common.algorithms.local import Local
from erosion_common.algorithms.personal_layers import take_step
from erosion_common.errors import ModelError, Refusal, SiteError, StudyError
from erosion_common.program.command_line import main
from erosion_common.program.ending import in_words
from erosion_common.settings.packages import installed_part
from erosion_common.study.study import Study, load_study
from erosion_common.support.logs import configure_logging
from erosion_server.output.events import ObserverDropped
from erosion_server.output.observers import Observers
from erosion_server.output.registry import check_outputs
from tests.support.contexts import CONTEXT
from tests.support.extending_page import SECTIONS, example_of, first_example
from tests.support.installed_package import forgotten_afterwards, write_package
from tests.support.local_works import layout, local_round, work
from tests.support.patience import PATIENCE
from tests.support.processes import start
from tests.support.programs import print_into
from tests.support.small_study import make_study

ROOT = Path(__file__).resolve().parents[1]
MODULES = {
    "nearest_peer": "A method",
    "median_length": "A method with two exchanges",
    "absolute": "A task",
    "lines": "A source of patients",
    "latest": "An output",
}
ENTRIES = {
    "methods": "nearest_peer = ward_parts.nearest_peer:NearestPeer\n"
    "median_length = ward_parts.median_length:MedianLength",
    "tasks": "absolute = ward_parts.absolute:Absolute",
    "sources": "lines = ward_parts.lines:Lines",
    "outputs": "latest = ward_parts.latest:open_output",
}
NAMES = ("nearest_peer", "median_length", "absolute", "latest")
CONTRACTS = [
    *(
        f"{ROOT}/tests/common/test_{of}_contract.py"
        for of in ("algorithm", "exchanges", "site", "tasks")
    ),
    f"{ROOT}/tests/server/test_outputs.py",
]


def deploy_as_simulated(folder: Path) -> None:
    """Run the study in the folder in both ways."""
    print_into(folder / "said")
    command = ["testbed", str(folder), "--runs", str(folder / "runs"), "--output", "latest"]
    assert main(command) == 0
    (run,) = (folder / "runs").iterdir()
    deployed = erosion.read_run(run)
    simulated = erosion.simulate(folder / "study.toml", progress=False)
    ran = {arm: ended.rounds for arm, ended in deployed.result.arms.items()}
    assert ran == {"nearest": 2, "median": 2, "local": 2}, ran
    assert {r.hospitals["b"].outcome for r in deployed.records if r.arm != "local"} == {"accepted"}
    assert deployed.arms.equals(simulated.arms), (deployed.arms, simulated.arms)
    assert (run / "latest.txt").read_text().endswith("round 2\n")


def read_what_is_not_allowed(folder: Path) -> None:
    """Read the study as a's site, and note whether that was refused, and what was imported."""
    allow_only_these(load_site(folder / "a" / "site.toml").limits)
    try:
        load_study(folder / "study.toml")
    except Refusal:
        imported = sorted(name for name in sys.modules if name.startswith("ward_parts."))
        (folder / "said").write_text(f"refused {imported}")


def check_contracts(folder: Path) -> None:
    """Run the contract tests of the package's parts."""
    print_into(folder / "said")
    plugins = ("-p", "no:cacheprovider", "-p", "no:randomly", f"--rootdir={ROOT}")
    sys.exit(pytest.main(["-v", *plugins, "-k", " or ".join(NAMES), *CONTRACTS]))


def forked(package: Path, program: Callable[[Path], None], folder: Path) -> str:
    """What a process says in which the package is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(package)
        process = start(program, folder, daemon=False)  # it has children
        process.join(PATIENCE)
    said = (folder / "said").read_text()
    assert process.exitcode == 0, said
    return said


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    write_package(folder, "ward_parts", {m: first_example(t) for m, t in MODULES.items()}, ENTRIES)
    return folder


def hash_of(package: Path) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(package)
        return installed_part("method", "nearest_peer").sha256


def write_study(folder: Path, sha256: str, allowed: str) -> None:
    study: dict[str, Any] = {
        "name": "parts",
        "user": "a",
        "hospitals": ["a", "b"],
        "rounds": 2,
        "task": {
            "kind": "tabular",
            "outcome": "absolute",
            "sha256": sha256,
            "target": "stay",
            "centre": 5.0,
            "spread": 3.0,
            "features": ["age"],
        },
        "model": {"name": "logistic"},
        "training": {"steps": 5, "batch_size": 8},
        "evaluation": {"references": []},
        "arms": {
            "nearest": {"algorithm": "nearest_peer", "sha256": sha256},
            "median": {"algorithm": "median_length", "sha256": sha256},
            "local": {},
        },
    }
    (folder / "study.toml").write_text(tomli_w.dumps(study))
    for number, name in enumerate("ab"):
        (folder / name).mkdir()
        lines = [f"age={40 + i} stay={(i * (7 + number)) % 11}\n" for i in range(40)]
        (folder / name / "patients.txt").write_text("".join(lines))
        methods = dict.fromkeys(("nearest_peer", "median_length"), allowed)
        site = {
            "name": name,
            "data": {"source": "lines", "path": "patients.txt"},
            "coordinator": {"address": "127.0.0.1:9"},
            "limits": {"installed_methods": methods, "installed_tasks": {"absolute": allowed}},
        }
        (folder / name / "site.toml").write_text(tomli_w.dumps(site))


def test_a_study_of_the_packages_parts_is_deployed_as_it_is_simulated(
    package: Path, tmp_path: Path
) -> None:
    sha256 = hash_of(package)
    write_study(tmp_path, sha256, allowed=sha256)
    forked(package, deploy_as_simulated, tmp_path)


def test_a_site_imports_nothing_that_its_limits_do_not_name(package: Path, tmp_path: Path) -> None:
    write_study(tmp_path, hash_of(package), allowed="0" * 64)
    said = forked(package, read_what_is_not_allowed, tmp_path)
    assert said == "refused ['ward_parts.lines']"  # its patients come from that


def test_its_parts_hold_the_programs_contracts(package: Path, tmp_path: Path) -> None:
    said = forked(package, check_contracts, tmp_path)
    assert all(name in said for name in NAMES)


def test_the_nearest_of_two_peers_counts() -> None:
    code = dict(SECTIONS)["A method"]
    example = example_of("A method")
    assert example["step"].weights == {"own": 1.0, "near": 1.0, "far": 0.0}, code


def broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, name: str = "nearest_peer"
) -> Study:
    """A study with the page's method, in which one line is another."""
    source = first_example("A method")
    assert old in source
    source = source.replace(old, new).replace('"nearest_peer"', f'"{name}"')
    entries = {"methods": f"{name} = ward_broken:NearestPeer"}
    write_package(tmp_path, "ward_broken", {"__init__": source}, entries)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(algorithms, "REGISTRY", dict(algorithms.REGISTRY))
    sha256 = installed_part("method", name).sha256
    arms = {"nearest": {"algorithm": name, "sha256": sha256}}
    return erosion.load_study({**make_study().model_dump(exclude_none=True), "arms": arms})


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from forgotten_afterwards(monkeypatch)


RULE = "return Algorithm(no_state, _update)"
KEY = '    algorithm: Literal["nearest_peer"]'
FAILED = "The package ward_broken failed (__init__.py, line"


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("old", "new", "name", "said"),
    [
        (
            f"{KEY} =",
            '    algorithm: Literal["other"] = "other"  #',
            "nearest_peer",
            "called 'other'",
        ),
        ("def rule", "def ruler", "nearest_peer", "The method 'nearest_peer' lacks rule."),
        (KEY, f"    need: int\n{KEY}", "nearest_peer", "arms.nearest.need is missing"),
        ("def rule", "def problem_with(self, num):\n        1 / 0\n\n    def rule", "near", FAILED),
        (RULE, RULE, "fedavg", "algorithm = 'fedavg' comes with this program; leave sha256 out"),
    ],
)
def test_a_method_that_cannot_be_used_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, name: str, said: str
) -> None:
    with pytest.raises(StudyError) as refused:
        broken(tmp_path, monkeypatch, old, new, name)
    assert said in str(refused.value)


@pytest.mark.usefixtures("forgotten")
def test_an_unknown_key_of_a_packages_method_names_those_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = broken(tmp_path, monkeypatch, KEY, f"    radius: float = 1.0\n{KEY}")
    raw = study.model_dump(exclude_none=True)
    raw["arms"]["nearest"]["radios"] = 2.0
    with pytest.raises(
        StudyError, match=r"no key 'radios'; it knows algorithm, .* radius, "
    ) as wrong:
        erosion.load_study(raw)
    assert "balls" not in str(wrong.value)  # of a method of the program's


@pytest.mark.parametrize("algorithm", ["not_here", ["not_here"]])
def test_a_method_that_is_not_installed_is_called_so(algorithm: object) -> None:
    arms = {"nearest": {"algorithm": algorithm, "sha256": "0" * 64}}
    with pytest.raises(StudyError) as refused:
        erosion.load_study({**make_study().model_dump(exclude_none=True), "arms": arms})
    is_named = "No method 'not_here' is installed here" in str(refused.value)
    assert is_named == isinstance(algorithm, str)


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("raised", ["KeyError('x')", "SystemExit"])
def test_what_a_package_raises_is_no_fault_of_this_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: str
) -> None:
    study = broken(tmp_path, monkeypatch, RULE, f"raise {raised}")

    def run() -> None:
        study.arms["nearest"].build(CONTEXT)

    assert in_words(run, Namespace()) == ModelError.exit_code
    assert FAILED in capsys.readouterr().err
    with pytest.raises(SiteError) as missed, faults_of(study.model):  # at a site: a round is missed
        run()
    assert FAILED in str(missed.value)
    (named,) = re.findall(r" -(v+) ", str(missed.value))
    for more in ("", named):  # a site is started as with -v
        configure_logging(max(1, len(more)))
        capsys.readouterr()
        with suppress(SiteError), faults_of(study.model):
            run()
        assert ("Traceback" in capsys.readouterr().err) == bool(more)


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        (RULE, "raise KeyError('x')", "in rule"),
        (RULE, "return Algorithm(lambda dim: 1 / 0, _update)", "in <lambda>"),
        ("shares = [1.0]", "shares = [1.0 / 0]", "in _update"),
        (RULE, "Algorithm(no_state, _update)", "NoneType"),
    ],
)
def test_python_names_the_packages_function_and_keeps_what_it_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, where: str
) -> None:
    study = broken(tmp_path, monkeypatch, old, new)
    tables = {name: tmp_path / f"{name}.csv" for name in study.hospitals}
    for path in tables.values():
        path.write_text("age,sex,ill\n" + "30,f,0\n60,m,1\n" * 20)
    with pytest.raises(erosion.ErosionError) as failed:
        erosion.simulate(study, tables, progress=False)
    assert where in str(failed.value)
    assert isinstance(failed.value.__cause__, KeyError | ZeroDivisionError) or where == "NoneType"


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("harm", ["double()", "requires_grad_(False)"])
def test_what_a_packages_method_does_to_the_model_harms_no_other_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    train = (
        f"    def train(self, work):\n        work.model.{harm}\n        return super().train(work)"
    )
    arm = broken(tmp_path, monkeypatch, KEY, f"{train}\n\n{KEY}").arms["nearest"]
    given = work(0.5)
    with suppress(RuntimeError, ValueError):  # of its own round
        take_step(arm, given, layout)
    found, fresh = (local_round(Local(), each, layout) for each in (given, work(0.5)))
    assert found.delta.tolist() == fresh.delta.tolist()


@pytest.mark.usefixtures("forgotten")
def test_an_output_of_a_package_that_fails_is_left_out_with_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = first_example("An output").replace("match event:", "1 / 0\n        match event:")
    entries = {"outputs": "late = ward_output:open_output"}
    write_package(tmp_path, "ward_output", {"__init__": source}, entries)
    monkeypatch.syspath_prepend(tmp_path)
    other = Mock()
    with Observers({**check_outputs(["late"]), "other": other}) as observers:
        observers.notify(ObserverDropped("another", "gone"))
    ((dropped,), _), _ = other.notify.call_args_list
    assert dropped.name == "late"
    assert "ward_output" in dropped.reason
    assert "in notify" in dropped.reason


@pytest.mark.parametrize("content", [b"age=61 Meier\n", b"age=61=Meier\n", b"\xff\n"])
def test_a_source_refuses_in_words_that_show_nobody(tmp_path: Path, content: bytes) -> None:
    from erosion_common.errors import DataError

    (tmp_path / "patients.txt").write_bytes(content)
    source = example_of("A source of patients")["Lines"](path=tmp_path / "patients.txt")
    with pytest.raises(DataError) as refused:
        source.read({"age", "sex"})
    assert "Meier" not in str(refused.value)


@pytest.mark.parametrize("given", ["nothing", "no column", "no rows"])
def test_a_source_that_gives_no_table_is_refused(tmp_path: Path, given: str) -> None:
    from erosion_common.errors import DataError

    lines: Any = example_of("A source of patients")["Lines"]

    class Odd(lines):  # type: ignore[misc]
        def read_rows(self, wanted: Any) -> Any:
            table = super().read_rows(wanted)
            if given == "no rows":
                return table.without_last(table.num_rows)
            return None if given == "nothing" else dataclasses.replace(table, columns={})

    (tmp_path / "patients.txt").write_text("age=61 sex=f\n")
    source = Odd(path=tmp_path / "patients.txt")
    with pytest.raises(DataError):
        source.read({"age", "sex"})
