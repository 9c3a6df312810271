"""Local training: the user's own updates alone. The baseline that collaborating must beat."""

from typing import ClassVar, Literal

from erosion_common.aggregation.cohort import Cohort, HospitalName
from erosion_common.algorithms.base import Algorithm, ArmBase, BuildContext, NoState, Step, no_state


def _update(state: NoState, cohort: Cohort) -> Step[NoState]:
    weights = {cohort.own.agent: 1.0} | dict.fromkeys(cohort.peers, 0.0)
    return Step(cohort.own.delta, weights, state)


def _asks(_state: NoState, _agent: HospitalName) -> bool:
    return False


class Local(ArmBase):
    """The user trains alone.

    Every round is the user's own local training, so nothing is asked of the other hospitals.
    Use it as the reference: collaborating is worth it only where it beats this.
    It has no parameters.
    """

    user_only: ClassVar[bool] = True
    sums_only: ClassVar[bool] = True
    algorithm: Literal["local"] = "local"

    def build(self, context: BuildContext) -> Algorithm[NoState]:
        return Algorithm(no_state, _update, _asks)
