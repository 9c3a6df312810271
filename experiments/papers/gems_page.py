"""The tables of GEMS, with the figures of the paper."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from experiments.cells import Cell
from experiments.experiment import experiment
from experiments.page import Page, beside, bullets, constants, grid, named, page, table
from experiments.papers.gems import (
    CHANGES,
    CLUSTERS,
    HIDDEN,
    MAJORITY,
    NEURON_EPSILONS,
    NODES,
    PUBLIC,
    SPACES,
    at,
    options_of,
    plans,
    run_cell,
)

Figure = Mapping[str, Any]  # of one trial
Path = Sequence[str]  # of a figure in those of a trial

TITLES = {
    ("mnist", "convex"): "MNIST, logistic regression",
    ("mnist", "network"): "MNIST, one hidden layer of 50",
    ("ham10000", "network"): "HAM10000, one hidden layer of 50 on convolutional features",
    ("cifar10", "network"): "CIFAR-10, one hidden layer of 100 on convolutional features",
    ("ham10000", "convex"): "HAM10000, logistic regression on convolutional features",
    ("cifar10", "convex"): "CIFAR-10, logistic regression on convolutional features",
}
# What a table is to be held against: the same label for everybody.
COMMONEST = {
    "ham10000": "All seven diagnoses are as common in the test part: one alone is .143.",
    "cifar10": "The ten classes are about as common in the test part: one is .100.",
}
ASKED = 0.7  # of its validation images, by every node
LOWER = 0.02  # below the paper's figure, to be named


SETTINGS = ("authors", "ours")
AUTHORS, OURS = (("gems", name) for name in SETTINGS)
ACCURACY, TUNED = (*AUTHORS, "accuracy"), ("tuned", "1000")
LOCAL_TUNED, AVERAGE_TUNED = ("tuned_local", "1000"), ("tuned_averaged", "1000")
COLUMNS: Sequence[tuple[str, Path, int | None]] = (  # the last: its place in a published row
    ("global", ("global",), 0),
    ("local", ("local", "mean"), 1),
    ("tuned", LOCAL_TUNED, None),
    ("averaged", ("averaged",), 2),
    ("tuned", AVERAGE_TUNED, None),
    ("GEMS, authors'", ACCURACY, 3),
    ("tuned", (*AUTHORS, *TUNED), 4),
    ("GEMS, ours", (*OURS, "accuracy"), None),
    ("tuned", (*OURS, *TUNED), None),
    ("ensemble", ("ensemble", "probabilities"), None),
    ("rounded votes", ("ensemble", "rounded"), None),
)
_PUBLISHED = constants("published")["gems"]
SIZES: Mapping[str, tuple[int, float]] = _PUBLISHED.pop("sizes")  # hidden neurons, tuned accuracy
# By data set and model, and by the number of nodes: each figure, with its deviation where it has.
PUBLISHED: Mapping[tuple[tuple[str, str], int], Sequence[Sequence[float]]] = {
    ((dataset, model), int(nodes)): row
    for dataset, models in _PUBLISHED.items()
    for model, by_nodes in models.items()
    for nodes, row in by_nodes.items()
}
VARIANTS = (
    *("authors", "authors, m 75", "authors, m 75, eps_j .5", "authors, m 50"),
    *("ours", "ours, m 25", "ours, m 50", "ours, m 75", "ours, m 150"),
)
ENSEMBLE_OF_250 = 0.210


def trials(cells: Mapping[str, Cell], dataset: str, model: str, part: str) -> list[Figure]:
    """Return one part of every trial's figures: "public", "spaces", or a number of nodes."""
    names = sorted(name for name in cells if name.startswith(f"{dataset}-{model}-"))
    return [found for name in names if (found := cells[name].figures.get(part)) is not None]


def of_nodes(cells: Mapping[str, Cell], dataset: str, model: str, nodes: int) -> list[Figure]:
    """Return the figures of every trial, with those of the model on all data."""
    found = trials(cells, dataset, model, str(nodes))
    whole = trials(cells, dataset, model, "global")
    if len(whole) != len(found):
        return found
    return [{**one, "global": of_all} for one, of_all in zip(found, whole, strict=True)]


def values_of(figures: Sequence[Figure], *path: str) -> list[float]:
    """Return one figure of every trial that has it."""
    found = []
    for value in figures:
        for key in path:
            value = value.get(key, {})
        found += [float(value)] if value != {} else []  # type: ignore[arg-type]
    return found


def short(value: float) -> str:
    """.123"""
    return f"{value:.3f}".replace("0.", ".", 1) if value < 1 else f"{value:.3f}"


def spread(figures: Sequence[Figure], *path: str) -> str:
    """Return the mean and (deviation) of one figure over the trials."""
    values = values_of(figures, *path)
    deviation = f" ({short(stdev(values))})" if len(values) > 1 else ""
    return short(fmean(values)) + deviation if values else ""


def _main_table(cells: Mapping[str, Cell], dataset: str, model: str) -> str:
    rows = []
    for nodes in NODES:
        found = of_nodes(cells, dataset, model, nodes)
        paper = PUBLISHED.get(((dataset, model), nodes))
        entries = []
        for _, path, place in COLUMNS if found else ():
            theirs = ""
            if paper is not None and place is not None:
                value, *deviation = map(short, paper[place])
                theirs = value + "".join(f" ({each})" for each in deviation)
            entries.append(beside(spread(found, *path), theirs))
        rows.append([str(nodes), *entries, str(len(found) or "")])
    return table(["nodes", *(heading for heading, _, _ in COLUMNS), "trials"], rows)


def lower(cells: Mapping[str, Cell]) -> list[list[str]]:
    """Return the means clearly below the paper's, and the range of the trials, in rows."""
    compared = [
        (f"{TITLES[setting]}, {nodes} nodes, {heading}", setting, nodes, path, paper[place][0])
        for (setting, nodes), paper in PUBLISHED.items()
        for heading, path, place in COLUMNS
        if place is not None
    ] + [
        (f"{TITLES[network]}, 5 nodes, {name}, tuned", network, 5, ("gems", name, *TUNED), tuned)
        for network in [("mnist", "network")]
        for name, (_, tuned) in SIZES.items()
        if name != "authors"
    ]
    rows = []
    for what, setting, nodes, path, theirs in compared:
        values = values_of(of_nodes(cells, *setting, nodes), *path)
        if values and fmean(values) < theirs - LOWER:
            of_trials = f"{short(min(values))} to {short(max(values))}"
            rows.append([what, short(fmean(values)), short(theirs), of_trials])
    return rows


def _claims(cells: Mapping[str, Cell]) -> Iterator[str]:
    """Yield what the paper says of its tables, and in how many rows of ours it is so."""
    of_rows = [
        found
        for setting in TITLES
        for nodes in NODES
        if (found := of_nodes(cells, *setting, nodes))
    ]
    for what, better, worse in (
        ("GEMS with the authors' settings is above the average", ACCURACY, ("averaged",)),
        ("With our settings it is", (*OURS, "accuracy"), ("averaged",)),
        ("With the authors', above the mean local model", ACCURACY, ("local", "mean")),
        # Each against what was tuned for as many epochs.
        ("Tuned, with ours, above the tuned average", (*OURS, *TUNED), AVERAGE_TUNED),
        ("Tuned, with the authors', above the tuned local models", (*AUTHORS, *TUNED), LOCAL_TUNED),
    ):
        gaps = [
            fmean(values_of(found, *better)) - fmean(values_of(found, *worse)) for found in of_rows
        ]
        if gaps:
            yield (
                f"{what} in {sum(gap > 0 for gap in gaps)} of {len(gaps)} rows, by"
                f" {100 * min(gaps):+.1f} to {100 * max(gaps):+.1f} points."
            )


def _abstract(cells: Mapping[str, Cell]) -> str:
    """Return what GEMS gains over the average, and reaches of the model on all data, over rows."""
    paper: list[Sequence[float]] = []  # global, averaged, GEMS, tuned
    ours: dict[str, list[Sequence[float]]] = {}
    for (setting, nodes), row in PUBLISHED.items():
        whole, _, *others = (value for value, *_ in row)
        paper.append((whole, *others))
        found = of_nodes(cells, *setting, nodes)
        for name, path in (("authors' settings", AUTHORS), ("our settings", OURS)):
            values = [
                values_of(found, *each)
                for each in (("global",), ("averaged",), (*path, "accuracy"), (*path, *TUNED))
            ]
            if all(values):
                ours.setdefault(name, []).append([fmean(of_trials) for of_trials in values])
    rows = [
        [
            f"{who}, {len(found)} rows",
            *(
                f"{100 * fmean(row[place] - row[1] for row in found):+.1f},"
                f" {100 * fmean(row[place] / row[0] for row in found):.0f} %"
                for place in (2, 3)
            ),
        ]
        for who, found in {"the paper's table": paper, **ours}.items()
    ]
    return table(["", "GEMS", "GEMS, tuned"], rows) if ours else ""


def _unexplained(cells: Mapping[str, Cell]) -> str:
    """Return in how many settings the paper's average is beyond all of ours, and of how many."""
    beyond = [
        PUBLISHED[("mnist", model), nodes][2][0] > max(values)
        for model in ("convex", "network")
        for nodes in NODES
        if (values := values_of(trials(cells, "mnist", model, str(nodes)), "averaged"))
    ]
    return f"{sum(beyond)} of {len(beyond)}"


def _spaces(cells: Mapping[str, Cell]) -> str:
    found = trials(cells, "mnist", "convex", "spaces")

    def entry(nodes: int, space: str) -> str:
        if space == "averaged":
            return spread(found, str(nodes), space)
        met = sum(trial[str(nodes)][space]["residual"] == 0 for trial in found)
        reached = spread(found, str(nodes), space, "accuracy")
        return f"{reached}, met in {met} of {len(found)}" if found else ""

    return grid("nodes", named(NODES), named(("averaged", *SPACES)), entry)


def _changes(cells: Mapping[str, Cell]) -> str:
    found = [trial["5"] for trial in trials(cells, "mnist", "network", "changes")]
    every = [trial["gems"] for trial in trials(cells, "mnist", "network", "5")] if found else []

    def entry(name: str, path: Path) -> str:
        return spread(found if name in CHANGES else every, name, *path)

    columns: dict[str, Path] = {"GEMS": ("accuracy",), "tuned": TUNED}
    return grid("authors' settings, but", named(("authors", *CHANGES, "ours")), columns, entry)


def _sizes(cells: Mapping[str, Cell]) -> str:
    found = [trial["gems"] for trial in trials(cells, "mnist", "network", "5")]

    def entry(name: str, column: str) -> str:
        published = SIZES.get(name)
        match column:
            case "hidden neurons":
                ours = f"{fmean(values_of(found, name, 'hidden')):.0f}"
                return beside(ours, str(published[0]) if published else "")
            case "merged":
                return f"{fmean(values_of(found, name, 'merged')):.0f}"
            case "GEMS":
                return spread(found, name, "accuracy")
            case _:
                ours = spread(found, name, *TUNED)
                return beside(ours, short(published[1]) if published else "")

    columns = ("hidden neurons", "merged", "GEMS", "tuned")
    return grid("settings", named(VARIANTS if found else ()), named(columns), entry)


EPSILONS = (0.7, 0.8, 0.9, 0.95, 0.98)


def _epsilons(cells: Mapping[str, Cell]) -> str:
    """Return what a stricter epsilon makes of GEMS, as far as it was tried."""

    def entry(row: tuple[str, int, str, str], epsilon: float) -> str:
        model, nodes, first, others = row
        found = trials(cells, "mnist", model, str(nodes))
        name = first if epsilon == ASKED else f"{others}epsilon {epsilon:g}"
        return spread(found, "gems", name, "accuracy")

    rows = {f"logistic regression, {k} nodes": ("convex", k, "ours", "") for k in NODES}
    rows |= {f"network, 5 nodes, {who}": ("network", 5, who, f"{who}, ") for who in SETTINGS}
    return grid("MNIST", rows, named(EPSILONS), entry)


def _neurons(cells: Mapping[str, Cell], dataset: str) -> str:
    """Return the grid of m and eps_j: hidden neurons, and accuracy as it is and tuned."""
    found = [trial["5"] for trial in trials(cells, dataset, "network", "grid")]

    def entry(clusters: int, neuron_epsilon: float) -> str:
        name = at(clusters, neuron_epsilon)
        if not (sizes := values_of(found, name, "hidden")):
            return ""
        reached, tuned = (spread(found, name, *path) for path in (("accuracy",), TUNED))
        return f"{fmean(sizes):.0f}: {reached}, tuned {tuned}"

    columns = {f"eps_j {epsilon:g}": epsilon for epsilon in NEURON_EPSILONS}
    return grid(TITLES[dataset, "network"], {f"m {m}": m for m in CLUSTERS}, columns, entry)


def _own_checks(cells: Mapping[str, Cell]) -> dict[str, Any]:
    found = [trial["gems"]["ours"] for trial in trials(cells, "mnist", "convex", "5")]
    rows = []
    for number in range(5) if found else ():
        radius, certified, check = (
            fmean(one[name][number] for one in found)
            for name in ("radii", "certified_radii", "own_checks")
        )
        labels = f"{2 * number}, {2 * number + 1}"
        rows.append([labels, f"{radius:.0f}", f"{certified:.2f}", short(check)])
    checks = [check for one in found if one["residual"] == 0 for check in one["own_checks"]]
    return {
        "balls": table(
            ["labels", "radius along 500 directions", "certified radius", "own check"], rows
        ),
        "trials": len(found),
        "met": len(checks) // 5,
        "refused": sum(check < ASKED for check in checks),
        "checks": len(checks),
    }


def _public(cells: Mapping[str, Cell]) -> str:
    rows = []
    for (dataset, model), title in TITLES.items():
        what = "spaces" if model == "convex" else "changes" if dataset == "mnist" else "grid"
        parts: dict[str, tuple[list[Figure], Path]] = {
            f"{title}: public images alone": (trials(cells, dataset, model, "public"), ())
        }
        for nodes in NODES:
            found = trials(cells, dataset, model, str(nodes))
            parts[f"GEMS, ours, {nodes} nodes"] = found, (*OURS, "tuned")
            parts[f"averaged, {nodes} nodes"] = found, ("tuned_averaged",)
            compared = [
                figures[str(nodes)]
                for figures in trials(cells, dataset, model, what)
                if str(nodes) in figures
            ]
            parts[f"local, {nodes} nodes"] = compared or found, ("tuned_local",)
        rows += [
            [name, *(spread(found, *path, str(count)) for count in PUBLIC)]
            for name, (found, path) in parts.items()
        ]
    return table(["public images", *map(str, PUBLIC)], rows)


def draw(cells: Mapping[str, Cell]) -> Page:
    """Draw all tables, as far as their cells have been run."""
    commonest = dict(COMMONEST)
    if MAJORITY in cells:
        right = short(cells[MAJORITY].figures["majority"])
        commonest["mnist"] = (
            f"Always to name the commonest digit of the training part is right in {right}."
        )
    missing = Counter(plan.name.rpartition("-")[0] for plan in plans() if plan.name not in cells)
    return page(
        "gems",
        settings=[
            (f"## {title}" if found else "", found, commonest.get(setting[0], ""))
            for setting, title in TITLES.items()
            for found in [_main_table(cells, *setting)]
            if trials(cells, *setting, "global") or found
        ],
        claims=bullets(_claims(cells)),
        abstract=_abstract(cells),
        unexplained=_unexplained(cells),
        lower=table(["", "ours", "published", "the trials"], lower(cells)),
        spaces=_spaces(cells),
        changes=_changes(cells),
        ensemble_of_250=short(ENSEMBLE_OF_250),
        sizes=_sizes(cells),
        neurons=[found for dataset in HIDDEN if (found := _neurons(cells, dataset))],
        missing=", ".join(f"{count} of `{name}`" for name, count in missing.items()),
        epsilons=_epsilons(cells),
        public=_public(cells),
        asked=ASKED,
        **_own_checks(cells),
    )


EXPERIMENT = experiment(
    "gems",
    plans,
    run_cell,
    draw,
    settings=options_of,
    data_sets=lambda config: (config["dataset"],),
)
