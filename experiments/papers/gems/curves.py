"""The pictures of the GEMS page."""

from collections.abc import Mapping

from matplotlib.axes import Axes

from erosion.experiments.cells import Cell
from erosion.experiments.papers.gems.cell_runs import PUBLIC
from erosion.experiments.papers.gems.grid import NODES
from erosion.experiments.papers.gems.reading import EPSILONS, TITLES, at_epsilon, mean_of, trials
from erosion.experiments.pictures import add_legend, picture

_CURVES = {  # what is drawn, and where it stands in a cell
    "GEMS, ours": ("gems", "ours", "tuned"),
    "GEMS, authors'": ("gems", "authors", "tuned"),
    "averaged": ("tuned_averaged",),
}


def fine_tuning(cells: Mapping[str, Cell]) -> bytes:
    """Accuracy against the number of public images, a row for each data set and model."""
    there = [key for key in TITLES if any(trials(cells, *key, str(nodes)) for nodes in NODES)]
    rows = max(1, len(there))
    with picture(columns=len(NODES), rows=rows, height=2.6) as (figure, content):
        for row, (dataset, model) in enumerate(there):
            for column, nodes in enumerate(NODES):
                place = 1 + row * len(NODES) + column
                axes = figure.add_subplot(rows, len(NODES), place)
                _fine_tuning(axes, cells, dataset, model, nodes)
                if place == 1:
                    add_legend(axes)
    return content.getvalue()


def _fine_tuning(
    axes: Axes, cells: Mapping[str, Cell], dataset: str, model: str, nodes: int
) -> None:
    found = trials(cells, dataset, model, str(nodes))
    for name, path in _CURVES.items() if found else ():
        means = [mean_of(found, *path, str(count)) for count in PUBLIC]
        axes.plot(PUBLIC, means, "o-", markersize=3, label=name)
    for other in ("spaces", "changes"):  # where the local models are tuned on so many
        if some := [each for each in trials(cells, dataset, model, other) if str(nodes) in each]:
            means = [mean_of(some, str(nodes), "tuned_local", str(count)) for count in PUBLIC]
            axes.plot(PUBLIC, means, "o-", markersize=3, label="local")
    alone = trials(cells, dataset, model, "public")
    if alone:
        means = [mean_of(alone, str(count)) for count in PUBLIC]
        axes.plot(PUBLIC, means, "k--", label="public images alone")
    what = {"convex": "logistic regression", "network": "network"}[model]
    axes.set_title(f"{TITLES[dataset, model].split(',')[0]}, {what}, {nodes} nodes", fontsize=8)
    axes.set_xlabel("public images")
    axes.set_ylabel("test accuracy")


def strictness(cells: Mapping[str, Cell]) -> bytes:
    """Accuracy against epsilon."""
    found = trials(cells, "mnist", "network", "5")
    with picture() as (figure, content):
        axes = figure.add_subplot()
        for name in ("authors", "ours") if found else ():
            means = [mean_of(found, "gems", at_epsilon(name, e), "accuracy") for e in EPSILONS]
            axes.plot(EPSILONS, means, "o-", label=f"GEMS, {name}")
        axes.set_xlabel("epsilon: the accuracy that every node asks for")
        axes.set_ylabel("test accuracy")
        add_legend(axes)
    return content.getvalue()
