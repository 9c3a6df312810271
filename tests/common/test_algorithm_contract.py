"""The contract of every algorithm of the registry.

A new algorithm needs no line here: it is picked up from the registry. Options that change how it
works are named here, and hold the same promises.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from erosion_common.algorithms import REGISTRY
from erosion_common.rounds import checkpoint
from erosion_common.rounds.round import first_state
from erosion_common.study.study import Study, study_from_json
from tests.support.installed_package import arm_of
from tests.support.registry_cohorts import (
    DIM,
    HOSPITALS,
    PEERS,
    USER,
    advanced,
    after_rounds,
    built,
    cohort,
    model_for,
    same,
)

Variant = tuple[str, dict[str, Any]]  # an algorithm, and parameters that are not its defaults
OPTIONS: list[Variant] = [
    ("weight_erosion", {"distance_penalty": "auto", "weighting": "samples"}),
    ("weight_erosion", {"distance": "cosine", "cone": "warn", "cone_angle": 1}),
    ("weighted_gradient", {"alpha": 0.5}),
    ("weighted_gradient", {"alpha": 1.0}),
    ("bias_correction", {"bias": "per_hospital", "warm_up": True}),
    ("bias_correction", {"alpha": 0.5, "beta": 0.1}),
    ("multi_krum", {"num_byzantine": 0, "num_selected": 2}),
    ("geometric_median", {"weighting": "samples"}),
    ("centered_clipping", {"centre": "own", "steps": 3}),
]
OPTIMIZERS: list[Variant] = [
    (name, {"server_optimizer": optimizer})
    for name in sorted(REGISTRY)
    if "server_optimizer" in REGISTRY[name].model_fields
    for optimizer in ("momentum", "adam", "yogi", "adagrad")
]
PLAIN: list[Variant] = [(name, {}) for name in sorted(REGISTRY)]


def named(variant: Variant) -> str:
    name, parameters = variant
    return "-".join([name, *(f"{key}={value}" for key, value in parameters.items())])


every_algorithm = pytest.mark.parametrize("name", sorted(REGISTRY))
every_variant = pytest.mark.parametrize("variant", PLAIN + OPTIONS + OPTIMIZERS, ids=named)
# A server optimiser moves on also where all updates agree.
every_variant_without_optimizer = pytest.mark.parametrize("variant", PLAIN + OPTIONS, ids=named)


@every_algorithm
def test_it_can_be_named_in_a_study_and_sent(name: str) -> None:
    study = Study.model_validate(
        {
            "name": "contract",
            "user": USER,
            "hospitals": HOSPITALS,
            "rounds": 3,
            "task": {"kind": "tabular", "target": "y", "classes": [0, 1], "features": ["x"]},
            "model": model_for(name),
            "training": {"steps": 1},
            "arms": {name: arm_of(name)},
        }
    )
    read = study.arms[name].model_dump(exclude={"sha256"})
    assert read == REGISTRY[name](algorithm=name).model_dump()
    assert study_from_json(study.canonical_json()) == study


@every_variant_without_optimizer
def test_without_peers_it_is_local_training(variant: Variant) -> None:
    algorithm = built(*variant)
    state = algorithm.init(DIM)
    for round_number in (1, 2, 3):
        alone = cohort(round_number)
        step = algorithm.update(state, alone)
        state = step.state
        assert step.outcome == "done"
        torch.testing.assert_close(step.delta, alone.own.delta)


@every_variant_without_optimizer
def test_identical_updates_are_a_fixed_point(variant: Variant) -> None:
    algorithm = built(*variant)
    state = algorithm.init(DIM)
    common = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0])
    for round_number in (1, 2, 3):
        step = algorithm.update(state, cohort(round_number, *PEERS, delta=common))
        state = step.state
        torch.testing.assert_close(step.delta, common)


@every_variant
def test_nobody_gets_what_a_hospital_sent_that_is_forgotten(variant: Variant) -> None:
    algorithm = built(*variant)
    without = algorithm.forget(after_rounds(algorithm, 3, *PEERS), PEERS[0])
    never_there = after_rounds(algorithm, 3, *PEERS[1:])
    everybody = algorithm.broadcast(without)  # or nothing, of what cannot be told apart
    assert not everybody or same(everybody, algorithm.broadcast(never_there))
    if (to_peer := algorithm.broadcast_to_peer) is not None:
        for peer in PEERS[1:]:
            assert same(to_peer(without, peer), to_peer(never_there, peer))
    assert same(algorithm.broadcast_to_user(without), algorithm.broadcast_to_user(never_there))


@every_algorithm
def test_the_weights_name_everyone_and_are_relative_to_the_users(name: str) -> None:
    algorithm = built(name)
    state = algorithm.init(DIM)
    for round_number in (1, 2, 3):
        step = algorithm.update(state, cohort(round_number, *PEERS))
        state = step.state
        assert set(step.weights) == set(HOSPITALS)
        if step.weights[USER] == 0.0:  # a rule may leave the user's own update out, like Krum
            assert max(step.weights.values()) == 1.0
        else:
            assert step.weights[USER] == 1.0
        finite = torch.isfinite(torch.tensor(list(step.weights.values())))
        assert bool(finite.all())


@every_variant
def test_the_order_of_arrival_does_not_matter(variant: Variant) -> None:
    algorithm = built(*variant)
    forward = backward = algorithm.init(DIM)
    for round_number in (1, 2, 3):
        one = algorithm.update(forward, cohort(round_number, *PEERS))
        other = algorithm.update(backward, cohort(round_number, *reversed(PEERS)))
        assert same(one, other)
        forward, backward = one.state, other.state


@every_algorithm
def test_it_repeats_and_draws_nothing_from_the_global_generator(name: str) -> None:
    torch.manual_seed(1)
    first = after_rounds(built(name), 3, *PEERS)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert same(first, after_rounds(built(name), 3, *PEERS))
    assert torch.equal(before, torch.get_rng_state())


@every_algorithm
def test_an_update_changes_neither_state_nor_cohort(name: str) -> None:
    algorithm = built(name)
    state = after_rounds(algorithm, 2, *PEERS)
    offered = cohort(3, *PEERS)
    state_before, updates_before = deepcopy(state), deepcopy(offered.updates)
    algorithm.update(state, offered)
    assert same(state, state_before)
    assert same(offered.updates, updates_before)


@every_algorithm
def test_it_asks_others_unless_it_says_that_it_asks_the_user_alone(name: str) -> None:
    """A class inherits `user_only`, with which nothing of it is held against privacy."""
    algorithm = built(name)
    states = algorithm.init(DIM), after_rounds(algorithm, 3, *PEERS)
    asked = [algorithm.asks(state, peer) for state in states for peer in PEERS]
    assert any(asked) != REGISTRY[name].user_only


@every_variant
def test_a_late_joiner_gets_a_finite_weight(variant: Variant) -> None:
    algorithm = built(*variant)
    early, late = PEERS[:2], PEERS[2]
    state = after_rounds(algorithm, 3, *early)
    step = algorithm.update(state, cohort(4, *early, late))
    assert torch.isfinite(torch.tensor(step.weights[late]))
    assert bool(torch.isfinite(step.delta).all())
    for round_number in (5, 6):
        step = algorithm.update(step.state, cohort(round_number, *PEERS))
    assert torch.isfinite(torch.tensor(step.weights[late]))


@every_variant
def test_a_hospital_that_is_absent_for_a_round_keeps_its_weight(variant: Variant) -> None:
    algorithm = built(*variant)
    run = first_state(algorithm, torch.zeros(DIM))
    for _ in range(2):
        run = advanced(algorithm, run)
    absent = PEERS[0]
    without = advanced(algorithm, run, absent)
    assert without.weights[absent] == run.weights[absent]
    back = advanced(algorithm, without)
    assert torch.isfinite(torch.tensor(back.weights[absent]))


@every_variant
def test_a_resumed_run_equals_an_uninterrupted_one(variant: Variant, tmp_path: Path) -> None:
    algorithm = built(*variant)
    fresh = run = first_state(algorithm, torch.zeros(DIM))
    for _ in range(3):
        run = advanced(algorithm, run)
    file = tmp_path / "checkpoint.safetensors"
    checkpoint.save(file, run, arm="x", study_digest="y")
    resumed = checkpoint.load(file, fresh, arm="x", study_digest="y")
    assert same(resumed, run)
    assert same(advanced(algorithm, resumed), advanced(algorithm, run))


@every_variant
def test_a_run_goes_on_while_every_peer_is_away(variant: Variant) -> None:
    algorithm = built(*variant)
    run = first_state(algorithm, torch.zeros(DIM))
    for absent in ((), PEERS, PEERS, ()):
        run = advanced(algorithm, run, *absent)
    assert run.round == 4
    assert bool(torch.isfinite(run.params).all())
