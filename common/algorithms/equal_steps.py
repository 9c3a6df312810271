"""A cohort's updates as if every hospital had taken as many steps as the user.

With `epochs` a hospital with ten times the patients takes ten times the steps, and its update is
longer for no other reason. In Weight Erosion's paper all hospitals use equally many samples
a round. Each update is scaled to the user's number of steps, for the comparison and for the
aggregate alike: what is added is what was compared.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from erosion.common.aggregation.cohort import BlockwiseCohort, Cohort
from erosion.common.aggregation.vectors import Block
from erosion.common.learning.training import Training


def as_of_equal_steps(cohort: Cohort, steps: Callable[[int], int]) -> tuple[Cohort, list[float]]:
    """The cohort, and each update's factor, own first.

    `steps` says how many steps a hospital with so many samples takes; where all take equally many
    the cohort is the one given.
    """
    own = steps(cohort.own.num_samples)
    factors = [own / steps(update.num_samples) for update in cohort.updates]
    if all(factor == 1 for factor in factors):
        return cohort, factors
    others = {update.agent: update for update in cohort.updates[1:]}
    return _Scaled(cohort.own, others, unscaled=cohort, factors=tuple(factors)), factors


def unequal_steps(cohort: Cohort, steps: Callable[[int], int]) -> str:
    """What to know where updates are compared as they come; empty where all took equal steps."""
    taken = [steps(update.num_samples) for update in cohort.updates]
    if all(count == taken[0] for count in taken):
        return ""
    return (
        f"updates of {min(taken)} to {max(taken)} steps are compared as they come (per_step ="
        " false): whoever has more patients than the user seems further away"
    )


def problem_with_sealed_epochs(training: Training) -> str | None:
    """Why updates that nobody sees cannot be compared, or None where all take equal steps."""
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
        """Those updates, scaled, block by block."""
        for place, values in self.unscaled.blocks():
            yield place, tuple(values[row] * self.factors[row] for row in rows)
