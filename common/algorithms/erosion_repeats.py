"""The number of times a hospital's samples were used: k_i of Weight Erosion's equation 5."""

from math import ceil
from typing import Literal

from erosion.common.aggregation.cohort import Update

SizeUnit = Literal["seen", "formula", "completed_passes", "batches"]


def repeats(
    unit: SizeUnit, update: Update, batch_size: int | None, rounds_before: int, seen_before: int
) -> int:
    """k_i, as `unit` counts it.

    `rounds_before` is r - 1, `seen_before` how many samples the hospital used in earlier rounds,
    `batch_size` is b (None: the samples of this round).
    """
    batch = batch_size or update.samples_seen
    batches = ceil(update.num_samples / batch)
    match unit:
        case "seen":  # the intent: samples used before this round
            return seen_before // update.num_samples
        case "formula":  # eq. 5 to the letter
            return rounds_before * batch // update.num_samples
        case "completed_passes":  # the authors' Titanic code
            return (rounds_before + 1) // batches
        case "batches":  # the authors' MNIST code: |S_i| counted in batches
            return rounds_before * batch // batches
