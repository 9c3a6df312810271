"""Draws the tables and curves of GEMS from the cells there are."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from erosion.experiments.cells import Cell
from erosion.experiments.experiment import Page
from erosion.experiments.papers.gems import curves
from erosion.experiments.papers.gems.cell_runs import PUBLIC
from erosion.experiments.papers.gems.grid import CHANGES, MAJORITY, NODES, SPACES
from erosion.experiments.papers.gems.published import ENSEMBLE_OF_250, PUBLISHED, SIZES
from erosion.experiments.papers.gems.reading import (
    EPSILONS,
    TITLES,
    Figure,
    at_epsilon,
    mean_of,
    short,
    spread,
    trials,
    trials_of_both,
)
from erosion.experiments.papers.gems.reasons import lower, misses, reasons


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
        "Local models are tuned whole, for 5 epochs, as theirs. *Ensemble*: the local models' mean",
        "probability; *rounded votes*: their probabilities rounded first, as in the authors' code.",
        "",
    ]
    for (dataset, model), title in TITLES.items():
        if table := _main_table(cells, dataset, model):
            lines += [f"## {title}", "", *table, "", *_majority(cells, dataset)]
            if dataset != "mnist":
                lines += _NOT_VGG
    lines += _lower(cells) + _spaces(cells) + _changes(cells) + _sizes(cells)
    lines += _own_checks(cells) + _apart(cells) + _strictness(cells) + _public(cells)
    lines += _off_target(cells)
    pictures = {
        "fine_tuning.svg": curves.fine_tuning(cells),
        "strictness.svg": curves.strictness(cells),
    }
    return Page("\n".join(lines), pictures)


_NOT_VGG = [
    "**Not VGG-16**: the features are those of three convolutions that were trained here on a part",
    "of the data of its own, so that only the order of the columns can be held against the paper.",
    "",
]


def _main_table(cells: Mapping[str, Cell], dataset: str, model: str) -> list[str]:
    rows = []
    whole = trials(cells, dataset, model, "global")
    for nodes in NODES:
        found = trials(cells, dataset, model, str(nodes))
        if not found:
            continue
        paper = PUBLISHED.get((dataset, model, nodes))

        def beside(text: str, published: Callable[[Any], float], paper: Any = paper) -> str:
            return f"{text} [{short(published(paper))}]" if paper else text

        columns = [
            str(nodes),
            beside(spread(whole, "accuracy") if whole else "", lambda p: p.whole),
            beside(short(mean_of(found, "local", "mean")), lambda p: p.local),
            spread(found, "tuned_local", "1000"),
            beside(spread(found, "averaged"), lambda p: p.averaged),
            spread(found, "tuned_averaged", "1000"),
            beside(spread(found, "gems", "authors", "accuracy"), lambda p: p.gems),
            beside(spread(found, "gems", "authors", "tuned", "1000"), lambda p: p.tuned),
            spread(found, "gems", "ours", "accuracy"),
            spread(found, "gems", "ours", "tuned", "1000"),
            short(mean_of(found, "ensemble", "probabilities")),
            short(mean_of(found, "ensemble", "rounded")),
            str(len(found)),
        ]
        rows.append(f"| {' | '.join(columns)} |")
    if not rows:
        return []
    return [
        "| nodes | global | local | tuned | averaged | tuned | GEMS, authors' | tuned"
        " | GEMS, ours | tuned | ensemble | rounded votes | trials |",
        "|" + " --- |" * 13,
        *rows,
    ]


def _majority(cells: Mapping[str, Cell], dataset: str) -> list[str]:
    """What the tables have to be held against: the same label for everybody."""
    match dataset:
        case "mnist" if MAJORITY in cells:
            right = short(cells[MAJORITY].figures["majority"])
            said = f"Always to name the commonest digit of the training part is right in {right}."
        case "mnist":
            return []
        case "ham10000":
            said = (
                f"All seven diagnoses are as common in the test part: one alone is {short(1 / 7)}."
            )
        case _:
            said = f"The ten classes are about as common in the test part: one is {short(1 / 10)}."
    return [said, ""]


def _lower(cells: Mapping[str, Cell]) -> list[str]:
    """What is below the paper's figures, and what was measured of why."""
    found = lower(cells)
    if not found:
        return []
    paragraphs = [line for paragraph in reasons(cells) for line in (*_wrapped(paragraph), "")]
    others = any(name.startswith(("cifar10-", "ham10000-")) for name in cells)
    features = "*CIFAR-10 and HAM10000* have other features than in the paper; see above."
    return [
        "## Lower than published, and why",
        "",
        "By more than .02, mean over the trials:",
        "",
        *(f"- {sentence}" for sentence in found),
        "",
        *paragraphs,
        *([features, ""] if others else []),
    ]


def _spaces(cells: Mapping[str, Cell]) -> list[str]:
    """Balls and ellipsoids of logistic regression."""
    found = trials(cells, "mnist", "convex", "spaces")
    rows = []
    for nodes in map(str, NODES) if found else ():
        row = [
            f"{spread(found, nodes, name, 'accuracy')}, met in"
            f" {sum(trial[nodes][name]['residual'] == 0 for trial in found)} of {len(found)}"
            for name in SPACES
        ]
        rows.append(f"| {nodes} | {spread(found, nodes, 'averaged')} | {' | '.join(row)} |")
    if not rows:
        return []
    return [
        "## Balls, the authors' mask, and their ellipsoids (MNIST, logistic regression)",
        "",
        "The paper has balls; the published code has ellipsoids for logistic regression, and for",
        "networks a mask that multiplies every difference by the centre's own value. Wherever all",
        "spaces hold the nodes' average, GEMS is that average.",
        "",
        f"| nodes | averaged | {' | '.join(SPACES)} |",
        "|" + " --- |" * (len(SPACES) + 2),
        *rows,
        "",
    ]


def _changes(cells: Mapping[str, Cell]) -> list[str]:
    """From the authors' settings for networks to ours."""
    every, found = trials_of_both(cells, "mnist", "network", "5", "changes")
    if not found:
        return []

    def row(name: str, figures: Sequence[Figure], *path: str) -> str:
        reached = spread(figures, *path, "accuracy")
        return f"| {name} | {reached} | {spread(figures, *path, 'tuned', '1000')} |"

    theirs, ours = (row(name, every, "gems", name) for name in ("authors", "ours"))
    rows = [theirs, *(row(name, found, "5", name) for name in CHANGES), ours]
    return [
        "## One change at a time (MNIST, network, five nodes)",
        "",
        f"Mean over {len(found)} of the trials above, the same in every row."
        if len(found) > 1
        else "One of the trials above.",
        "",
        "| authors' settings, but | GEMS | tuned |",
        "| --- | --- | --- |",
        *rows,
        "",
    ]


def _wrapped(paragraph: str) -> list[str]:
    return textwrap.wrap(paragraph, 100, break_long_words=False, break_on_hyphens=False)


def _sizes(cells: Mapping[str, Cell]) -> list[str]:
    found = trials(cells, "mnist", "network", "5")
    if not found:
        return []
    rows = []
    names = ("authors", "authors, m 75", "authors, m 75, eps_j .5", "authors, m 50")
    for name in (*names, "ours", "ours, m 25", "ours, m 50", "ours, m 75", "ours, m 150"):
        paper = SIZES.get(name)
        hidden = f"{mean_of(found, 'gems', name, 'hidden'):.0f}"
        tuned = spread(found, "gems", name, "tuned", "1000")
        rows.append(
            f"| {name} | {hidden}{f' [{paper[0]}]' if paper else ''} |"
            f" {mean_of(found, 'gems', name, 'merged'):.0f} |"
            f" {spread(found, 'gems', name, 'accuracy')} |"
            f" {tuned}{f' [{short(paper[1])}]' if paper else ''} |"
        )
    return [
        "## How many neurons are needed (MNIST, five nodes)",
        "",
        "250 neurons are offered; m is 100 unless written. The authors' loop loses one cluster.",
        f"Their ensemble of 250 neurons, by rounded votes, has {short(ENSEMBLE_OF_250)}.",
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
        rows.append(f"| {labels} | {radius:.0f} | {certified:.2f} | {short(check)} |")
    ours = [trial["gems"]["ours"] for trial in found]
    checks = [check for one in ours if one["residual"] == 0 for check in one["own_checks"]]
    met, refused = len(checks) // 5, sum(check < EPSILONS[0] for check in checks)
    there = f", where {refused} of {len(checks)} own checks refuse it" if met else ""
    heading = "A sampled ball is no guarantee" if refused else "Sampled balls and own checks"
    return [
        f"## {heading} (MNIST, logistic regression, five nodes)",
        "",
        f"Each node asks for {EPSILONS[0]} of its own validation images. The model that GEMS finds",
        f"lies in all five balls in {met} of {len(found)} trials{there}. Means over all:",
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
            averaged, gems = mean_of(apart, "averaged"), mean_of(apart, "gems", "ours", "accuracy")
            which = "worse" if gems < averaged else "no worse"
            lines.append(
                f"- {nodes} nodes: in {len(apart)} of {len(found)} trials, where the average has"
                f" {short(averaged)} and GEMS {short(gems)}, which is {which}; the balls miss each"
                f" other by {mean_of(apart, 'gems', 'ours', 'residual'):.1f}."
            )
    if not lines:
        return []
    return [
        "## Where the nodes have no model in common (MNIST, logistic regression)",
        "",
        "Whether the mean lies in all balls is partly luck: the radius is the smallest of 500",
        "drawn directions, and other draws give radii that differ by a tenth to a fifth. Where it",
        "does not, equation 2 leaves the mean for the border of a ball.",
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
    rows, changes = [], []
    for name in ("authors", "ours"):
        reached = (mean_of(found, "gems", at_epsilon(name, e), "accuracy") for e in EPSILONS)
        means = [round(mean, 3) for mean in reached]  # as the table shows them
        is_steady = means in (sorted(means), sorted(means, reverse=True))
        steady = "" if is_steady else ", not at every step"
        changes.append(f"{means[-1] - means[0]:+.3f} ({name}{steady})")
        figures = [spread(found, "gems", at_epsilon(name, e), "accuracy") for e in EPSILONS]
        rows.append(f"| GEMS, {name} | {' | '.join(figures)} |")
        missed = [
            f"{mean_of(found, 'gems', at_epsilon(name, e), 'residual'):.2f}" for e in EPSILONS
        ]
        rows.append(f"| what it misses the balls by | {' | '.join(missed)} |")
    return [
        "## Asking for more (MNIST, network, five nodes)",
        "",
        "The higher epsilon, the smaller the balls, and the nearer the result to the extreme ones.",
        f"From {EPSILONS[0]} to {EPSILONS[-1]} the accuracy changes by {' and '.join(changes)}.",
        "",
        f"| epsilon | {head} |",
        "|" + " --- |" * (len(EPSILONS) + 1),
        *rows,
        "",
        "![Accuracy against epsilon](strictness.svg)",
        "",
    ]


def _public(cells: Mapping[str, Cell]) -> list[str]:
    rows = []
    for (dataset, model), title in TITLES.items():
        alone = trials(cells, dataset, model, "public")
        if alone:
            figures = [short(mean_of(alone, str(count))) for count in PUBLIC]
            rows.append(f"| {title}: public images alone | {' | '.join(figures)} |")
        for nodes in NODES:
            found = trials(cells, dataset, model, str(nodes))
            if found:
                figures = [
                    short(mean_of(found, "gems", "ours", "tuned", str(count))) for count in PUBLIC
                ]
                rows.append(f"| GEMS, ours, {nodes} nodes | {' | '.join(figures)} |")
                figures = [short(mean_of(found, "tuned_averaged", str(c))) for c in PUBLIC]
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
