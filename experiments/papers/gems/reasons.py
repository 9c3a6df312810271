"""Figures that differ from the paper's or from those expected, and what was measured of why."""

from collections.abc import Callable, Mapping, Sequence

from erosion.experiments.cells import Cell
from erosion.experiments.papers.gems.published import (
    PUBLISHED,
    REACHED,
    REACHED_BY_OURS,
    SIZES,
    TOLERANCE_OURS,
    TOLERANCE_TUNED,
    Published,
    gems_tolerance,
)
from erosion.experiments.papers.gems.reading import (
    Figure,
    mean_of,
    short,
    spread,
    trials,
    trials_of_both,
    values_of,
)

LOWER = 0.02  # below the paper's figure, to be named

# What is compared, where it stands in a cell, and in the paper's row. One model on all data has a
# part of its own in a cell, whatever the number of nodes.
_COMPARED: Sequence[tuple[str, Sequence[str], Callable[[Published], float]]] = (
    ("the model on all data", ("accuracy",), lambda p: p.whole),
    ("the local models", ("local", "mean"), lambda p: p.local),
    ("the average", ("averaged",), lambda p: p.averaged),
    ("GEMS, authors' settings", ("gems", "authors", "accuracy"), lambda p: p.gems),
    ("the same tuned", ("gems", "authors", "tuned", "1000"), lambda p: p.tuned),
)


def lower(cells: Mapping[str, Cell]) -> list[str]:
    """Where a mean is clearly below the paper's, in sentences with the range of the trials."""
    found = []

    def compare(what: str, every: Sequence[Figure], path: Sequence[str], published: float) -> None:
        if every and (reached := mean_of(every, *path)) < published - LOWER:
            values = values_of(every, *path)
            found.append(
                f"{what}: {short(reached)}, published {short(published)}; the trials have"
                f" {short(min(values))} to {short(max(values))}."
            )

    for (dataset, model, nodes), paper in PUBLISHED.items():
        of_nodes = trials(cells, dataset, model, str(nodes))
        whole = trials(cells, dataset, model, "global") if of_nodes else []
        for what, path, published in _COMPARED:
            every = whole if path == ("accuracy",) else of_nodes
            where = f"{_NAMES[dataset, model]}, {nodes} nodes, {what}"
            compare(where, every, path, published(paper))
    of_sizes = trials(cells, "mnist", "network", "5")
    for name, (_, tuned) in SIZES.items():
        if name != "authors":  # compared above
            where = f"{_NAMES['mnist', 'network']}, 5 nodes, GEMS, {name}, tuned"
            compare(where, of_sizes, ("gems", name, "tuned", "1000"), tuned)
    return found


def reasons(cells: Mapping[str, Cell]) -> list[str]:
    """What was measured of why, as paragraphs."""
    found = []
    averages = [
        (model, nodes, values_of(every, "averaged"))
        for model in ("convex", "network")
        for nodes in (2, 3, 5)
        if len(every := trials(cells, "mnist", model, str(nodes))) > 1
    ]
    if averages:
        model, nodes, values = max(averages, key=lambda each: max(each[2]) - min(each[2]))
        beyond = sum(
            PUBLISHED["mnist", model, nodes].averaged > max(values)
            for model, nodes, values in averages
        )
        found.append(
            "*The average* is partly a matter of chance: every node starts at random numbers of its"
            f" own, and on the same images it has anything from {short(min(values))} to"
            f" {short(max(values))} ({_NAMES['mnist', model]}, {nodes} nodes). But in {beyond} of"
            f" {len(averages)} settings the published one is above that of every trial of ours,"
            " which remains unexplained. GEMS for logistic regression is the average wherever that"
            " lies in all spaces, so the same holds for it."
        )
    spaces = trials(cells, "mnist", "convex", "spaces")
    if spaces:
        balls, ellipsoids, average = (
            spread(spaces, "2", *path)
            for path in (("balls", "accuracy"), ("ellipsoids", "accuracy"), ("averaged",))
        )
        found.append(
            "*GEMS for logistic regression at two nodes* is the average in the paper. With"
            f" ellipsoids, as in the published code, ours has {ellipsoids} where the average has"
            f" {average}; with the balls of the paper's text it has {balls}, where the average lies"
            " outside of one."
        )
    every, changes = trials_of_both(cells, "mnist", "network", "5", "changes")
    if every and changes:
        from_zeros, kept, masked = (
            spread(changes, "5", name, "accuracy")
            for name in ("from zeros", "no cluster lost", "masked")
        )
        found.append(
            "*GEMS for networks, authors' settings*, suffers from the start of the layer above the"
            f" merged one: from zeros it has {from_zeros} in place of"
            f" {spread(every, *_of('authors'))} at five nodes, with all else as theirs. The random"
            " numbers of the classes that a node does not have survive its training, and the mean"
            f" of the layers keeps them. Without the slip that loses a cluster it has {kept}, with"
            f" the mask in equation 2 {masked}."
        )
    return found


def misses(cells: Mapping[str, Cell]) -> list[str]:
    """Where a mean on MNIST is further from its target than the tolerance, in sentences."""
    found = []

    def check(what: str, reached: float, target: float, tolerance: float) -> None:
        if abs(reached - target) > tolerance:
            found.append(f"{what}: {reached:.3f} for {target:.3f} (tolerance {tolerance})")

    for (model, nodes), (gems, tuned) in REACHED.items():
        every: list[Figure] = trials(cells, "mnist", model, str(nodes))
        if not every:
            continue
        where, tolerance = f"{model}, {nodes} nodes", gems_tolerance(model, nodes)
        check(f"{where}, GEMS", mean_of(every, *_of("authors")), gems, tolerance)
        reached = mean_of(every, "gems", "authors", "tuned", "1000")
        check(f"{where}, tuned", reached, tuned, TOLERANCE_TUNED)
        if model == "network":
            ours = mean_of(every, *_of("ours"))
            check(f"{where}, our GEMS", ours, REACHED_BY_OURS[nodes], TOLERANCE_OURS)
    return found


def _of(variant: str) -> tuple[str, str, str]:
    return ("gems", variant, "accuracy")


_NAMES = {
    ("mnist", "convex"): "MNIST, logistic regression",
    ("mnist", "network"): "MNIST, network",
    ("ham10000", "network"): "HAM10000",
    ("cifar10", "network"): "CIFAR-10",
}
