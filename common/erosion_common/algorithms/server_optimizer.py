"""Momentum and adaptive steps on the aggregate of any rule (Reddi et al. 2021, Algorithm 2)."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from erosion_common.aggregation.cohort import Cohort, HospitalName
from erosion_common.algorithms.base import (
    Algorithm,
    ArmBase,
    BuildContext,
    Exchanges,
    NoState,
    RoundStart,
    Step,
    alone,
    broadcasts_nothing,
    no_state,
    relative_weights,
    too_few_in_study,
)
from erosion_common.errors import RunError
from erosion_common.learning.local_work import Tensors
from erosion_common.settings.base import Settings

State = TypeVar("State")
Moments = tuple[Tensor, ...]  # each (dim,)


@dataclass(frozen=True, slots=True)
class OptimizedState(Generic[State]):
    """The method's own state, and what the optimiser remembers of the aggregates."""

    method: State
    moments: Moments  # momentum: (m,); the adaptive ones: (m, v)


class PlainStep(Settings):
    """The aggregate is the step."""

    name: Literal["none"] = Field(
        default="none", description="The kind of optimiser: none; the aggregate is the step."
    )

    def wrap(self, algorithm: Algorithm[Any]) -> Algorithm[Any]:
        """Return the algorithm unchanged."""
        return algorithm


class ServerMomentum(Settings):
    """m <- momentum m + aggregate; the step is learning_rate m (FedAvgM, Hsu et al. 2019)."""

    name: Literal["momentum"] = "momentum"
    momentum: float = Field(  # beta
        default=0.9, ge=0, lt=1, description="What a step keeps of the one before."
    )
    learning_rate: float = Field(  # eta
        default=1.0, gt=0, description="What the step is multiplied by."
    )

    def wrap(self, algorithm: Algorithm[Any]) -> Algorithm[Any]:
        """Return the algorithm with momentum on its aggregates; the weights stay."""
        return _optimized(algorithm, 1, self._move)

    def _move(self, moments: Moments, aggregate: Tensor) -> tuple[Tensor, Moments]:
        m = moments[0].mul(self.momentum).add_(aggregate)
        return m * self.learning_rate, (m,)


class _Adaptive(Settings):
    """The step is learning_rate m / (sqrt(v) + adaptivity), m and v from 0.

    The paper's v starts at adaptivity^2 or more. m is a moving average of the aggregate, without
    Adam's division by 1 - beta^t. The three optimisers differ in how v follows the aggregate's
    square.
    """

    learning_rate: float = Field(  # eta
        default=0.1, gt=0, description="Size of a step."
    )
    beta_1: float = Field(
        default=0.9,
        ge=0,
        lt=1,
        description="What the moving average of the aggregate keeps of its past.",
    )
    adaptivity: float = Field(  # tau
        default=1e-3,
        gt=0,
        description="Added to the root of that, so that small parameters do not leap.",
    )

    def wrap(self, algorithm: Algorithm[Any]) -> Algorithm[Any]:
        """Return the algorithm with the optimiser on its aggregates; the weights stay."""
        return _optimized(algorithm, 2, self._move)

    def _move(self, moments: Moments, aggregate: Tensor) -> tuple[Tensor, Moments]:
        m = moments[0].lerp(aggregate, 1 - self.beta_1)
        v = self._second(moments[1], aggregate.square())
        return m.div(v.sqrt().add_(self.adaptivity)).mul_(self.learning_rate), (m, v)

    @abstractmethod
    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the next v, (dim,)."""


class ServerAdam(_Adaptive):
    """v is a moving average of the aggregate's square (FedAdam, Reddi et al. 2021)."""

    name: Literal["adam"] = "adam"
    beta_2: float = Field(
        default=0.99,
        ge=0,
        lt=1,
        description="What the moving average of its square keeps of its past.",
    )

    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        return v.lerp(square, 1 - self.beta_2)


class ServerYogi(_Adaptive):
    """v moves towards the square by a share of the square, not of the gap (FedYogi, ibid.).

    So one large aggregate is not forgotten quickly: v <- v - (1 - beta_2) square sign(v - square).
    """

    name: Literal["yogi"] = "yogi"
    beta_2: float = Field(
        default=0.99,
        ge=0,
        lt=1,
        description="What the moving average of its square keeps of its past.",
    )

    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta_2) * square * (v - square).sign()


class ServerAdagrad(_Adaptive):
    """v is the sum of all squares so far (FedAdagrad, ibid.); beta_1 is 0 as in the paper."""

    name: Literal["adagrad"] = "adagrad"
    beta_1: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="What the moving average of the aggregate keeps of its past.",
    )

    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


def _optimized(
    algorithm: Algorithm[Any],
    num_moments: int,
    move: Callable[[Moments, Tensor], tuple[Tensor, Moments]],
) -> Algorithm[OptimizedState[Any]]:
    def init(dim: int) -> OptimizedState[Any]:
        return OptimizedState(
            algorithm.init(dim), tuple(torch.zeros(dim) for _ in range(num_moments))
        )

    def moved(state: OptimizedState[Any], step: Step[Any]) -> Step[OptimizedState[Any]]:
        if step.outcome != "done":  # a round without an aggregate is none of the optimiser's
            return replace(step, state=OptimizedState(step.state, state.moments))
        delta, moments = move(state.moments, step.delta)
        return replace(step, delta=delta, state=OptimizedState(step.state, moments))

    def update(state: OptimizedState[Any], cohort: Cohort) -> Step[OptimizedState[Any]]:
        return moved(state, algorithm.update(state.method, cohort))

    def exchanges(state: OptimizedState[Any], begun: RoundStart) -> Exchanges[OptimizedState[Any]]:
        return moved(state, (yield from algorithm.begin(state.method, begun)))

    def asks(state: OptimizedState[Any], agent: HospitalName) -> bool:
        return algorithm.asks(state.method, agent)

    def forget(state: OptimizedState[Any], agent: HospitalName) -> OptimizedState[Any]:
        return replace(state, method=algorithm.forget(state.method, agent))

    def to_peer(state: OptimizedState[Any], agent: HospitalName) -> Tensors:
        assert algorithm.broadcast_to_peer is not None
        return algorithm.broadcast_to_peer(state.method, agent)

    return Algorithm(
        init,
        update,
        asks,
        broadcast=_of_method(algorithm.broadcast),
        broadcast_to_user=_of_method(algorithm.broadcast_to_user),
        broadcast_to_peer=None if algorithm.broadcast_to_peer is None else to_peer,
        exchanges=None if algorithm.exchanges is None else exchanges,
        forget=forget,
    )


def _of_method(broadcast: Callable[[Any], Tensors]) -> Callable[[OptimizedState[Any]], Tensors]:
    """Return the method's tensors; a method without any is recognised as such."""
    if broadcast is broadcasts_nothing:
        return broadcast
    return lambda state: broadcast(state.method)


def _from_name(value: Any) -> Any:
    """Expand `"adam"` to `{name = "adam"}`."""
    return {"name": value} if isinstance(value, str) else value


ServerOptimizer = Annotated[
    Annotated[
        PlainStep | ServerMomentum | ServerAdam | ServerYogi | ServerAdagrad,
        Field(discriminator="name"),
    ],
    BeforeValidator(
        _from_name,
        json_schema_input_type=Literal["none", "momentum", "adam", "yogi", "adagrad"]
        | PlainStep
        | ServerMomentum
        | ServerAdam
        | ServerYogi
        | ServerAdagrad,
    ),
]


class AggregatingArm(ArmBase):
    """A method that aggregates updates by a `rule`, and steps along the aggregate."""

    server_optimizer: ServerOptimizer = Field(
        default=PlainStep(),
        description='What becomes of the aggregate before it moves the model: `"none"`, or an '
        "optimiser at the coordinator.",
    )

    def build(self, context: BuildContext) -> Algorithm[Any]:
        """Return the rule with the optimiser around it."""
        made: object = self.rule(context)
        if not isinstance(made, Algorithm):
            raise RunError(
                f"`rule` of {self.algorithm} gave back a {type(made).__name__}, no Algorithm",
                remedy="Correct its class (docs/extending.md, A method).",
            )
        return self.server_optimizer.wrap(made)

    @abstractmethod
    def rule(self, context: BuildContext) -> Algorithm[Any]:
        """Return the rule that aggregates a round's updates."""


class RobustRule(AggregatingArm):
    """Shared by rules that remember nothing, and need several updates to tell a harmful one.

    A user without any peer trains alone: nobody's update could do harm. Otherwise a round with too
    few updates is skipped, because with so few the rule would pass any update on.
    """

    private_updates: ClassVar[bool] = True

    @property
    def fewest(self) -> int:
        """Return how many updates it takes, own included; of two, one can be anything."""
        return 3

    def problem_with(self, num_hospitals: int) -> str | None:
        """Refuse a study of fewer hospitals."""
        remedy = "use 'fedavg' or add hospitals"
        return too_few_in_study(self.algorithm, num_hospitals, self.fewest, remedy)

    def rule(self, context: BuildContext) -> Algorithm[NoState]:
        """Return the algorithm that takes each round's aggregate."""
        return Algorithm(no_state, self._update)

    @abstractmethod
    def aggregate(self, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """Return the step (dim,), and what each update counts in it, own first: (n+1,)."""

    def _update(self, state: NoState, cohort: Cohort) -> Step[NoState]:
        if not cohort.peers:
            return alone(cohort, state)
        if (present := len(cohort.updates)) < self.fewest:
            note = f"{present} usable updates, the rule needs {self.fewest} to tell a harmful one"
            nothing = torch.zeros_like(cohort.own.delta)
            return Step(nothing, {}, state, outcome="skipped", note=note)
        delta, shares = self.aggregate(cohort)
        return Step(delta, relative_weights(cohort, shares.tolist()), state)
