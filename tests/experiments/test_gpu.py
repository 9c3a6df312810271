"""Training on a GPU, where this machine has one."""

from pathlib import Path

import pytest
import torch

from erosion.simulation.simulator import Simulation, simulate
from erosion.simulation.testbed import study_path
from erosion.simulation.testbed_sites import sites_of_testbed
from erosion_client.training.hospital import Hospital
from erosion_common.program.command_line import main
from erosion_common.study.study import Study, load_study
from erosion_server.run.result import read_result

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
ROUNDING = 1e-4  # of parameters of the order of 1, after three rounds in float32
NETWORK = {"name": "mlp", "hidden": [16]}


def study(**changes: object) -> Study:
    raw = load_study(study_path("breast-cancer")).model_dump()
    return Study.model_validate({**raw, "rounds": 3, **changes})


def simulated(found: Study, folder: Path, device: str) -> Simulation:
    folder.mkdir(exist_ok=True)
    sites = sites_of_testbed(found, folder, folder, None, None, device=device)
    return simulate(found, {name: Hospital(s) for name, s in sites.items()})


def differences(found: Simulation, other: Simulation) -> dict[str, float]:
    return {
        arm: float((final.params - other.finals[arm].params).abs().max())
        for arm, final in found.finals.items()
    }


@on_gpu
@pytest.mark.parametrize("model", [{"name": "logistic"}, NETWORK])
def test_a_gpu_learns_what_a_processor_does_and_twice_the_same(
    model: dict[str, object], tmp_path: Path
) -> None:
    found = study(model=model)
    first, again = (simulated(found, tmp_path, "cuda") for _ in range(2))
    assert set(differences(first, again).values()) == {0.0}
    assert max(differences(first, simulated(found, tmp_path, "cpu")).values()) < ROUNDING


@on_gpu
def test_a_testbed_on_a_gpu_equals_its_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = study()
    text = study_path("breast-cancer").read_text(encoding="utf-8")
    assert "rounds = 30" in text
    (tmp_path / "study.toml").write_text(
        text.replace("rounds = 30", "rounds = 3", 1), encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["testbed", "study.toml", "--device", "cuda", "--runs", "runs"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    result = read_result(run / "result.json")
    simulation = simulated(found, tmp_path, "cuda")
    for arm, figures in simulation.evaluation.arms.items():
        assert result.arms[arm].metrics == figures
    sites = list((run / "testbed").glob("*/site.toml"))
    assert len(sites) == len(found.hospitals)
    assert all('device = "cuda"' in path.read_text(encoding="utf-8") for path in sites)


@pytest.mark.parametrize("more", [[], ["--simulate"]])
@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:999", "cuda; rm"])
def test_a_device_is_named_as_in_a_site_file(
    device: str, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["testbed", "--device", device, *more]) == 2
    assert f"--device {device}: " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["mnist", "image-sites"])
def test_an_experiment_refuses_a_gpu_that_is_not_there(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["experiment", name, "--results", str(tmp_path), "--device"]
    for device in ("gpu", "cuda:99"):
        assert main([*asked, device]) == 2
        assert f"--device {device}: " in capsys.readouterr().err


def test_an_experiment_of_small_tables_takes_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "titanic", "--device", "cuda"]) == 2
    assert "--device out" in capsys.readouterr().err
