"""Screens hospitals' answers: the same rules in simulation and deployment."""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from pydantic import ValidationError
from torch import Tensor

from erosion_common.aggregation.cohort import HospitalName, Update
from erosion_common.aggregation.vectors import is_finite, norm
from erosion_common.algorithms.base import (
    TRAIN,
    UPDATES,
    Ask,
    ExpectedReply,
    SiteAnswer,
    TensorSpec,
)
from erosion_common.learning.training import Training
from erosion_common.protocol.messages import LARGEST_COUNT, StepResult, TrainResult
from erosion_common.rounds.records import Answer, Rejection, RunState
from erosion_common.settings.base import first_mistake
from erosion_common.study.study import Study

NOT_FINITE = "a value that is not finite"
LARGEST_STEP = 1e3  # root mean square of an update's values, where nothing else is a measure
ITSELF = ""  # among the names of an answer's arrays: the update, or what is measured of another
OUTSIZED = 20.0  # times the others' typical norm; a peer's larger update is rejected


@dataclass(frozen=True, slots=True)
class Expected:
    """What the answers to one exchange must be."""

    arm: str
    round: int
    dim: int  # of the model's parameters
    step: str = TRAIN
    expects: ExpectedReply = UPDATES
    max_norm: float | None = None  # Euclidean, of an update; None: any finite one is accepted
    sealed: bool = False  # fresh keys come in place of the update
    dtype: torch.dtype = torch.float32  # of an update
    num_samples: int | None = None  # that the hospital described; None: not known
    most_samples: int | None = None  # that it may count for; None: as many as it has
    most_seen: int | None = None  # samples used that are believed; None: as many as it says
    most_steps: int | None = None  # steps that are believed; None: nobody is asked how many


def expected(
    study: Study,
    arm: str,
    state: RunState,
    ask: Ask,
    hospital: HospitalName,
    described: Mapping[HospitalName, int],
) -> Expected:
    """Return what a hospital must answer; `described`: the training patients of all here."""
    dim, patients = len(state.params), described[hospital]
    settings, is_user = study.arms[arm], hospital == study.user
    # With privacy its one step is over all of its patients.
    most_seen = patients
    if not study.privacy:
        most_seen = seen_cap(study.training, patients, settings.trainings)
    return Expected(
        arm,
        state.round + 1,
        dim,
        ask.step,
        reply_spec(study, arm, ask.expects, dim, by_user=is_user),
        study.federation.max_update_norm,
        sealed=ask.expects.sealed and not is_user,
        # In a trial the user trains without a fold of the patients that it described.
        num_samples=None if study.fold is not None else patients,
        most_samples=None if is_user else sample_cap(described, hospital),
        most_seen=None if is_user else most_seen,
        most_steps=steps_cap(study, patients) if settings.compares_steps else None,
    )


def reply_spec(
    study: Study, arm: str, expects: ExpectedReply, dim: int, *, by_user: bool
) -> ExpectedReply:
    """Return what an answer must bring, including what the arm's method attaches to updates."""
    if not expects.update:
        return expects
    settings = study.arms[arm]
    own = settings.own_attachments(len(study.hospitals)) if by_user else {}
    tensors = {**settings.attachment_specs(dim), **expects.tensors}
    return replace(expects, tensors=tensors, optional={**own, **expects.optional})


def screen(result: object, agent: HospitalName, expected: Expected) -> Answer:
    """Return the answer of `agent`, or why it cannot be used."""
    is_update = isinstance(result, TrainResult)
    if not isinstance(result, TrainResult | StepResult) or is_update != expected.expects.update:
        what = "an update" if expected.expects.update else "no update"
        return Rejection(
            f"a {type(result).__name__}, expected {what} for {expected.step!r}", "header"
        )
    header = result.header
    if header.hospital != agent:
        return Rejection(f"answered as {header.hospital!r}", "header")
    for what, said, asked in (
        ("arm", header.arm, expected.arm),
        ("round", header.round, expected.round),
        ("step", header.step, expected.step),
    ):
        if said != asked:
            return Rejection(f"{what} {said!r}, expected {asked!r}", "header")
    if isinstance(result, TrainResult):
        return _update(result, expected)
    return _step_answer(result, expected)


def _update(result: TrainResult, expected: Expected) -> Answer:
    header, delta = result.header, result.delta
    for count, what in (
        (header.num_samples, "samples"),
        (header.samples_seen, "samples used in the round"),
        (1 if header.steps is None else header.steps, "steps"),
    ):
        if count < 1:
            return Rejection(f"{count} {what}, expected at least 1", "counts")
    if expected.num_samples is not None and header.num_samples != expected.num_samples:
        return Rejection(
            f"{header.num_samples} samples, but it introduced itself with {expected.num_samples}",
            "counts",
        )
    if expected.sealed and header.sealed is None:
        return Rejection("no keys for a sealed round", "shape")
    dim = 0 if expected.sealed else expected.dim
    if delta.shape != (dim,):
        return Rejection(f"shape {tuple(delta.shape)}, expected ({dim},)", "shape")
    if delta.dtype != expected.dtype:
        return Rejection(f"numbers of type {delta.dtype}, expected {expected.dtype}", "shape")
    # A norm that is finite says the same, and is wanted anyway.
    if not math.isfinite(length := norm(delta)) and not is_finite(delta):
        return Rejection(NOT_FINITE, "not_finite")
    if problem := _problem_with(result.attachments, expected.expects.tensors):
        return Rejection(problem, "not_finite" if problem == NOT_FINITE else "shape")
    optional = expected.expects.optional.items()
    kept = [
        name for name, terms in optional if not _problem_with(result.attachments, {name: terms})
    ]
    steps = None
    if header.steps is not None and expected.most_steps is not None:
        steps = min(header.steps, expected.most_steps)
    limit = math.inf if expected.max_norm is None else expected.max_norm
    if not length <= limit:
        return Rejection(f"norm {length:.4g}, at most {limit:g} is accepted", "norm")
    return Update(
        agent=header.hospital,
        round=header.round,
        delta=delta,
        num_samples=min(header.num_samples, expected.most_samples or LARGEST_COUNT),
        samples_seen=min(header.samples_seen, expected.most_seen or LARGEST_COUNT),
        norm=length,
        attached_norms={
            name: norm(result.attachments[name])
            for name, terms in expected.expects.tensors.items()
            if terms.is_measured
        },
        attachments={n: result.attachments[n] for n in (*expected.expects.tensors, *kept)},
        hello=header.sealed if expected.sealed else None,
        steps=steps,
        all_samples=header.num_samples,
    )


def reject_outsized(
    answers: Mapping[HospitalName, Answer],
    user: HospitalName,
    baseline_norm: float,
    dim: int,
    longest_noise: Callable[[float, int], float] = lambda _patients, _dim: 0.0,
    factors: Mapping[HospitalName, float] = MappingProxyType({}),
) -> dict[HospitalName, Answer]:
    """Return the answers of an exchange, less those of peers that are out of all proportion.

    Updates are measured, and those tensors of attachments and other answers with terms that say so,
    each array for itself. What is usual is the median norm of what the *others* sent, so that no
    site sets its own measure. With fewer than three others, or where most sent zeros, it says
    little: then `baseline_norm`, the model's own norm or what the method says, counts, too, and
    without that a root mean square of LARGEST_STEP. Beyond it an update may be as long as its
    hospital's noise (`longest_noise` of its patients and `dim`). `factors`: by how much the method
    lengthens an update.
    """
    measured = {
        n: _norms(a, factors.get(n, 1.0))
        for n, a in answers.items()
        if isinstance(a, Update | SiteAnswer)
    }
    screened = dict(answers)
    for array in sorted({array for norms in measured.values() for array in norms}):
        lengths = {n: norms[array] for n, norms in measured.items() if array in norms}
        ordered = sorted(lengths.values())
        for name, length in lengths.items():
            if name == user or isinstance(screened[name], Rejection):
                continue
            baseline, num_others = _median_without(ordered, length), len(lengths) - 1
            if num_others < 3 or not baseline:
                baseline = max(baseline, baseline_norm)
            limit = OUTSIZED * baseline or LARGEST_STEP * math.sqrt(dim)
            answer = answers[name]
            if length > limit and isinstance(answer, Update) and array == ITSELF:
                limit += longest_noise(answer.samples_seen, dim)
            if length > limit:
                what = f"norm {length:.4g}" + (f" of {array!r}" if array != ITSELF else "")
                if array == ITSELF and factors.get(name, 1.0) != 1:
                    what += " as of the user's number of steps"
                screened[name] = Rejection(
                    f"{what}, more than {OUTSIZED:g} times what is usual ({baseline:.4g})"
                    if baseline
                    else f"{what}, at most {limit:.4g} is accepted where others send none or zeros",
                    "norm",
                )
    return screened


def _norms(answer: Update | SiteAnswer, factor: float) -> dict[str, float]:
    """Return the norms of the measured arrays, an update's own times `factor`."""
    own = {} if answer.norm is None else {ITSELF: factor * answer.norm}
    return {**own, **answer.attached_norms} if isinstance(answer, Update) else own


def _median_without(ordered: Sequence[float], value: float) -> float:
    if len(ordered) == 1:
        return 0.0
    place = bisect_left(ordered, value)

    def rest(index: int) -> float:
        return ordered[index if index < place else index + 1]

    middle, is_odd = divmod(len(ordered) - 1, 2)
    return rest(middle) if is_odd else (rest(middle - 1) + rest(middle)) / 2


def sample_cap(described: Mapping[HospitalName, int], name: HospitalName) -> int:
    """Return the samples that a peer may count for: at most those of all others together."""
    return max(1, sum(described.values()) - described.get(name, 0))


def seen_cap(training: Training, num_samples: int, times: int) -> int:
    """Return the most samples used that are believed: counts are rounded, and halves trained on."""
    batch = min(training.batch_size, num_samples)
    return max(1, 4 * times * training.steps_with(num_samples) * batch)


def steps_cap(study: Study, num_samples: int) -> int | None:
    """Return the most steps that are believed, likewise; None where a hospital is not asked."""
    return 2 * study.training.steps_with(2 * num_samples) if study.reports_steps else None


def _step_answer(result: StepResult, expected: Expected) -> Answer:
    if problem := _problem_with(result.tensors, expected.expects.tensors):
        return Rejection(problem, "not_finite" if problem == NOT_FINITE else "shape")
    values = None
    if (form := expected.expects.values) is not None:
        try:
            values = form.model_validate(result.header.values)
        except ValidationError as mismatch:
            return Rejection(f"wrong values: {first_mistake(mismatch, 'form')}", "shape")
    tensors = {name: result.tensors[name] for name in expected.expects.tensors}
    measured = [name for name, terms in expected.expects.tensors.items() if terms.is_measured]
    length = math.hypot(*(norm(tensors[name].flatten()) for name in measured))
    return SiteAnswer(tensors, values, length if measured else None)


def _problem_with(tensors: Mapping[str, Tensor], terms: Mapping[str, TensorSpec]) -> str | None:
    for name, wanted in terms.items():
        if name not in tensors:
            return f"without the attachment {name!r}"
        tensor = tensors[name]
        shape = tuple(tensor.shape)
        if len(shape) != len(wanted.shape) or any(
            length not in (None, found) for length, found in zip(wanted.shape, shape, strict=True)
        ):
            return f"{name!r} of shape {shape}, expected {_in_words(wanted)}"
        if None in wanted.shape and tensor.numel() > wanted.most_values:
            return f"{name!r} of {tensor.numel()} values, at most {wanted.most_values} are accepted"
        if tensor.dtype != wanted.dtype:
            return f"{name!r} of type {tensor.dtype}, expected {wanted.dtype}"
        if tensor.dtype.is_floating_point and not is_finite(tensor.flatten()):
            return NOT_FINITE
    return None


def _in_words(terms: TensorSpec) -> str:
    lengths = ["any" if length is None else str(length) for length in terms.shape]
    return f"({', '.join(lengths)}{',' if len(lengths) == 1 else ''})"
