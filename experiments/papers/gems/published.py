"""The paper's figures (Guha and Smith), and how near ours have to come."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Published:
    """Test accuracies of one row of the paper's tables."""

    whole: float  # one model on all data ("global")
    local: float
    averaged: float
    gems: float
    tuned: float  # after fine-tuning on 1000 public samples


PUBLISHED: Mapping[tuple[str, str, int], Published] = {
    ("mnist", "convex", 2): Published(0.926, 0.481, 0.780, 0.780, 0.889),
    ("mnist", "convex", 3): Published(0.926, 0.325, 0.705, 0.647, 0.878),
    ("mnist", "convex", 5): Published(0.925, 0.198, 0.458, 0.458, 0.880),
    ("mnist", "network", 2): Published(0.964, 0.492, 0.641, 0.766, 0.888),
    ("mnist", "network", 3): Published(0.965, 0.329, 0.422, 0.754, 0.926),
    ("mnist", "network", 5): Published(0.965, 0.199, 0.259, 0.439, 0.886),
    ("cifar10", "network", 2): Published(0.650, 0.405, 0.192, 0.335, 0.568),
    ("cifar10", "network", 3): Published(0.653, 0.284, 0.163, 0.333, 0.538),
    ("cifar10", "network", 5): Published(0.651, 0.183, 0.128, 0.223, 0.502),
    ("ham10000", "network", 2): Published(0.594, 0.354, 0.273, 0.399, 0.539),
    ("ham10000", "network", 3): Published(0.601, 0.271, 0.195, 0.269, 0.525),
}

# MNIST, five nodes: variant -> hidden neurons and tuned accuracy.
SIZES: Mapping[str, tuple[int, float]] = {
    "authors, m 75, eps_j .5": (74, 0.872),
    "authors": (99, 0.886),
    "authors, m 50": (49, 0.862),
}
ENSEMBLE_OF_250 = 0.210

# What an independent implementation came to on MNIST, over three trials: GEMS and tuned with the
# authors' settings, and GEMS with ours. The published network for two nodes is probably smaller.
REACHED: Mapping[tuple[str, int], tuple[float, float]] = {
    ("convex", 2): (0.743, 0.886),
    ("convex", 3): (0.647, 0.882),
    ("convex", 5): (0.405, 0.876),
    ("network", 2): (0.886, 0.936),
    ("network", 3): (0.742, 0.928),
    ("network", 5): (0.395, 0.875),
}
REACHED_BY_OURS: Mapping[int, float] = {2: 0.886, 3: 0.851, 5: 0.651}

# How far a mean over the trials may be off. The authors' settings start every node at random, and
# at two convex nodes the average of two such models is anything between .6 and .9.
TOLERANCE_AUTHORS, TOLERANCE_CONVEX_2 = 0.10, 0.20
TOLERANCE_OURS = 0.04
TOLERANCE_TUNED = 0.02


def gems_tolerance(model: str, nodes: int) -> float:
    """Of GEMS with the authors' settings."""
    return TOLERANCE_CONVEX_2 if (model, nodes) == ("convex", 2) else TOLERANCE_AUTHORS
