"""Checks what a method's rule gives back, before it is used.

Otherwise a state that a checkpoint cannot hold would only show when the run is resumed.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import is_dataclass
from itertools import chain
from math import inf, isfinite, isnan
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from erosion_common.aggregation.cohort import Cohort, HospitalName
from erosion_common.aggregation.vectors import is_finite
from erosion_common.algorithms.base import Ask, Payload, RoundStart, Step
from erosion_common.errors import RunError
from erosion_common.rounds.checkpoint import why_not_exactly
from erosion_common.rounds.records import RunState

_OUTCOMES = get_args(get_type_hints(Step)["outcome"])


def checked_first(state: Any, arm: str) -> Any:
    """Return the state that `init` made. Raises RunError."""
    if problem := _problem_with_state(state, state):
        of_arm = f"of {arm!r} " if arm else ""
        raise RunError(
            f"The rule {of_arm}made a mistake: `init` gave back a wrong state: {problem}. {_REMEDY}"
        )
    return state


def checked_state(state: Any, before: RunState, arm: str, made_by: str) -> Any:
    """Return a later state of the arm, as `made_by` of its method gave it back. Raises RunError."""
    if problem := _problem_with_state(state, before.algorithm_state):
        raise _fault(arm, before.round + 1, f"`{made_by}` gave back a wrong state: {problem}")
    return state


def checked_step(
    step: Any,
    before: RunState,
    cohort: Cohort | None,
    known: Collection[HospitalName],
    arm: str,
) -> Step[Any]:
    """Return the step that ends a round. Raises RunError.

    `cohort`: the updates that must have weights; None: not known. `known`: the hospitals that it
    may name.
    """
    number = before.round + 1
    if not isinstance(step, Step):
        raise _fault(arm, number, f"it gave back a {type(step).__name__}, no Step")
    if problem := next(_problems_with_step(step, before, cohort, known), ""):
        raise _fault(arm, number, problem)
    checked_state(step.state, before, arm, "update")
    return step


def checked_ask(ask: Any, begun: RoundStart, known: Collection[HospitalName], arm: str) -> Ask:
    """Return the next request. `known`: the hospitals that may be asked. Raises RunError."""
    if not isinstance(ask, Ask):
        raise _fault(arm, begun.round, f"it gave a {type(ask).__name__}, no Ask")
    if problem := next(_problems_with_ask(ask, begun.user, known), ""):
        raise _fault(arm, begun.round, problem)
    return ask


_REMEDY = "What it must be is in docs/extending.md; correct the method."


def _fault(arm: str, number: int, problem: str) -> RunError:
    return RunError(
        f"The rule of {arm!r} made a mistake in round {number}: {problem}. {_REMEDY} A run"
        " with a folder goes on after the rounds before, with --resume."
    )


def _problem_with_state(state: Any, before: Any) -> str:
    if not is_dataclass(state) or isinstance(state, type):
        return f"the state is a {type(state).__name__}; it must be a frozen dataclass"
    if not type(state).__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return (
            f"the state is a {type(state).__name__}, a dataclass that can be changed, with what a"
            " round that is undone goes back to; write @dataclass(frozen=True)"
        )
    return why_not_exactly(state, before)


def _problems_with_step(
    step: Step[Any], before: RunState, cohort: Cohort | None, known: Collection[HospitalName]
) -> Iterator[str]:
    if step.outcome not in _OUTCOMES:
        yield f"the outcome is {step.outcome!r:.80}; it must be one of {', '.join(_OUTCOMES)}"
    if not isinstance(step.note, str):
        yield f"`note` is a {type(step.note).__name__}; it must be a str"
    if not isinstance(step.rejected, Mapping):
        yield f"`rejected` is a {type(step.rejected).__name__}; it must be a dict"
    yield from _problems_with_delta(step.delta, before.params)
    if step.outcome == "done" and not is_finite(step.delta):
        return  # of finite updates: the round is skipped, and nothing else of it counts
    yield from _problems_with_numbers(step.weights, known, "weight", largest=None)
    if step.outcome == "done" and cohort is not None:
        there = {cohort.own.agent, *cohort.peers} - set(step.rejected)
        if missing := sorted(there - set(step.weights)):
            yield f"there is no weight of {', '.join(missing)}, although it got their updates"
    if step.distances is not None:
        yield from _problems_with_numbers(step.distances, known, "distance", largest=inf)
    for name, reason in step.rejected.items():
        if name not in known:
            yield f"it rejects {name!r:.80}, which the round did not ask"
        if not isinstance(reason, str):
            yield f"the reason for rejecting {name} is a {type(reason).__name__}; write a str"


def _problems_with_delta(delta: Any, params: Tensor) -> Iterator[str]:
    if not isinstance(delta, Tensor):
        yield f"`delta` is a {type(delta).__name__}; it must be a tensor"
    elif (delta.shape, delta.dtype, delta.device) != (params.shape, torch.float32, params.device):
        # Updates are float32 also where somebody's own app has parameters of float64.
        yield (
            f"`delta` has the shape {tuple(delta.shape)} of {delta.dtype} on {delta.device}; an"
            f" update has {tuple(params.shape)} of {torch.float32} on {params.device}"
        )
    elif delta.requires_grad:
        yield "`delta` has a gradient to come; detach() it"


def _problems_with_numbers(
    numbers: Any, known: Collection[HospitalName], what: str, *, largest: float | None
) -> Iterator[str]:
    """Yield problems. `largest`: infinity where that is allowed; None: numbers are finite."""
    if not isinstance(numbers, Mapping):
        yield f"`{what}s` is a {type(numbers).__name__}; it must be a dict by hospital"
        return
    for name, value in numbers.items():
        if name not in known:
            yield f"there is a {what} of {name!r:.80}; the round knows {', '.join(sorted(known))}"
        elif isinstance(value, bool) or not isinstance(value, int | float):
            yield f"the {what} of {name} is a {type(value).__name__}; it must be a float"
        elif isnan(value) or value < 0 or (largest is None and not isfinite(value)):
            yield f"the {what} of {name} is {value}; it must be 0 or more"


def _problems_with_ask(
    ask: Ask, user: HospitalName, known: Collection[HospitalName]
) -> Iterator[str]:
    if ask.hospitals is not None:
        if not ask.hospitals:
            yield f"it asks nobody for the step {ask.step!r}"
        if unknown := sorted(set(map(str, ask.hospitals)) - set(known)):
            yield f"it asks {', '.join(map(repr, unknown))}, which the round did not want"
        if ask.brings.update and user not in ask.hospitals:
            yield f"it asks others for updates and not the user, {user}, for the comparison"
    if not isinstance(ask.to_each, Mapping):
        yield f"`to_each` is a {type(ask.to_each).__name__}; it must be a dict by hospital"
    for payload in chain([ask.to_all], ask.to_each.values()):
        yield from _problems_with_payload(payload)


def _problems_with_payload(payload: Any) -> Iterator[str]:
    if not isinstance(payload, Payload):
        yield f"it sends a {type(payload).__name__}; it must be a Payload"
    for name, tensor in payload.tensors.items():
        if not isinstance(tensor, Tensor):
            yield f"it sends {name!r:.80}, which is a {type(tensor).__name__}; it must be a tensor"
    for name, value in payload.values.items():
        try:
            arrives = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError) as problem:
            yield f"it sends {name!r:.80}, which is no JSON ({problem})"
            continue
        if arrives != value:  # a simulation would use the one, a deployment the other
            yield (
                f"it sends {name!r:.80} as {value!r:.80}, and a site would get {arrives!r:.80}:"
                " write lists for tuples, and text for the keys of a dict"
            )
