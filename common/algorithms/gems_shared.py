"""The common part of the two kinds of GEMS that look for one model for all, beside public data."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from erosion.common.aggregation.cohort import Cohort
from erosion.common.algorithms.base import Step, relative_weights
from erosion.common.algorithms.gems_base import GemsState, sent_balls
from erosion.common.algorithms.public_tuning import PublicTuning
from erosion.common.gems.descent import Spaces, descend, descend_from_afar
from erosion.common.gems.options import MeetingOptions
from erosion.common.gems.report import SentBall, in_words


class SharedModel(PublicTuning, MeetingOptions):
    """GEMS whose hospitals may measure distances on scales of their own."""

    def has_scales(self) -> bool:
        """Whether they do; if not, equation 2 is that of balls."""
        return self.masked_distance

    def scales(self, centres: Tensor, cohort: Cohort) -> Tensor:
        """What every hospital multiplies a difference by, (k, dim), own first.

        The centres (k, dim) are the hospitals' models.
        """
        del cohort
        return centres

    def update_from(self, start: Tensor, state: GemsState, cohort: Cohort) -> Step[GemsState]:
        """A model in all balls, or as near to that as was found, by the hospitals' own scales."""
        if not self.has_scales():
            return self.update(state, cohort)
        deltas, sent = all_deltas(cohort), sent_balls(cohort)
        scales = self.scales(start.double() + deltas, cohort)
        # A ball that cannot be believed does not count; the user's own model always does.
        counted = torch.tensor([1.0, *(0.0 if ball.problem else 1.0 for ball in sent[1:])])
        radii = torch.tensor([ball.usable_radius for ball in sent])
        spaces = Spaces(deltas, radii.double(), counted.double(), scales)
        # On a scale of ten a step is a hundred times as long, so they end with shorter ones.
        meeting = descend_from_afar(spaces, shortest=1e-4)
        return Step(
            meeting.point.float(),
            # no combination of the updates: who counts, counts alike
            relative_weights(cohort, counted.tolist()),
            GemsState(state.round + 1),
            note=in_words(sent, meeting),
        )


def pairs_that_meet(
    deltas: Tensor, scales: Tensor, sent: Sequence[SentBall]
) -> Callable[[int, int], bool]:
    """Whether two ellipsoids have a model in common: on the line between them, or elsewhere."""
    radii = torch.tensor([ball.usable_radius for ball in sent], dtype=torch.float64)

    def meets(one: int, other: int) -> bool:
        pair = [one, other]
        lengths = (scales[pair] * (deltas[one] - deltas[other])).norm(dim=1)
        if float((radii[pair] / lengths.clamp(min=1e-300)).sum()) >= 1 - 1e-6:
            return True
        both = Spaces(deltas[pair], radii[pair], torch.ones(2, dtype=torch.float64), scales[pair])
        return descend(both, both.mean, max_steps=200).in_all

    return meets


def all_deltas(cohort: Cohort) -> Tensor:
    """All updates in memory: (k, dim) float64. Only options that copy the authors' need them."""
    return torch.cat([torch.stack(list(values)) for _, values in cohort.blocks()], dim=1).double()
