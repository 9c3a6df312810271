"""What a hospital's step of a method gives back, checked before any of it leaves or is kept."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from erosion.common.algorithms.base import TRAIN, SiteStep
from erosion.common.errors import Refusal
from erosion.common.learning.local_work import LocalAnswer, LocalOutcome, LocalWork


def taken(step: SiteStep, work: LocalWork, method: str) -> LocalOutcome | LocalAnswer:
    """What the method's step makes of the work. Raises Refusal, without a patient's value.

    Values that are not finite are the coordinator's to judge: it tells from them that a round has
    done harm.
    """
    before = _versions(work)
    outcome = step(work)
    if problem := next(_problems(outcome, work), "") or _changed(work, before):
        raise Refusal(
            f"The method {method} made a mistake in the step {work.step!r} of round {work.round}:"
            f" {problem}. Correct its class (docs/extending.md, A method)."
        )
    return outcome


def _versions(work: LocalWork) -> dict[str, int]:
    """How often each tensor of the work was changed in place.

    In a simulation hospitals share the received ones, and patients are the same in every round.
    """
    given = {
        "received": work.received,
        "inputs": work.inputs,
        "targets": work.targets,
        **{f"kept[{name!r}]": tensor for name, tensor in work.kept.items()},
        **{f"enclosed[{name!r}]": tensor for name, tensor in work.enclosed.items()},
    }
    return {n: t._version for n, t in given.items() if not t.is_inference()}  # noqa: SLF001


def _changed(work: LocalWork, before: Mapping[str, int]) -> str:
    if changed := [name for name, now in _versions(work).items() if now != before.get(name)]:
        return f"it changed work.{changed[0]} in place; let it work on a clone()"
    return ""


def _problems(outcome: Any, work: LocalWork) -> Iterator[str]:
    if isinstance(outcome, LocalOutcome):
        yield from _problems_with_update(outcome, len(work.received))
        yield from _problems_with_tensors("attachments", outcome.attachments)
    elif isinstance(outcome, LocalAnswer) and work.step != TRAIN:
        yield from _problems_with_tensors("tensors", outcome.tensors)
        try:
            json.dumps(dict(outcome.values), allow_nan=False)
        except (TypeError, ValueError) as problem:
            yield f"`values` is no JSON ({type(problem).__name__})"
    else:
        wanted = "LocalOutcome" if work.step == TRAIN else "LocalOutcome or LocalAnswer"
        yield f"it gave back a {type(outcome).__name__}, no {wanted}"
        return
    yield from _problems_with_tensors("keep", outcome.keep)


def _problems_with_update(outcome: LocalOutcome, dim: int) -> Iterator[str]:
    delta = outcome.delta
    if not isinstance(delta, Tensor):
        yield f"`delta` is a {type(delta).__name__}; it must be a tensor"
    elif delta.shape != (dim,) or delta.dtype != torch.float32:
        yield (
            f"`delta` has the shape {tuple(delta.shape)} of {delta.dtype}; it must have ({dim},) of"
            " torch.float32"
        )
    elif delta.requires_grad:
        yield "`delta` has a gradient to come; detach() it"
    for name, count in (("samples_seen", outcome.samples_seen), ("steps", outcome.steps)):
        if count is None and name == "steps":
            continue
        if isinstance(count, bool) or not isinstance(count, int):
            yield f"`{name}` is a {type(count).__name__}; it must be an int"
        elif count < 1:
            yield f"`{name}` is {count}; it must be 1 or more"


def _problems_with_tensors(what: str, tensors: Any) -> Iterator[str]:
    if not isinstance(tensors, Mapping):
        yield f"`{what}` is a {type(tensors).__name__}; it must be a dict of tensors"
        return
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            yield f"a name in `{what}` is a {type(name).__name__}; it must be a str"
        elif not isinstance(tensor, Tensor):
            yield f"{name!r:.80} of `{what}` is a {type(tensor).__name__}; it must be a tensor"
        elif tensor.requires_grad:
            yield f"{name!r:.80} of `{what}` has a gradient to come; detach() it"
