"""One study at one hospital: its patients, split and scaled, and its model, kept between rounds."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from erosion_client.dataset.load import KeptPatients, Patients
from erosion_client.dataset.preprocessing import (
    image_inputs,
    notes_of_cut,
    stand_ins,
    table_inputs,
)
from erosion_client.dataset.single_column import columns_of
from erosion_client.dataset.split import CountedPatients, Split, split_patients
from erosion_client.disclosure.control import DisclosureControl
from erosion_client.disclosure.summary import column_summaries
from erosion_client.site_file import Site
from erosion_common.errors import DataError, Refusal, SiteError
from erosion_common.learning.local_work import PatientCounts
from erosion_common.learning.models import build_model, flat_parameters, shapes_digest
from erosion_common.learning.trainable import named_trained_parameters
from erosion_common.protocol.messages import FeatureSums, ModelShape, Scaling, Summary
from erosion_common.protocol.scaling import CUT, pool
from erosion_common.settings.names import LARGEST_FIGURE
from erosion_common.study.sections import Fold
from erosion_common.study.study import Study
from erosion_common.tasks.features import Feature
from erosion_common.tasks.inputs import ImageTask, TabularTask, stands_in
from erosion_common.tasks.task import Floats, Targets, as_tensor


@dataclass(frozen=True, slots=True, eq=False)
class NamedPatients:
    """Patients as their hospital knows them, each with its outcome."""

    word: str  # of a label: "patient", or the "row" or "image" that is the patient's first
    labels: Sequence[str]
    outcomes: Targets


class Part(NamedTuple):
    """Patients as model inputs."""

    inputs: Tensor  # (n, *input_shape) float32
    targets: Tensor  # (n, ...) from the task


@dataclass(frozen=True, slots=True)
class Rows:
    """Patients as numbers."""

    inputs: Floats  # (n, columns), complete
    targets: Targets  # (n, ...) from the task
    patients: NDArray[np.int64]  # (n,) equal for one patient's rows

    def only(self, rows: NDArray[np.int64]) -> "Rows":
        """Return some of them."""
        return Rows(self.inputs[rows], self.targets[rows], self.patients[rows])


class LocalDataset:
    """A study's data and model at a site, built once per study; `parts` are ready for training."""

    def __init__(
        self,
        site: Site,
        study: Study,
        cells: DisclosureControl | None = None,
        kept: KeptPatients | None = None,
        run: str | None = "",
    ) -> None:
        """Read, check and split the data, and build the model.

        `cells` is the disclosure control; `kept` reads the patients, for the run (None: for none).
        Raises DataError, SiteError, ModelError, and Refusal for a test part of too few patients.
        Nobody counts as trained or measured on before `begin`.
        """
        cells = cells or DisclosureControl(site)
        if site.name == study.user and (lacking := study.task.why_not_here()):
            raise SiteError(lacking)
        study.check_model()  # before reading the patients, which may take long
        self.model: nn.Module = build_model(
            study.model,
            study.task.input_shape,
            study.task.num_outputs,
            seed=study.seed,
            weights=site.compute.weights,
        ).to(site.compute.device)
        self.dim = len(flat_parameters(self.model))
        patients = (kept or KeptPatients(site)).of(study, run)
        self.study = study
        self.split: Split = split_patients(
            study, site.name, patients.rows, patients.targets, patients.groups, patients.is_test
        )
        # Nothing about a fold: an error different from that of folds of few patients would
        # disclose how many patients an empty one has.
        is_tested = study.evaluation.folds is None and study.fold is None
        if site.name == study.user and is_tested and not len(self.split.test):
            raise DataError(
                "the rows of each class are all of one patient, so none can be held back to"
                " measure a model on",
                where=site.data.describe(),
                remedy="Add patients.",
            )
        self.tells_of_test_part = len(np.unique(patients.groups[self.split.test])) >= cells.cell
        self._name, self._patients, self.cells = site.name, patients, cells
        self._counted = CountedPatients(site.name, study, patients, self.split, cells)
        self.split = Split(self._counted.training, self.split.test)
        self.notes = (*patients.notes, *self._counted.notes)
        self._device = torch.device(site.compute.device)
        # Other ties between rows are judged among all rows. Which gradients are clipped together
        # must not depend on others, or one patient's record could move the sum by more than a clip.
        self._trained = patients.groups
        if study.privacy is not None and patients.keys is not None:
            self._trained = patients.keys
        self._counts_in: dict[Fold | None, PatientCounts] = {}
        self._parts: tuple[Part, Part] | None = None
        self._scaled_by: Scaling | None = None  # that `_parts` were made with
        # Rounded whether sent or not: this site scales by them, too.
        self.sums: FeatureSums | None = None
        training = self.split.training
        task, rows = study.task, patients.rows[training]
        if isinstance(task, TabularTask) and not self._counted.is_noised:
            numbers, groups = rows.astype(np.float64, copy=False), patients.groups[training]
            is_told = self._tells_sums(site.name)
            self.sums = cells.sums(task, numbers, groups, is_disclosed=is_told)
        keys = None if patients.keys is None else patients.keys[training]
        hashes = None if patients.row_hashes is None else patients.row_hashes[training]
        num_samples, num_identified, self._told_patients = cells.numbers(
            rows, patients.groups[training], keys, hashes
        )
        # A private step is over patients, so with privacy this is the number of patients.
        self.disclosed_samples = num_samples if study.privacy is None else num_identified
        self.missing_values = self._missing_values()

    def begin(self) -> None:
        """Note the patients of updates and measurements, before the first of either."""
        self._counted.begin()

    def begin_validation(self) -> None:
        """Note that another hospital's model is measured on the training patients, or refuse."""
        self._counted.measure_training()

    @property
    def patients(self) -> Patients:
        """All patients, of the training and the test part."""
        return self._patients

    @property
    def has_begun(self) -> bool:
        """Whether the patients of updates and figures are noted."""
        return self._counted.has_begun

    @property
    def model_shape(self) -> ModelShape | None:
        """The model's shape for the coordinator to compare, where the model is not built in."""
        settings = self.study.model
        if settings.has_free_shapes and settings.pretrained is None and not settings.frozen:
            return None
        shapes = {n: tuple(p.shape) for n, p in named_trained_parameters(self.model)}
        return ModelShape(num_parameters=self.dim, digest=shapes_digest(shapes))

    @cached_property
    def summary(self) -> Summary:
        """Describe the training patients and their columns, as disclosed. Raises Refusal."""
        of, part = self._patients, self.split.training
        patients = of.rows[part], of.targets[part], of.groups[part]
        counts = {
            "num_recorded": of.num_recorded,
            "num_incomplete": of.num_incomplete,
            "num_repeated": of.num_repeated,
        }
        return Summary(
            min_cell=self.cells.cell,
            num_samples=self.disclosed_samples,
            num_patients=self._told_patients,
            num_unreadable=self.cells.cell * ceil(of.num_unreadable / self.cells.cell),
            **self.cells.data_counts(counts, of.rows, of.groups, of.row_hashes),
            columns=tuple(column_summaries(self.cells, self.study.task, *patients)),
        )

    def columns(self, *, every: bool) -> Iterator[tuple[Feature, Floats]]:
        """Yield a table's features, each with every patient's value (patients,)."""
        of, task = self._patients, self.study.task
        if not isinstance(task, TabularTask):
            return
        if every:
            yield from columns_of(task, of.rows, of.groups)
            return
        parts = (
            columns_of(task, of.rows[part], of.groups[part])
            for part in (self.split.training, self.split.test)
        )
        for (feature, trained), (_, tested) in zip(*parts, strict=True):
            yield feature, np.concatenate([trained, tested])

    @property
    def num_training(self) -> int:
        """Training samples: rows of a table, or images."""
        return len(self.split.training)

    @cached_property
    def training_counts(self) -> PatientCounts:
        """The numbers of training patients."""
        return self._counts(self.study, self.split.training)

    def counts_in(self, part: Study) -> PatientCounts:
        """Return the same of a fold, or of its trials; computed once each."""
        if (known := self._counts_in.get(part.fold)) is not None:
            return known
        of = self._patients
        split = split_patients(part, self._name, of.rows, of.targets, of.groups, of.is_test)
        training = np.intersect1d(split.training, self.split.training)
        self._counts_in[part.fold] = counts = self._counts(part, training)
        return counts

    def _counts(self, study: Study, rows: NDArray[np.int64]) -> PatientCounts:
        of = self._patients
        return PatientCounts.of(study.task, of.rows[rows], of.targets[rows], of.groups[rows])

    @property
    def training_patients(self) -> Tensor:
        """Patient numbers of the training samples: (n,) int64, equal for one patient's rows.

        With privacy they follow from the rows' identifiers alone, where these have one.
        """
        return torch.from_numpy(self._trained[self.split.training])

    @property
    def test_patients(self) -> NDArray[np.int64]:
        """Patient numbers of the test samples: (n,), equal for one patient's rows."""
        return self._patients.groups[self.split.test]

    @property
    def training_targets(self) -> Targets:
        """Targets of the training samples: (n, ...)."""
        return self._patients.targets[self.split.training]

    @property
    def tested_outcomes(self) -> Targets:
        """Outcomes of the test patients, one each, by their numbers: (patients, ...)."""
        return self._outcomes(self.split.test)

    @property
    def trained_outcomes(self) -> Targets:
        """Outcomes of the training patients."""
        return self._outcomes(self.split.training)

    @cached_property
    def outcomes(self) -> Targets:
        """Outcomes of all patients."""
        return self._patients.outcomes(self.study.task)

    @property
    def measured_patients(self) -> NamedPatients:
        """The patients of the final figures: the test part, or everybody where each has a fold.

        Where the model is another hospital's, those that train here.
        """
        of, rows = self._patients, self.split.test
        if self._name != self.study.user:
            rows = self.split.training
        elif self.study.evaluation.folds is not None:
            rows = np.arange(len(of.targets))
        first = np.unique(of.groups[rows], return_index=True)[1]
        return NamedPatients(of.label_word, of.labels[rows[first]].tolist(), self._outcomes(rows))

    @property
    def training_rows(self) -> NDArray[np.float64] | None:
        """The table's training rows, as the study sees them: (n, features)."""
        if not isinstance(self.study.task, TabularTask):
            return None
        return self._patients.rows[self.split.training].astype(np.float64, copy=False)

    def _outcomes(self, rows: NDArray[np.int64]) -> Targets:
        of = self._patients
        return self.study.task.targets_of_patients(of.targets[rows], of.groups[rows])

    @property
    def fingerprint(self) -> Tensor:
        """A hash of all rows, in order, and of which patient each belongs to: (32,) uint8."""
        content = hashlib.sha256(np.ascontiguousarray(self._patients.rows).tobytes())
        content.update(np.ascontiguousarray(self._patients.groups).tobytes())
        content.update(np.ascontiguousarray(self._patients.targets).tobytes())
        return torch.tensor(list(content.digest()), dtype=torch.uint8)

    def seed(self, purpose: str) -> int:
        """Return a seed that depends on the study, the hospital's part in it, and the purpose."""
        digest = hashlib.sha256(f"{self.study.seed}/{self.study.name}/{purpose}".encode()).digest()
        return int.from_bytes(digest[:8], "big")

    def scaling(self, pooled: Scaling | None, arm: str | None = None) -> Scaling | None:
        """Return what the columns are scaled by; `pooled` is what the coordinator sent.

        An arm that asks nobody else is scaled by this hospital's own patients alone, so that other
        hospitals cannot influence the comparison.
        """
        if self.study.scaling == "none":
            return None
        is_alone = arm is not None and self.study.arms[arm].user_only
        if self.study.scaling == "local" or is_alone:
            return self.own_scaling
        return self._checked(pooled)

    def _checked(self, scaling: Scaling | None) -> Scaling:
        """Return a scaling of the coordinator's. Raises Refusal where it does not fit."""
        if scaling is not None and scaling == self._scaled_by:
            return scaling  # as in the rounds before
        columns = self.study.task.input_shape[0]
        if scaling is None:
            raise Refusal(
                f'The study has scaling = "{self.study.scaling}"; the request brings no scaling.'
            )
        if len(scaling.mean) != columns or len(scaling.deviation) != columns:
            raise Refusal(
                f"The scaling has {len(scaling.mean)} means and {len(scaling.deviation)}"
                f" deviations; the study has {columns} columns."
            )
        if min(scaling.deviation) < 1 / LARGEST_FIGURE:
            raise Refusal(
                "The scaling has a deviation that is not more than 0, or next to nothing."
            )
        if max(map(abs, (*scaling.mean, *scaling.deviation))) > LARGEST_FIGURE:
            raise Refusal("The scaling has a figure beyond all that a message may have.")
        return scaling

    def parts(self, pooled: Scaling | None, arm: str | None = None) -> tuple[Part, Part]:
        """Return the training part and the test part; the latter is empty except for the user."""
        scaling = self.scaling(pooled, arm)
        if self._parts is None or scaling != self._scaled_by:
            self._parts = (
                self._part(self.split.training, scaling),
                self._part(self.split.test, scaling),
            )
            self._scaled_by = scaling
            self.notes += tuple(n for n in self._scaling_notes(scaling) if n not in self.notes)
        return self._parts

    def forget_parts(self) -> None:
        """Make the parts again when they are next asked for: a package may have changed them."""
        self._parts = None

    def rows_alone(self) -> tuple[Rows, Floats]:
        """Return the training patients, and the inputs of the tested ones, for local models."""
        scaling = None if self.study.scaling == "none" else self.own_scaling
        training, test = (
            self._part(part, scaling).inputs.cpu().numpy().astype(np.float64)
            for part in (self.split.training, self.split.test)
        )
        of_patients = self._patients.groups[self.split.training]
        return Rows(training, self.training_targets, of_patients), test

    def as_delivered(self, scaling: Scaling | None, missing: Sequence[float] | None) -> Part:
        """Return the training part, scaled and completed as a delivered model is applied."""
        if scaling is not None or self.study.scaling != "none":
            scaling = self._checked(scaling)
        columns = self.study.task.input_shape[0]
        if missing is not None and len(missing) != columns:
            raise Refusal(f"The request completes another number of columns than {columns}.")
        if missing is None and stands_in(self.study.task, scaled=scaling is not None):
            raise Refusal("The request does not say what stands for missing values.")
        return self._part(self.split.training, scaling, missing)

    def _part(
        self,
        patients: NDArray[np.int64],
        scaling: Scaling | None,
        missing: Sequence[float] | None = None,
    ) -> Part:
        task, rows = self.study.task, self._patients.rows[patients]
        if isinstance(task, TabularTask):
            numbers = rows.astype(np.float64, copy=False)
            inputs = table_inputs(task, numbers, scaling, missing or self.missing_values)
        else:
            assert isinstance(task, ImageTask)
            inputs = image_inputs(task, rows.astype(np.uint8, copy=False))
        targets = as_tensor(self._patients.targets[patients])
        return Part(inputs.to(self._device), targets.to(self._device))

    def _scaling_notes(self, scaling: Scaling | None) -> Iterator[str]:
        task = self.study.task
        if scaling is None or self.study.fold is not None or not isinstance(task, TabularTask):
            return
        patients = np.concatenate([self.split.training, self.split.test])
        rows = self._patients.rows[patients].astype(np.float64, copy=False)
        yield from notes_of_cut(task, rows, scaling, CUT)

    def _tells_sums(self, name: str) -> bool:
        """Return whether the coordinator receives the sums, or what follows from them."""
        study = self.study
        if study.fold is not None:
            return False
        if name == study.user and study.scaling == "none":
            return stands_in(study.task, scaled=False)
        return name == study.user or study.sends_sums(name)

    @cached_property
    def own_scaling(self) -> Scaling | None:
        """Columns scaled by this hospital's patients alone; None where nothing scales them."""
        task = self.study.task
        if self.sums is None or not isinstance(task, TabularTask):
            return None
        return pool([self.sums], task)

    def _missing_values(self) -> tuple[float, ...] | None:
        """Return replacements of missing values, where only these patients determine them."""
        task, own = self.study.task, self.own_scaling
        if own is None or self.sums is None or not isinstance(task, TabularTask):
            return None
        scaled = self.study.scaling != "none"
        if not stands_in(task, scaled=scaled):
            return None
        rows = self._patients.rows[self.split.training].astype(np.float64, copy=False)
        return stand_ins(task, rows, own.mean, self.sums.count, scaled=scaled)
