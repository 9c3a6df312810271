"""A cohort's updates as if every hospital had taken as many steps as the user.

With `epochs` a hospital with ten times the patients takes ten times the steps, and its update is
longer for no other reason. In Weight Erosion's paper all hospitals use equally many samples
a round. Each update is scaled to the user's number of steps, for the comparison and for the
aggregate alike: what is added is what was compared. A hospital says how many steps it took, where
they are not the same for all: the number of patients that it reports is rounded, and a step more or
less is a factor of two at a hospital of few.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from erosion_common.aggregation.cohort import BlockwiseCohort, Cohort, HospitalName, Update
from erosion_common.aggregation.vectors import Block
from erosion_common.learning.training import Training


def as_of_equal_steps(cohort: Cohort, steps: Callable[[int], int]) -> tuple[Cohort, list[float]]:
    """Return the cohort, and each update's factor, own first.

    `steps` gives a hospital's approximate steps by its samples; if all took equally many, the
    cohort is the one given.
    """
    own, *others = [steps_of(update, steps) for update in cohort.updates]
    factors = [1.0, *(own / taken for taken in others)]
    if all(factor == 1 for factor in factors):
        return cohort, factors
    peers = {update.agent: update for update in cohort.updates[1:]}
    return _Scaled(cohort.own, peers, unscaled=cohort, factors=tuple(factors)), factors


def lengthened_by(
    updates: Mapping[HospitalName, Update], user: HospitalName, steps: Callable[[int], int]
) -> dict[HospitalName, float]:
    """Return the factor by which a method of such `steps` lengthens each update.

    It is 1 where the user's own is not among them: nothing is used then.
    """
    if user not in updates:
        return dict.fromkeys(updates, 1.0)
    own = steps_of(updates[user], steps)
    return {name: own / steps_of(update, steps) for name, update in updates.items()}


def steps_of(update: Update, steps: Callable[[int], int]) -> int:
    """Return how many steps a hospital took: as it says, or else about as many as `steps` expects.

    Who says that it took few has its update lengthened, so no fewer are believed than a quarter of
    its samples take: it may have half as many as it reports, and two mini-batches may be one.
    """
    if update.steps is None:
        return steps(ceil(update.num_samples))
    return max(update.steps, steps(max(1, int(update.num_samples // 4))))


def unequal_steps(cohort: Cohort, steps: Callable[[int], int]) -> str:
    """Return a note if updates are compared unscaled after unequal steps, else ""."""
    taken = [steps_of(update, steps) for update in cohort.updates]
    if all(count == taken[0] for count in taken):
        return ""
    return (
        f"updates of {min(taken)} to {max(taken)} steps are compared as they come (per_step ="
        " false): a hospital with more patients than the user seems further away"
    )


def problem_with_sealed_epochs(training: Training) -> str | None:
    """Return why unseen updates cannot be compared, or None where all take equal steps."""
    if training.epochs is None:
        return None
    return (
        "with training.epochs, larger hospitals take more steps, and updates that nobody sees"
        " cannot be scaled to equal ones; give training.steps"
    )


@dataclass(frozen=True)
class _Scaled(BlockwiseCohort):
    unscaled: Cohort = field(kw_only=True)
    factors: tuple[float, ...] = field(kw_only=True)  # of every update, own first

    def read(self, rows: Sequence[int]) -> Iterator[Block]:
        """Yield those updates, scaled, block by block."""
        for place, values in self.unscaled.blocks():
            yield place, tuple(values[row] * self.factors[row] for row in rows)
