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
    Trainer,
    predictions_of,
    round_generator,
    train_locally,
)
from erosion.common.learning.training import Training
from erosion.common.privacy.clipped_gradients import Rows
from erosion.common.privacy.private_step import PrivateStep
from erosion.common.tasks.inputs import ImageTask
from erosion.common.tasks.task import Task

Tensors = Mapping[str, Tensor]

SMALL_HALVINGS = 4  # where a half has fewer patients than a cell


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
    patients: Tensor | None = None  # (n,) int64: rows with the same number are of one patient;
    # None: each row is of another
    privacy: PrivateStep | None = None  # how updates are made; None: by the local training
    told_samples: int | None = None  # n as others are told it, with privacy of patients; None: as
    # it is
    smallest_cell: int = 1  # patients that a part must have whom something that leaves is about
    smallest_batch: int = 1  # samples that a mini-batch must have
    trainer: Trainer = train_locally  # what does the local training

    @property
    def num_told(self) -> int:
        """How many samples there are, as others may know it."""
        return len(self.targets) if self.told_samples is None else self.told_samples

    def of_patients(self, values: Tensor) -> Tensor:
        """Each patient's mean of its rows' values (n, ...): (patients, ...)."""
        if self._is_row_a_patient:
            return values
        _, numbers, counts = torch.unique(self.patients, return_inverse=True, return_counts=True)
        numbers, counts = numbers.to(values.device), counts.to(values)
        sums = values.new_zeros((len(counts), *values.shape[1:])).index_add_(0, numbers, values)
        means: Tensor = sums / counts.reshape(-1, *(1,) * (values.dim() - 1))
        return means

    @property
    def outcomes(self) -> Tensor:
        """Each patient's target, in the same order: (patients, ...)."""
        if self.patients is None or self._is_row_a_patient:
            return self.targets
        found = self.task.targets_of_patients(self.targets.cpu().numpy(), self.patients.numpy())
        return torch.from_numpy(found).to(self.targets)

    @property
    def _is_row_a_patient(self) -> bool:
        return self.patients is None or len(torch.unique(self.patients)) == len(self.patients)

    def randomness(self) -> torch.Generator:
        """The step's randomness from its start: asking again gives the same draws."""
        if self.step == "train":
            return round_generator(self.seed, self.agent, self.round, self.secret)
        return round_generator(self.seed, f"{self.agent}/{self.step}", self.round, self.secret)

    def update(self, start: Tensor, pull: Pull | None = None) -> LocalResult:
        """The update for the others, from `start` (dim,): a round of local training.

        With privacy it is the one step on cut gradients, noised unless this is the user. What a
        peer starts from and is pulled to must then depend on its patients through earlier updates
        alone.
        """
        if self.privacy is None:
            return self.sgd(start, pull)
        seed = self.randomness().initial_seed()
        delta = self.privacy.take(
            self.model,
            start,
            Rows(self._augmented(seed), self.targets, self._patients()),
            self.task.training_loss(self.targets),
            seed,
        )
        if pull is not None:
            delta = delta - self.privacy.learning_rate * pull(start)
        return LocalResult(delta, samples_seen=max(1, round(self.privacy.patients)), steps=1)

    def sgd(self, start: Tensor, pull: Pull | None = None) -> LocalResult:
        """One round of the study's local training, from `start` (dim,)."""
        if self.privacy is not None and not self.is_user:
            raise TypeError(
                "local training without noise at a hospital whose patients have privacy"
            )
        generator = self.randomness()
        return self.trainer(
            self.model,
            start,
            Samples(
                self.inputs,
                self.targets,
                self.task.training_loss(self.targets),
                self.augment(generator.initial_seed()),
                self.smallest_batch,
            ),
            self.training,
            generator,
            pull,
            self.round,
        )

    def augment(self, seed: int) -> Augment | None:
        """What changes the inputs of a mini-batch in training; None where nothing does."""
        settings, task = self.training.augmentation, self.task
        if settings is None or not isinstance(task, ImageTask):
            return None
        return augmenter(settings, task.mean, task.deviation, seed)

    def _augmented(self, seed: int) -> Tensor:
        augment = self.augment(seed)
        return self.inputs if augment is None else augment(self.inputs)

    def _patients(self) -> Tensor:
        return torch.arange(len(self.targets)) if self.patients is None else self.patients

    def only(self, rows: Tensor, share: float | None = None) -> "LocalWork":
        """The same work on some of the rows: their indices, (m,) int64.

        `share`: of the patients, whom a private step's sum is over; None: that of these rows.
        """
        if share is None:
            patients = self._patients()
            share = len(torch.unique(patients[rows])) / len(torch.unique(patients))
        return replace(
            self,
            inputs=self.inputs[rows],
            targets=self.targets[rows],
            patients=None if self.patients is None else self.patients[rows],
            privacy=None if self.privacy is None else self.privacy.of_share(share, rows),
        )

    def halvings(self) -> tuple[tuple["LocalWork", "LocalWork"], ...]:
        """The work on two random halves of the patients.

        With fewer than two cells there are `SMALL_HALVINGS` of such pairs: with a number for how
        far two updates are apart their mean gives both away, and a half is no cell; means over the
        pairs are of all patients. At a peer with privacy a coin of its own says in which half a
        patient is, and either counts as half of the patients: one patient more must not move
        another one to the other half.
        """
        _, numbers = torch.unique(self._patients(), return_inverse=True)
        num_patients = int(numbers.max()) + 1
        if self.privacy is not None and not self.is_user:
            coins = torch.randint(2, (num_patients,), generator=self.randomness())[numbers]
            heads, tails = (torch.nonzero(coins == side)[:, 0] for side in (0, 1))
            return ((self.only(heads, 0.5), self.only(tails, 0.5)),)
        if num_patients == 1:
            return ((self, self),)
        names = [self.agent]
        if num_patients < 2 * self.smallest_cell:
            names += [f"{self.agent}/{number}" for number in range(1, SMALL_HALVINGS)]
        return tuple(_halved(replace(self, agent=name), numbers) for name in names)

    def hold_out(self, share: float) -> tuple["LocalWork", "LocalWork"]:
        """The work without `share` of each stratum's (class's) patients, and with those alone.

        They are the same patients in every round, and where draws are secret in every study.
        Either part has a cell of patients at least, and so has what two shares differ in; where
        there are too few for that, both are all of them.
        """
        generator = round_generator(0 if self.secret else self.seed, self.agent, 0, self.secret)
        strata = torch.from_numpy(self.task.strata(self.outcomes.cpu().numpy()))
        rest, held_out = hold_out(strata, share, generator, self.patients, self.smallest_cell)
        return self.only(rest), self.only(held_out)

    def loss(self, parameters: Tensor) -> float:
        """The task's mean loss of `parameters` (dim,) on the patients; infinite if diverged."""
        predictions = predictions_of(self.task, self.model, parameters, self.inputs)
        return self.task.held_out_loss(self.of_patients(predictions), self.outcomes)


def _halved(work: LocalWork, numbers: Tensor) -> tuple[LocalWork, LocalWork]:
    """The work on either half of the patients, who are numbered from 0 in `numbers` (n,)."""
    order = torch.randperm(int(numbers.max()) + 1, generator=work.randomness())
    middle = (len(order) + 1) // 2
    first, second = (
        torch.cat([torch.nonzero(numbers == number)[:, 0] for number in half])
        for half in (order[:middle], order[middle:])
    )
    return work.only(first), work.only(second)


@dataclass(frozen=True, slots=True, eq=False)
class LocalOutcome:
    """What a hospital makes of its work."""

    delta: Tensor  # (dim,) float32, leaves the hospital; parameters after minus received
    samples_seen: int  # samples over all mini-batches that went into delta, repeats counted
    attachments: Tensors = field(default_factory=dict)  # leave the hospital beside the update
    keep: Tensors = field(default_factory=dict)  # stay at the hospital: `kept` of its next round
    steps: int | None = None  # mini-batches that went into delta, where updates are compared by
    # them; leaves the hospital where the study does not say it


@dataclass(frozen=True, slots=True, eq=False)
class LocalAnswer:
    """What a hospital makes of a step that brings no update."""

    tensors: Tensors = field(default_factory=dict)  # leave the hospital
    values: Mapping[str, Any] = field(default_factory=dict)  # leave it, as JSON
    keep: Tensors = field(default_factory=dict)  # stay: `kept` of its next step or round
