"""GEMS for convex models (Guha and Smith, Model Aggregation via Good-Enough Model Spaces)."""

from collections.abc import Callable
from typing import Literal

from erosion.common.algorithms.base import Layout
from erosion.common.algorithms.gems_base import module_widths, perceptron_widths
from erosion.common.algorithms.public_tuning import PublicTuning
from erosion.common.gems.layers import split_layers
from erosion.common.learning.local_work import LocalOutcome, LocalWork


class Gems(PublicTuning):
    """One model that is good enough for every hospital, found in one round.

    Each hospital trains alone to its optimum and finds how far it may move from it before fewer
    than `epsilon` of its held-out patients are predicted rightly: a ball. The model taken lies in
    all balls, or as near to that as possible, and in the end each hospital checks it. The journal
    says which balls meet and who would accept the model. A ball is measured along drawn directions
    and is no guarantee; the check is. Use it where hospitals can meet only once, with logistic
    regression; network_gems is for networks.
    Parameters: `epsilon` and `epsilon_of` ("accuracy", or "own_accuracy": `epsilon` is a share of
    what the hospital's own model reaches), `local_rounds` (the optimum takes as long as so many
    rounds of the study's training: as many as its other arms have), `validation_share` (of the
    patients, held out), `directions` (tried from each optimum), `gems_rounds` (the run ends after
    them), `public_hospital` (one whose patients are public: it takes no part, and the model is
    trained further on them for `tuning_epochs`), `radius` ("lower_bound", or "midpoint" of the
    bisection's last interval, as in the authors' code) and `preset` ("ours" or "authors").
    Source: Guha, Smith, Model Aggregation via Good-Enough Model Spaces, 2019.
    """

    algorithm: Literal["gems"] = "gems"

    def problem_with_model(self, layout: Callable[[], Layout]) -> str | None:
        """A ball of whole models is measured for logistic regression only."""
        if len(perceptron_widths(layout())) == 2:
            return None
        return "gems is for model.name = 'logistic'; use network_gems for 'mlp'"

    def train(self, work: LocalWork) -> LocalOutcome:
        """The local optimum, and the ball around it."""
        rest, _ = self.parts(work)
        result = self.longer(rest).sgd(work.received)
        layers = split_layers(work.received + result.delta, module_widths(work.model))
        return self.with_ball(work, result.delta, result.samples_seen, layers, work.randomness())
