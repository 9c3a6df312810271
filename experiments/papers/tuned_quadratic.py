"""The noisy quadratic with everything tuned: what is left of bias correction's gain.

Every rule is linear and its noise Gaussian, so the mean and covariance of (x, c) follow an exact
recursion; no trial is drawn. Step size, alpha and beta are tuned for one fixed number of rounds.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from erosion.experiments.cells import CellPlan, Tick, Values

Floats = NDArray[np.float64]


def plans() -> list[CellPlan]:
    """One cell for each number of collaborators."""
    return [
        CellPlan(
            f"tuned-n{count}",
            {"collaborators": count, "rounds": 1000, "zeta": 1.0, "sigma": 1.0, "start": 1.0},
            1000,
        )
        for count in (10, 100)
    ]


def run(config: Values, data_dir: Path | None, tick: Tick) -> Values:
    """The best loss after the last round of training alone and of bias correction."""
    del data_dir
    etas = np.geomspace(1e-4, 1, 80)
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
    """Expected loss after the rounds for every step size, alpha and beta, with a = 1."""
    eta, alpha, beta = np.meshgrid(etas, alphas, betas, indexing="ij")
    own_noise = config["sigma"] ** 2
    others_noise = own_noise / config["collaborators"]
    shift = -config["zeta"]  # E[m - u] of the gradients
    x = np.full(eta.shape, float(config["start"]))
    c = np.zeros(eta.shape)
    xx, xc, cc = (np.zeros(eta.shape) for _ in range(3))
    noise_x = eta**2 * ((1 - alpha) ** 2 * own_noise + alpha**2 * others_noise)
    noise_c = beta**2 * (own_noise + others_noise)
    noise_xc = -eta * beta * (alpha * others_noise - (1 - alpha) * own_noise)
    keep_x, keep_c, pull = 1 - eta, 1 - beta, eta * alpha
    for _ in range(int(config["rounds"])):
        xx, xc, cc = (
            keep_x**2 * xx + 2 * keep_x * pull * xc + pull**2 * cc + noise_x,
            keep_c * (keep_x * xc + pull * cc) + noise_xc,
            keep_c**2 * cc + noise_c,
        )
        x, c = keep_x * x - pull * (shift - c), keep_c * c + beta * shift
        tick()
    losses: Floats = (x**2 + xx) / 2
    return losses
