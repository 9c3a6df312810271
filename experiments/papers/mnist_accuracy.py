"""A cell's accuracies on the user's test images, and how far chance alone may move them."""

from scipy.stats import binomtest

from erosion.experiments.cells import Cell


def best_of(cell: Cell) -> float:
    """Of all rounds, as the paper has it: nobody could have chosen that round beforehand."""
    best: float = max(cell.figures["accuracy"])
    return best


def last_of(cell: Cell) -> float:
    """Of the last round."""
    last: float = cell.figures["accuracy"][-1]
    return last


def interval(cell: Cell) -> tuple[float, float]:
    """The 95 % interval of the best accuracy."""
    return wilson(best_of(cell), cell.figures["test_images"])


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a binomial share of `count` (Wilson 1927)."""
    found = binomtest(round(share * count), count).proportion_ci(method="wilson")
    return float(found.low), float(found.high)
