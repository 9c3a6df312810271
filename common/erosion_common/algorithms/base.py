"""The interface of a method: the coordinator's part, pure, and the hospital's named steps.

Most methods ask once a round: every hospital trains, and a pure function of the state and of the
round's cohort gives the step. Such a method is an `Algorithm` with `init` and `update`, and
`ArmBase.train` is its hospital's part; see `fedavg`.

A method with several exchanges in a round describes them as a generator, `Algorithm.exchanges`:

    def exchanges(state, begun):                       # begun: RoundStart
        wanted = ExpectedReply(tensors={"gradient": TensorSpec((dim,))})
        found = yield Ask("gradient", expects=wanted)
        mean = torch.stack([a.tensors["gradient"] for a in found.replies.values()]).mean(dim=0)
        trained = yield Ask("train", Payload(tensors={"mean": mean}), expects=UPDATES)
        return update(state, trained.cohort)           # a Step

and the hospital's part as named steps, `ArmBase.site_steps`. What is sent into the generator has
been screened against what the `Ask` said that it brings. A round ends as skipped, and the generator
is closed, where an answer of the user's that was asked for is missing, or too few others answer. So
the state changes by the returned `Step` alone, and a round that was interrupted is done again from
its beginning.

A hospital may train from elsewhere than the parameters that the round sends: from a model that it
keeps, or that its own payload brings (`Algorithm.broadcast_to_peer`). Its update is measured from
the round's parameters all the same: where it ended minus what it received. So updates are screened,
compared and averaged as the models that they lead to.
"""

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from erosion_common.aggregation.cohort import Cohort, HospitalName
from erosion_common.learning.local_work import (
    LocalAnswer,
    LocalOutcome,
    LocalWork,
    Tensors,
    WorkSize,
)
from erosion_common.learning.training import Training
from erosion_common.settings.base import Settings
from erosion_common.tasks.task import Task

State = TypeVar("State")


@dataclass(frozen=True, slots=True, eq=False)
class Step(Generic[State]):
    """What an algorithm makes of one cohort."""

    delta: Tensor  # (dim,) what the user's parameters move by
    weights: Mapping[HospitalName, float]  # see `relative_weights`
    state: State
    outcome: Literal["done", "skipped", "stopped"] = "done"
    note: str = ""  # why the round was skipped or the run stopped, or what to know of it
    distances: Mapping[HospitalName, float] | None = None  # None: those that the cohort gives
    rejected: Mapping[HospitalName, str] = field(default_factory=dict)  # and why


@dataclass(frozen=True, slots=True)
class NoState:
    """What a rule remembers that goes by each round's cohort alone."""


def no_state(_dim: int) -> NoState:
    """Return the `init` of such a rule."""
    return NoState()


def relative_weights(cohort: Cohort, shares: Sequence[float]) -> dict[HospitalName, float]:
    """Return shares in the aggregate, own first, as the weights of a `Step`.

    They are relative to the user's own, which is 1. A rule may leave the user's own update out
    (Krum); then the user's weight is 0 and the others' are relative to the largest.
    """
    unit = shares[0] or max(shares)
    return {u.agent: share / unit for u, share in zip(cohort.updates, shares, strict=True)}


def asks_everyone(_state: Any, _agent: HospitalName) -> bool:
    """Return True: every update is wanted."""
    return True


def forgets_nothing(state: Any, _agent: HospitalName) -> Any:
    """Return the state: it holds nothing of a hospital's."""
    return state


def broadcasts_nothing(_state: Any) -> Tensors:
    """Return nothing: the parameters suffice."""
    return {}


# Parts of the model by any name in it: the last bias and its layer (the head), all but the head,
OUTPUT_BIAS, OUTPUT_LAYER, REPRESENTATION = "output_bias", "output_layer", "representation"
NORMALISATION = "normalisation"  # and the layers with statistics that a site gathers
# why a sealed sum is of updates that start from the same
STANDS_OUT = (
    "through what a hospital keeps, a coordinator could make its update stand out in the sum"
)
TRAIN = "train"  # the step of every method that asks once
MOST_EXCHANGES = 32  # of a round, which sites answer


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What one tensor of a reply must be; floating-point values must also be finite."""

    shape: tuple[int | None, ...]  # None: any length
    dtype: torch.dtype = torch.float32  # or uint8, uint32, int64
    most_values: int = 2**24  # where a length is left open
    is_measured: bool = (
        False  # rejected where it is out of all proportion to the others', as updates
    )


@dataclass(frozen=True, slots=True)
class ExpectedReply:
    """What an answer must bring. Anything else in it is dropped."""

    update: bool = False  # the hospital's update; also what `attachment_sizes` announces
    sealed: bool = False  # fresh keys in place of the update, except the user's
    tensors: Mapping[str, TensorSpec] = field(default_factory=dict)
    optional: Mapping[str, TensorSpec] = field(default_factory=dict)  # of an update; else dropped
    values: type[Settings] | None = None  # the form of its small values; None: it has none


UPDATES = ExpectedReply(update=True)


@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """What a hospital gets with a request."""

    tensors: Tensors = field(default_factory=dict)
    # `enclosed` of its work; in the step `train`, numbers come in rows of the model's length
    values: Mapping[str, Any] = field(default_factory=dict)  # small, as JSON; `values` of its work


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """One exchange of a round: a step that hospitals take, and what their answers must bring."""

    step: str = TRAIN
    to_all: Payload = Payload()
    to_each: Mapping[HospitalName, Payload] = field(default_factory=dict)  # in addition to `to_all`
    expects: ExpectedReply = UPDATES
    hospitals: Sequence[HospitalName] | None = None
    # None: all that the round wants and that answered every question of it so far
    sends_parameters: bool = True  # those that the round starts from travel along; False: none do
    any_number: bool = False  # the method accepts any number of answers
    as_it_comes: "Callable[[HospitalName, SiteAnswer], SiteAnswer] | None" = None
    # what is kept of each screened answer until the others are there; None: all of it
    baseline: float | None = None
    # Euclidean, of what is measured of an answer, where others show little; None: the model's norm


@dataclass(frozen=True, slots=True, eq=False)
class SiteAnswer:
    """What one hospital answered to a step that brings no update."""

    tensors: Tensors
    values: Any = None  # of the type that `ExpectedReply.values` names
    norm: float | None = None  # Euclidean, of what is measured of its tensors; None: nothing is


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """The screened answers to one `Ask`."""

    replies: Mapping[HospitalName, SiteAnswer]  # in the study's order; empty for updates
    missing: Mapping[HospitalName, str]  # asked, and why there is nothing to use
    updates: Cohort | None = None

    @property
    def cohort(self) -> Cohort:
        """The updates of an `Ask` that wanted them."""
        if self.updates is None:
            raise TypeError("this exchange brought no updates")
        return self.updates


@dataclass(frozen=True, slots=True, eq=False)
class RoundStart:
    """What a method may know when its round begins."""

    round: int  # from 1
    user: HospitalName
    hospitals: tuple[HospitalName, ...]  # wanted and connected, in the study's order
    parameters: Tensor  # (dim,)


Exchanges = Generator[Ask, Answers, Step[State]]


@dataclass(frozen=True, slots=True)
class Algorithm(Generic[State]):
    """The coordinator's part. `State` is a frozen dataclass of numbers, strings, tensors, maps."""

    init: Callable[[int], State]  # dim -> complete state
    update: Callable[[State, Cohort], Step[State]]
    asks: Callable[[State, HospitalName], bool] = asks_everyone  # the user is always
    broadcast: Callable[[State], Tensors] = broadcasts_nothing  # what everyone gets with parameters
    broadcast_to_user: Callable[[State], Tensors] = broadcasts_nothing  # and what the user gets too
    broadcast_to_peer: Callable[[State, HospitalName], Tensors] | None = None  # and each other one
    exchanges: Callable[[State, RoundStart], Exchanges[State]] | None = None
    # None: one exchange, in which everyone trains, and `update` gives the step
    forget: Callable[[State, HospitalName], State] = forgets_nothing
    # the state less what a hospital sent that is not asked any more, as far as others would get it

    def begin(self, state: State, begun: RoundStart) -> Exchanges[State]:
        """Return the exchanges of one round."""
        if self.exchanges is not None:
            return (yield from self.exchanges(state, begun))
        for_user = self.broadcast_to_user(state)
        to_each = {begun.user: Payload(for_user)} if for_user else {}
        if self.broadcast_to_peer is not None:
            peers = [name for name in begun.hospitals if name != begun.user]
            to_each |= {name: Payload(self.broadcast_to_peer(state, name)) for name in peers}
        trained = yield Ask(TRAIN, Payload(self.broadcast(state)), to_each)
        return self.update(state, trained.cohort)


# A step's answer leaves the hospital, except for what it says to keep.
SiteStep = Callable[[LocalWork], LocalOutcome | LocalAnswer]
Layout = Mapping[str, slice]  # parameter name -> its place in the flat vector, in model order


def _equally_many(_num_samples: int) -> int:
    return 1


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What an algorithm may know of its study before the first round."""

    rounds: int  # of the whole run
    num_hospitals: int  # that the study names, the user's included
    layout: Callable[[], Layout]  # a call, because few ask and a large model takes seconds
    steps: Callable[[int], int] = _equally_many  # of a round, by the number of training patients
    noise_deviation: Callable[[float], float] | None = None
    # of each parameter of a peer's update, by its number of patients; None: updates have no noise


class ArmBase(Settings):
    """The parameters of one algorithm, as an arm of a study file gives them.

    `build` is the coordinator's part, a pure function of the hospitals' answers. `site_steps` and
    `personal` are the hospital's part: pure functions of its work. Most methods have the one step
    `train`, which many leave as it is here.
    """

    user_only: ClassVar[bool] = False  # asks the other hospitals for nothing
    # The next two are promises: a subclass that breaks one that it inherits says False.
    sums_only: ClassVar[bool] = False
    # asks of a cohort no more than distances and one sum, which is what sealed rounds give, and its
    # peers send nothing that depends on what they keep
    private_updates: ClassVar[bool] = False
    # what its peers send and keep depends on their patients through `LocalWork.update` alone
    leaves_user_out: ClassVar[bool] = False
    # takes its steps by `average`, and keeps nothing else of the user's own update
    takes_own_steps: ClassVar[bool] = False
    # trains by gradients alone, which do not move the statistics that a site gathers
    is_of_plain_sgd: ClassVar[bool] = False
    # defined for the steps of SGD without momentum
    compares_steps: ClassVar[bool] = False
    # compares updates as of equally many steps, which hospitals then report
    measured_attachments: ClassVar[tuple[str, ...]] = ()
    # what others train on as it comes; what the method bounds itself is not among them
    sends_gradients: ClassVar[bool] = False
    # exact ones, of all patients at once: a site lets them leave, or does not take part
    ends_by_itself: ClassVar[bool] = False
    # once it has converged: `[selection]` does not choose its number of rounds
    discloses: ClassVar[str] = ""  # by attachments, in words for a site that reviews the study

    algorithm: str = Field(description="The method. Left out: the arm's name.")
    own_parameters: tuple[str, ...] = Field(
        default=(),
        description="Names of parameters that every hospital keeps to itself, such as "
        '`"*.bias"`; see [algorithms](algorithms.md).',
    )
    finish: Literal["none", "evidence"] = Field(
        default="none",
        description="A last step at the user's site, which sends nothing to other hospitals "
        "for it, but, with `[validation]`, the model. "
        "`\"evidence\"`: the others' model, made without adding the user's updates, is an offset "
        "of a ridge regression of the user's training patients.",
    )

    @classmethod
    def expanded(cls, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an arm's settings with a preset among them spelled out."""
        return settings

    @abstractmethod
    def build(self, context: BuildContext) -> Algorithm[Any]:
        """Return the algorithm with these parameters."""

    def site_steps(self) -> Mapping[str, SiteStep]:
        """Return the steps that a round may ask of a hospital, by the name in an `Ask`.

        The names do not depend on the parameters.
        """
        return {TRAIN: self.train}

    def times_asked(self, step: str, layout: Callable[[], Layout]) -> int:
        """Return how often a round asks a hospital for that step; sites answer it no more often."""
        return 1

    def train(self, work: LocalWork) -> LocalOutcome:
        """Train at a hospital in a round: by default the study's local training."""
        result = work.update(work.received)
        steps = result.steps if self.compares_steps else None
        return LocalOutcome(result.delta, result.samples_seen, steps=steps)

    def average(self, cohort: Cohort, shares: Tensor) -> Tensor:
        """Return the average by these shares (n+1,), own first; a finish leaves the user's out.

        What is left out is not shared out to others: the user's share shortens the step.
        """
        parts = shares / shares.sum()
        if self.finish != "none":
            parts[0] = 0.0
        return cohort.weighted_sum(parts)

    def equal_steps(self, context: BuildContext) -> Callable[[int], int] | None:
        """Return the approximate steps by samples, where updates are used as of equally many.

        None: they are used as they come.
        """
        return None

    def personal(self, work: LocalWork) -> Tensor:
        """Return the hospital's model for predictions, without the training of this round.

        (dim,), or (m, dim) for a mean over m models' predictions.
        """
        return work.received

    def standard_errors(self, work: LocalWork) -> Tensor | None:
        """Return those of the final parameters (dim,), as the user's site knows them, or None.

        With two classes the difference of two parameters' is that of their difference.
        """
        return None

    @property
    def trainings(self) -> int:
        """Return the length of a round's training, in local trainings of the study."""
        return 1

    def local_trainings(self, whole: WorkSize) -> tuple[WorkSize, ...]:
        """Return all that a hospital trains for it in a round, and the user afterwards.

        `whole` is the study's local training on all patients. A site refuses a study with an arm
        that has a training here beyond its limits.
        """
        return (whole,)

    def attachment_sizes(self, dim: int) -> Mapping[str, int]:
        """Return attachments that every update must bring, and how many numbers each holds."""
        return {}

    def attachment_specs(self, dim: int) -> Mapping[str, TensorSpec]:
        """Return their shapes and types."""
        return {
            name: TensorSpec((size,), is_measured=name in self.measured_attachments)
            for name, size in self.attachment_sizes(dim).items()
        }

    def own_attachments(self, num_hospitals: int) -> Mapping[str, TensorSpec]:
        """Return the attachments that the user's own update may bring."""
        return {}

    def problem_with_sealing(self) -> str | None:
        """Return what makes this algorithm impossible on sealed rounds, or None."""
        if set(self.site_steps()) != {TRAIN}:
            return "it asks for more than updates, which would leave in the clear"
        if self.finish != "none":
            return f'finish = "{self.finish}" needs a sum without the user\'s own update'
        if set(self.own_parameters) - {OUTPUT_BIAS}:
            return f"own_parameters may be {OUTPUT_BIAS!r} alone, because {STANDS_OUT}"
        return None if self.sums_only else "it needs single updates, which nobody sees there"

    def problem_with_sealed_training(self, training: Training) -> str | None:
        """Return what makes the local training impossible for it on sealed rounds, or None."""
        return None

    def problem_with_privacy(self) -> str | None:
        """Return what makes this algorithm impossible with differential privacy, or None."""
        if self.user_only or (self.private_updates and set(self.site_steps()) == {TRAIN}):
            return None
        return "its hospitals send or train on more than noised updates, which shows patients"

    def problem_with_finish(self) -> str | None:
        """Return why no finish can follow this algorithm, or None."""
        if self.finish == "none":
            return None
        if not self.leaves_user_out:
            return (
                f'finish = "{self.finish}" needs a model without the user\'s updates, which'
                f" {self.algorithm} does not make; take weight_erosion, evidence_erosion, fedavg,"
                " fedprox or personal_intercept"
            )
        if set(self.own_parameters) - {OUTPUT_BIAS}:
            return (
                f'finish = "{self.finish}": the user would train own_parameters on the outcomes'
                f" that the finish is fitted to; keep no more than {OUTPUT_BIAS!r}"
            )
        return None

    def problem_with(self, num_hospitals: int) -> str | None:
        """Return what makes this algorithm impossible in a study of `num_hospitals`, or None."""
        return None

    def problem_with_names(self, hospitals: Sequence[HospitalName]) -> str | None:
        """Return which hospital it names that is none of the study's, or None."""
        return None

    def problem_with_model(self, layout: Callable[[], Layout]) -> str | None:
        """Return what makes this algorithm impossible with the study's model, or None."""
        return None

    def builds_layers(self) -> bool:
        """Return whether it takes the flat vector apart into a perceptron's layers."""
        return False

    def problem_with_task(self, task: Task) -> str | None:
        """Return what makes this algorithm impossible with what the study predicts, or None."""
        return None

    def problem_with_training(self, training: Training) -> str | None:
        """Return what makes this algorithm impossible with the study's local training, or None."""
        return training.problem_for_plain_sgd(self.algorithm) if self.is_of_plain_sgd else None


def alone(cohort: Cohort, state: Any) -> Step[Any]:
    """Return a round in which only the user's own update arrived: local training."""
    return Step(cohort.own.delta, {cohort.own.agent: 1.0}, state)


def too_few_in_study(rule: str, num_hospitals: int, needed: int, remedy: str) -> str | None:
    """Return why a study of so few hospitals cannot use the rule, or None."""
    if num_hospitals >= needed:
        return None
    return f"{rule} needs {needed} hospitals and the study has {num_hospitals}; {remedy}"
