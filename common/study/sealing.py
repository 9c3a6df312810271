"""Checks that a study can run on sealed rounds, in which nobody sees a single update.

Training is the same in every arm and trial that starts alike, so two sums of the same updates with
other weights would give single updates away: one arm asks the other hospitals, and nothing is tried
out before. Every sum is of three other hospitals or more.
"""

from collections.abc import Mapping

from erosion.common.algorithms.base import ArmBase
from erosion.common.learning.training import Training

FEWEST = 4  # the user and three others
_MANY = 1 << 20  # parameters of a model; what grows with them is no single number


def problem_with_federation(
    *, quorum: int, max_update_norm: float | None, scaling: str, selects: bool, every_user: bool
) -> str | None:
    """What a sealed study cannot have beside its arms, or None."""
    if quorum < FEWEST:
        return (
            f"federation.quorum = {quorum}; it must be {FEWEST} or more, because a sum of fewer"
            " than three other hospitals shows too much of each"
        )
    if every_user:
        return 'user = "all" would put the same updates into many sums; name one user'
    if selects:
        return "selection tries settings on the same updates, whose sums would give them away"
    if scaling == "federated":
        return (
            'scaling = "federated" sends sums of each hospital in the clear; use "user" (by the'
            ' user\'s means and deviations) or "local"'
        )
    if max_update_norm is not None:
        return "federation.max_update_norm cannot be held against updates that nobody sees"
    return None


def problem_with_arms(arms: Mapping[str, ArmBase], training: Training) -> str | None:
    """Which arm a sealed study cannot have, or None."""
    asking = [name for name, arm in arms.items() if not arm.user_only]
    if len(asking) != 1:
        return (
            f"{len(asking)} arms ask the other hospitals"
            f" ({', '.join(asking) or 'none'}); exactly one can, beside local"
        )
    arm = arms[asking[0]]
    if problem := arm.problem_with_sealing() or arm.problem_with_sealed_training(training):
        return f"arms.{asking[0]}: {problem}"
    for name, length in arm.attachment_sizes(_MANY).items():
        if length > 1:
            return f"arms.{asking[0]} sends {name!r} of each hospital in the clear"
    return None
