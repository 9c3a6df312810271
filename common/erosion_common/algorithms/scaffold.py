"""SCAFFOLD (Karimireddy et al. 2020, Algorithm 1, option II of the control variates)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from erosion_common.aggregation.cohort import Cohort, HospitalName
from erosion_common.algorithms.base import Algorithm, BuildContext, Step
from erosion_common.algorithms.fedavg import Averaging
from erosion_common.algorithms.server_optimizer import AggregatingArm
from erosion_common.learning.local_work import LocalOutcome, LocalWork, Tensors

CONTROL = "control"  # c_i, at the hospital and on its way to the coordinator
MEAN_CONTROL = "mean_control"  # c, on its way to the hospitals


@dataclass(frozen=True, slots=True)
class ScaffoldState:
    """Every hospital's last control variate."""

    # The paper adds up the changes of c_i instead. A reply that is lost after the hospital has
    # moved its c_i would then be missing from c for ever; this way the next reply restores it.
    controls: Mapping[HospitalName, Tensor]  # c_i, each (dim,)


class ControlVariates(AggregatingArm):
    """Shared by methods in which control variates correct every hospital's steps."""

    sums_only: ClassVar[bool] = False  # a control variate is the update in another form
    private_updates: ClassVar[bool] = False  # and goes into the next one's steps
    is_of_plain_sgd: ClassVar[bool] = True
    measured_attachments: ClassVar[tuple[str, ...]] = (CONTROL,)

    def train(self, work: LocalWork) -> LocalOutcome:
        """Train with corrected steps, and return the new control variate too."""
        nothing = torch.zeros_like(work.received)
        own, mean = work.kept.get(CONTROL, nothing), work.enclosed.get(MEAN_CONTROL, nothing)
        result = work.sgd(work.received, lambda _y: mean - own)
        # c_i+ = c_i - c + (x - y) / (K lr), the mean of the round's gradients
        control = own - mean - result.delta / (result.steps * work.training.learning_rate)
        if work.own is not None:  # what is not shared has no common direction
            control = control.masked_fill(work.own, 0.0)
        return LocalOutcome(
            result.delta, result.samples_seen, {CONTROL: control}, {CONTROL: control}
        )

    def attachment_sizes(self, dim: int) -> Mapping[str, int]:
        return {CONTROL: dim}


class Scaffold(ControlVariates, Averaging):
    """FedAvg in which every hospital's steps are corrected for how its gradient differs.

    A local step is y - lr (g - c_i + c), where c_i is the hospital's mean gradient in its last
    round and c the average of all c_i (0 for a hospital that was never heard of or is not asked any
    more; the last one of a hospital that is away). So hospitals that differ move in the common
    direction even during many local steps. Use it where FedAvg drifts because of long local
    training; it makes no personal model. The coordinator keeps one c_i for every hospital, and an
    update has two arrays of the model's length instead of one. It needs optimizer = "sgd" without
    momentum.
    Source: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging, 2020.
    """

    algorithm: Literal["scaffold"] = "scaffold"
    weighting: Literal["samples", "uniform"] = Field(
        default="uniform", description='"samples" or "uniform".'
    )

    def rule(self, context: BuildContext) -> Algorithm[Any]:
        average = super().rule(context)

        def update(state: ScaffoldState, cohort: Cohort) -> Step[ScaffoldState]:
            step = average.update(average.init(len(cohort.own.delta)), cohort)
            new = {u.agent: u.attachments[CONTROL] for u in cohort.updates}
            return Step(step.delta, step.weights, ScaffoldState({**state.controls, **new}))

        def broadcast(state: ScaffoldState) -> Tensors:
            if not state.controls:
                return {}
            controls = [state.controls[agent] for agent in sorted(state.controls)]
            # Hospitals not heard of yet count with their first c_i, which is 0.
            return {MEAN_CONTROL: torch.stack(controls).sum(dim=0) / context.num_hospitals}

        def forget(state: ScaffoldState, agent: HospitalName) -> ScaffoldState:
            return ScaffoldState({n: c for n, c in state.controls.items() if n != agent})

        return Algorithm(lambda _dim: ScaffoldState({}), update, broadcast=broadcast, forget=forget)
