"""The promises of every method's round when its exchanges are played, site and coordinator.

A new method needs no line here: it is picked up from the registry, however many exchanges it has.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from erosion_client.training.request import checked_payload
from erosion_common.aggregation.cohort import HospitalName, Update
from erosion_common.aggregation.vectors import norm
from erosion_common.algorithms import REGISTRY, steps_of
from erosion_common.algorithms.base import TRAIN, Ask, ExpectedReply, RoundStart, TensorSpec
from erosion_common.algorithms.personal_layers import take_step
from erosion_common.learning.local_work import LocalOutcome, LocalWork, Tensors
from erosion_common.protocol import wire
from erosion_common.protocol.messages import StepReply, StepResult, TrainReply, TrainResult
from erosion_common.rounds.records import Answer, Rejection, RunState
from erosion_common.rounds.round import Round, first_state
from erosion_common.rounds.screening import Expected, reject_outsized, reply_spec, screen
from erosion_common.study.study import Study
from tests.support.contexts import CONTEXT
from tests.support.federation import small_study
from tests.support.installed_package import arm_of
from tests.support.local_works import DIM, layout, work
from tests.support.registry_cohorts import same

NAMES = ("a", "b", "c")
# The smallest model has no hidden layer: what needs one has tests of its own.
FITTING = [n for n, arm in REGISTRY.items() if not arm(algorithm=n).problem_with_model(layout)]
every_algorithm = pytest.mark.parametrize("name", sorted(FITTING))


def work_of(agent: str) -> LocalWork:
    """Twelve patients of that hospital, three short steps."""
    generator = torch.Generator().manual_seed(ord(agent))
    inputs = torch.randn(12, 1, generator=generator)
    return work(
        0.1,
        tuple((inputs[:, 0] > 0.1 * NAMES.index(agent)).long().tolist()),
        agent=agent,
        is_user=agent == "a",
        inputs=inputs,
        training={"steps": 3, "batch_size": 4, "learning_rate": 0.1},
    )


def honestly(_agent: str, tensors: Tensors) -> Tensors:
    """What travels beside updates, or without one, as it is."""
    return tensors


@cache
def study_of(name: str) -> Study:
    return small_study(arms={name: arm_of(name)})


def answer_of(
    name: str,
    agent: str,
    state: RunState,
    ask: Ask,
    kept: Mapping[str, Tensors],
    sends: Callable[[str, Tensors], Tensors],
) -> tuple[Answer, Tensors]:
    """A hospital's answer, through the wire and the screening, and what it keeps."""
    arm = REGISTRY[name](algorithm=name)
    own = ask.to_each.get(agent)
    sent = {**ask.to_all.tensors, **(own.tensors if own else {})}
    of = replace(
        work_of(agent),
        round=state.round + 1,
        received=state.params if ask.sends_parameters else torch.empty(0),
        enclosed={
            key: checked_payload(key, tensor, DIM if ask.step == TRAIN else None)
            for key, tensor in sent.items()
        },
        values={**ask.to_all.values, **(own.values if own else {})},
        kept=kept.get(agent, {}),
        step=ask.step,
    )
    outcome = take_step(arm, of, layout)
    about = {"hospital": agent, "arm": name, "round": of.round, "step": ask.step, "seconds": 0.0}
    result: TrainResult | StepResult
    if isinstance(outcome, LocalOutcome):
        header = TrainReply.model_validate(
            {**about, "num_samples": 12, "samples_seen": outcome.samples_seen}
        )
        result = wire.decode_train_result(
            wire.encode_result(
                TrainResult(header, outcome.delta, sends(agent, outcome.attachments))
            )
        )
    else:
        step_header = StepReply.model_validate({**about, "values": dict(outcome.values)})
        result = wire.decode_step_result(
            wire.encode_result(StepResult(step_header, sends(agent, outcome.tensors)))
        )
    expects = reply_spec(study_of(name), name, ask.expects, DIM, by_user=of.is_user)
    answer = screen(result, agent, Expected(name, of.round, DIM, ask.step, expects))
    if isinstance(outcome, LocalOutcome) and isinstance(answer, Update):
        assert answer.attachments.keys() == outcome.attachments.keys()  # nothing sent is dropped
    return answer, outcome.keep


class Played(NamedTuple):
    """A round."""

    after: RunState
    kept: dict[str, Tensors]  # by the sites
    steps: list[str]
    sent: list[Tensor]  # to hospitals, beside the parameters
    names: set[str]  # of what hospitals sent beside updates, or without one


def play(
    name: str,
    state: RunState,
    kept: Mapping[str, Tensors],
    names: tuple[str, ...] = NAMES,
    sends: Callable[[str, Tensors], Tensors] = honestly,
) -> Played:
    """One round."""
    algorithm = REGISTRY[name](algorithm=name).build(CONTEXT)
    in_progress = Round(
        state,
        algorithm,
        RoundStart(state.round + 1, "a", names, state.params),
        arm=name,
        wanted=[n for n in names if n == "a" or algorithm.asks(state.algorithm_state, n)],
        spare=0 if sends is honestly else 1,
    )
    now, steps, sent = dict(kept), list[str](), list[Tensor]()
    names_sent: set[str] = set()

    def noted(agent: str, tensors: Tensors) -> Tensors:
        names_sent.update(tensors)
        return sends(agent, tensors)

    while (ask := in_progress.request) is not None:
        steps.append(ask.step)
        sent += [
            t for payload in (ask.to_all, *ask.to_each.values()) for t in payload.tensors.values()
        ]
        answers: dict[HospitalName, Answer] = {}
        for agent in in_progress.asked:
            answers[agent], now[agent] = answer_of(name, agent, state, ask, now, noted)
            assert not isinstance(answers[agent], Rejection), answers[agent]
        usual = norm(state.params) if ask.baseline is None else ask.baseline
        answers = reject_outsized(answers, "a", usual, len(state.params))
        if sends is honestly:
            assert not any(isinstance(answer, Rejection) for answer in answers.values()), answers
        in_progress.answer(answers)
    after, record = in_progress.outcome
    assert record.outcome in ("done", "stopped"), record.note  # some are done after one round
    return Played(after, now, steps, sent, names_sent)


def first(name: str) -> RunState:
    return first_state(REGISTRY[name](algorithm=name).build(CONTEXT), work_of("a").received)


def rounds_of(name: str, sends: Callable[[str, Tensors], Tensors] = honestly) -> list[Played]:
    """Three rounds, or fewer where the method ends before."""
    state, kept, played = first(name), dict[str, Tensors](), list[Played]()
    while len(played) < 3 and not state.stopped:
        played.append(play(name, state, kept, sends=sends))
        state, kept = played[-1].after, played[-1].kept
    return played


honest_rounds_of = cache(rounds_of)


@every_algorithm
def test_its_steps_are_known_by_name_and_its_rounds_play(name: str) -> None:
    played = honest_rounds_of(name)
    state = played[-1].after
    assert {step for each in played for step in each.steps} <= steps_of(name)
    assert state.round == 3 or state.stopped
    assert bool(state.params.isfinite().all())


@every_algorithm
def test_an_interrupted_round_is_the_same_when_it_is_done_again(name: str) -> None:
    once = honest_rounds_of(name)[:2]
    before = once[:-1]
    state, kept = (before[0].after, before[0].kept) if before else (first(name), {})
    twice = play(name, state, kept)
    assert same(once[-1].after, twice.after)
    assert same(once[-1].kept, twice.kept)


def longest(name: str, played: list[Played]) -> float:
    """Of the parameters in the end, and of all that was sent to hospitals beside them."""
    state, algorithm = played[-1].after, REGISTRY[name](algorithm=name).build(CONTEXT)
    last = [algorithm.broadcast, algorithm.broadcast_to_user]  # with the final parameters
    sent = [t for f in last for t in f(state.algorithm_state).values()]
    sent += [tensor for each in played for tensor in each.sent]
    return max(float(tensor.norm()) for tensor in (state.params, *sent))


@every_algorithm
def test_nothing_that_a_hospital_sends_moves_others_far_without_being_measured(name: str) -> None:
    played = honest_rounds_of(name)
    usual = longest(name, played)
    for lie in sorted({key for each in played for key in each.names}):

        def sends(agent: str, tensors: Tensors, lie: str = lie) -> Tensors:
            return {key: t * 1e6 if (agent, key) == ("c", lie) else t for key, t in tensors.items()}

        assert longest(name, rounds_of(name, sends)) < 10 * usual, lie


@pytest.mark.parametrize(
    ("tensor", "terms", "reason"),
    [
        (torch.zeros(3, dtype=torch.uint8), TensorSpec((3,), torch.uint8), None),
        (torch.arange(4), TensorSpec((None,), torch.int64), None),
        (torch.tensor([2**32 - 1], dtype=torch.uint32), TensorSpec((1,), torch.uint32), None),
        (torch.zeros(2, 3), TensorSpec((2, None)), None),
        (torch.zeros(3), TensorSpec((3,), torch.uint8), "of type torch.float32, expected torch."),
        (torch.zeros(3), TensorSpec((2, None)), "of shape (3,), expected (2, any)"),
        (torch.zeros(9), TensorSpec((None,), most_values=8), "of 9 values, at most 8"),
        (torch.tensor([torch.nan]), TensorSpec((1,)), "a value that is not finite"),
    ],
)
def test_a_steps_tensors_travel_and_are_held_to_the_terms(
    tensor: Tensor, terms: TensorSpec, reason: str | None
) -> None:
    header = StepReply(hospital="a", arm="x", round=1, step="s", seconds=0.0)
    record = wire.encode_result(StepResult(header, {"t": tensor}))
    result = wire.decode_step_result(record)
    received = result.tensors["t"]
    assert received.dtype == tensor.dtype
    assert received.numpy().tobytes() == tensor.numpy().tobytes()
    answer = screen(result, "a", Expected("x", 1, DIM, "s", ExpectedReply(tensors={"t": terms})))
    if reason is None:
        assert not isinstance(answer, Rejection)
    else:
        assert isinstance(answer, Rejection)
        assert reason in answer.reason
