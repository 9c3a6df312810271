"""Draws the noisy quadratic's figures and the mean estimation's table."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from experiments.cells import Cell
from experiments.experiment import Page
from experiments.papers import quadratic
from experiments.papers.quadratic import expected_losses
from experiments.pictures import add_legend, picture

PUBLISHED = {  # of an independent simulation with the constants that are ours
    "figure2-alone-zeta1": 0.0263,
    "figure2-wga-zeta1": 0.416,
    "figure2-bc-zeta1": 0.0044,
    "figure4-wga-zeta0": 0.0072,
    "figure4-wga-zeta0.5": 0.0385,
    "figure4-wga-zeta1": 0.132,
    "figure4-wga-zeta2": 0.507,
    "figure4-wga-zeta5": 3.13,
    "figure5-bc-fixed-n1": 0.0143,
    "figure5-bc-fixed-n2": 0.0103,
    "figure5-bc-fixed-n5": 0.0063,
    "figure5-bc-fixed-n10": 0.0045,
    "figure5-bc-fixed-n50": 0.0028,
    "figure5-bc-fixed-n100": 0.0025,
    "figure5-bc-fixed-n1000": 0.0023,
}
# Of the same simulation: rounds until the mean loss is down to twice the floor, by zeta.
INDEPENDENT_ROUNDS = {
    "figure3-bc-zeta0": 20,
    "figure3-bc-zeta1": 229,
    "figure3-bc-zeta2": 302,
    "figure3-bc-zeta5": 403,
    "figure3-bc-zeta10": 462,
}
TITLES = {
    2: "Fig. 2: alone, WGA and BC",
    3: "Fig. 3: BC, whatever the bias",
    4: "Fig. 4: WGA with alpha = 0.5",
    5: "Fig. 5: BC and the number of collaborators",
    6: "Fig. 6: WGA at its best alpha",
}


def draw(cells: Mapping[str, Cell]) -> Page:
    """Draw curves, steady states with the closed form, and the caveat with everything tuned."""
    curves = {name: cell for name, cell in cells.items() if name.startswith("figure")}
    tuned = {name: cell for name, cell in cells.items() if name.startswith("tuned")}
    lines = [
        "# The noisy quadratic model (Chayti et al. 2021)",
        "",
        "One user minimises a quadratic from noisy gradients; N collaborators have an optimum",
        "that is zeta away in gradient. *Alone* uses the user's gradients, *WGA* averages all of",
        "them by a fixed weight, *BC* takes off the bias that was seen so far. The paper does not",
        "state its constants. A steady state is the mean loss of the last third of the rounds,",
        "± one standard error over the trials. All curves of as many trials share their noise, so",
        "that they differ by less than these errors say.",
        "",
        *_constants(curves),
        "",
        "![Loss over the rounds and in the steady state](figures.svg)",
        "",
        "| curve | steady state | exact | times better than alone, exact | independent run |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {_steady(cell)} | {cell.figures['exact']:.4g} |"
            f" {quadratic.alone_steady(cell.plan.config) / cell.figures['exact']:.3g} |"
            f" {_independent(cell, PUBLISHED)} |"
            for name, cell in curves.items()
        ),
        "",
        "Exact are for training alone and WGA the variance and the squared bias at its alpha, for",
        "BC the variance that its recursion leaves as it is; but for terms of the order of eta,",
        "BC/alone = 1/(N+1) + N/(N+1) beta/(beta + eta a).",
        "BC's floor does not depend on zeta: only the time to reach it does. With a fixed beta",
        "more collaborators help less and less, so a linear speed-up needs beta <= eta a / N.",
        "",
        *_ways(curves),
        *_caveat(tuned),
    ]
    return Page("\n".join(lines), {"figures.svg": _figures(curves)})


def _steady(cell: Cell) -> str:
    return f"{cell.figures['steady']:.4g} ± {cell.figures['standard_error']:.1g}"


def _independent(cell: Cell, found: Mapping[str, float]) -> str:
    """Return what another program found, where the constants are the same."""
    ours = {plan.name: plan.config for plan in quadratic.plans()}
    if cell.plan.name in found and ours[cell.plan.name] == cell.plan.config:
        return f"{found[cell.plan.name]:.4g}"
    return "-"


def _ways(curves: Mapping[str, Cell]) -> list[str]:
    """Return how BC comes to its floor: how high its loss rises first, and how long it takes."""
    rows = []
    for cell in curves.values():
        config, floor = cell.plan.config, cell.figures["exact"]
        if config["figure"] != 3 or floor <= 0:
            continue
        eta, alpha, beta = (np.array(config[key]) for key in ("eta", "alpha", "beta"))
        start = config["a"] * config["start"] ** 2 / 2
        losses = [start, *(float(loss) for loss in expected_losses(config, eta, alpha, beta))]
        peak = max(range(len(losses)), key=losses.__getitem__)
        after = (number for number in range(peak, len(losses)) if losses[number] <= 2 * floor)
        rows.append(
            f"| {config['zeta']:g} | {start:.3g} | {losses[peak]:.4g} | {peak} |"
            f" {next(after, '-')} | {_independent(cell, INDEPENDENT_ROUNDS)} |"
        )
    if not rows:
        return []
    return [
        "BC begins by rising where the bias is large, for it follows the others until it knows",
        "their bias. Its expected loss, by the exact recursion of mean and covariance:",
        "",
        "| zeta | at the start | highest | in round | twice the floor in round | independent run |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
    ]


def _constants(curves: Mapping[str, Cell]) -> list[str]:
    """Return those that no figure varied, as far as its curves have been run."""
    first = next((c.plan.config for c in curves.values() if c.plan.config["figure"] == 2), None)
    if first is None:
        return []
    said = ", ".join(f"{name} = {first[name]:g}" for name in ("a", "zeta", "sigma"))
    return [
        f"Here {said}, N = {first['collaborators']}, step size eta = {first['eta']:g},"
        f" alpha = N/(N+1), beta = {first['beta']:g}, the start {first['start']:g},"
        f" {first['rounds']} rounds, {first['trials']} trials; a figure varies some of these, and"
        " `erosion experiment quadratic --set NAME=VALUE --results FOLDER` takes others.",
    ]


def _caveat(tuned: Mapping[str, Cell]) -> list[str]:
    if not tuned:
        return []
    gains = ", ".join(
        f"{cell.figures['gain']:.2f} times with N = {cell.plan.config['collaborators']}"
        for cell in tuned.values()
    )
    (rounds,) = {cell.plan.config["rounds"] for cell in tuned.values()}
    return [
        "**With everything tuned.** The floors above are for one fixed step size. If step size,"
        f" alpha and beta are all tuned for a run of {rounds} rounds from that start, the loss that"
        f" BC ends with is lower than that of training alone by {gains} (exact recursion of mean"
        " and covariance, no trials).",
        "",
    ]


def _figures(cells: Mapping[str, Cell]) -> bytes:
    with picture(3, 2) as (figure, content):
        axes = figure.subplots(2, 3).flatten()
        for axis, number in zip(axes, TITLES, strict=False):
            mine = [c for c in cells.values() if c.plan.config["figure"] == number]
            axis.set_title(TITLES[number])
            if number <= 4:
                for cell in mine:
                    rounds, losses = zip(*cell.figures["losses"], strict=True)
                    config = cell.plan.config
                    axis.plot(rounds, losses, label=f"{config['rule']}, zeta {config['zeta']:g}")
                axis.set(yscale="log", xlabel="round", ylabel="loss")
                add_legend(axis, is_below=True)
        _speed_ups(axes[3], [c for c in cells.values() if c.plan.config["figure"] == 5])
        _best_wga(axes[4], [c for c in cells.values() if c.plan.config["figure"] == 6])
        axes[5].set_axis_off()
    return content.getvalue()


def _speed_ups(axis: Axes, cells: Sequence[Cell]) -> None:
    for word, label in (("fixed", "fixed beta"), ("scaled", "beta = eta a / N")):
        mine = [cell for cell in cells if f"-{word}-" in cell.plan.name]
        _against(axis, mine, lambda c: c.plan.config["collaborators"], label)
    axis.set(xscale="log", yscale="log", xlabel="collaborators N", ylabel="times better than alone")
    add_legend(axis)


def _best_wga(axis: Axes, cells: Sequence[Cell]) -> None:
    _against(axis, cells, lambda c: c.plan.config["zeta"], "WGA")
    axis.set(yscale="log", xlabel="zeta", ylabel="times better than alone")
    add_legend(axis)


def _against(axis: Axes, cells: Sequence[Cell], place: Callable[[Cell], float], label: str) -> None:
    """Measured as points, the exact values as a line."""
    if not cells:
        return
    cells = sorted(cells, key=place)
    places = [place(cell) for cell in cells]
    alone = [quadratic.alone_steady(cell.plan.config) for cell in cells]
    exact, steady = (
        [best / cell.figures[key] for best, cell in zip(alone, cells, strict=True)]
        for key in ("exact", "steady")
    )
    axis.plot(places, exact, label=f"{label}, exact")
    axis.plot(places, steady, "o", markersize=3, label=label)


def draw_means(cells: Mapping[str, Cell]) -> Page:
    """Draw the weight with the least measured error and the formula's."""
    rows = [
        f"| {c.plan.config['delta']:g} | {c.figures['optimal']:.3f} | {c.figures['measured']:.2f} |"
        f" {c.figures['error_alone']:.4f} | {c.figures['error_pooled']:.4f} |"
        f" {c.figures['error']:.4f} |"
        for c in cells.values()
    ]
    lines = [
        "# How much of another population's mean to take (Grimberg et al. 2021)",
        "",
        "The user has 10 draws of deviation 1, the others 100 draws of a population with its mean",
        "Delta away. The formula's weight is V_0 / (V_0 + V_1 + Delta^2); the measured one has the",
        "least squared error over 200,000 trials, on a grid of 0.01.",
        "",
        "| Delta | weight, formula | weight, measured | error alone | error pooled | error, best |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
    ]
    return Page("\n".join(lines))
