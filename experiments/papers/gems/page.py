"""Draws the tables and curves of GEMS from the cells there are."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from erosion.experiments.cells import Cell
from erosion.experiments.experiment import Page, made_by
from erosion.experiments.papers.gems.cell_runs import PUBLIC
from erosion.experiments.papers.gems.grid import NODES
from erosion.experiments.papers.gems.published import (
    ENSEMBLE_OF_250,
    PUBLISHED,
    REACHED,
    REACHED_BY_OURS,
    SIZES,
    TOLERANCE_OURS,
    TOLERANCE_TUNED,
    gems_tolerance,
)
from erosion.experiments.papers.picture import add_legend, picture

Figure = Mapping[str, Any]  # of one trial
TITLES = {
    ("mnist", "convex"): "MNIST, logistic regression",
    ("mnist", "network"): "MNIST, one hidden layer of 50",
    ("ham10000", "network"): "HAM10000, one hidden layer of 50 on convolutional features",
    ("cifar10", "network"): "CIFAR-10, one hidden layer of 100 on convolutional features",
}
EPSILONS = (0.7, 0.8, 0.9, 0.95, 0.98)


def draw(cells: Mapping[str, Cell]) -> Page:
    """All tables, as far as their cells have been run."""
    lines = [
        "# Good-enough model spaces (Guha and Smith), repeated",
        "",
        "The training images are shared out by label (two nodes: 0-4 and 5-9; three: 0-2, 3-5,",
        "6-9; five: pairs), every node trains to the end alone, and the test part has all labels.",
        "Test accuracy, mean and (deviation) over the trials; the paper's figure is in square",
        "brackets. *Tuned*: the last layer trained further on 1,000 public images. The authors'",
        'settings are those of their code, slips included (`preset = "authors"`, 5 epochs of',
        "tuning); ours train the layer above the merged one from zeros by SGD, and tune for 20.",
        "",
    ]
    for (dataset, model), title in TITLES.items():
        if table := _main_table(cells, dataset, model):
            lines += [f"## {title}", "", *table, ""]
            if dataset != "mnist":
                lines += _NOT_VGG
    lines += _sizes(cells) + _own_checks(cells) + _strictness(cells) + _public(cells)
    lines += [*_apart(cells), *_off_target(cells), made_by(cells.values()), ""]
    pictures = {
        "fine_tuning.svg": _tuning_curves(cells),
        "strictness.svg": _strictness_curve(cells),
    }
    return Page("\n".join(lines), pictures)


_NOT_VGG = [
    "**Not VGG-16**: the features are those of three convolutions that were trained here on a part",
    "of the data of its own, so that only the order of the columns can be held against the paper.",
    "",
]


def trials(cells: Mapping[str, Cell], dataset: str, model: str, part: str) -> list[Figure]:
    """One part of every trial's figures: "global", "public", or a number of nodes."""
    found: list[Figure] = []
    for name in sorted(cells):
        cell = cells[name]
        if name.startswith(f"{dataset}-{model}-") and part in cell.figures:
            figures = cell.figures[part]
            found.append(figures if isinstance(figures, dict) else {"accuracy": figures})
    return found


def mean_of(figures: Sequence[Figure], *path: str) -> float:
    """The mean of one figure over the trials."""
    return fmean(_at(trial, path) for trial in figures)


def _at(figure: Figure, path: Sequence[str]) -> float:
    value: Any = figure
    for key in path:
        value = value[key]
    return float(value)


def _spread(figures: Sequence[Figure], *path: str) -> str:
    values = [_at(trial, path) for trial in figures]
    mean = _short(fmean(values))
    return f"{mean} ({_short(stdev(values))})" if len(values) > 1 else mean


def _short(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1) if value < 1 else f"{value:.3f}"


def _main_table(cells: Mapping[str, Cell], dataset: str, model: str) -> list[str]:
    rows = []
    whole = trials(cells, dataset, model, "global")
    for nodes in NODES:
        found = trials(cells, dataset, model, str(nodes))
        if not found:
            continue
        paper = PUBLISHED.get((dataset, model, nodes))

        def beside(text: str, published: Callable[[Any], float], paper: Any = paper) -> str:
            return f"{text} [{_short(published(paper))}]" if paper else text

        columns = [
            str(nodes),
            beside(_spread(whole, "accuracy") if whole else "", lambda p: p.whole),
            beside(_short(mean_of(found, "local", "mean")), lambda p: p.local),
            beside(_spread(found, "averaged"), lambda p: p.averaged),
            beside(_spread(found, "gems", "authors", "accuracy"), lambda p: p.gems),
            beside(_spread(found, "gems", "authors", "tuned", "1000"), lambda p: p.tuned),
            _spread(found, "gems", "ours", "accuracy"),
            _spread(found, "gems", "ours", "tuned", "1000"),
            _short(mean_of(found, "ensemble", "probabilities")),
            _short(mean_of(found, "ensemble", "rounded")),
            str(len(found)),
        ]
        rows.append(f"| {' | '.join(columns)} |")
    if not rows:
        return []
    return [
        "| nodes | global | local | averaged | GEMS, authors' | tuned | GEMS, ours | tuned"
        " | ensemble | rounded votes | trials |",
        "|" + " --- |" * 11,
        *rows,
    ]


def _sizes(cells: Mapping[str, Cell]) -> list[str]:
    found = trials(cells, "mnist", "network", "5")
    if not found:
        return []
    rows = []
    names = ("authors", "authors, m 75", "authors, m 75, eps_j .5", "authors, m 50")
    for name in (*names, "ours", "ours, m 25", "ours, m 50", "ours, m 75", "ours, m 150"):
        paper = SIZES.get(name)
        hidden = f"{mean_of(found, 'gems', name, 'hidden'):.0f}"
        tuned = _spread(found, "gems", name, "tuned", "1000")
        rows.append(
            f"| {name} | {hidden}{f' [{paper[0]}]' if paper else ''} |"
            f" {mean_of(found, 'gems', name, 'merged'):.0f} |"
            f" {_spread(found, 'gems', name, 'accuracy')} |"
            f" {tuned}{f' [{_short(paper[1])}]' if paper else ''} |"
        )
    return [
        "## How many neurons are needed (MNIST, five nodes)",
        "",
        "250 neurons are offered; m is 100 unless written. The authors' loop loses one cluster.",
        f"Their ensemble of 250 neurons, by rounded votes, has {_short(ENSEMBLE_OF_250)}.",
        "",
        "| settings | hidden neurons | merged | GEMS | tuned |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        "",
    ]


def _own_checks(cells: Mapping[str, Cell]) -> list[str]:
    found = trials(cells, "mnist", "convex", "5")
    if not found:
        return []
    rows = []
    for number in range(5):
        radius, certified, check = (
            fmean(trial["gems"]["ours"][name][number] for trial in found)
            for name in ("radii", "certified_radii", "own_checks")
        )
        labels = f"{2 * number}, {2 * number + 1}"
        rows.append(f"| {labels} | {radius:.0f} | {certified:.2f} | {_short(check)} |")
    met = sum(trial["gems"]["ours"]["residual"] == 0 for trial in found)
    return [
        "## A sampled ball is no guarantee (MNIST, logistic regression, five nodes)",
        "",
        "Each node asks for .7 of its own validation images. The model that GEMS finds lies in all",
        f"five balls in {met} of {len(found)} trials, and yet most nodes would refuse it:",
        "",
        "| labels | radius along 500 directions | certified radius | own check of the result |",
        "| --- | --- | --- | --- |",
        *rows,
        "",
    ]


def _apart(cells: Mapping[str, Cell]) -> list[str]:
    """Where the balls of a convex model did not meet, and what GEMS did then."""
    lines = []
    for nodes in NODES:
        found = trials(cells, "mnist", "convex", str(nodes))
        apart = [trial for trial in found if trial["gems"]["ours"]["residual"] > 0]
        if apart:
            lines.append(
                f"- {nodes} nodes: in {len(apart)} of {len(found)} trials, where the average has"
                f" {_short(mean_of(apart, 'averaged'))} and GEMS"
                f" {_short(mean_of(apart, 'gems', 'ours', 'accuracy'))}; the balls miss each other"
                f" by {mean_of(apart, 'gems', 'ours', 'residual'):.1f}."
            )
    if not lines:
        return []
    return [
        "## Where the nodes have no model in common (MNIST, logistic regression)",
        "",
        "Whether the mean lies in all balls is partly luck: the radius is the smallest of 500",
        "drawn directions, and other draws give radii that differ by a tenth to a fifth. Where it",
        "does not, equation 2 leaves the mean for the border of a ball, and the result is worse.",
        "",
        *lines,
        "",
    ]


def _off_target(cells: Mapping[str, Cell]) -> list[str]:
    """The means that the tolerances do not cover."""
    found = misses(cells)
    if not found:
        return []
    return [
        "## Further from the target than expected",
        "",
        "MNIST, mean over the trials; the target is what an independent implementation of the same",
        "settings came to over three trials.",
        "",
        *(f"- {sentence}" for sentence in found),
        "",
    ]


def _strictness(cells: Mapping[str, Cell]) -> list[str]:
    found = trials(cells, "mnist", "network", "5")
    if not found:
        return []
    head = " | ".join(str(epsilon) for epsilon in EPSILONS)
    rows = []
    for name in ("authors", "ours"):
        figures = [_spread(found, "gems", _named(name, e), "accuracy") for e in EPSILONS]
        rows.append(f"| GEMS, {name} | {' | '.join(figures)} |")
        missed = [f"{mean_of(found, 'gems', _named(name, e), 'residual'):.2f}" for e in EPSILONS]
        rows.append(f"| what it misses the balls by | {' | '.join(missed)} |")
    return [
        "## Asking for more makes it worse (MNIST, network, five nodes)",
        "",
        "The higher epsilon, the smaller the balls, and the nearer the result to the extreme ones.",
        "",
        f"| epsilon | {head} |",
        "|" + " --- |" * (len(EPSILONS) + 1),
        *rows,
        "",
        "![Accuracy against epsilon](strictness.svg)",
        "",
    ]


def _named(name: str, epsilon: float) -> str:
    return name if epsilon == EPSILONS[0] else f"{name}, epsilon {epsilon}"


def _public(cells: Mapping[str, Cell]) -> list[str]:
    rows = []
    for (dataset, model), title in TITLES.items():
        alone = trials(cells, dataset, model, "public")
        if alone:
            figures = [_short(mean_of(alone, str(count))) for count in PUBLIC]
            rows.append(f"| {title}: public images alone | {' | '.join(figures)} |")
        for nodes in NODES:
            found = trials(cells, dataset, model, str(nodes))
            if found:
                figures = [
                    _short(mean_of(found, "gems", "ours", "tuned", str(count))) for count in PUBLIC
                ]
                rows.append(f"| GEMS, ours, {nodes} nodes | {' | '.join(figures)} |")
                figures = [_short(mean_of(found, "tuned_averaged", str(c))) for c in PUBLIC]
                rows.append(f"| averaged, {nodes} nodes | {' | '.join(figures)} |")
    if not rows:
        return []
    return [
        "## What the public images do without GEMS",
        "",
        "The same model trained on the public images and nothing else (Adam at .01, 20 epochs),",
        "beside GEMS and the plain average, both tuned on them.",
        "",
        f"| public images | {' | '.join(map(str, PUBLIC))} |",
        "|" + " --- |" * (len(PUBLIC) + 1),
        *rows,
        "",
        "![Accuracy against public images](fine_tuning.svg)",
        "",
    ]


def _tuning_curves(cells: Mapping[str, Cell]) -> bytes:
    with picture(columns=2) as (figure, content):
        for place, model in enumerate(("convex", "network"), start=1):
            axes = figure.add_subplot(1, 2, place)
            alone = trials(cells, "mnist", model, "public")
            if alone:
                means = [mean_of(alone, str(count)) for count in PUBLIC]
                axes.plot(PUBLIC, means, "k--", label="public images alone")
            for nodes in NODES:
                found = trials(cells, "mnist", model, str(nodes))
                if found:
                    means = [mean_of(found, "gems", "ours", "tuned", str(c)) for c in PUBLIC]
                    axes.plot(PUBLIC, means, "o-", label=f"GEMS, {nodes} nodes")
            axes.set_title(TITLES["mnist", model])
            axes.set_xlabel("public images")
            axes.set_ylabel("test accuracy")
            add_legend(axes)
    return content.getvalue()


def _strictness_curve(cells: Mapping[str, Cell]) -> bytes:
    found = trials(cells, "mnist", "network", "5")
    with picture() as (figure, content):
        axes = figure.add_subplot()
        for name in ("authors", "ours") if found else ():
            means = [mean_of(found, "gems", _named(name, e), "accuracy") for e in EPSILONS]
            axes.plot(EPSILONS, means, "o-", label=f"GEMS, {name}")
        axes.set_xlabel("epsilon: the accuracy that every node asks for")
        axes.set_ylabel("test accuracy")
        add_legend(axes)
    return content.getvalue()


def misses(cells: Mapping[str, Cell]) -> list[str]:
    """Where a mean on MNIST is further from its target than the tolerance, in sentences."""
    found = []

    def check(what: str, reached: float, target: float, tolerance: float) -> None:
        if abs(reached - target) > tolerance:
            found.append(f"{what}: {reached:.3f} for {target:.3f} (tolerance {tolerance})")

    for (model, nodes), (gems, tuned) in REACHED.items():
        every = trials(cells, "mnist", model, str(nodes))
        if not every:
            continue
        where, tolerance = f"{model}, {nodes} nodes", gems_tolerance(model, nodes)
        check(f"{where}, GEMS", mean_of(every, "gems", "authors", "accuracy"), gems, tolerance)
        reached = mean_of(every, "gems", "authors", "tuned", "1000")
        check(f"{where}, tuned", reached, tuned, TOLERANCE_TUNED)
        if model == "network":
            ours = mean_of(every, "gems", "ours", "accuracy")
            check(f"{where}, our GEMS", ours, REACHED_BY_OURS[nodes], TOLERANCE_OURS)
    return found
