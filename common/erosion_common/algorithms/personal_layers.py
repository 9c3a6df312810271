"""Parameters that a hospital keeps and never sends: a declared split of the model.

An option of every method. Before a hospital's part of a round its own values take the place of the
received ones; afterwards they stay at the hospital, and their entries of the update are zero. So
they neither travel nor count in a distance. The methods of the literature that are FedAvg with a
certain split are at the end.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from erosion_common.algorithms.base import (
    NORMALISATION,
    OUTPUT_BIAS,
    OUTPUT_LAYER,
    REPRESENTATION,
    TRAIN,
    ArmBase,
    Layout,
)
from erosion_common.algorithms.fedavg import Averaging
from erosion_common.errors import Refusal
from erosion_common.learning.batch_statistics import with_statistics
from erosion_common.learning.local_work import LocalAnswer, LocalOutcome, LocalWork
from erosion_common.settings.names import LARGEST_COUNT

T = TypeVar("T")
_REMEDY = "Correct its class (docs/extending.md, A method)."


def _made(
    make: Callable[[LocalWork], T],
    work: LocalWork,
    arm: ArmBase,
    problems: Callable[[Any, LocalWork], Iterator[str]],
    where: str = "",
) -> T:
    """Return what the method makes of the work. Raises Refusal, without a patient's value.

    Values that are not finite are the coordinator's to judge: they show it that a round diverged.
    """
    if _is_of_package(arm):  # what it does to the model would change the arms after it
        work = replace(work, model=deepcopy(work.model))
    before = _marks(work, arm)
    made = make(work)
    after = _marks(work, arm)
    changed = (
        f"it changed work.{name} in place; let it work on a clone()"
        for name in before
        if after[name] != before[name]
    )
    if problem := next(chain(problems(made, work), changed), ""):
        raise Refusal(
            f"The method {arm.algorithm} made a mistake{where}: {problem}", remedy=_REMEDY
        )
    return made


def _marks(work: LocalWork, arm: ArmBase) -> dict[str, object]:
    """Return for each tensor of the work what differs once that was changed in place.

    In a simulation hospitals share the received ones, and patients are the same in every round and
    arm. Torch does not count changes by way of NumPy, so for a package's method content is hashed.
    """
    given = {
        "received": work.received,
        "inputs": work.inputs,
        "targets": work.targets,
        **{f"kept[{name!r}]": tensor for name, tensor in work.kept.items()},
        **{f"enclosed[{name!r}]": tensor for name, tensor in work.enclosed.items()},
    }
    mark = _hash_of if _is_of_package(arm) else _count_of
    return {name: mark(tensor) for name, tensor in given.items()}


def _is_of_package(arm: ArmBase) -> bool:
    return hasattr(arm, "sha256")


def _count_of(tensor: Tensor) -> object:
    return None if tensor.is_inference() else tensor._version  # noqa: SLF001


def _hash_of(tensor: Tensor) -> object:
    if not tensor.is_cpu:
        return _count_of(tensor)
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().data).hexdigest()


def _problems(outcome: Any, work: LocalWork) -> Iterator[str]:
    if isinstance(outcome, LocalOutcome):
        delta, dim = outcome.delta, len(work.received)
        if not isinstance(delta, Tensor):
            yield f"`delta` is a {type(delta).__name__}; it must be a tensor"
        if delta.shape != (dim,) or delta.dtype != torch.float32 or delta.requires_grad:
            yield (
                f"`delta` has the shape {tuple(delta.shape)} of {delta.dtype}; it must have"
                f" ({dim},) of torch.float32, and no gradient to come (detach)"
            )
        steps = () if outcome.steps is None else (("steps", outcome.steps),)
        for name, count in (("samples_seen", outcome.samples_seen), *steps):
            if type(count) is not int or not 1 <= count <= LARGEST_COUNT:
                yield f"`{name}` is {count!r:.80}; it must be an int from 1 to {LARGEST_COUNT}"
        tensors = {"attachments": outcome.attachments}
    elif isinstance(outcome, LocalAnswer) and work.step != TRAIN:
        tensors = {"tensors": outcome.tensors}
        try:
            json.dumps(dict(outcome.values), allow_nan=False)
        except (TypeError, ValueError) as problem:
            yield f"`values` is no JSON ({type(problem).__name__})"
    else:
        wanted = "LocalOutcome" if work.step == TRAIN else "LocalOutcome or LocalAnswer"
        yield f"it gave back a {type(outcome).__name__}, no {wanted}"
    for what, found in {**tensors, "keep": outcome.keep}.items():
        if not isinstance(found, Mapping):
            yield f"`{what}` is a {type(found).__name__}; it must be a dict of tensors"
        for name, tensor in found.items():
            if not isinstance(name, str) or not isinstance(tensor, Tensor) or tensor.requires_grad:
                kinds = f"a {type(name).__name__} with a {type(tensor).__name__}"
                yield f"{name!r:.80} of `{what}` is {kinds}; write a str, and detach() the tensor"


_KEPT = "own_parameters"


def take_step(
    arm: ArmBase, work: LocalWork, layout: Callable[[], Layout]
) -> LocalOutcome | LocalAnswer:
    """Return the step that the work asks for, with the parameters that are the hospital's own.

    Raises Refusal where the method gives back what cannot be used.
    """
    where = f" in the step {work.step!r} of round {work.round}"
    step = partial(_made, arm.site_steps()[work.step], arm=arm, problems=_problems, where=where)
    if not arm.own_parameters:
        return step(work)
    if not len(work.received):  # a step that does without parameters
        outcome = step(work)
        own_values = {name: work.kept[name] for name in (_KEPT,) if name in work.kept}
        return replace(outcome, keep={**outcome.keep, **own_values})
    work, own = _with_own_values(arm, work, layout())
    outcome = step(work)
    if isinstance(outcome, LocalAnswer):
        return replace(outcome, keep={**outcome.keep, _KEPT: work.received[own]})
    after = work.received + outcome.delta
    return replace(
        outcome, delta=outcome.delta.masked_fill(own, 0.0), keep={**outcome.keep, _KEPT: after[own]}
    )


def personal_parameters(arm: ArmBase, work: LocalWork, layout: Callable[[], Layout]) -> Tensor:
    """Return the hospital's model for predictions: (dim,), or (m, dim) for a mean over m models.

    Raises Refusal where the method gives back what is none.
    """
    if arm.own_parameters:
        work, _ = _with_own_values(arm, work, layout())
    return _made(arm.personal, work, arm, _problems_with_personal)


def _problems_with_personal(found: Any, work: LocalWork) -> Iterator[str]:
    what, dim = f"a {type(found).__name__}", len(work.received)
    if isinstance(found, Tensor):
        what = f"{found.dtype} {tuple(found.shape)}"
        is_shaped = found.dim() in (1, 2) and found.shape[-1] == dim and found.numel() > 0
        if is_shaped and found.dtype == torch.float32 and not found.requires_grad:
            return
    yield (
        f"`personal` gave back {what}; it must be ({dim},) or (m, {dim}) of torch.float32, and no"
        " gradient to come (detach)"
    )


def own_places(names: Sequence[str], layout: Layout) -> Tensor:
    """Return which parameters stay at a hospital: (dim,) bool."""
    own = torch.zeros(max(place.stop for place in layout.values()), dtype=torch.bool)
    for name in names:
        for parameter in _matching(name, layout):
            own[layout[parameter]] = True
    return own


def problem_with_own(names: Sequence[str], layout: Callable[[], Layout]) -> str | None:
    """Return why the model has no such parameters, or None."""
    if not names:
        return None
    known = layout()
    last = list(known)[-1]
    for name in names:
        if name in _BY_THE_HEAD and not last.endswith("bias"):
            return (
                f"own_parameters names {name!r}, and the model's last parameter is {last!r}, which"
                " is no bias; write names or patterns of its parameters"
            )
        if not _matching(name, known):
            return (
                f"own_parameters names {name!r}; the model has {', '.join(known)}. Write names or"
                f" patterns of those, or {', '.join(map(repr, _BY_THE_HEAD))}; {NORMALISATION!r}"
                ' is for a model with normalisation = "site"'
            )
    if all(any(parameter in _matching(name, known) for name in names) for parameter in known):
        return "own_parameters names every parameter of the model, so nothing is left to share"
    return None


_BY_THE_HEAD = (OUTPUT_BIAS, OUTPUT_LAYER, REPRESENTATION)


def problem_with_statistics(arm: ArmBase, layout: Layout) -> str | None:
    """Return why the arm cannot train a model's statistics that each site gathers, or None."""
    gathered = with_statistics(layout)
    if not gathered:
        return None
    if arm.takes_own_steps:
        return (
            f"{arm.algorithm} trains by steps that move no statistics of a normalisation; take"
            ' another model.normalisation than "site"'
        )
    kept = own_places(arm.own_parameters, layout)
    if arm.user_only or all(bool(kept[layout[name]].all()) for name in gathered):
        return None
    return (
        f"the statistics of {gathered[0].rpartition('.')[0]} and others are of one site's patients,"
        f" and their average is nobody's: keep them, by own_parameters = [{NORMALISATION!r}]"
    )


def _matching(name: str, layout: Layout) -> list[str]:
    output_bias = list(layout)[-1]  # our models end with the bias of their output layer
    if name == OUTPUT_BIAS:
        return [output_bias]
    if name in (OUTPUT_LAYER, REPRESENTATION):
        layer = output_bias.removesuffix("bias")
        is_head = name == OUTPUT_LAYER
        return [parameter for parameter in layout if parameter.startswith(layer) == is_head]
    if name == NORMALISATION:
        return with_statistics(layout)
    return [parameter for parameter in layout if fnmatchcase(parameter, name)]


def _with_own_values(arm: ArmBase, work: LocalWork, layout: Layout) -> tuple[LocalWork, Tensor]:
    """Return the work with the hospital's own values put in, and where: (dim,) bool."""
    own = own_places(arm.own_parameters, layout).to(work.received.device)
    received = work.received.clone()
    if _KEPT in work.kept:
        received[own] = work.kept[_KEPT]
    else:
        last = list(layout)[-1]
        place = layout[last]
        is_disclosed = work.privacy is not None and not work.is_user  # by the next noised update
        is_bias = last.endswith("bias") and place.stop - place.start == work.task.num_outputs
        if is_bias and bool(own[place].all()) and not is_disclosed:
            received[place] = work.task.base_rate_outputs(work.targets)
    return replace(work, received=received, own=own), own


class _SharedPart(Averaging):
    """Shared by FedAvg's variants with some of the model's layers at the hospitals."""

    def problem_with_model(self, layout: Callable[[], Layout]) -> str | None:
        """Refuse a model without those layers, or with no others."""
        if not self.own_parameters:
            return f"{self.algorithm} needs own_parameters; take fedavg to share the whole model"
        return problem_with_own(self.own_parameters, layout)


class FedPer(_SharedPart):
    """FedAvg in which every hospital keeps the last layers, the head.

    The head is trained with everything else, and never sent; the user predicts with the common
    layers and its own head. Use it where hospitals agree on what matters in a patient and not on
    what follows from it.
    Source: Arivazhagan et al., Federated Learning with Personalization Layers, 2019.
    """

    algorithm: Literal["fedper"] = "fedper"
    own_parameters: tuple[str, ...] = Field(default=(OUTPUT_LAYER,), description="The head.")


class LgFedAvg(_SharedPart):
    """FedAvg of the last layers alone: every hospital has its own layers below them.

    Everything is trained, and only the head is sent and averaged. Use it where hospitals measure
    the same thing differently (scanners, units), with enough patients for most of a network.
    Source: Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global
    Representations, 2020, without its optional losses on representations.
    """

    algorithm: Literal["lg_fedavg"] = "lg_fedavg"
    own_parameters: tuple[str, ...] = Field(
        default=(REPRESENTATION,), description="All but the head."
    )


class FedBn(_SharedPart):
    """FedAvg in which every hospital keeps its batch normalisation: scales and statistics.

    It takes a model with `normalisation = "site"`. Each site's layers are normalised by its own
    patients, in training and in prediction, and the others' statistics are never seen. Use it where
    the inputs differ, such as images of several scanners.
    Source: Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization,
    2021.
    """

    algorithm: Literal["fedbn"] = "fedbn"
    own_parameters: tuple[str, ...] = Field(
        default=(NORMALISATION,), description="The normalisation, and what else is kept."
    )


class FedRep(_SharedPart):
    """FedPer in two turns: first the head is fitted to the common layers, then they are trained.

    In each round a hospital trains its head `head_trainings` times as long as a local training, the
    common layers held, and then these for one, the head held. The user predicts with its head
    fitted to the last common layers. Use it where FedPer's heads lag behind.
    Source: Collins et al., Exploiting Shared Representations for Personalized Federated Learning,
    2021, Algorithm 1.
    """

    private_updates: ClassVar[bool] = False  # heads are fitted without noise

    algorithm: Literal["fedrep"] = "fedrep"
    own_parameters: tuple[str, ...] = Field(default=(OUTPUT_LAYER,), description="The head.")
    head_trainings: int = Field(
        default=1, ge=1, le=1000, description="Local trainings of the head in a round."
    )

    def train(self, work: LocalWork) -> LocalOutcome:
        start = self.personal(work)
        if work.own is None:
            return super().train(work)
        result = work.sgd_of(start, ~work.own)
        return LocalOutcome(start + result.delta - work.received, result.samples_seen)

    def personal(self, work: LocalWork) -> Tensor:
        found = work.received
        if work.own is not None:
            for number in range(self.head_trainings):
                drawn = replace(work, step=f"head {number}")  # each with its own order of patients
                found = found + drawn.sgd_of(found, work.own).delta
        return found
