"""A hospital's part of a round: its inputs and its outcome."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from erosion.common.aggregation.cohort import HospitalName
from erosion.common.learning.augmentation import augmenter
from erosion.common.learning.held_out import hold_out
from erosion.common.learning.local_sgd import (
    Augment,
    LocalResult,
    Pull,
    Samples,
    predictions_of,
    round_generator,
    train_locally,
)
from erosion.common.learning.training import Training
from erosion.common.tasks.inputs import ImageTask
from erosion.common.tasks.task import Task

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class LocalWork:
    """All that a hospital's part of one round depends on."""

    agent: HospitalName
    is_user: bool
    round: int  # from 1; the final evaluation has the number that the next round would have
    seed: int  # the study's
    model: nn.Module  # its architecture; whatever parameters it holds may be overwritten
    received: Tensor  # (dim,) the parameters that the round starts from; (0,) if they did not come
    inputs: Tensor  # (n, *shape) float32, training patients
    targets: Tensor  # (n, ...) of these patients
    task: Task
    training: Training
    kept: Tensors = field(default_factory=dict)
    # what this hospital kept at the end of its last step of this arm; nothing before the first
    enclosed: Tensors = field(default_factory=dict)  # what the algorithm sends with the parameters
    own: Tensor | None = None  # (dim,) bool: parameters that never leave; None: there are none
    step: str = "train"  # that is asked for
    values: Mapping[str, Any] = field(default_factory=dict)  # the algorithm's, not validated yet
    secret: bytes = field(default=b"", repr=False)  # the site's, that its randomness is drawn from

    def randomness(self) -> torch.Generator:
        """The step's randomness from its start: asking again gives the same draws."""
        if self.step == "train":
            return round_generator(self.seed, self.agent, self.round, self.secret)
        return round_generator(self.seed, f"{self.agent}/{self.step}", self.round, self.secret)

    def sgd(self, start: Tensor, pull: Pull | None = None) -> LocalResult:
        """One round of the study's local training, from `start` (dim,)."""
        generator = self.randomness()
        return train_locally(
            self.model,
            start,
            Samples(
                self.inputs,
                self.targets,
                self.task.training_loss(self.targets),
                self._augment(generator.initial_seed()),
            ),
            self.training,
            generator,
            pull,
        )

    def _augment(self, seed: int) -> Augment | None:
        settings, task = self.training.augmentation, self.task
        if settings is None or not isinstance(task, ImageTask):
            return None
        return augmenter(settings, task.mean, task.deviation, seed)

    def only(self, patients: Tensor) -> "LocalWork":
        """The same work on some of the patients: their indices, (m,) int64."""
        return replace(self, inputs=self.inputs[patients], targets=self.targets[patients])

    def hold_out(self, share: float) -> tuple["LocalWork", "LocalWork"]:
        """The work without `share` of each stratum's (class's) patients, and with those alone.

        They are the same patients in every round.
        """
        generator = round_generator(self.seed, self.agent, 0, self.secret)
        strata = torch.from_numpy(self.task.strata(self.targets.cpu().numpy()))
        rest, held_out = hold_out(strata, share, generator)
        return self.only(rest), self.only(held_out)

    def loss(self, parameters: Tensor) -> float:
        """The task's mean loss of `parameters` (dim,) on the patients; infinite if diverged."""
        predictions = predictions_of(self.task, self.model, parameters, self.inputs)
        return self.task.held_out_loss(predictions, self.targets)


@dataclass(frozen=True, slots=True, eq=False)
class LocalOutcome:
    """What a hospital makes of its work."""

    delta: Tensor  # (dim,) float32, leaves the hospital; parameters after minus received
    samples_seen: int  # samples over all mini-batches that went into delta, repeats counted
    attachments: Tensors = field(default_factory=dict)  # leave the hospital beside the update
    keep: Tensors = field(default_factory=dict)  # stay at the hospital: `kept` of its next round


@dataclass(frozen=True, slots=True, eq=False)
class LocalAnswer:
    """What a hospital makes of a step that brings no update."""

    tensors: Tensors = field(default_factory=dict)  # leave the hospital
    values: Mapping[str, Any] = field(default_factory=dict)  # leave it, as JSON
    keep: Tensors = field(default_factory=dict)  # stay: `kept` of its next step or round
