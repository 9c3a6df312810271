"""The methods that run on sealed rounds: those that ask no more than distances and one sum."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from erosion_common.aggregation.cohort import MemoryCohort, Update
from erosion_common.algorithms import REGISTRY
from erosion_common.algorithms.base import Algorithm, BuildContext
from erosion_common.algorithms.weight_erosion import WeightErosion
from erosion_common.sealed.cohort import LoneCohort, NoSuchSum, SealedCohort, SealedSum, SumWanted
from erosion_common.sealed.round import SealedTerms
from erosion_common.sealed.rounds import seal
from tests.support.close import assert_close
from tests.support.contexts import CONTEXT
from tests.support.refusals import refused
from tests.support.registry_cohorts import DIM, PEERS, USER, built, cohort, same
from tests.support.sealed_study import sealed_study
from tests.support.small_study import TEN_NUMBERS

A_NUMBER = {
    "kind": "tabular",
    "outcome": "regression",
    "target": "days",
    "centre": 9,
    "spread": 4,
    "features": TEN_NUMBERS["features"],
}
SEALABLE = [n for n, arm in REGISTRY.items() if arm(algorithm=n).problem_with_sealing() is None]


def sealed(plain: MemoryCohort, made: SealedSum | None = None) -> SealedCohort:
    distances = dict(zip(plain.peers, plain.distances_to_own().tolist(), strict=True))
    bare = {name: replace(update, delta=torch.empty(0)) for name, update in plain.others.items()}
    return SealedCohort(plain.own, bare, distances, made)


def test_a_method_that_can_be_sealed_asks_once_a_round() -> None:
    """Sealed rounds have exchanges of their own, in which a method's would not be asked."""
    for name in SEALABLE:
        assert REGISTRY[name](algorithm=name).build(CONTEXT).exchanges is None, name


def test_a_method_with_one_step_more_has_neither_sealing_nor_privacy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever flags it inherits: what a step but `train` answers is clear, and has no noise."""
    for name, kind in REGISTRY.items():
        monkeypatch.setattr(kind, "site_steps", lambda arm: {"more": arm.train, "train": arm.train})
        problem = kind(algorithm=name).problem_with_sealing()
        assert problem == "it asks for more than updates, which would leave in the clear", name
        assert kind.user_only or kind(algorithm=name).problem_with_privacy(), name


def test_exchanges_that_sealed_rounds_would_leave_out_are_not_sealed() -> None:
    algorithm: Algorithm[object] = REGISTRY["fedlin"](algorithm="fedlin").build(CONTEXT)
    with refused(TypeError, "exchanges"):
        seal(algorithm, SealedTerms("study", "fedlin", USER, PEERS))


@pytest.mark.parametrize("name", SEALABLE)
def test_a_method_that_says_so_needs_only_distances_and_one_sum(name: str) -> None:
    """Two rounds on sealed cohorts are two rounds on plain ones."""
    algorithm = built(name)
    ours = theirs = algorithm.init(DIM)
    for number in (1, 2):
        plain = cohort(number, *PEERS)
        expected = algorithm.update(theirs, plain)
        try:
            step = algorithm.update(ours, sealed(plain))
        except SumWanted as wanted:
            told = {peer: factor for peer, factor in wanted.factors.items() if factor}
            deltas = {peer: plain.others[peer].delta.double() for peer in told}
            total = torch.stack([told[peer] * deltas[peer] for peer in told]).sum(dim=0).float()
            step = algorithm.update(ours, sealed(plain, SealedSum(told, total)))
        assert_close(step.delta, expected.delta, rtol=1e-5, atol=1e-6)
        assert step.weights == pytest.approx(expected.weights)
        ours, theirs = step.state, expected.state
    assert same(type(ours), type(theirs))


def test_a_method_that_says_no_gives_the_reason() -> None:
    for name in set(REGISTRY) - set(SEALABLE):
        problem = REGISTRY[name](algorithm=name).problem_with_sealing()
        attachments = REGISTRY[name](algorithm=name).attachment_sizes(DIM)
        assert problem or any(length > 1 for length in attachments.values()), name


def test_a_second_sum_with_other_weights_is_not_to_be_had() -> None:
    plain = cohort(1, *PEERS)
    made = SealedSum(dict.fromkeys(PEERS, 0.2), torch.ones(DIM, dtype=torch.float32))
    made_cohort = sealed(plain, made)
    twice = made_cohort.weighted_sum(torch.tensor([0.0, 0.4, 0.4, 0.4], dtype=torch.float32))
    assert twice.tolist() == pytest.approx([2.0] * DIM)
    with pytest.raises(NoSuchSum):
        made_cohort.weighted_sum(torch.tensor([0.4, 0.2, 0.2, 0.1], dtype=torch.float32))
    alone = made_cohort.weighted_sum(torch.tensor([1.0, 0, 0, 0], dtype=torch.float32))
    assert torch.equal(alone, plain.own.delta)


def test_what_a_lowered_weight_loses_is_shared_out_in_proportion() -> None:
    """Of factors .3 (own), .5, .1, .1 the second is lowered to .2; over .7 they add up to 1."""
    plain = cohort(1, *PEERS)
    first, *_ = peers = sorted(PEERS)
    told = dict(zip(peers, (0.2 / 0.7, 0.1 / 0.7, 0.1 / 0.7), strict=True))
    total = torch.stack([told[name] * plain.others[name].delta.double() for name in peers])
    made = SealedSum(told, total.sum(dim=0).float(), frozenset([first]))
    delta = sealed(plain, made).weighted_sum(torch.tensor([0.3, 0.5, 0.1, 0.1]).double())
    expected = 0.3 / 0.7 * plain.own.delta.double() + made.total
    assert_close(delta.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", sorted(set(SEALABLE) - {"local"}))
def test_where_the_user_is_left_alone_a_method_sees_its_update_in_everybodys_place(
    name: str,
) -> None:
    """Two rounds: what others differ by is 0, and moments are of the user's own update."""
    for optimizer in ("none", "momentum", "adam"):
        algorithm = built(name, {"server_optimizer": optimizer})
        ours = theirs = algorithm.init(DIM)
        for number in (1, 2):
            own = cohort(number).own
            plain = cohort(number, *PEERS, delta=own.delta)
            bare = {peer: replace(u, delta=torch.empty(0)) for peer, u in plain.others.items()}
            step = algorithm.update(ours, LoneCohort(own, bare, dict.fromkeys(PEERS, 0.0)))
            expected = algorithm.update(theirs, plain)
            assert_close(step.delta, expected.delta)
            ours, theirs = step.state, expected.state


def test_a_sealed_cohort_gives_nothing_of_a_single_update() -> None:
    made = sealed(cohort(1, *PEERS))
    for question in (made.gram, made.blocks):
        with refused(TypeError, "single"):
            question()


def test_the_weights_that_erosion_asks_for_by_hand() -> None:
    """d = 1, 1, 2 and p_d = .1: alpha = .9, .9, .8, and the user's 1 of 3.6."""
    settings = WeightErosion(algorithm="weight_erosion", distance_penalty=0.1, size_penalty=0)
    algorithm = settings.build(BuildContext(rounds=3, num_hospitals=4, layout=dict))
    own = Update("a", 1, torch.tensor([3.0, 4.0]), num_samples=10, samples_seen=10)
    others = {name: replace(own, agent=name, delta=torch.empty(0)) for name in "bcd"}
    round_one = SealedCohort(own, others, {"b": 1.0, "c": 1.0, "d": 2.0})
    with pytest.raises(SumWanted) as wanted:
        algorithm.update(algorithm.init(2), round_one)
    assert wanted.value.own == pytest.approx(1 / 3.6)
    assert wanted.value.factors == pytest.approx({"b": 0.25, "c": 0.25, "d": 0.8 / 3.6})


# -- Studies that cannot be sealed are refused when they are read, with the reason -----------------

LOCAL: dict[str, Any] = {"local": {}}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"quorum": 4}, ["quorum = 4", "5"]),
        ({"user": "all"}, ["user"]),
        ({"scaling": "federated"}, ['"user"', '"local"']),
        ({"selection": {"folds": 2}}, ["selection"]),
        ({"arms": {"fedavg": {}, "weight_erosion": {}}}, ["2 arms", "(fedavg, weight_erosion)"]),
        ({"arms": LOCAL}, ["0 arms"]),
        ({"arms": {"krum": {}, **LOCAL}}, ["arms.krum", "single"]),
        ({"arms": {"scaffold": {}, **LOCAL}}, ["arms.scaffold"]),
        ({"arms": {"fedlin": {}, **LOCAL}}, ["arms.fedlin"]),
        ({"arms": {"weight_erosion": {"cone": "stop"}}}, ['cone = "stop"']),
        ({"arms": {"weight_erosion": {"distance": "cosine"}}}, ["cosine"]),
        ({"arms": {"weight_erosion": {"layer_weights": {"1.bias": 0.5}}}}, ["layer_weights"]),
        ({"arms": {"bias_correction": {"bias": "per_hospital"}}}, ["single"]),
        # of what was trained at one hospital alone before: see test_rogue_sealed_rounds.py
        ({"arms": {"fedavg": {"own_parameters": ["*weight"]}, **LOCAL}}, ["own_parameters"]),
        ({"arms": {"fedala": {}, **LOCAL}}, ["arms.fedala"]),
        ({"arms": {"evidence_erosion": {}, **LOCAL}, "task": A_NUMBER}, ["own_parameters = []"]),
    ],
)
def test_a_study_that_cannot_be_sealed_is_refused(
    changes: dict[str, Any], reason: list[str]
) -> None:
    with refused(ValidationError, *reason):
        sealed_study(**changes)


def test_a_number_is_predicted_without_a_bias_that_stays() -> None:
    arms = {"evidence_erosion": {"own_parameters": []}, **LOCAL}
    assert sealed_study(arms=arms, task=A_NUMBER).federation.sealed


def features(number: int) -> dict[str, Any]:
    return {"task": {**TEN_NUMBERS, "features": TEN_NUMBERS["features"][:number]}}


@pytest.mark.parametrize(
    ("number", "arms", "values"),
    [
        # of one value the distance tells all but the sign
        (1, {"weight_erosion": {"own_parameters": ["output_bias"]}}, 1),
        (1, {"evidence_erosion": {}}, 1),  # which keeps that bias, too
        (6, {"fedavg": {}}, 7),
    ],
)
def test_an_update_of_so_few_values_that_its_distance_gives_it_away_is_not_sealed(
    number: int, arms: dict[str, Any], values: int
) -> None:
    with refused(ValidationError, f" {values} count"):
        sealed_study(**features(number), arms={**arms, **LOCAL})
    assert not sealed_study(
        **features(number), arms={**arms, **LOCAL}, sealed=False
    ).federation.sealed


def test_enough_values_are_sealed() -> None:
    for number, arm in ((7, "fedavg"), (8, "evidence_erosion")):
        assert sealed_study(**features(number), arms={arm: {}, **LOCAL}).federation.sealed


def test_a_bound_on_norms_cannot_be_kept() -> None:
    federation = {"sealed": True, "quorum": 5, "max_update_norm": 1.0}
    with refused(ValidationError, "max_update_norm"):
        sealed_study(federation=federation)
