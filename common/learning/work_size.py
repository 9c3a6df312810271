"""A local training in numbers, as a site's limits are about it."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from erosion.common.aggregation.cohort import HospitalName
from erosion.common.learning.held_out import num_left
from erosion.common.learning.local_work import SMALL_HALVINGS
from erosion.common.learning.training import Training
from erosion.common.tasks.task import Targets, Task


@dataclass(frozen=True, slots=True)
class PatientCounts:
    """A hospital's training patients in numbers."""

    samples: tuple[int, ...]  # rows or images of each patient, ascending
    strata: tuple[int, ...]  # patients of each stratum (class)
    smallest_part: int  # patients of the smallest of `Task.update_parts` that anybody is in

    @classmethod
    def of(cls, task: Task, targets: Targets, patients: NDArray[np.int64]) -> "PatientCounts":
        """Of the targets (n, ...) and the patients' numbers (n,) of samples, one at least."""
        _, samples = np.unique(patients, return_counts=True)
        strata = task.strata(task.targets_of_patients(targets, patients))
        _, members = np.unique(strata, return_counts=True)
        # With rows of several parts, a patient is in each.
        in_parts = np.unique(np.stack([task.update_parts(targets), patients]), axis=1)[0]
        _, of_parts = np.unique(in_parts, return_counts=True)
        return cls(tuple(sorted(samples.tolist())), tuple(members.tolist()), int(of_parts.min()))

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
    num_patients: int  # that this training goes over, whoever they are
    smallest_cell: int = 1  # as `LocalWork` has them
    smallest_batch: int = 1
    side_by_side: int = 1  # trainings of a round that go over a part of the patients each
    remedy: str = ""  # for too few steps; "": what the study's [training] has for that

    @property
    def num_samples(self) -> int:
        """The fewest rows or images that so many of the patients have."""
        return sum(self.counts.samples[: self.num_patients])

    def half(self) -> "WorkSize":
        """One half of `LocalWork.halvings`."""
        every = self.counts.num_patients
        pairs = SMALL_HALVINGS if every < 2 * self.smallest_cell else 1
        return replace(self, num_patients=max(1, every // 2), side_by_side=2 * pairs)

    def without_held_out(self, share: float) -> "WorkSize":
        """The first part of `LocalWork.hold_out`."""
        rest = num_left(self.counts.strata, share, self.smallest_cell)
        return replace(self, num_patients=rest)
