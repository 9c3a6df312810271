"""Checks what a method's rule gives back, before it is used: a checkpoint must hold it."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from erosion_common.aggregation.cohort import Cohort, HospitalName
from erosion_common.aggregation.vectors import is_finite
from erosion_common.algorithms.base import MOST_EXCHANGES, Ask, Payload, RoundStart, Step
from erosion_common.errors import RunError
from erosion_common.rounds.records import RunState

TENSOR = "$tensor"  # marks a tensor's place in the JSON of a checkpoint
_OUTCOMES = get_args(get_type_hints(Step)["outcome"])
_REMEDY = "What it must be is in docs/extending.md; correct the method."


def checked_first(state: Any, arm: str) -> Any:
    """Return the state that `init` made. Raises RunError."""
    if problem := next(_problems_with_state(state, state), ""):
        of_arm = f"of {arm!r} " if arm else ""
        what = f"The rule {of_arm}made a mistake: `init` gave back a wrong state: {problem}"
        raise RunError(what, remedy=_REMEDY)
    return state


def checked_state(state: Any, before: RunState, arm: str, made_by: str) -> Any:
    """Return a later state of the arm, as `made_by` of its method gave it back. Raises RunError."""
    if problem := next(_problems_with_state(state, before.algorithm_state), ""):
        raise fault_of_rule(
            arm, before.round + 1, f"`{made_by}` gave back a wrong state: {problem}"
        )
    return state


def checked_step(
    step: Any, before: RunState, cohort: Cohort | None, known: Collection[HospitalName], arm: str
) -> Step[Any]:
    """Return the last step; `cohort` must have weights, `known` may be named. Raises RunError."""
    number = before.round + 1
    if not isinstance(step, Step):
        raise fault_of_rule(arm, number, f"it gave back a {type(step).__name__}, no Step")
    if problem := next(_problems_with_step(step, before, cohort, known), ""):
        raise fault_of_rule(arm, number, problem)
    checked_state(step.state, before, arm, "update")
    return step


def checked_ask(
    ask: Any, begun: RoundStart, known: Collection[HospitalName], arm: str, exchange: int
) -> Ask:
    """Return the next request. `known`: the hospitals that may be asked. Raises RunError."""
    if not isinstance(ask, Ask):
        raise fault_of_rule(arm, begun.round, f"it gave a {type(ask).__name__}, no Ask")
    if exchange > MOST_EXCHANGES:
        raise fault_of_rule(arm, begun.round, f"it asks more than {MOST_EXCHANGES} times")
    if problem := next(_problems_with_ask(ask, begun.user, known), ""):
        raise fault_of_rule(arm, begun.round, problem)
    return ask


def fault_of_rule(arm: str, number: int, problem: str) -> RunError:
    """Return the error for a method's mistake in this round."""
    return RunError(
        f"The rule of {arm!r} made a mistake in round {number}: {problem}",
        remedy=f"{_REMEDY} A run with a folder goes on after the rounds before, with --resume.",
    )


def _other_kind(what: str, value: object, kind: Any, wanted: str) -> Iterator[str]:
    if not isinstance(value, kind):
        yield f"{what} is a {type(value).__name__}; it must be a {wanted}"


def _problems_with_step(
    step: Step[Any], before: RunState, cohort: Cohort | None, known: Collection[HospitalName]
) -> Iterator[str]:
    if step.outcome not in _OUTCOMES:
        yield f"the outcome is {step.outcome!r:.80}; it must be one of {', '.join(_OUTCOMES)}"
    yield from _other_kind("`note`", step.note, str, "str")
    yield from _other_kind("`rejected`", step.rejected, Mapping, "dict")
    delta, params = step.delta, before.params
    yield from _other_kind("`delta`", delta, Tensor, "tensor")
    is_like = (delta.shape, delta.device) == (params.shape, params.device)
    is_like = is_like and delta.layout == torch.strided
    if not is_like or delta.dtype not in (torch.float32, params.dtype):  # another app's is float64
        yield (
            f"`delta` has the shape {tuple(delta.shape)} of {delta.dtype} on {delta.device}"
            f" ({delta.layout}); an update has {tuple(params.shape)} of {params.dtype} on"
            f" {params.device} ({torch.strided})"
        )
    if delta.requires_grad:
        yield "`delta` has a gradient to come; detach() it"
    if step.outcome == "done" and not is_finite(delta):
        return  # of finite updates: the round is skipped, and nothing else of it counts
    yield from _problems_with_numbers(step.weights, known, "weight", may_be_infinite=False)
    if step.outcome == "done" and cohort is not None:
        there = {cohort.own.agent, *cohort.peers} - set(step.rejected)
        if missing := sorted(there - set(step.weights)):
            yield f"there is no weight of {', '.join(missing)}, although it got their updates"
    if step.distances is not None:
        yield from _problems_with_numbers(step.distances, known, "distance", may_be_infinite=True)
    for name, reason in step.rejected.items():
        if name not in known:
            yield f"it rejects {name!r:.80}, which the round did not ask"
        yield from _other_kind(f"the reason for rejecting {name}", reason, str, "str")


def _problems_with_numbers(
    numbers: Any, known: Collection[HospitalName], what: str, *, may_be_infinite: bool
) -> Iterator[str]:
    yield from _other_kind(f"`{what}s`", numbers, Mapping, "dict by hospital")
    for name, value in numbers.items():
        if name not in known:
            yield f"there is a {what} of {name!r:.80}; the round knows {', '.join(sorted(known))}"
        elif isinstance(value, bool) or not isinstance(value, int | float):
            yield f"the {what} of {name} is a {type(value).__name__}; it must be a float"
        elif not value >= 0 or not (isfinite(value) or may_be_infinite):
            yield f"the {what} of {name} is {value}; it must be 0 or more"


def _problems_with_ask(
    ask: Ask, user: HospitalName, known: Collection[HospitalName]
) -> Iterator[str]:
    if ask.hospitals is not None:
        if not ask.hospitals:
            yield f"it asks nobody for the step {ask.step!r}"
        if unknown := sorted(set(map(str, ask.hospitals)) - set(known)):
            yield f"it asks {', '.join(map(repr, unknown))}, which the round did not want"
        if ask.expects.update and user not in ask.hospitals:
            yield f"it asks others for updates and not the user, {user}, for the comparison"
    yield from _other_kind("`to_each`", ask.to_each, Mapping, "dict by hospital")
    for payload in (ask.to_all, *ask.to_each.values()):
        if not isinstance(payload, Payload):
            yield f"it sends a {type(payload).__name__}; it must be a Payload"
        for name, tensor in payload.tensors.items():
            yield from _other_kind(f"it sends {name!r:.80}, which", tensor, Tensor, "tensor")
        for name, value in payload.values.items():
            try:
                arrives = json.loads(json.dumps(value, allow_nan=False))
            except (TypeError, ValueError) as problem:
                yield f"it sends {name!r:.80}, which is no JSON ({problem})"
                continue
            if arrives != value:  # a simulation would use the one, a deployment the other
                yield (
                    f"it sends {name!r:.80} as {value!r:.80}, and a site would get"
                    f" {arrives!r:.80}: write lists for tuples, and text for the keys of a dict"
                )


def _problems_with_state(state: Any, before: Any) -> Iterator[str]:
    """Yield what a checkpoint would change, with the remedy; `before` shows the dataclasses."""
    made_as = getattr(type(state), "__dataclass_params__", None)
    if made_as is None or not made_as.frozen:
        yield f"the state is a {type(state).__name__}; it must be a frozen dataclass"
    for place, found in _changed(state, before, "state"):
        yield f"{place} is {found}. A checkpoint brings back {_BROUGHT_BACK}"


_BROUGHT_BACK = (
    "int, float, str, bool, None, tensors that are detach().cpu().contiguous(), tuples of these,"
    f" dicts of them with str keys (not {TENSOR!r} alone), and dataclasses that stand in the first"
    " state, with all their fields in __init__. A value keeps its kind; what may be missing is None"
)


def _changed(value: Any, first: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield the places with values that would come back as others, and what they are."""
    kind = type(value)
    was_dataclass = is_dataclass(first) and not isinstance(first, type)
    if value is None and not was_dataclass:
        return
    has_changed = first is not None and kind_of(value) != kind_of(first)
    if kind is not type(first) if was_dataclass else has_changed:
        old = type(first).__name__ if was_dataclass else kind_of(first)
        yield place, f"a {kind.__name__} (a {kind_of(value)}); it was a {old}"
    elif was_dataclass and all(each.init for each in fields(value)):
        for each in fields(value):
            inner = f"{place}.{each.name}"
            yield from _changed(getattr(value, each.name), getattr(first, each.name), inner)
    elif kind is dict and value.keys() != {TENSOR} and all(type(key) is str for key in value):
        for key, item in value.items():
            yield from _changed(item, None, f"{place}[{key!r:.80}]")
    elif kind is tuple:
        for number, item in enumerate(value):
            yield from _changed(item, None, f"{place}[{number}]")
    elif kind is Tensor:  # of another order in memory, sums may round otherwise
        is_plain = value.device.type == "cpu" and value.layout == torch.strided
        if value.requires_grad or not is_plain or not value.is_contiguous():
            yield place, f"a tensor on {value.device}, {value.layout}"
    elif kind not in (bool, int, float, str):
        yield place, f"a {kind.__name__}: {value!r:.80}"


def kind_of(value: Any) -> str:
    """Return the kind of a value, as far as JSON and tensors distinguish kinds."""
    if isinstance(value, Tensor):
        return f"{value.dtype} tensor of {value.dim()} dimensions"
    if isinstance(value, bool | str):
        return type(value).__name__
    if isinstance(value, int | float):
        return "number"
    return "table" if isinstance(value, Mapping) else "list"
