"""The noisy quadratic with everything tuned: what is left of bias correction's gain.

Every rule is linear and its noise Gaussian, so the mean and covariance of (x, c) follow an exact
recursion; no trial is drawn. Step size, alpha and beta are tuned for one fixed number of rounds.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from erosion.experiments.cells import CellPlan, Tick, Values
from erosion.experiments.papers.quadratic import Constants, recursion

Floats = NDArray[np.float64]


ROUNDS = 1000  # for which all is tuned


def plans(constants: Constants | None = None) -> list[CellPlan]:
    """One cell for each number of collaborators: as given, and ten times as many."""
    base = (constants or Constants()).model_dump(include={"a", "zeta", "sigma", "start"})
    of_all = (constants or Constants()).collaborators
    return [
        CellPlan(f"tuned-n{count}", {**base, "collaborators": count, "rounds": ROUNDS}, ROUNDS)
        for count in (of_all, 10 * of_all)
    ]


def run(config: Values, data_dir: Path | None, tick: Tick) -> Values:
    """The best loss after the last round of training alone and of bias correction."""
    del data_dir
    etas = np.geomspace(1e-4, 1, 80) / config["a"]
    alone = _losses(config, etas, np.zeros(1), np.zeros(1), lambda: None)
    alphas = np.linspace(0, 1, 41)
    betas = np.geomspace(1e-4, 1, 60)
    corrected = _losses(config, etas, alphas, betas, tick)
    place = np.unravel_index(corrected.argmin(), corrected.shape)
    best_alone, best = float(alone.min()), float(corrected.min())
    return {
        "alone": best_alone,
        "alone_eta": float(etas[alone.argmin()]),
        "bc": best,
        "bc_eta": float(etas[place[0]]),
        "bc_alpha": float(alphas[place[1]]),
        "bc_beta": float(betas[place[2]]),
        "gain": best_alone / best,
    }


def _losses(config: Values, etas: Floats, alphas: Floats, betas: Floats, tick: Tick) -> Floats:
    """Expected loss after the rounds for every step size, alpha and beta."""
    grid = np.meshgrid(etas, alphas, betas, indexing="ij")
    losses = np.zeros(grid[0].shape)
    for after in expected_losses(config, *grid):
        losses = after
        tick()
    return losses


def expected_losses(config: Values, eta: Floats, alpha: Floats, beta: Floats) -> Iterator[Floats]:
    """BC's expected loss after each round, for arrays of one shape, an entry a setting."""
    of = recursion(config, eta, alpha, beta)
    shift = -config["zeta"]  # E[m - u] of the gradients
    x = np.full(eta.shape, float(config["start"]))
    c = np.zeros(eta.shape)
    xx, xc, cc = (np.zeros(eta.shape) for _ in range(3))
    for _ in range(int(config["rounds"])):
        xx, xc, cc = (
            of.keep_x**2 * xx + 2 * of.keep_x * of.pull * xc + of.pull**2 * cc + of.noise_x,
            of.keep_c * (of.keep_x * xc + of.pull * cc) + of.noise_xc,
            of.keep_c**2 * cc + of.noise_c,
        )
        x, c = of.keep_x * x - of.pull * (shift - c), of.keep_c * c + beta * shift
        yield config["a"] * (x**2 + xx) / 2
