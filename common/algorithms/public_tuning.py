"""GEMS with fine-tuning on public data (Guha and Smith, section 3.3).

Public data are those of one hospital of the study, usually a site that the coordinator's people run
for them: its file is read and checked like any other. It takes no part but for the tuning.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from erosion.common.aggregation.cohort import HospitalName
from erosion.common.aggregation.vectors import norm
from erosion.common.algorithms.base import (
    Answers,
    Ask,
    Brings,
    Payload,
    RoundStart,
    SiteStep,
    Step,
    TensorTerms,
)
from erosion.common.algorithms.gems_base import GemsBase, GemsState, module_widths
from erosion.common.errors import Refusal
from erosion.common.gems.fine_tuning import fine_tune, tuning
from erosion.common.gems.layers import hidden_features, split_layers
from erosion.common.learning.local_work import LocalAnswer, LocalWork
from erosion.common.learning.work_size import WorkSize
from erosion.common.support.text import printable

TUNE = "tune"
_MODEL, _OUTPUT = "model", "output"


class PublicTuning(GemsBase):
    """GEMS whose output layer may be trained further on a public hospital's patients."""

    public_hospital: str = ""
    tuning_epochs: int = Field(default=20, ge=1, le=1000)

    def problem_with_names(self, hospitals: Sequence[HospitalName]) -> str | None:
        """The public hospital is one of the study's."""
        if self.public_hospital in ("", *hospitals):
            return None
        return (
            f"public_hospital = {self.public_hospital!r} is not among the hospitals"
            f" ({', '.join(hospitals)}); name one of them, or leave it out"
        )

    def site_steps(self) -> Mapping[str, SiteStep]:
        """Tuning comes after the meeting."""
        return {**super().site_steps(), TUNE: self.tune}

    def local_trainings(self, whole: WorkSize) -> tuple[WorkSize, ...]:
        """The public hospital's tuning goes over all of its patients; as a peer it has no other."""
        known = () if self.only_tunes(whole) else super().local_trainings(whole)
        if whole.agent != self.public_hospital:
            return known
        tunes = tuning(self.tuning_epochs, whole.smallest_batch)
        return (*known, replace(whole, training=tunes, remedy="more tuning_epochs"))

    def only_tunes(self, whole: WorkSize) -> bool:
        """Whether the hospital is the public one, and the model for another."""
        return whole.agent == self.public_hospital and not whole.is_user

    def taking_part(self, begun: RoundStart) -> Sequence[HospitalName] | None:
        """All but the public one, which takes part in the model that is for itself."""
        if self.public_hospital in ("", begun.user):
            return None
        return [name for name in begun.hospitals if name != self.public_hospital]

    def after_meeting(
        self, begun: RoundStart, step: Step[GemsState], widths: Sequence[int]
    ) -> Generator[Ask, Answers, Step[GemsState]]:
        """The output layer after the public hospital has trained it."""
        name = self.public_hospital
        if not name:
            return step
        if name not in begun.hospitals or name == begun.user:
            why = "is the user" if name == begun.user else "is not there"
            return replace(step, note=f"{step.note}; not fine-tuned, for {name} {why}")
        model = begun.parameters + step.delta
        size = widths[-2] * widths[-1] + widths[-1]
        # Of scaled inputs, weights are about 1 after tuning, also where it starts near 0.
        usual = max(math.sqrt(size), norm(model[-size:]))
        tuned = yield Ask(
            TUNE,
            Payload({_MODEL: model}),
            brings=Brings(tensors={_OUTPUT: TensorTerms((size,), is_measured=True)}),
            hospitals=[name],
            sends_parameters=False,
            any_number=True,
            usual=usual,
        )
        if name in tuned.missing:
            why = printable(tuned.missing[name])
            return replace(step, note=f"{step.note}; not fine-tuned, for {name} {why}")
        output = tuned.replies[name].tensors[_OUTPUT]
        delta = torch.cat([step.delta[:-size], output - begun.parameters[-size:]])
        return replace(step, delta=delta, note=f"{step.note}; fine-tuned by {name}")

    def tune(self, work: LocalWork) -> LocalAnswer:
        """The output layer (C d + C,) after `tuning_epochs` passes over all patients here.

        Raises Refusal at a hospital that the study does not name for it.
        """
        if work.agent != self.public_hospital:
            raise Refusal(f"{work.agent} is not the hospital whose data are public.")
        *hidden, output = split_layers(work.enclosed[_MODEL], module_widths(work.model))
        features = hidden_features(hidden, work.inputs.flatten(1))
        tuned = fine_tune(
            output,
            features,
            work.targets,
            work.randomness(),
            loss=work.task.training_loss(work.targets),
            epochs=self.tuning_epochs,
            smallest_batch=work.smallest_batch,
        )
        found: dict[str, Tensor] = {_OUTPUT: tuned.flat}
        return LocalAnswer(found, keep=work.kept)
