"""The behaviour of rules that compare hospitals in rounds with too few of them."""

from typing import Any

import torch

from erosion.common.aggregation.cohort import Cohort
from erosion.common.algorithms.base import Step


def short_of(cohort: Cohort, state: Any, needed: int) -> Step[Any] | None:
    """The step of a round with fewer than `needed` updates, own included; None if all is well.

    A user without any peer trains alone: there is nobody whose update could do harm. Otherwise the
    round is skipped, because with so few the rule would pass any update on.
    """
    present = len(cohort.updates)
    if present == 1:
        return alone(cohort, state)
    if present >= needed:
        return None
    note = f"{present} usable updates, the rule needs {needed} to tell a harmful one"
    return Step(torch.zeros_like(cohort.own.delta), {}, state, outcome="skipped", note=note)


def alone(cohort: Cohort, state: Any) -> Step[Any]:
    """A round in which only the user's own update arrived: local training."""
    return Step(cohort.own.delta, {cohort.own.agent: 1.0}, state)


def too_few_in_study(rule: str, num_hospitals: int, needed: int, remedy: str) -> str | None:
    """Why a study of so few hospitals cannot use the rule, or None."""
    if num_hospitals >= needed:
        return None
    return f"{rule} needs {needed} hospitals and the study has {num_hospitals}; {remedy}"
