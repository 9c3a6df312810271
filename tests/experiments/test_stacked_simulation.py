"""Hospitals that a simulation trains as a stack end where those end that it trains in turn."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from erosion.simulation import simulator
from erosion.simulation.simulator import Simulation, answers_together, simulate, timeless
from erosion_client.training.hospital import Hospital
from erosion_common.algorithms import REGISTRY
from erosion_common.errors import Refusal, StudyError
from erosion_common.learning.local_sgd import Trainer, train_locally
from erosion_common.learning.stacked_sgd import train_stacked
from erosion_common.protocol.messages import StepResult, TrainRequest, TrainResult
from erosion_common.rounds.records import HospitalRecord, RoundRecord
from erosion_common.study.study import Study
from experiments.papers.robustness import ATTACKS, Attacker, Overheard, Wire
from tests.support.close import assert_close
from tests.support.five_hospitals import NAMES, hospitals, study_with
from tests.support.registry_cohorts import model_for
from tests.support.small_study import TWO_NUMBERS
from tests.support.stacks import jobs, settings

PRIVACY = {"epsilon": 10, "learning_rate": 0.1}
BALANCED = {**TWO_NUMBERS, "class_weights": "balanced"}
SETTINGS: dict[str, dict[str, Any]] = {"network_gems": {"public_hospital": "carol"}}


def simulated(study: Study, folder: Path, **options: Any) -> Simulation:
    sites = hospitals(folder, min_local_steps=1)  # one step is all that `newton` takes
    return simulate(study, sites, clock=timeless, **options)


def assert_alike(one: Simulation, other: Simulation) -> None:
    assert one.finals.keys() == other.finals.keys()
    for arm, final in one.finals.items():
        expected = other.finals[arm]
        assert_close(final.params, expected.params, rtol=1e-5, atol=1e-5)
        assert final.weights == pytest.approx(expected.weights, rel=1e-4, abs=1e-5)
        for mine, theirs in zip(one.records[arm], other.records[arm], strict=True):
            assert_same_round(mine, theirs)
    for arm, metrics in one.evaluation.arms.items():
        figures = other.evaluation.arms[arm].model_dump(exclude={"intervals"})
        assert metrics.model_dump(exclude={"intervals"}) == pytest.approx(figures, abs=1e-4)
    for arm, personal in one.personal.items():
        assert_close(personal, other.personal[arm], rtol=1e-5, atol=1e-5)


def assert_same_round(mine: RoundRecord, theirs: RoundRecord) -> None:
    assert (mine.round, mine.outcome, [s.step for s in mine.steps]) == (
        theirs.round,
        theirs.outcome,
        [s.step for s in theirs.steps],
    )
    assert mine.hospitals.keys() == theirs.hospitals.keys()
    for name, entry in mine.hospitals.items():
        expected = theirs.hospitals[name]
        assert numbers(entry) == pytest.approx(numbers(expected), rel=1e-3, abs=1e-5)
        assert (entry.outcome, entry.reason, entry.num_samples, entry.samples_seen) == (
            expected.outcome,
            expected.reason,
            expected.num_samples,
            expected.samples_seen,
        )


def numbers(entry: HospitalRecord) -> list[float]:
    """Distance and weights; -1 where there is none."""
    found = (entry.distance, entry.weight_before, entry.weight_after)
    return [-1.0 if number is None else number for number in found]


def of_one_model() -> Iterator[list[str]]:
    """Methods that one study can have."""
    found = defaultdict(list)
    for name in sorted(set(REGISTRY) - {"fedbn"}):  # it gathers statistics
        found[json.dumps(model_for(name))].append(name)
    for names in found.values():
        yield from filter(None, (names[::2], names[1::2]))


@pytest.mark.parametrize("names", [*of_one_model()], ids=" ".join)
def test_every_method_ends_where_it_ends_in_turn(names: list[str], tmp_path: Path) -> None:
    arms = {name: SETTINGS.get(name, {}) for name in names}
    study = study_with(arms=arms, rounds=3, model=model_for(names[0]))
    assert_alike(
        simulated(study, tmp_path, stacked=True), simulated(study, tmp_path, stacked=False)
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"training": {"epochs": 2, "batch_size": 16, "momentum": 0.9}},
        {"training": {"steps": 3, "batch_size": 8, "optimizer": "adam", "learning_rate": 0.01}},
        {"model": {"name": "mlp"}, "arms": {"fedprox": {}, "ditto": {}}},
        {"arms": {"weight_erosion": {"own_parameters": ["output_bias"]}}},
        {"evaluation": {"folds": 2, "bootstrap": 100}, "rounds": 2},
        {"federation": {"compression": "float16"}},
    ],
    ids=["epochs", "adam", "mlp", "own parameters", "folds", "compression"],
)
def test_every_study_ends_where_it_ends_in_turn(changes: dict[str, Any], tmp_path: Path) -> None:
    study = study_with(**{"arms": {"weight_erosion": {}, "local": {}}, **changes})
    assert_alike(
        simulated(study, tmp_path, stacked=True), simulated(study, tmp_path, stacked=False)
    )


def test_each_process_trains_its_hospitals_as_a_stack(tmp_path: Path) -> None:
    study = study_with(arms={"weight_erosion": {}, "scaffold": {}})
    assert_alike(
        simulated(study, tmp_path, stacked=True, workers=2),
        simulated(study, tmp_path, stacked=False),
    )


class RefusesTheSecondRound(Hospital):
    def answer(self, request: TrainRequest) -> TrainResult | StepResult:
        if request.round == 2:
            raise Refusal("not today")
        return super().answer(request)


class RefusesWhenTrained(Hospital):
    def answer(self, request: TrainRequest) -> TrainResult | StepResult:
        super().answer(request)
        raise Refusal("not like that")


def test_a_hospital_that_refuses_is_absent_and_the_others_are_there(tmp_path: Path) -> None:
    study = study_with(arms={"fedavg": {}})
    of = {"bob": RefusesTheSecondRound, "dave": RefusesWhenTrained}
    found, expected = (
        simulate(study, hospitals(tmp_path, of), clock=timeless, stacked=stacked)
        for stacked in (True, False)
    )
    assert_alike(found, expected)
    reasons = [record.hospitals["bob"].reason for record in found.records["fedavg"]]
    assert [bool(reason) for reason in reasons] == [False, True, False, False]
    assert {record.hospitals["dave"].outcome for record in found.records["fedavg"]} == {"absent"}


def test_an_attacker_hears_the_same_updates(tmp_path: Path) -> None:
    def run(stacked: bool) -> Simulation:
        wire = Wire()
        of: dict[str, Callable[..., Hospital]] = {n: partial(Overheard, wire=wire) for n in NAMES}
        of["erin"] = partial(Attacker, wire=wire, attack=ATTACKS["little"])
        study = study_with(arms={"fedavg": {}})
        return simulate(study, hospitals(tmp_path, of), clock=timeless, stacked=stacked)

    assert_alike(run(stacked=True), run(stacked=False))


# -- Where it is done --------------------------------------------------------------------------


def stacks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many hospitals are trained together, from now on."""
    sizes: list[int] = []

    def counted(found: Any) -> Any:
        sizes.append(len(found))
        return train_stacked(found)

    monkeypatch.setattr(simulator, "train_stacked", counted)
    return sizes


def test_by_itself_only_many_hospitals_with_a_small_model_are_stacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, sizes = study_with(arms={"fedavg": {}}, rounds=1), stacks(monkeypatch)
    simulated(study, tmp_path)
    assert sizes == []
    monkeypatch.setattr(simulator, "FEWEST_STACKED", 5)
    simulated(study, tmp_path)
    assert sizes == [5]
    monkeypatch.setattr(simulator, "LARGEST_STACKED", 5)
    simulated(study, tmp_path)
    assert sizes == [5]


def test_the_documentation_says_from_when_on() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    words = " ".join(page.split())
    assert f"{simulator.FEWEST_STACKED} hospitals or more in an exchange" in words
    assert f"a model of at most {simulator.LARGEST_STACKED:,} parameters" in words


def test_hospitals_on_another_device_are_stacked_however_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulator, "_device", lambda _hospital: "cuda")
    sizes = stacks(monkeypatch)
    simulated(study_with(arms={"fedavg": {}}, rounds=1), tmp_path)
    assert sizes == [5]


def test_what_cannot_be_stacked_is_trained_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulator, "FEWEST_STACKED", 2)
    sizes = stacks(monkeypatch)
    simulated(study_with(arms={"fedavg": {}}, rounds=1, task=BALANCED), tmp_path)
    assert sizes == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"task": BALANCED}, "class_weights"), ({"privacy": PRIVACY, "scaling": "user"}, "privacy")],
)
def test_what_cannot_be_stacked_is_refused_where_it_is_asked_for(
    changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(StudyError, match=f"stacked = True: .*{why}.*; leave stacked out"):
        simulated(study_with(arms={"fedavg": {}}, **changes), tmp_path, stacked=True)


def test_hospitals_of_different_devices_are_trained_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulator, "_device", lambda hospital: hospital.name)
    with pytest.raises(StudyError, match=r"compute\.device"):
        simulated(study_with(), tmp_path, stacked=True)


def test_afterwards_a_hospital_trains_by_itself(tmp_path: Path) -> None:
    agents = hospitals(tmp_path)
    simulate(study_with(arms={"fedavg": {}}, rounds=1), agents, clock=timeless, stacked=True)
    assert all(hospital.trainer is train_locally for hospital in agents.values())


def test_training_counts_in_each_hospital_s_seconds_by_its_share() -> None:
    ticks = iter([10.0, 16.0, 100.0, 101.0])  # three are trained, then one
    some = jobs(settings(steps=1))

    def trains(times: int, place: int) -> Callable[[Trainer], int]:
        def call(trainer: Trainer) -> int:
            return sum(trainer(*some[place]).steps for _ in range(times))

        return call

    calls = {1: trains(1, 0), 2: trains(2, 1), 3: trains(0, 2), 4: trains(1, 3)}
    found = list(answers_together(calls, lambda: next(ticks)))
    assert found == [(0, 0.0), (1, 2.0), (1, 2.0), (2, 3.0)]


def test_a_hospital_that_trains_long_by_itself_does_not_begin_anew_each_time() -> None:
    begun: list[int] = []

    def tunes(trainer: Trainer) -> int:
        begun.append(1)
        return sum(trainer(*job).steps for job in jobs(settings(steps=2)) * 5)

    def trains(trainer: Trainer) -> int:
        return trainer(*jobs(settings(steps=2))[0]).steps

    found = [answer for answer, _ in answers_together({1: tunes, 2: trains}, timeless)]
    assert found == [2, 50]
    assert len(begun) == 3
