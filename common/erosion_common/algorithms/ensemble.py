"""An ensemble of locally trained models: the mean of their predictions."""

from typing import Any, ClassVar, Literal

from torch import Tensor

from erosion_common.aggregation.cohort import Cohort, HospitalName
from erosion_common.algorithms.base import Algorithm, ArmBase, BuildContext
from erosion_common.algorithms.own_model import OwnModelState, follow_own_model, with_others
from erosion_common.learning.local_work import LocalOutcome, LocalWork

_LOCAL = "local"


class Ensemble(ArmBase):
    """Every hospital trains a model alone, and the user averages what the models predict.

    Nothing is averaged but predictions, each model counting alike. Use it to see how much of a
    gain is due to many models rather than to training together, and with models that cannot be
    averaged. The result is as many models as hospitals: they reach the user's site, which keeps
    them and runs them together. It has no parameters.
    Source: Breiman, Bagging Predictors, 1996; as the baseline of Guha, Talwalkar, Smith, One-Shot
    Federated Learning, 2019.
    """

    private_updates: ClassVar[bool] = True

    algorithm: Literal["ensemble"] = "ensemble"

    def build(self, context: BuildContext) -> Algorithm[Any]:
        return follow_own_model(_alike)

    def train(self, work: LocalWork) -> LocalOutcome:
        """Train the hospital's own model, no matter what was received."""
        start = work.kept.get(_LOCAL, work.received)
        result = work.update(start)
        local = start + result.delta
        return LocalOutcome(local - work.received, result.samples_seen, keep={_LOCAL: local})

    def personal(self, work: LocalWork) -> Tensor:
        """Return all models: (m, dim), the user's first."""
        return with_others(work)


def _alike(_state: OwnModelState, cohort: Cohort) -> dict[HospitalName, float]:
    return {update.agent: 1.0 for update in cohort.updates}
