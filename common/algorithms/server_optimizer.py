"""Momentum and Adam on the aggregate of any method (Reddi et al. 2021, Algorithm 2)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Generic, Literal, TypeVar

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from erosion.common.aggregation.cohort import Cohort, HospitalName
from erosion.common.algorithms.base import Algorithm, Step
from erosion.common.settings.base import Settings

State = TypeVar("State")
Moments = tuple[Tensor, ...]  # each (dim,)


@dataclass(frozen=True, slots=True)
class OptimizedState(Generic[State]):
    """The method's own state, and what the optimiser remembers of the aggregates."""

    method: State
    moments: Moments  # momentum: (m,); adam: (m, v)


class PlainStep(Settings):
    """The aggregate is the step."""

    name: Literal["none"] = "none"

    def wrap(self, algorithm: Algorithm[Any]) -> Algorithm[Any]:
        """The algorithm as it is."""
        return algorithm


class ServerMomentum(Settings):
    """m <- momentum m + aggregate; the step is learning_rate m (FedAvgM, Hsu et al. 2019)."""

    name: Literal["momentum"] = "momentum"
    momentum: float = Field(default=0.9, ge=0, lt=1)  # beta
    learning_rate: float = Field(default=1.0, gt=0)  # eta

    def wrap(self, algorithm: Algorithm[Any]) -> Algorithm[Any]:
        """The same weights; the aggregates go through momentum."""
        return _optimized(algorithm, 1, self._move)

    def _move(self, moments: Moments, aggregate: Tensor) -> tuple[Tensor, Moments]:
        m = moments[0].mul(self.momentum).add_(aggregate)
        return m * self.learning_rate, (m,)


class ServerAdam(Settings):
    """The step is learning_rate m / (sqrt(v) + adaptivity) (FedAdam, Reddi et al. 2021).

    m and v are moving averages of the aggregate and of its square, from 0, as in the paper:
    without Adam's division by 1 - beta^t.
    """

    name: Literal["adam"] = "adam"
    learning_rate: float = Field(default=0.1, gt=0)  # eta
    beta_1: float = Field(default=0.9, ge=0, lt=1)
    beta_2: float = Field(default=0.99, ge=0, lt=1)
    adaptivity: float = Field(default=1e-3, gt=0)  # tau

    def wrap(self, algorithm: Algorithm[Any]) -> Algorithm[Any]:
        """The same weights; the aggregates go through Adam."""
        return _optimized(algorithm, 2, self._move)

    def _move(self, moments: Moments, aggregate: Tensor) -> tuple[Tensor, Moments]:
        m = moments[0].lerp(aggregate, 1 - self.beta_1)
        v = moments[1].mul(self.beta_2).addcmul_(aggregate, aggregate, value=1 - self.beta_2)
        return m.div(v.sqrt().add_(self.adaptivity)).mul_(self.learning_rate), (m, v)


def _optimized(
    algorithm: Algorithm[Any],
    num_moments: int,
    move: Callable[[Moments, Tensor], tuple[Tensor, Moments]],
) -> Algorithm[OptimizedState[Any]]:
    def init(dim: int) -> OptimizedState[Any]:
        return OptimizedState(
            algorithm.init(dim), tuple(torch.zeros(dim) for _ in range(num_moments))
        )

    def update(state: OptimizedState[Any], cohort: Cohort) -> Step[OptimizedState[Any]]:
        step = algorithm.update(state.method, cohort)
        if step.outcome != "done":  # a round without an aggregate is none of the optimiser's
            return replace(step, state=OptimizedState(step.state, state.moments))
        delta, moments = move(state.moments, step.delta)
        return replace(step, delta=delta, state=OptimizedState(step.state, moments))

    def asks(state: OptimizedState[Any], agent: HospitalName) -> bool:
        return algorithm.asks(state.method, agent)

    return Algorithm(
        init,
        update,
        asks,
        broadcast=lambda state: algorithm.broadcast(state.method),
        broadcast_to_user=lambda state: algorithm.broadcast_to_user(state.method),
    )


def _from_name(value: Any) -> Any:
    """`"adam"` is short for `{name = "adam"}`."""
    return {"name": value} if isinstance(value, str) else value


ServerOptimizer = Annotated[
    Annotated[PlainStep | ServerMomentum | ServerAdam, Field(discriminator="name")],
    BeforeValidator(
        _from_name,
        json_schema_input_type=Literal["none", "momentum", "adam"]
        | PlainStep
        | ServerMomentum
        | ServerAdam,
    ),
]
