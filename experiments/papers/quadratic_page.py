"""The noisy quadratic's figures and the mean estimation's table."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from erosion_common.settings.base import validate
from experiments.cells import Cell, CellPlan, ExperimentError
from experiments.experiment import experiment
from experiments.page import Page, add_legend, constants, grid, named, page, picture, table
from experiments.papers import quadratic

PUBLISHED = constants("published")["quadratic"]  # of an independent simulation with our constants
TITLES = {
    2: "Fig. 2: alone, WGA and BC",
    3: "Fig. 3: BC, whatever the bias",
    4: "Fig. 4: WGA with alpha = 0.5",
    5: "Fig. 5: BC and the number of collaborators",
    6: "Fig. 6: WGA at its best alpha",
    quadratic.CURVATURE: "BC, collaborators of another curvature",
}


def draw(cells: Mapping[str, Cell]) -> Page:
    """Draw curves, steady states with the closed form, and the caveat with everything tuned."""
    drawn = {name: cell for name, cell in cells.items() if "figure" in cell.plan.config}
    beyond = {n: c for n, c in drawn.items() if c.plan.config["figure"] == quadratic.BEYOND}
    curves = {name: cell for name, cell in drawn.items() if name not in beyond}
    tuned = [cell for name, cell in cells.items() if name.startswith("tuned")]
    columns: dict[str, Callable[[Cell], str]] = {
        "steady state": lambda cell: (
            f"{cell.figures['steady']:.4g} ± {cell.figures['standard_error']:.1g}"
        ),
        "exact": lambda cell: f"{cell.figures['exact']:.4g}",
        "times better than alone, exact": lambda cell: f"{_gain(cell, 'exact'):.3g}",
        "independent run": lambda cell: _independent(cell, "steady"),
    }
    return page(
        "quadratic",
        {"figures.svg": _figures(curves)},
        constants=_constants(curves),
        curves=grid("curve", curves, columns, lambda cell, column: column(cell)),
        ways=_ways(curves),
        beyond=grid("", BEYOND, named(quadratic.RULES), partial(_beyond, beyond)),
        tuned_rounds=tuned[0].plan.config["rounds"] if tuned else "",
        gains=", ".join(
            f"{cell.figures['gain']:.2f} times with N = {cell.plan.config['collaborators']}"
            for cell in tuned
        ),
    )


BEYOND = {
    "f_0 = a (1 - cos x), not convex": "nonconvex",
    "noise that grows with the gradient": "relaxed",
    "step size divided by the root of the round": "decreasing",
}


def _beyond(cells: Mapping[str, Cell], row: str, rule: str) -> str:
    """Return a measured steady state, how many times alone's it is below, and the exact one."""
    cell, alone = (cells.get(f"{row}-{name}") for name in (rule, "alone"))
    if cell is None:
        return ""
    entry = f"{cell.figures['steady']:.4g} ± {cell.figures['standard_error']:.1g}"
    if alone is not None and rule != "alone":
        entry += f", {alone.figures['steady'] / cell.figures['steady']:.3g} times"
    exact = cell.figures.get("exact")
    return entry + (f" (exact {exact:.4g})" if exact else "")


def _gain(cell: Cell, figure: str) -> float:
    """Return how many times better than alone."""
    return float(quadratic.alone_steady(cell.plan.config) / cell.figures[figure])


def _independent(cell: Cell, figure: str) -> str:
    """Return what another program found, where the constants are the same."""
    found = PUBLISHED[figure]
    ours = {plan.name: plan.config for plan in quadratic.plans()}
    if cell.plan.name in found and ours[cell.plan.name] == cell.plan.config:
        return f"{found[cell.plan.name]:.4g}"
    return "-"


def _ways(curves: Mapping[str, Cell]) -> str:
    """Return how high BC's loss rises first, and how long it takes to its floor."""
    rows = []
    for cell in curves.values():
        config, floor = cell.plan.config, cell.figures["exact"]
        if config["figure"] != 3 or floor <= 0:
            continue
        eta, alpha, beta = (np.array(config[key]) for key in ("eta", "alpha", "beta"))
        start = config["a"] * config["start"] ** 2 / 2
        expected = quadratic.expected_losses(config, eta, alpha, beta)
        losses = np.array([start, *map(float, expected)])
        peak = int(losses.argmax())
        after = np.flatnonzero(losses[peak:] <= 2 * floor)
        rows.append(
            [
                f"{config['zeta']:g}",
                f"{start:.3g}",
                f"{losses[peak]:.4g}",
                str(peak),
                str(peak + after[0]) if len(after) else "-",
                _independent(cell, "rounds"),
            ]
        )
    head = ["zeta", "at the start", "highest", "in round", "twice the floor in round"]
    return table([*head, "independent run"], rows)


def _constants(curves: Mapping[str, Cell]) -> str:
    """Return those that no figure varied, as far as its curves have been run."""
    first = next((c.plan.config for c in curves.values() if c.plan.config["figure"] == 2), None)
    if first is None:
        return ""
    said = ", ".join(f"{name} = {first[name]:g}" for name in ("a", "zeta", "sigma"))
    return (
        f"Here {said}, N = {first['collaborators']}, step size eta = {first['eta']:g},"
        f" alpha = N/(N+1), beta = {first['beta']:g}, the start {first['start']:g},"
        f" {first['rounds']} rounds, {first['trials']} trials; a figure varies some of these, and"
        " `erosion experiment quadratic --set NAME=VALUE --results FOLDER` takes others."
    )


def _figures(cells: Mapping[str, Cell]) -> bytes:
    by_figure = {
        number: [cell for cell in cells.values() if cell.plan.config["figure"] == number]
        for number in TITLES
    }
    with picture(3, 2) as (figure, content):
        axes = figure.subplots(2, 3).flatten()
        for axis, (number, mine) in zip(axes, by_figure.items(), strict=False):
            axis.set_title(TITLES[number])
            if number not in (5, 6):
                for cell in mine:
                    rounds, losses = zip(*cell.figures["losses"], strict=True)
                    config = cell.plan.config
                    label = f"{config['rule']}, zeta {config['zeta']:g}"
                    if "curvature" in config:
                        label = f"{config['curvature'] / config['a']:g} a"
                    axis.plot(rounds, losses, label=label)
                axis.set(yscale="log", xlabel="round", ylabel="loss")
                add_legend(axis, is_below=True)
        for word, label in (("fixed", "fixed beta"), ("scaled", "beta = eta a / N")):
            mine = [cell for cell in by_figure[5] if f"-{word}-" in cell.plan.name]
            _against(axes[3], mine, "collaborators", label)
        if counts := [cell.plan.config["collaborators"] for cell in by_figure[5]]:
            ends = np.array([min(counts), max(counts)])
            axes[3].plot(ends, ends + 1, ":", color="#666666", label="given the bias (theorem 2)")
        _against(axes[4], by_figure[6], "zeta", "WGA")
        axes[3].set(xscale="log", xlabel="collaborators N")
        axes[4].set(xlabel="zeta")
        for axis in axes[3:5]:
            axis.set(yscale="log", ylabel="times better than alone")
            add_legend(axis)
    return content.getvalue()


def _against(axis: Axes, cells: Sequence[Cell], setting: str, label: str) -> None:
    """Draw what is better than alone: measured as points, the exact values as a line."""
    if not cells:
        return
    cells = sorted(cells, key=lambda cell: float(cell.plan.config[setting]))
    places = [cell.plan.config[setting] for cell in cells]
    axis.plot(places, [_gain(cell, "exact") for cell in cells], label=f"{label}, exact")
    axis.plot(places, [_gain(cell, "steady") for cell in cells], "o", markersize=3, label=label)


def draw_means(cells: Mapping[str, Cell]) -> Page:
    """Draw the weight with the least measured error and the formula's."""
    columns = {
        "weight, formula": ("optimal", ".3f"),
        "weight, measured": ("measured", ".2f"),
        "error alone": ("error_alone", ".4f"),
        "error pooled": ("error_pooled", ".4f"),
        "error, best": ("error", ".4f"),
    }
    return page(
        "mean-estimation",
        means=grid(
            "Delta",
            {f"{cell.plan.config['delta']:g}": cell.figures for cell in cells.values()},
            columns,
            lambda figures, column: f"{figures[column[0]]:{column[1]}}",
        ),
    )


def _plans(given: Mapping[str, Any]) -> list[CellPlan]:
    constants = validate(quadratic.Constants, given, "--set", ExperimentError)
    return [*quadratic.plans(constants), *quadratic.tuned_plans(constants)]


QUADRATIC = experiment(
    "quadratic",
    lambda: _plans({}),
    quadratic.run_cell,
    draw,
    lambda config: quadratic.rule_of(config) if "rule" in config else (),
    plans_with=_plans,
)
MEAN_ESTIMATION = experiment(
    "mean-estimation",
    quadratic.mean_plans,
    quadratic.run_means,
    draw_means,
)
