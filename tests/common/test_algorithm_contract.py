"""The contract of every algorithm of the registry.

A new algorithm needs no line here: it is picked up from the registry. Options that change how it
works are named here, and hold the same promises.
"""

from copy import deepcopy
from itertools import cycle
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch

from erosion_common.algorithms import REGISTRY
from erosion_common.rounds import checkpoint
from erosion_common.rounds.round import first_state
from erosion_common.study.study import Study, study_from_json
from tests.support.close import assert_close
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
KINDS = ("momentum", "adam", "yogi", "adagrad")
WITH_OPTIMIZER = [n for n in sorted(REGISTRY) if "server_optimizer" in REGISTRY[n].model_fields]
OPTIMIZERS: list[Variant] = [
    *((name, {"server_optimizer": kind}) for name, kind in zip(WITH_OPTIMIZER, cycle(KINDS))),
    *(("fedavg", {"server_optimizer": kind}) for kind in KINDS),
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
        assert_close(step.delta, alone.own.delta)


@every_variant_without_optimizer
def test_identical_updates_are_a_fixed_point(variant: Variant) -> None:
    algorithm = built(*variant)
    state = algorithm.init(DIM)
    common = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0])
    for round_number in (1, 2, 3):
        step = algorithm.update(state, cohort(round_number, *PEERS, delta=common))
        state = step.state
        assert_close(step.delta, common)


@every_variant
def test_nobody_gets_what_a_hospital_sent_that_is_forgotten(variant: Variant) -> None:
    algorithm = built(*variant)
    without = algorithm.forget(after_rounds(algorithm, 2, *PEERS), PEERS[0])
    never_there = after_rounds(algorithm, 2, *PEERS[1:])
    everybody = algorithm.broadcast(without)  # or nothing, of what cannot be told apart
    assert not everybody or same(everybody, algorithm.broadcast(never_there))
    if (to_peer := algorithm.broadcast_to_peer) is not None:
        for peer in PEERS[1:]:
            assert same(to_peer(without, peer), to_peer(never_there, peer))
    assert same(algorithm.broadcast_to_user(without), algorithm.broadcast_to_user(never_there))


@every_variant
def test_the_order_of_arrival_does_not_matter_and_everyone_has_a_weight(variant: Variant) -> None:
    """The weights are relative to the user's."""
    algorithm = built(*variant)
    forward = backward = algorithm.init(DIM)
    for round_number in (1, 2, 3):
        one = algorithm.update(forward, cohort(round_number, *PEERS))
        other = algorithm.update(backward, cohort(round_number, *reversed(PEERS)))
        assert same(one, other)
        assert set(one.weights) == set(HOSPITALS)
        # A rule may leave the user's own update out, as Krum does.
        assert (one.weights[USER] or max(one.weights.values())) == 1.0
        assert all(map(isfinite, one.weights.values()))
        forward, backward = one.state, other.state


@every_algorithm
def test_an_update_depends_on_state_and_cohort_and_changes_neither(name: str) -> None:
    algorithm = built(name)
    state, offered = after_rounds(algorithm, 2, *PEERS), cohort(3, *PEERS)
    state_before, updates_before = deepcopy(state), deepcopy(offered.updates)
    torch.manual_seed(1)
    drawn_before, first = torch.get_rng_state(), algorithm.update(state, offered)
    assert torch.equal(drawn_before, torch.get_rng_state())
    assert same(state, state_before)
    assert same(offered.updates, updates_before)
    torch.manual_seed(2)
    assert same(first, built(name).update(state, offered))


@every_algorithm
def test_it_asks_others_unless_it_says_that_it_asks_the_user_alone(name: str) -> None:
    """A class inherits `user_only`, with which nothing of it is held against privacy."""
    algorithm = built(name)
    states = algorithm.init(DIM), after_rounds(algorithm, 2, *PEERS)
    asked = [algorithm.asks(state, peer) for state in states for peer in PEERS]
    assert any(asked) != REGISTRY[name].user_only


@every_variant
def test_hospitals_come_late_stay_away_and_return(variant: Variant) -> None:
    algorithm = built(*variant)
    first, _, late = PEERS
    run = first_state(algorithm, torch.zeros(DIM))
    for absent in ((late,), ()):
        run = advanced(algorithm, run, *absent)
    assert all(map(isfinite, run.weights.values()))
    without = advanced(algorithm, run, first)
    assert without.weights[first] == run.weights[first]
    without = advanced(algorithm, advanced(algorithm, without, *PEERS))
    assert without.round == 5
    assert set(without.weights) == set(HOSPITALS)
    assert all(map(isfinite, [*without.weights.values(), *without.params.tolist()]))


@every_variant
def test_a_resumed_run_equals_an_uninterrupted_one(variant: Variant, tmp_path: Path) -> None:
    algorithm = built(*variant)
    fresh = run = first_state(algorithm, torch.zeros(DIM))
    for _ in range(2):
        run = advanced(algorithm, run)
    file = tmp_path / "checkpoint.safetensors"
    checkpoint.save(file, run, arm="x", study_digest="y")
    resumed = checkpoint.load(file, fresh, arm="x", study_digest="y")
    assert same(resumed, run)
    assert same(advanced(algorithm, resumed), advanced(algorithm, run))
