"""A cell's accuracies on the user's test images, and how far chance alone may move them."""

from erosion.experiments.cells import Cell
from erosion.experiments.tables import wilson


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
