"""Tables of MNIST's further cells: other settings of Weight Erosion, and another partition."""

from collections.abc import Mapping, Sequence

from erosion.experiments.cells import Cell
from erosion.experiments.papers.mnist import (
    AGENTS,
    SCHEMES,
    SETTINGS,
    SHARED,
    Scheme,
    Variant,
    cell_name,
    further_plans,
)
from erosion.experiments.papers.mnist_accuracy import best_of, interval, last_of
from erosion.experiments.sources.mnist_partition import PATTERNS

_WORDS: Mapping[Variant, str] = {
    "published": "as published",
    "default-unit": "default unit",
    "recommended": "recommended",
}
_OTHERS: Sequence[Scheme] = ("fedavg", "local")


def further_tables(cells: Mapping[str, Cell]) -> list[str]:
    """Both tables, as far as their cells were run; nothing where none was."""
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
    """Weight Erosion as published beside two other settings of it."""
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
    """The authors' partition beside one that gives every image to one agent."""
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
