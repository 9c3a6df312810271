"""GEMS for convex models (Guha and Smith, Model Aggregation via Good-Enough Model Spaces)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from erosion.common.aggregation.cohort import Cohort
from erosion.common.algorithms.base import Layout
from erosion.common.algorithms.gems_base import AXES, module_widths, perceptron_widths
from erosion.common.algorithms.gems_shared import SharedModel, all_deltas, pairs_that_meet
from erosion.common.gems.axes import SHORTEST, fisher_axes
from erosion.common.gems.layers import Layer, split_layers
from erosion.common.gems.options import ConvexOptions
from erosion.common.gems.report import SentBall
from erosion.common.learning.local_work import LocalOutcome, LocalWork


class Gems(SharedModel, ConvexOptions):
    """One model that is good enough for every hospital, found in one round.

    Each hospital trains alone to its optimum and finds how far it may move from it before fewer
    than `epsilon` of its held-out patients are predicted rightly: a ball. The model taken lies in
    all balls, or as near to that as possible, and in the end each hospital checks it. The journal
    says which balls meet and who would accept the model. A ball is measured along random directions
    and is no guarantee; the check is. Its radius is a mean over as many patients as a site's
    smallest cell has, and 0 where fewer may be lost. Use it where hospitals can meet only once,
    with logistic regression; network_gems is for networks.
    Parameters: `epsilon` and `epsilon_of` ("accuracy", or "own_accuracy": `epsilon` is a share of
    what the hospital's own model reaches), `local_rounds` (the optimum is trained for as many
    rounds of the study's training: as many as its other arms have), `validation_share` (of the
    patients, held out), `directions` (tried from each optimum), `gems_rounds` (the run ends after
    them), `public_hospital` (one whose patients are public: it takes no part, and the model is
    trained further on them for `tuning_epochs`), `radius` ("lower_bound", or "midpoint" of the
    bisection's last interval, as in the authors' code), `shape` ("ball", or "ellipsoid": parameters
    that the predictions hardly depend on may move up to ten times as far; hospitals then send the
    axes, too, as many numbers as the model has), `masked_distance` (a slip of the authors' code for
    networks: differences are multiplied by the hospital's own parameters) and `preset` ("ours", or
    "authors": the midpoint).
    Source: Guha, Smith, Model Aggregation via Good-Enough Model Spaces, 2019.
    """

    algorithm: Literal["gems"] = "gems"

    def problem_with_model(self, layout: Callable[[], Layout]) -> str | None:
        """A ball of whole models is measured for logistic regression only."""
        if len(perceptron_widths(layout())) == 2:
            return None
        return "gems is for model.name = 'logistic'; use network_gems for 'mlp'"

    def attachment_sizes(self, dim: int) -> Mapping[str, int]:
        """An ellipsoid's axes come with it."""
        axes = {AXES: dim} if self.shape == "ellipsoid" else {}
        return {**super().attachment_sizes(dim), **axes}

    def has_scales(self) -> bool:
        """An ellipsoid is a ball on a scale of its own."""
        return self.shape == "ellipsoid" or super().has_scales()

    def scales(self, centres: Tensor, cohort: Cohort) -> Tensor:
        """One over the axes, or the authors' slip."""
        return _of_axes(cohort) if self.shape == "ellipsoid" else super().scales(centres, cohort)

    def which_meet(self, cohort: Cohort, sent: Sequence[SentBall]) -> Callable[[int, int], bool]:
        """The distance of two centres says little of ellipsoids."""
        if self.shape == "ball":
            return super().which_meet(cohort, sent)
        return pairs_that_meet(all_deltas(cohort), _of_axes(cohort), sent)

    def axes(self, output: Layer, features: Tensor, generator: torch.Generator) -> Tensor | None:
        """By the Fisher information of the patients held out."""
        return fisher_axes(output, features, generator) if self.shape == "ellipsoid" else None

    def train(self, work: LocalWork) -> LocalOutcome:
        """The local optimum, and the ball around it."""
        rest, _ = self.parts(work)
        result = self.optimum(rest, work.received)
        layers = split_layers(work.received + result.delta, module_widths(work.model))
        return self.with_ball(work, result.delta, result.samples_seen, layers, work.randomness())


def _of_axes(cohort: Cohort) -> Tensor:
    """One over every hospital's axes, (k, dim); those that cannot be believed do not count."""
    axes = torch.stack([update.attachments[AXES].double() for update in cohort.updates])
    return 1 / axes.clamp(min=SHORTEST)
