"""Undoing a round whose aggregate harms honest hospitals, and naming whose update did it.

Screening bounds what one update can do; this is for what comes through. The harm shows in the
round after: the user's loss explodes, or honest training is not finite any more. Then the arm goes
back to where it was, and the hospital whose update stood out is not asked again in it. An
attachment that others train on does its harm a round later, so those of the round before count,
too. Where nobody stands out, the study's own training diverges, and going back would not help.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from erosion.common.aggregation.cohort import HospitalName, Update
from erosion.common.aggregation.vectors import norm
from erosion.common.rounds.records import Answer, Rejection, RunState
from erosion.common.rounds.screening import ITSELF, NOT_FINITE

EXPLODED = 5.0  # times what the user's loss used to be
STANDS_OUT = 3.0  # times what is usual, in any of the arrays that a hospital brings

Lengths = Mapping[str, float]  # Euclidean, of what a hospital brought to a round, by array


@dataclass(frozen=True, slots=True, eq=False)
class LastRound:
    """What a round started from, and who brought what to it."""

    before: RunState
    lengths: Mapping[HospitalName, Lengths]  # of those whose arrays were part of it
    usual_loss: float | None  # the user's; None: it measured none


def lengths_of(update: Update) -> Lengths:
    """How long it is, and what others train on of its attachments: the rest the method bounds."""
    own = norm(update.delta) if update.norm is None else update.norm
    return {ITSELF: own, **update.attached_norms}


def from_before(
    lengths: Mapping[HospitalName, Lengths], arrays: Sequence[str]
) -> dict[HospitalName, Lengths]:
    """How long those arrays of the round before were, on which this one trained."""
    return {
        name: {f"{array} before": of[array] for array in arrays if array in of}
        for name, of in lengths.items()
        if any(array in of for array in arrays)
    }


def harm_of(
    last: LastRound, user: HospitalName, loss: float | None, answers: Mapping[HospitalName, Answer]
) -> str:
    """What the last round has done to honest hospitals, in words; "" where nothing shows.

    `loss`: the user's on its training part, of the parameters that the last round led to; None
    where it measured none.
    """
    failing = [n for n in last.lengths if answers.get(n) == Rejection(NOT_FINITE)]
    if user in failing or 2 * len(failing) > len(last.lengths):
        return f"the training of {', '.join(failing)} was not finite after it"
    if loss is None or last.usual_loss is None or loss <= EXPLODED * last.usual_loss:
        return ""
    return f"the user's loss was {loss:.4g} after it, and usually {last.usual_loss:.4g}"


def usual(losses: Sequence[float]) -> float | None:
    """The user's loss as it began, or as it mostly was: one that creeps up changes neither."""
    return max(losses[0], median(losses)) if losses else None


def culprit_of(last: LastRound, user: HospitalName) -> tuple[HospitalName, float] | None:
    """Whose update stood out most, and how often it was as long as is usual; None: nobody's."""
    found: tuple[HospitalName, float] | None = None
    for name, lengths in last.lengths.items():
        if name == user:
            continue
        for array, length in lengths.items():
            others = [o[array] for n, o in last.lengths.items() if n != name and array in o]
            if not others:  # it stands out from nothing
                continue
            typical = median(others)
            times = length / typical if typical > 0 else math.inf if length > 0 else 0.0
            if times >= STANDS_OUT and (found is None or times > found[1]):
                found = name, times
    return found
