"""A hospital's part of a round: its inputs and its outcome."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import floor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from erosion_common.aggregation.cohort import HospitalName
from erosion_common.learning.local_sgd import (
    Augment,
    LocalResult,
    Pull,
    Samples,
    gradient,
    mini_batches,
    objective,
    predictions_of,
    round_generator,
    train_locally,
)
from erosion_common.learning.private_step import PatientRows, PrivateStep
from erosion_common.learning.trainable import held_but, load_flat_parameters
from erosion_common.learning.training import Training, augmenter
from erosion_common.tasks.inputs import ImageTask, TabularTask
from erosion_common.tasks.task import Loss, Targets, Task


def hold_out(
    strata: Tensor,
    share: float,
    generator: torch.Generator,
    patients: Tensor | None = None,
    fewest: int = 1,
) -> tuple[Tensor, Tensor]:
    """Split rows at random, patient by patient: indices of the rest and of those held out.

    `strata`: (patients,) by the patients' numbers, ascending. `patients`: (n,) the number of each
    row's patient; None: each row is another. About `share` of each stratum's patients is held out,
    and at least one of two or more; a stratum never loses all its patients. Each part has `fewest`
    patients at least: a model that is trained on a few, or measured on them, gives these away.
    Where that cannot be, both parts are all rows.
    """
    numbers = torch.arange(len(strata))
    if patients is not None:
        _, numbers = torch.unique(patients, return_inverse=True)
    every = torch.arange(len(numbers))
    members = [torch.nonzero(strata == s).flatten() for s in sorted(set(strata.tolist()))]
    counts = _counts([len(each) for each in members], share, fewest)
    if counts is None:
        return every, every
    held_out = torch.zeros(len(strata), dtype=torch.bool)
    for each, count in zip(members, counts, strict=True):
        held_out[each[torch.randperm(len(each), generator=generator)][:count]] = True
    held_out = held_out[numbers]
    return torch.nonzero(~held_out).flatten(), torch.nonzero(held_out).flatten()


def held_out_count(num_patients: int, share: float) -> int:
    """Return how many of a stratum's patients are held out."""
    if num_patients < 2:
        return 0
    return min(max(floor(share * num_patients + 0.5), 1), num_patients - 1)


def num_left(num_patients: Sequence[int], share: float, fewest: int) -> int:
    """Return the number in the rest of `hold_out`, by each stratum's number of patients."""
    return sum(num_patients) - sum(_counts(num_patients, share, fewest) or [])


def _counts(num_patients: Sequence[int], share: float, fewest: int) -> list[int] | None:
    """Return how many of each stratum's are held out; None: there are too few for two parts.

    The share is one of a grid, so that the parts of two shares are the same or differ in `fewest`
    patients, however the strata round: the difference of two answers is about no fewer.
    """
    total = sum(num_patients)
    step = (fewest + len(num_patients)) / total
    for number in range(max(1, round(share / step)), 0, -1):
        found = [held_out_count(each, number * step) for each in num_patients]
        if fewest <= sum(found) <= total - fewest:
            return found
    return None


Tensors = Mapping[str, Tensor]

_ROWS_AT_ONCE = 1024
SMALL_HALVINGS = 4  # where a half has fewer patients than a cell


@dataclass(frozen=True, slots=True, eq=False)
class LocalWork:
    """All that a hospital's part of one round depends on."""

    agent: HospitalName
    is_user: bool
    round: int  # from 1; the final evaluation has the number after the study's last
    seed: int  # the study's
    model: nn.Module  # its architecture; its parameters may be overwritten
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
    disclosed_samples: int | None = None  # n for others, with privacy of patients; None: as it is
    smallest_cell: int = 1  # patients of a part that disclosed values are about, at least
    smallest_batch: int = 1  # samples that a mini-batch must have

    @property
    def num_disclosed(self) -> int:
        """How many samples there are, as others may know it."""
        return len(self.targets) if self.disclosed_samples is None else self.disclosed_samples

    def of_patients(self, values: Tensor) -> Tensor:
        """Return each patient's mean of its rows' values (n, ...): (patients, ...)."""
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
        """Return the step's randomness from its start: asking again gives the same draws."""
        if self.step == "train":
            return round_generator(self.seed, self.agent, self.round, self.secret)
        return round_generator(self.seed, f"{self.agent}/{self.step}", self.round, self.secret)

    def update(self, start: Tensor, pull: Pull | None = None) -> LocalResult:
        """Return the update for the others, from `start` (dim,): a round of local training.

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
            PatientRows(self._augmented(seed), self.targets, self._patients()),
            self._training_loss(),
            seed,
        )
        if pull is not None:
            delta = delta - self.privacy.learning_rate * pull(start)
        return LocalResult(delta, samples_seen=max(1, round(self.privacy.patients)), steps=1)

    def sgd(self, start: Tensor, pull: Pull | None = None) -> LocalResult:
        """Return one round of the study's local training, from `start` (dim,)."""
        if self.privacy is not None and not self.is_user:
            raise TypeError("local training without noise at a hospital of patients with privacy")
        generator = self.randomness()
        return train_locally(
            self.model,
            start,
            Samples(
                self.inputs,
                self.targets,
                self._training_loss(),
                self.augment(generator.initial_seed()),
                self.smallest_batch,
            ),
            self.training,
            generator,
            pull,
            self.round,
        )

    def sgd_of(self, start: Tensor, trained: Tensor) -> LocalResult:
        """Return the same with the parameters outside `trained` (dim,) bool held as they start."""
        load_flat_parameters(self.model, start)
        delta = torch.zeros_like(start)
        with held_but(self.model, trained):
            result = self.sgd(start[trained])
        delta[trained] = result.delta
        return replace(result, delta=delta)

    def gradients(self, name: str = "") -> Iterator[tuple[Pull, int]]:
        """Yield for each mini-batch of a round its gradient by parameters (dim,), and its samples.

        With the study's weight decay. By another `name` other mini-batches are drawn.
        """
        generator = (replace(self, step=f"{self.step}/{name}") if name else self).randomness()
        seed = generator.initial_seed()
        augment = self.augment(seed)
        batches = mini_batches(
            len(self.targets), self.training, generator, self.round, self.smallest_batch
        )
        for number, batch in enumerate(batches):
            inputs = self.inputs[batch] if augment is None else augment(self.inputs[batch])
            yield partial(self._slope, inputs, self.targets[batch], seed + number), len(batch)

    def _slope(self, inputs: Tensor, targets: Tensor, seed: int, at: Tensor) -> Tensor:
        loss = self._training_loss()
        return gradient(self.model, at, inputs, targets, loss, seed) + (
            self.training.weight_decay * at
        )

    def gradient(self, at: Tensor) -> Tensor:
        """Return the training loss's gradient of all patients at parameters (dim,): (dim,)."""
        total = torch.zeros_like(at, dtype=torch.float64)
        loss = self._training_loss()
        for rows in torch.split(torch.arange(len(self.targets)), _ROWS_AT_ONCE):
            part = gradient(self.model, at, self.inputs[rows], self.targets[rows], loss)
            total += part.double() * (len(rows) / len(self.targets))
        return total.float()

    def augment(self, seed: int) -> Augment | None:
        """Return the augmentation of a mini-batch's inputs in training, or None."""
        settings, task = self.training.augmentation, self.task
        if settings is None or not isinstance(task, ImageTask):
            return None
        return augmenter(settings, task.mean, task.deviation, seed)

    def _training_loss(self) -> Loss:
        return objective(self.model, self.task.training_loss(self.targets))

    def _augmented(self, seed: int) -> Tensor:
        augment = self.augment(seed)
        return self.inputs if augment is None else augment(self.inputs)

    def _patients(self) -> Tensor:
        return torch.arange(len(self.targets)) if self.patients is None else self.patients

    def only(self, rows: Tensor, share: float | None = None) -> "LocalWork":
        """Return the same work on some of the rows: their indices, (m,) int64.

        `share`: of the patients in a private step's sum; None: that of these rows.
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
        """Return the work on two random halves of the patients.

        With fewer than two cells there are `SMALL_HALVINGS` of such pairs, because a half is no
        cell; means over the pairs are of all patients. At a peer with privacy an independent coin
        says in which half a patient is, and either counts as half of the patients: one patient more
        must not move another one to the other half.
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
        """Return the work without `share` of each stratum's patients, and with those alone.

        They are the same patients in every round, and where draws are secret in every study.
        Either part has a cell of patients at least, and so has what two shares differ in; where
        there are too few for that, both are all of them.
        """
        generator = round_generator(0 if self.secret else self.seed, self.agent, 0, self.secret)
        strata = torch.from_numpy(self.task.strata(self.outcomes.cpu().numpy()))
        rest, held_out = hold_out(strata, share, generator, self.patients, self.smallest_cell)
        return self.only(rest), self.only(held_out)

    def loss(self, parameters: Tensor) -> float:
        """Return the mean loss of `parameters` (dim,) on the patients; infinite if diverged."""
        predictions = predictions_of(self.task, self.model, parameters, self.inputs)
        return self.task.held_out_loss(self.of_patients(predictions), self.outcomes)


def _halved(work: LocalWork, numbers: Tensor) -> tuple[LocalWork, LocalWork]:
    """Return the work on either half of the patients, who are numbered from 0 in `numbers` (n,)."""
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
    attachments: Tensors = field(default_factory=dict)  # leave the hospital with the update
    keep: Tensors = field(default_factory=dict)  # stay at the hospital: `kept` of its next round
    steps: int | None = None  # mini-batches that went into delta, where updates are compared by
    # them; leaves the hospital where the study does not say it


@dataclass(frozen=True, slots=True, eq=False)
class LocalAnswer:
    """What a hospital makes of a step that brings no update."""

    tensors: Tensors = field(default_factory=dict)  # leave the hospital
    values: Mapping[str, Any] = field(default_factory=dict)  # leave it, as JSON
    keep: Tensors = field(default_factory=dict)  # stay: `kept` of its next step or round


@dataclass(frozen=True, slots=True)
class PatientCounts:
    """A hospital's training patients in numbers."""

    samples: tuple[int, ...]  # rows or images of each patient, ascending
    strata: tuple[int, ...]  # patients of each stratum (class)
    smallest_part: int  # patients of the smallest part of an update that anybody is in

    @classmethod
    def of(
        cls, task: Task, rows: NDArray[Any], targets: Targets, patients: NDArray[np.int64]
    ) -> "PatientCounts":
        """Count patients by their numbers (n,), of samples with rows and targets (n, ...)."""
        _, samples = np.unique(patients, return_counts=True)
        strata = task.strata(task.targets_of_patients(targets, patients))
        _, members = np.unique(strata, return_counts=True)
        parts = [task.update_parts(targets)]
        if isinstance(task, TabularTask):
            parts += task.crossed_categories(rows)
        # With rows of several parts, a patient is in each.
        pairs = [np.unique(np.stack([part, patients]), axis=1)[0] for part in parts]
        smallest = min(int(np.unique(part, return_counts=True)[1].min()) for part in pairs)
        return cls(tuple(sorted(samples.tolist())), tuple(members.tolist()), smallest)

    @property
    def num_patients(self) -> int:
        """Patients to train on."""
        return len(self.samples)

    @property
    def num_samples(self) -> int:
        """Rows or images of theirs."""
        return sum(self.samples)


@dataclass(frozen=True, slots=True)
class WorkSize:
    """One local training of a round: how long it is, and of how many patients at least."""

    agent: HospitalName
    is_user: bool
    training: Training
    counts: PatientCounts  # of the whole hospital
    num_patients: int  # that this training goes over
    smallest_cell: int = 1  # as `LocalWork` has them
    smallest_batch: int = 1
    side_by_side: int = 1  # trainings of a round that go over a part of the patients each
    remedy: str = ""  # for too few steps; "": what the study's [training] has for that

    @property
    def num_samples(self) -> int:
        """Return the fewest rows or images that `num_patients` of the patients have."""
        return sum(self.counts.samples[: self.num_patients])

    def half(self) -> "WorkSize":
        """Return one half of `LocalWork.halvings`."""
        every = self.counts.num_patients
        pairs = SMALL_HALVINGS if every < 2 * self.smallest_cell else 1
        return replace(self, num_patients=max(1, every // 2), side_by_side=2 * pairs)

    def without_held_out(self, share: float) -> "WorkSize":
        """Return the first part of `LocalWork.hold_out`."""
        rest = num_left(self.counts.strata, share, self.smallest_cell)
        return replace(self, num_patients=rest)
