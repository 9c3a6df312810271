"""The contract of the hospital's part of every method of the registry.

Like the algorithms' contract: a new method is picked up from the registry.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch

from erosion_common.algorithms import REGISTRY
from erosion_common.algorithms.base import OUTPUT_BIAS, ArmBase
from erosion_common.algorithms.personal_layers import personal_parameters
from erosion_common.learning.local_work import LocalOutcome, LocalWork, Tensors
from tests.support.contexts import CONTEXT
from tests.support.extending_page import method_with_two_exchanges
from tests.support.local_works import DIM, layout, local_round, work
from tests.support.registry_cohorts import DIM as STATE_DIM
from tests.support.registry_cohorts import PEERS, after_rounds, same

every_algorithm = pytest.mark.parametrize("name", sorted(REGISTRY))


def task(**changes: object) -> LocalWork:
    """Twelve patients who differ, three short steps."""
    inputs = torch.randn(12, 1, generator=torch.Generator().manual_seed(5))
    return work(
        0.1,
        tuple((inputs[:, 0] > 0).long().tolist()),
        inputs=inputs,
        training={"steps": 3, "batch_size": 4, "learning_rate": 0.5},
        **changes,
    )


def made(name: str) -> ArmBase:
    """The method; what keeps layers that the smallest model has not, or all, keeps the bias."""
    arm = REGISTRY[name](algorithm=name)
    return arm.model_copy(update={"own_parameters": (OUTPUT_BIAS,)}) if arm.own_parameters else arm


def train(name: str, of: LocalWork) -> LocalOutcome:
    return local_round(made(name), of, layout)


@cache
def after_two_rounds(name: str, is_user: bool) -> Tensors:
    first = train(name, task(is_user=is_user))
    return train(name, task(is_user=is_user, round=2, kept=first.keep)).keep


@every_algorithm
@pytest.mark.parametrize("is_user", [True, False])
def test_it_answers_with_a_finite_update_and_what_it_announced(name: str, is_user: bool) -> None:
    kept = after_two_rounds(name, is_user)
    outcome = train(name, task(is_user=is_user, round=3, kept=kept))
    assert outcome.delta.shape == (DIM,)
    assert outcome.delta.dtype == torch.float32
    assert bool(outcome.delta.isfinite().all())
    assert outcome.samples_seen > 0
    for attachment, length in REGISTRY[name](algorithm=name).attachment_sizes(DIM).items():
        assert outcome.attachments[attachment].shape == (length,)


@every_algorithm
def test_it_tells_its_steps_where_it_compares_by_them(name: str) -> None:
    """A class inherits `compares_steps`, and may train otherwise."""
    arm = REGISTRY[name](algorithm=name)
    assert (train(name, task()).steps is not None) == arm.compares_steps
    assert (arm.equal_steps(CONTEXT) is not None) == arm.compares_steps


@every_algorithm
def test_what_is_measured_of_it_is_sent(name: str) -> None:
    """A class inherits `measured_attachments`, and may send others."""
    arm = REGISTRY[name](algorithm=name)
    assert set(arm.measured_attachments) <= set(arm.attachment_sizes(DIM))


@every_algorithm
def test_the_user_can_predict_before_and_after_training(name: str) -> None:
    arm = made(name)
    for now in (task(), task(round=3, kept=after_two_rounds(name, is_user=True))):
        personal = personal_parameters(arm, now, layout)
        assert personal.shape[-1] == DIM
        assert bool(personal.isfinite().all())


@every_algorithm
def test_it_changes_nothing_that_it_was_given(name: str) -> None:
    kept = after_two_rounds(name, is_user=True)
    given, copy = task(kept=kept), task(kept={key: tensor.clone() for key, tensor in kept.items()})
    train(name, given)
    personal_parameters(made(name), given, layout)
    assert torch.equal(given.received, copy.received)
    assert same(given.kept, copy.kept)


@every_algorithm
def test_it_repeats_and_draws_nothing_from_the_global_generator(name: str) -> None:
    before = torch.get_rng_state()
    now = task(round=3, kept=after_two_rounds(name, is_user=True))
    first, second = train(name, now), train(name, now)
    assert torch.equal(first.delta, second.delta)
    assert same(first.keep, second.keep)
    assert same(first.attachments, second.attachments)
    assert torch.equal(before, torch.get_rng_state())


@every_algorithm
def test_own_parameters_stay_whatever_the_method(name: str) -> None:
    arm = REGISTRY[name].model_validate({"algorithm": name, "own_parameters": ["output_bias"]})
    first = local_round(arm, task(), layout)
    second = local_round(arm, replace(task(round=2), kept=first.keep), layout)
    for outcome in (first, second):
        assert outcome.delta[2:].tolist() == [0.0, 0.0]
        assert outcome.delta[:2].abs().max() > 0
        sizes, larger = arm.attachment_sizes(DIM), arm.attachment_sizes(DIM + 1)
        for attachment in (a for a in sizes if sizes[a] == DIM != larger[a]):
            assert outcome.attachments[attachment][2:].tolist() == [0.0, 0.0]
    assert not torch.equal(first.keep["own_parameters"], second.keep["own_parameters"])
    personal = personal_parameters(arm, replace(task(round=3), kept=second.keep), layout)
    assert not torch.equal(personal.reshape(-1, DIM)[0, 2:], task().received[2:])


def test_every_broadcast_tensor_has_the_models_length() -> None:
    senders = set()
    for name, arm in REGISTRY.items():
        algorithm = arm(algorithm=name).build(CONTEXT)
        state = after_rounds(algorithm, 1, *PEERS)
        to_peer = algorithm.broadcast_to_peer or (lambda _state, _peer: {})
        for tensors in (
            algorithm.broadcast(state),
            algorithm.broadcast_to_user(state),
            to_peer(state, PEERS[0]),
        ):
            for tensor in tensors.values():
                assert tensor.shape[-1] == STATE_DIM
                senders.add(name)
    assert {"scaffold", "fedfomo", "ensemble", "fedamp", "ifca", "waffle"} <= senders


@pytest.mark.parametrize(
    "promise",
    [
        test_it_changes_nothing_that_it_was_given,
        test_it_repeats_and_draws_nothing_from_the_global_generator,
        test_the_user_can_predict_before_and_after_training,
        test_own_parameters_stay_whatever_the_method,
        test_it_tells_its_steps_where_it_compares_by_them,
    ],
    ids=lambda promise: promise.__name__,
)
def test_the_documented_method_with_two_exchanges_keeps_the_contract(
    promise: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REGISTRY, "median_length", method_with_two_exchanges())
    promise("median_length")
