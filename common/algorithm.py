"""What an aggregation rule is: a pure function of its state and one round's cohort."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from torch import Tensor

from common.cohort import AgentId, Cohort
from common.settings import Settings

State = TypeVar("State")


@dataclass(frozen=True, slots=True, eq=False)
class Step(Generic[State]):
    """What an algorithm makes of one cohort."""

    delta: Tensor  # (dim,) what the user's parameters move by
    weights: Mapping[AgentId, float]  # relative to the user's own, which is 1
    state: State
    outcome: Literal["done", "skipped", "stopped"] = "done"
    note: str = ""  # why the round was skipped or the run stopped


def asks_everyone(_state: Any, _agent: AgentId) -> bool:
    """The usual answer to "is this hospital's update wanted next round?"."""
    return True


@dataclass(frozen=True, slots=True)
class Algorithm(Generic[State]):
    """An aggregation rule. `State` is a frozen dataclass of numbers, strings, tensors and maps."""

    init: Callable[[int], State]  # dim -> complete state
    update: Callable[[State, Cohort], Step[State]]
    asks: Callable[[State, AgentId], bool] = asks_everyone  # of peers; the user is always asked


class ArmBase(Settings):
    """The parameters of one algorithm, as an arm of a study file gives them."""

    algorithm: str

    def build(self) -> Algorithm[Any]:
        """The algorithm with these parameters."""
        raise TypeError(f"{type(self).__name__} does not say how to build its algorithm")

    def problem_with(self, num_hospitals: int) -> str | None:
        """What makes this algorithm impossible in a study of `num_hospitals`, or None."""
        del num_hospitals
        return None
