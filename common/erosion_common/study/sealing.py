"""Checks that a study can run on sealed rounds, in which nobody sees a single update.

Two sums of the same updates with other weights would give single updates away, so one arm asks the
other hospitals, nothing is tried out before, and every sum is of four other hospitals or more.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from erosion_common.algorithms.base import OUTPUT_LAYER, STANDS_OUT, ArmBase, Layout
from erosion_common.algorithms.personal_layers import own_places
from erosion_common.learning.training import Training

if TYPE_CHECKING:
    from erosion_common.study.study import Study

FEWEST = 5  # the user and four others
FEWEST_VALUES = 8  # of an update in its distance: that of one value discloses all but the sign
NOTHING = 1e-6  # of an update's largest value: less does not show in a distance
_MANY = 1 << 20  # parameters of a model; what grows with them is no single number


def problem_with_federation(study: "Study") -> str | None:
    """Return what a sealed study cannot have apart from its arms, or None."""
    if study.federation.quorum < FEWEST:
        return (
            f"federation.quorum = {study.federation.quorum}; it must be {FEWEST} or more, because"
            " a sum of fewer than four other hospitals shows too much of each to one of them that"
            " helps the coordinator"
        )
    if study.has_every_user:
        return 'user = "all" would put the same updates into many sums; name one user'
    if study.repeats_training:
        return "selection and evaluation.folds would sum the same updates again; leave them out"
    if study.scaling == "federated":
        return (
            'scaling = "federated" sends sums of each hospital in the clear; use "user" (by the'
            ' user\'s means and deviations) or "local"'
        )
    if study.federation.max_update_norm is not None:
        return "federation.max_update_norm cannot be held against updates that nobody sees"
    return None


def problem_with_arms(arms: Mapping[str, ArmBase], training: Training, predicts: str) -> str | None:
    """Return which arm a sealed study cannot have, or None. `predicts`: as `Task.predicts`."""
    asking = [name for name, arm in arms.items() if not arm.user_only]
    if len(asking) != 1:
        return (
            f"{len(asking)} arms ask the other hospitals"
            f" ({', '.join(asking) or 'none'}); exactly one can, apart from local"
        )
    arm = arms[asking[0]]
    if problem := arm.problem_with_sealing() or arm.problem_with_sealed_training(training):
        return f"arms.{asking[0]}: {problem}"
    # Of a class or a hazard no patient's residual is above 1, whatever the bias.
    if arm.own_parameters and predicts not in ("classes", "times"):
        return f"arms.{asking[0]}: write own_parameters = [], because {STANDS_OUT}"
    for name, length in arm.attachment_sizes(_MANY).items():
        if length > 1:
            return f"arms.{asking[0]} sends {name!r} of each hospital in the clear"
    return None


def problem_with_values(
    arm: ArmBase, layout: Layout, classes: int, update: Tensor | None
) -> str | None:
    """Return why the disclosed numbers would give an update away, or None: it has too few values.

    What stays at hospitals hides nothing there. `classes`: of a softmax, with outputs' updates that
    sum to zero, so that one follows from the others; 1: there is none. With the `update` (dim,)
    itself only values that moved count, as far as distances show: a coordinator may choose
    parameters at which the others do not.
    """
    counts = ~own_places(arm.own_parameters, layout)
    if update is not None:
        lowest, highest = update.aminmax()  # without a copy of it
        least = NOTHING * torch.maximum(-lowest, highest)
        counts &= ((update > least) | (update < -least)).cpu()
    found = int(counts.count_nonzero())
    if classes > 1 and list(layout)[-1].endswith("bias"):
        found -= int((counts & own_places([OUTPUT_LAYER], layout)).count_nonzero()) // classes
    if found >= FEWEST_VALUES:
        return None
    return (
        f"of an update's values {found} count in the distances of sealed rounds without following"
        f" from the others, and {FEWEST_VALUES} must at least, or a distance tells too much; share"
        " more parameters, or take a model with more"
    )
