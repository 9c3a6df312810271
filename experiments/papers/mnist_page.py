"""Draws the MNIST tables, published figures and ours, from the cells there are."""

from collections.abc import Mapping, Sequence

from erosion.sources.mnist import PATTERNS, PatternName, commonest_share
from experiments.cells import Cell
from experiments.experiment import Page
from experiments.papers.mnist import (
    AGENTS,
    SCHEMES,
    SETTINGS,
    SHARED,
    Scheme,
    Variant,
    cell_name,
    further_plans,
    published_plans,
)
from experiments.pictures import add_legend, picture
from experiments.tables import wilson


def best_of(cell: Cell) -> float:
    """Of all rounds, as the paper has it: nobody could have chosen that round beforehand."""
    best: float = max(cell.figures["accuracy"])
    return best


def last_of(cell: Cell) -> float:
    """Of the last round."""
    last: float = cell.figures["accuracy"][-1]
    return last


def interval(cell: Cell) -> tuple[float, float]:
    """Return the 95 % interval of the best accuracy."""
    return wilson(best_of(cell), cell.figures["test_images"])


_WORDS: Mapping[Variant, str] = {
    "published": "as published",
    "default-unit": "default unit",
    "recommended": "recommended",
}
_OTHERS: Sequence[Scheme] = ("fedavg", "local")


def further_tables(cells: Mapping[str, Cell]) -> list[str]:
    """Return both tables, as far as their cells were run; nothing where none was."""
    plans = further_plans()
    run = sum(plan.name in cells for plan in plans)
    if not run:
        return []
    missing = f"**{run} of the {len(plans)} further cells have been run.**"
    return [
        "## Further cells",
        "",
        *([missing, ""] if run < len(plans) else []),
        "Each entry is the best of all rounds, its interval, and the last round.",
        "",
        *_settings(cells),
        *_partitions(cells),
    ]


def _settings(cells: Mapping[str, Cell]) -> list[str]:
    """Return Weight Erosion as published and two other settings of it."""
    rows = []
    for agents in AGENTS:
        for pattern in PATTERNS:
            names = [cell_name(pattern, agents, "weight_erosion", v) for v in SETTINGS]
            if any(name in cells for name in names):
                published = cell_name(pattern, agents, "weight_erosion")
                entries = [_entry(cells, name) for name in (published, *names)]
                rows.append(f"| {agents} | {pattern} | {' | '.join(entries)} |")
    if not rows:
        return []
    return [
        "### Other settings of Weight Erosion",
        "",
        "As published, `size_unit = \"batches\"`: the authors' code counts a hospital's size in",
        'mini-batches. Default unit: `size_unit = "seen"`, all else as published. Recommended:',
        '`preset = "recommended"`, chosen on other data.',
        "",
        f"| agents | distribution | {' | '.join(_WORDS.values())} |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        "",
        *(line for variant in _WORDS for line in _ahead(cells, variant)),
        "",
    ]


def _ahead(cells: Mapping[str, Cell], variant: Variant) -> list[str]:
    """In how many settings it ends above the others; nothing where they were not run."""
    found = []
    for other in _OTHERS:
        pairs = [
            (cells[ours], cells[theirs])
            for agents in AGENTS
            for pattern in PATTERNS
            for ours in [cell_name(pattern, agents, "weight_erosion", variant)]
            for theirs in [cell_name(pattern, agents, other)]
            if ours in cells and theirs in cells
        ]
        if pairs:
            above = sum(last_of(ours) > last_of(theirs) for ours, theirs in pairs)
            found.append(f"above {other} in {above} of {len(pairs)} settings")
    return [f"- {_WORDS[variant]}: in the last round {', '.join(found)}"] if found else []


def _partitions(cells: Mapping[str, Cell]) -> list[str]:
    """Return the authors' partition and one that gives every image to one agent."""
    rows = []
    for agents in AGENTS:
        for pattern in (p for p, shared in SHARED.items() if agents in shared):
            for scheme in SCHEMES:
                name = cell_name(pattern, agents, scheme, "disjoint")
                if name in cells:
                    authors = _entry(cells, cell_name(pattern, agents, scheme))
                    rows.append(
                        f"| {agents} | {pattern} | {scheme} | {authors} | {_entry(cells, name)} |"
                    )
    if not rows:
        return []
    return [
        "### Every image at one agent",
        "",
        "Where an agent's share is no whole number of the authors' chunks, their partition gives",
        "images to several agents; here those settings with every image at one.",
        "",
        "| agents | distribution | scheme | authors' partition | disjoint |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        "",
    ]


def _entry(cells: Mapping[str, Cell], name: str) -> str:
    if name not in cells:
        return "–"
    cell = cells[name]
    low, high = interval(cell)
    return f"{best_of(cell):.4f} ({low:.3f} to {high:.3f}), {last_of(cell):.4f}"


NAMES: Mapping[Scheme, str] = {
    "weight_erosion": "Weight Erosion",
    "fedavg": "FedAvg",
    "local": "Local",
}
# Table II: the best accuracy of 30 rounds, one run each; with 10, 20, 50 and 100 agents.
_WE, _FEDAVG, _LOCAL = SCHEMES
PUBLISHED: Mapping[PatternName, Mapping[Scheme, Sequence[float]]] = {
    "A": {
        _WE: (0.990, 0.9819, 0.9759, 0.9649),
        _FEDAVG: (0.991, 0.9869, 0.9769, 0.9709),
        _LOCAL: (0.9719, 0.9568, 0.9277, 0.8896),
    },
    "B": {
        _WE: (0.9913, 0.9935, 0.9859, 0.9848),
        _FEDAVG: (0.9707, 0.9707, 0.9544, 0.9176),
        _LOCAL: (0.9902, 0.9881, 0.9772, 0.9685),
    },
    "C": {
        _WE: (0.9981, 0.9952, 0.9952, 0.9933),
        _FEDAVG: (0.9894, 0.9875, 0.9798, 0.9701),
        _LOCAL: (0.9923, 0.9894, 0.9855, 0.9798),
    },
    "D": {
        _WE: (0.9901, 0.994, 0.9881, 0.9762),
        _FEDAVG: (0.9752, 0.9653, 0.9514, 0.9236),
        _LOCAL: (0.9891, 0.9831, 0.9722, 0.9653),
    },
    "E": {
        _WE: (0.9915, 0.9915, 0.9789, 0.9683),
        _FEDAVG: (0.982, 0.9746, 0.9672, 0.9514),
        _LOCAL: (0.9873, 0.9789, 0.9567, 0.9376),
    },
    "F": {
        _WE: (0.9876, 0.9835, 0.9669, 0.9545),
        _FEDAVG: (0.9855, 0.9793, 0.9762, 0.9597),
        _LOCAL: (0.9731, 0.9607, 0.9287, 0.8936),
    },
    "G": {
        _WE: (0.998, 0.9959, 0.9959, 0.9939),
        _FEDAVG: (0.9939, 0.9928, 0.9939, 0.9887),
        _LOCAL: (0.9929, 0.9898, 0.9898, 0.9857),
    },
}
# Figure 2, C with 10 agents: mean weight of all agents, the user's included, by round.
PUBLISHED_WEIGHTS = {1: 0.989, 5: 0.942, 10: 0.783, 15: 0.522, 20: 0.136, 25: 0.1, 30: 0.1}

Grid = Mapping[tuple[str, int, str], Cell]  # by pattern, agents and scheme


def draw(cells: Mapping[str, Cell]) -> Page:
    """Draw a table for each number of agents, figure 2, and tables of the further cells."""
    published = [plan for plan in published_plans() if plan.name in cells]
    grid = {
        (plan.config["pattern"], plan.config["agents"], plan.config["scheme"]): cells[plan.name]
        for plan in published
    }
    total = len(published_plans())
    majority = ", ".join(f"{commonest_share(name):.2f} ({name})" for name in PATTERNS)
    lines = [
        "# Weight Erosion on MNIST (Gengler, Beaussart and Yuan 2020)",
        "",
        *(
            [f"**{len(grid)} of the paper's {total} cells have been run.**", ""]
            if len(grid) < total
            else []
        ),
        "Table II of the paper: ten digits shared out to 10, 20, 50 or 100 agents in seven",
        "distributions (A to G), the user is agent 0. Accuracy on the user's test images, which",
        "are distributed as its training images are: *best* of 30 rounds, as in the paper, with",
        "its binomial 95 % interval (Wilson), and that of the *last* round, which nobody could",
        "have chosen by looking. One run each, here and there; one image is 0.1 points. The",
        "interval is that of a round chosen beforehand: the best of 30 is a little too good for",
        f"it. Always to name the commonest digit is right in a share of {majority}. Network,",
        "partition, test images and constants are the authors'.",
        "",
    ]
    for place, agents in enumerate(AGENTS):
        if any(key[1] == agents for key in grid):
            lines += _table(grid, agents, place)
    lines += _agreement(grid)
    lines += ["![Accuracy and mean weight over the rounds](rounds.svg)", ""]
    lines += further_tables(cells)
    return Page("\n".join(lines), {"rounds.svg": _rounds(grid)})


def _table(grid: Grid, agents: int, place: int) -> list[str]:
    rows = []
    for pattern in PATTERNS:
        for scheme in SCHEMES:
            published = f"{PUBLISHED[pattern][scheme][place]:.4f}"
            cell = grid.get((pattern, agents, scheme))
            if cell is None:
                rows.append(f"| {pattern} | {NAMES[scheme]} | {published} | – | – | – |")
                continue
            best, last, (low, high) = best_of(cell), last_of(cell), interval(cell)
            rows.append(
                f"| {pattern} | {NAMES[scheme]} | {published} | {best:.4f} | {low:.3f} to"
                f" {high:.3f} | {last:.4f} |"
            )
    return [
        f"## {agents} agents",
        "",
        "| distribution | scheme | published best | our best | interval | our last |",
        "| --- | --- | --- | --- | --- | --- |",
        *rows,
        "",
    ]


def _agreement(grid: Grid) -> list[str]:
    """Return how often two schemes are in the published order, and how often ours is outside."""
    pairs = [(_WE, _LOCAL), (_WE, _FEDAVG), (_FEDAVG, _LOCAL)]
    lines = []
    for one, other in pairs:
        same = both = 0
        for place, agents in enumerate(AGENTS):
            for pattern, published in PUBLISHED.items():
                cells = [grid.get((pattern, agents, scheme)) for scheme in (one, other)]
                if cells[0] is None or cells[1] is None:
                    continue
                ours = best_of(cells[0]) - best_of(cells[1])
                theirs = published[one][place] - published[other][place]
                both += 1
                same += ours * theirs > 0
        if both:
            lines.append(
                f"- {NAMES[one]} and {NAMES[other]} stand in the published order in {same} of"
                f" {both} settings."
            )
    inside = [
        low <= PUBLISHED[cell.plan.config["pattern"]][cell.plan.config["scheme"]][place] <= high
        for cell in grid.values()
        for place in [AGENTS.index(cell.plan.config["agents"])]
        for low, high in [interval(cell)]
    ]
    return [
        "## Against the paper",
        "",
        "Many gaps are of a few images, so that an order is no test of a difference.",
        "",
        *lines,
        f"- The published best accuracy lies in the interval of ours in {sum(inside)} of"
        f" {len(inside)} cells.",
        "",
    ]


def _rounds(grid: Grid) -> bytes:
    """Figure 2: distribution C with 10 agents, or nothing where it was not run."""
    with picture(2) as (figure, content):
        accuracy, weight = figure.subplots(1, 2)
        for scheme in SCHEMES:
            if (cell := grid.get(("C", 10, scheme))) is not None:
                values = cell.figures["accuracy"]
                accuracy.plot(range(1, len(values) + 1), values, label=NAMES[scheme])
        accuracy.set(title="C, 10 agents", xlabel="round", ylabel="accuracy", ylim=(0.95, 1.0))
        if (cell := grid.get(("C", 10, _WE))) is not None:
            means = cell.figures["mean_weight"]
            weight.plot(range(1, len(means) + 1), means, label="ours")
        weight.plot(
            list(PUBLISHED_WEIGHTS), list(PUBLISHED_WEIGHTS.values()), "o", label="published"
        )
        weight.set(title="C, 10 agents", xlabel="round", ylabel="mean weight of all agents")
        for axes in (accuracy, weight):
            add_legend(axes)
    return content.getvalue()
