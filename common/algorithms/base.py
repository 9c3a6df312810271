"""The interface of an aggregation rule: a pure function of its state and one round's cohort."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from torch import Tensor

from erosion.common.aggregation.cohort import Cohort, HospitalName
from erosion.common.learning.local_work import LocalOutcome, LocalWork, Tensors
from erosion.common.learning.training import Training
from erosion.common.settings.base import Settings

State = TypeVar("State")


@dataclass(frozen=True, slots=True, eq=False)
class Step(Generic[State]):
    """What an algorithm makes of one cohort."""

    delta: Tensor  # (dim,) what the user's parameters move by
    weights: Mapping[HospitalName, float]  # see `relative_weights`
    state: State
    outcome: Literal["done", "skipped", "stopped"] = "done"
    note: str = ""  # why the round was skipped or the run stopped, or what to know of it


def relative_weights(cohort: Cohort, shares: Sequence[float]) -> dict[HospitalName, float]:
    """Shares in the aggregate, own first, as the weights of a `Step`.

    They are relative to the user's own, which is 1. A rule may leave the user's own update out
    (Krum); then the user's weight is 0 and the others' are relative to the largest.
    """
    unit = shares[0] or max(shares)
    return {u.agent: share / unit for u, share in zip(cohort.updates, shares, strict=True)}


def asks_everyone(_state: Any, _agent: HospitalName) -> bool:
    """The usual answer to "is this hospital's update wanted next round?"."""
    return True


def broadcasts_nothing(_state: Any) -> Tensors:
    """The usual answer to "what must hospitals know beside the parameters?"."""
    return {}


@dataclass(frozen=True, slots=True)
class Algorithm(Generic[State]):
    """An aggregation rule. `State` is a frozen dataclass of numbers, strings, tensors and maps."""

    init: Callable[[int], State]  # dim -> complete state
    update: Callable[[State, Cohort], Step[State]]
    asks: Callable[[State, HospitalName], bool] = asks_everyone  # the user is always
    broadcast: Callable[[State], Tensors] = broadcasts_nothing  # what everyone gets with parameters
    broadcast_to_user: Callable[[State], Tensors] = broadcasts_nothing  # and what the user gets too


Layout = Mapping[str, slice]  # parameter name -> its place in the flat vector, in model order


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What an algorithm may know of its study before the first round."""

    rounds: int  # of the whole run
    num_hospitals: int  # that the study names, the user's included
    layout: Callable[[], Layout]  # a call, because few ask and a large model takes seconds


class ArmBase(Settings):
    """The parameters of one algorithm, as an arm of a study file gives them.

    `build` is the coordinator's part, a pure function of the hospitals' updates. `train` and
    `personal` are the hospital's part: pure functions of its work, which most methods leave as
    they are here.
    """

    algorithm: str
    own_parameters: tuple[str, ...] = ()  # that a hospital keeps; see `personal_layers`

    def build(self, context: BuildContext) -> Algorithm[Any]:
        """The algorithm with these parameters."""
        raise TypeError(f"{type(self).__name__} does not say how to build its algorithm")

    def train(self, work: LocalWork) -> LocalOutcome:
        """What a hospital does in a round: the study's local training."""
        result = work.sgd(work.received)
        return LocalOutcome(result.delta, result.samples_seen)

    def personal(self, work: LocalWork) -> Tensor:
        """What the hospital would predict with, given all but the training of this round.

        (dim,), or (m, dim) for a mean over m models' probabilities.
        """
        return work.received

    def attachment_sizes(self, dim: int) -> Mapping[str, int]:
        """Attachments that every update must bring, and how many numbers each holds."""
        del dim
        return {}

    def problem_with(self, num_hospitals: int) -> str | None:
        """What makes this algorithm impossible in a study of `num_hospitals`, or None."""
        del num_hospitals
        return None

    def problem_with_model(self, layout: Callable[[], Layout]) -> str | None:
        """What makes this algorithm impossible with the study's model, or None."""
        del layout
        return None

    def problem_with_training(self, training: Training) -> str | None:
        """What makes this algorithm impossible with the study's local training, or None."""
        del training
        return None
