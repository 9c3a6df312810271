"""Differential privacy over the real line, between real sites: equal to a simulation, and kept."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from erosion.simulation.simulator import simulate
from erosion_client.records.account import dataset_of
from erosion_client.records.records import FILE_NAME, Records
from erosion_client.site_file import Site, load_site
from erosion_client.training.hospital import Hospital
from erosion_common.protocol.messages import StepResult, TrainRequest, TrainResult
from erosion_common.rounds import checkpoint
from erosion_common.study.privacy import epsilon_of
from erosion_common.study.study import Study
from erosion_server.run.result import read_result
from tests.support.close import assert_close
from tests.support.federation import Federation, small_study
from tests.support.rogue import RealSite, rogue_coordinator
from tests.support.sealed_programs import serves

LIMITS = "[limits]\nepsilon = 3.0\n"


def private_study(**changes: Any) -> Study:
    values: dict[str, Any] = {
        "scaling": "user",
        "privacy": {"epsilon": 3.0, "learning_rate": 2.0},
        "arms": {"weight_erosion": {"distance_penalty": 0.1}, "fedavg": {}, "local": {}},
    }
    return small_study(**{**values, **changes})


@contextmanager
def begun(study: Study, folder: Path) -> Iterator[Federation]:
    with Federation(study, folder) as federation:
        for name in study.hospitals:
            path = federation.site_file(name)
            with path.open("a") as file:
                file.write("[limits]\nmin_local_steps = 1\n" if name == study.user else LIMITS)
            federation.start_program(name, serves, path)
        federation.start()
        yield federation


class InThatRun(Hospital):
    """A hospital of a simulation with the secret of a real one, in the run of that one."""

    def __init__(self, site: Site, run: str) -> None:
        secret = (site.consent_folder / "secret.key").read_bytes()
        own = site.model_copy(update={"compute": site.compute.model_copy(update={"state": None})})
        super().__init__(own, noise_secret=secret)
        self._run = run

    def answer(self, request: TrainRequest) -> TrainResult | StepResult:
        return super().answer(replace(request, run=self._run))


def test_a_deployment_equals_its_simulation_given_the_sites_secrets(tmp_path: Path) -> None:
    deadlines = {"round_deadline_seconds": 120.0, "join_deadline_seconds": 300.0}
    study = private_study(federation={"compression": "int8", **deadlines})
    with begun(study, tmp_path) as federation:
        result = federation.finish()
        sites = {n: load_site(tmp_path / n / "site.toml") for n in study.hospitals}
        run = federation.run_folder
        simulated = simulate(study, {n: InThatRun(site, run.run) for n, site in sites.items()})
        for arm, final in simulated.finals.items():
            deployed = checkpoint.load(
                run.checkpoint(arm), final, arm=arm, study_digest=study.digest
            )
            assert_close(deployed.params, final.params, rtol=1e-6, atol=1e-7)
            assert deployed.weights == pytest.approx(final.weights)
        report = run.report.read_text()
    other = simulate(study, {n: Hospital(_without_state(s)) for n, s in sites.items()})
    arm = "fedavg"
    assert not torch.allclose(other.finals[arm].params, simulated.finals[arm].params, atol=1e-4)
    assert torch.equal(other.finals["local"].params, simulated.finals["local"].params)
    assert result.privacy is not None
    assert result.privacy.spent == pytest.approx({"bob": 3.0, "carol": 3.0}, abs=1e-3)
    assert read_result(run.result).privacy == result.privacy
    assert "Differential privacy at the other hospitals: epsilon 3 at delta 1e-05" in report
    for name in ("bob", "carol"):
        assert _epsilon_spent(sites[name]) == pytest.approx(3.0, abs=1e-3)
    assert _epsilon_spent(sites["alice"]) == 0.0


def _without_state(site: Site) -> Site:
    return site.model_copy(update={"compute": site.compute.model_copy(update={"state": None})})


def _epsilon_spent(site: Site) -> float:
    with closing(Records.of(site)) as ledger:
        return epsilon_of(ledger.privacy.spent(dataset_of(site)).in_all, site.limits.delta)


def test_a_rogue_coordinator_gets_nothing_beyond_what_was_promised(tmp_path: Path) -> None:
    """More rounds, the same round on other parameters, another run, no noise: each is refused."""
    study = private_study(scaling="none", rounds=2, arms={"fedavg": {}, "local": {}})
    asked = TrainRequest(study, "fedavg", 1, torch.zeros(6), None, "r1")
    attempts = {
        "once, to other parameters": replace(asked, sent=torch.ones(6)),
        "approved 2 rounds": replace(asked, round=3),
        "local does not ask bob": replace(asked, arm="local"),
        "limits.epsilon = 3": replace(asked, run="r2"),
        "no differential privacy": replace(asked, study=study.model_copy(update={"privacy": None})),
        "would be the user": replace(asked, study=private_study(user="bob")),
        "a run costs each patient epsilon 8": replace(
            asked, study=private_study(privacy={"epsilon": 8.0, "learning_rate": 1.0})
        ),
    }

    def prepare(site: RealSite) -> None:
        site.file.write_text(site.file.read_text() + LIMITS)

    with rogue_coordinator(tmp_path, prepare) as rogue:
        first, again = rogue.train(asked), rogue.train(asked)
        assert isinstance(first, TrainResult)
        assert isinstance(again, TrainResult)
        assert torch.equal(first.delta, again.delta)
        for said, attempt in attempts.items():
            answer = rogue.train(attempt)
            assert isinstance(answer, str), said
            assert said in answer, answer
        second = rogue.train(replace(asked, round=2))
        assert isinstance(second, TrainResult)
        site = load_site(rogue.site.file)
        assert _epsilon_spent(site) == pytest.approx(3.0, abs=1e-3)
        # The hospital's machine is restored, without the ledger; its log is on another disk.
        rogue.site.stop()
        (rogue.site.state / FILE_NAME).unlink()
        rogue.site.start()
        answer = rogue.train(replace(asked, run="r3"))
        assert isinstance(answer, str)
        assert "limits.epsilon = 3" in answer
        assert _epsilon_spent(site) == pytest.approx(3.0, abs=1e-3)
