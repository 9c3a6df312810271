"""Personal GEMS: local optima, averaged by how near they are to the user's. A rule of our own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from erosion_common.aggregation.cohort import Cohort, HospitalName
from erosion_common.algorithms.base import Layout, RoundStart, Step, relative_weights
from erosion_common.algorithms.fedavg import tuned
from erosion_common.algorithms.gems.balls import split_layers
from erosion_common.algorithms.gems.meeting import meet, personal_weights
from erosion_common.algorithms.gems.rounds import (
    GemsBase,
    GemsState,
    in_words,
    module_widths,
    perceptron_widths,
    sent_balls,
)
from erosion_common.learning.local_work import LocalOutcome, LocalWork, WorkSize
from erosion_common.tasks.task import Task


class PersonalGems(GemsBase):
    """One round: hospitals train alone, and those near the user's optimum are averaged with it.

    From a common start every hospital trains to its own optimum. What counts is the direction of
    its update: d_i is the distance of the updates divided by their lengths, the nearest peer counts
    as much as the user, and who is further by the share `reach` counts nothing. Use it where
    hospitals can meet only once and some may contradict the user.
    Source: this project, after Guha, Smith, Model Aggregation via Good-Enough Model Spaces, 2019.
    """

    algorithm: Literal["personal_gems"] = "personal_gems"
    reach: float = Field(
        default=0.5,
        gt=0,
        le=100,
        description="A hospital that is further from the user than the nearest peer by this "
        "share, or more, counts nothing.",
    )
    tuning_rounds: int = Field(
        default=0, ge=0, le=1000, description="Rounds of training at the user that follow."
    )
    balls: Literal["off", "user"] = Field(
        default="off",
        description='"off", or "user": with logistic regression the model then stays in the '
        "user's ball and as near to the others' as it can, which measured worse the tighter it "
        "is; it is the user's own model where fewer patients may be lost than its smallest cell "
        "has.",
    )

    def problem_with_model(self, layout: Callable[[], Layout]) -> str | None:
        if self.balls == "off" or len(perceptron_widths(layout())) == 2:
            return None
        return "balls = 'user' is for model.name = 'logistic'; write balls = 'off'"

    def builds_layers(self) -> bool:
        """Return False without balls: then any model can be trained."""
        return self.balls != "off"

    def problem_with_task(self, task: Task) -> str | None:
        """Return None without balls: then any task can be learned."""
        return None if self.balls == "off" else super().problem_with_task(task)

    def attachment_sizes(self, dim: int) -> Mapping[str, int]:
        return {} if self.balls == "off" else super().attachment_sizes(dim)

    def checked_by(self, begun: RoundStart) -> Sequence[HospitalName]:
        return (begun.user,)

    def update(self, state: GemsState, cohort: Cohort) -> Step[GemsState]:
        """Return the average by nearness; with balls, the user's ball's nearest point to all."""
        gram = cohort.gram()
        shares = torch.tensor([1.0, *personal_weights(_apart(gram), self.reach)])
        after = GemsState(state.round + 1)
        if self.balls == "off":
            delta = cohort.weighted_sum(shares.double() / shares.double().sum())
            return Step(delta, relative_weights(cohort, shares.tolist()), after, note="")
        sent = sent_balls(cohort)
        shares = shares * torch.tensor([1.0, *(0.0 if b.problem else 1.0 for b in sent[1:])])
        radii = torch.tensor([ball.usable_radius for ball in sent])
        meeting = meet(gram, radii, weights=shares, hard=0, from_afar=True)
        found = meeting.coefficients.clamp(min=0.0).tolist()
        counted = [number for number, share in enumerate(shares.tolist()) if share > 0]
        seen = replace(meeting, gaps=meeting.gaps[counted])
        note = in_words([sent[number] for number in counted], seen)
        return Step(
            cohort.weighted_sum(meeting.coefficients),
            relative_weights(cohort, found),
            after,
            note=note,
        )

    def train(self, work: LocalWork) -> LocalOutcome:
        """Return the local optimum; with balls, on the patients that are not held out."""
        if self.balls == "off":
            result = self.optimum(work, work.received)
            return LocalOutcome(result.delta, result.samples_seen)
        rest, _ = self.parts(work)
        result = self.optimum(rest, work.received)
        layers = split_layers(work.received + result.delta, module_widths(work.model))
        return self.with_ball(work, result.delta, result.samples_seen, layers, work.randomness())

    def local_trainings(self, whole: WorkSize) -> tuple[WorkSize, ...]:
        """Return the optimum, without balls of all patients, and the tuning at the user."""
        optimum = super().local_trainings(whole)
        if self.balls == "off":
            optimum = (replace(whole, training=self.longer(whole.training)),)
        return (*optimum, whole) if whole.is_user and self.tuning_rounds else optimum

    def personal(self, work: LocalWork) -> Tensor:
        return tuned(work, self.tuning_rounds)


def _apart(gram: Tensor) -> list[float]:
    """Return every peer's |d_i / |d_i| - d_0 / |d_0||; without a direction, the maximum 2."""
    norms = gram.diagonal().clamp(min=0.0).sqrt()
    lengths = norms[0] * norms[1:]
    cosines = torch.where(lengths > 0, gram[0, 1:] / lengths.clamp(min=1e-300), -1.0)
    distances: Tensor = (2 - 2 * cosines).clamp(min=0.0).sqrt()
    return distances.tolist()
