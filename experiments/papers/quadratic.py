"""The noisy quadratic model (Chayti et al. 2021, figures 2 to 6): one user, N collaborators.

The user minimises f_0(x) = a x^2 / 2, the collaborators' average is a (x - x*)^2 / 2 with
a |x*| = zeta, and every gradient carries Gaussian noise of deviation sigma. In cells with a
`curvature` the collaborators have that instead of a (Hessian dissimilarity), with `waves` f_0 is
a (1 - cos x), which is not convex, with `relaxed` (M) the noise has the variance sigma^2 + M times
the squared gradient, and with a `schedule` the step size falls as a study's does. Many trials run
at once as the coordinates of one vector, which the rules never mix. The rules use only the average
of the N collaborators: one peer with noise sigma / sqrt(N). The rules are this program's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from scipy.linalg import solve_discrete_lyapunov

from erosion_common.aggregation.cohort import MemoryCohort, Update
from erosion_common.algorithms.base import ArmBase, BuildContext
from erosion_common.algorithms.bias_correction import BiasCorrection
from erosion_common.algorithms.local import Local
from erosion_common.algorithms.weighted_gradient import WeightedGradient
from erosion_common.learning.training import Training
from erosion_common.settings.base import Settings
from experiments.cells import CellPlan, Values, planned

STEADY_SHARE = 1 / 3  # of the rounds, the last ones, which give the steady state as their mean
RECORDS = 60  # losses that a cell keeps, evenly over the rounds
SCALED_TRIALS = 200  # at most, where beta = eta a / N, in runs of 20 / beta rounds
SCALED_COLLABORATORS = 100  # the most: above, 1 / beta is more rounds than are worth waiting for
CURVATURE, BEYOND = 7, 8  # "figures" that the paper does not have
MOST_ROUNDS = 1_000_000  # of a cell: minutes
LEAST, MOST = 1e-6, 1e6  # beyond, squares of single-precision numbers are not what they should be


class Constants(Settings):
    """What the model is made of; each figure varies some of it. The paper does not state its own.

    `zeta` is the distance between the optima as a gradient, a |x*|; the figures take multiples.
    """

    a: float = Field(default=1.0, ge=LEAST, le=MOST)
    zeta: float = Field(default=1.0, ge=LEAST, le=MOST)
    sigma: float = Field(default=1.0, ge=LEAST, le=MOST)
    collaborators: int = Field(default=10, ge=1, le=1_000_000)
    eta: float = Field(default=0.1, ge=LEAST, le=MOST)
    beta: float = Field(default=0.01, ge=LEAST, le=1)
    start: float = Field(default=1.0, ge=-MOST, le=MOST)
    rounds: int = Field(default=3000, ge=RECORDS, le=MOST_ROUNDS)
    trials: int = Field(default=500, ge=2, le=1_000_000)
    seed: int = Field(default=0, ge=0, lt=2**63)

    @model_validator(mode="after")
    def _a_round_comes_closer(self) -> Self:
        step = self.eta * self.a
        if step > 1:
            raise ValueError(
                f"eta * a is {step:g}; it must be 1 or less: a round may not step over the optimum"
            )
        if (rounds := _scaled_rounds(step / SCALED_COLLABORATORS)) > MOST_ROUNDS:
            raise ValueError(
                f"eta * a is {step:g}, with which a cell of figure 5 takes {rounds:,} rounds; it"
                f" must be {20 * SCALED_COLLABORATORS / MOST_ROUNDS:g} or more, for"
                f" {MOST_ROUNDS:,} rounds at most"
            )
        return self


def _scaled_rounds(beta: float) -> int:
    """Return how many runs take with a beta that follows the number of collaborators."""
    return round(20 / beta)


def plans(constants: Constants | None = None) -> list[CellPlan]:
    """Return the curves of all five figures."""
    base = (constants or Constants()).model_dump()
    base["alpha"] = _averaging(base["collaborators"])

    def plan(figure: int, rule: str, name: str, **changes: Any) -> CellPlan:
        config: dict[str, Any] = {**base, **changes, "rule": rule, "figure": figure}
        full = f"{name}-{rule}" if figure == BEYOND else f"figure{figure}-{rule}-{name}"
        return CellPlan(full, config)

    def zetas(*multiples: float) -> list[tuple[str, float]]:
        return [
            (f"zeta{multiple * base['zeta']:g}", multiple * base["zeta"]) for multiple in multiples
        ]

    found = [
        *(plan(2, rule, name, zeta=zeta) for name, zeta in zetas(1, 2) for rule in RULES),
        *(plan(3, "bc", name, zeta=zeta) for name, zeta in zetas(0, 1, 2, 5, 10)),
        *(plan(4, "wga", name, zeta=zeta, alpha=0.5) for name, zeta in zetas(0, 0.5, 1, 2, 5)),
    ]
    for number in (1, 2, 5, 10, 50, 100, 1000):
        changes = {"collaborators": number, "alpha": _averaging(number)}
        found.append(plan(5, "bc", f"fixed-n{number}", **changes))
        if number <= SCALED_COLLABORATORS:
            beta = base["eta"] * base["a"] / number
            rounds = max(base["rounds"], _scaled_rounds(beta))
            trials = min(base["trials"], SCALED_TRIALS)
            scaled = {**changes, "beta": beta, "rounds": rounds, "trials": trials}
            found.append(plan(5, "bc", f"scaled-n{number}", **scaled))
    for name, zeta in zetas(0, 0.02, 0.05, 0.1, 0.2, 0.5, 1):
        best = best_alpha({**base, "zeta": zeta})
        found.append(plan(6, "wga", name, zeta=zeta, alpha=best))
    for times in (0.5, 2.0):  # the user's
        config = {**base, "rule": "bc", "figure": CURVATURE, "curvature": times * base["a"]}
        found.append(CellPlan(f"curvature-bc-{times:g}a", config))
    step = base["eta"] * base["a"]
    beyond: Mapping[str, Mapping[str, Any]] = {
        "nonconvex": {"waves": True},
        "relaxed": {"relaxed": 0.5 / step},  # more than 2 / step, and nothing comes to rest
        "decreasing": {"schedule": "inverse_sqrt"},
    }
    for name, further in beyond.items():
        found += [plan(BEYOND, rule, name, **further) for rule in RULES]
    return found


def _averaging(collaborators: int) -> float:
    """Return the alpha with which everybody's noise counts alike."""
    return collaborators / (collaborators + 1)


def run_cell(config: Values, data_dir: Path | None) -> Values:
    """Simulate a curve, or tune all settings."""
    return (run if "rule" in config else run_tuned)(config, data_dir)


def run(config: Values, data_dir: Path | None) -> Values:
    """Mean loss over the trials, every few rounds, and its mean in the steady state.

    The trials' noise is their own, so that their means differ by chance alone: `standard_error`.
    """
    del data_dir
    rounds, trials = int(config["rounds"]), int(config["trials"])
    a = config["a"]
    training = Training(
        steps=1, learning_rate=config["eta"], schedule=config.get("schedule", "constant")
    )
    rule = rule_of(config).build(BuildContext(int(config["rounds"]), 2, dict))
    state = rule.init(trials)
    generator = torch.Generator().manual_seed(int(config["seed"]))
    x = torch.full((trials,), float(config["start"]))
    every = rounds // RECORDS
    losses, steady = [], torch.zeros(trials, dtype=torch.float64)
    first_steady = rounds - int(rounds * STEADY_SHARE)
    for number in range(1, rounds + 1):
        noise = torch.randn(2, trials, generator=generator)
        own, others = _gradients(config, x, noise)
        eta = training.at(number, rounds).learning_rate
        cohort = MemoryCohort(
            _update("user", number, -eta * own),
            {"others": _update("others", number, -eta * others)},
        )
        done = rule.update(state, cohort)
        state, x = done.state, x + done.delta
        exactly = x.double()
        of_trials = a * (1 - exactly.cos()) if "waves" in config else a * exactly.square() / 2
        if number % every == 0:
            losses.append([number, _rounded(float(of_trials.mean()))])
        if number > first_steady:
            steady += of_trials / (rounds - first_steady)
    figures = {
        "losses": losses,
        "steady": _rounded(float(steady.mean())),
        "standard_error": _rounded(float(steady.std()) / sqrt(trials)),
    }
    is_solved = "relaxed" in config and config["rule"] != "wga"
    solved = {"exact": exact_steady(config)} if config["figure"] != BEYOND or is_solved else {}
    return {**figures, **solved}


def _gradients(
    config: Values, x: torch.Tensor, noise: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the user's noisy gradients at x (trials,), and the collaborators' average ones."""
    a, more = config["a"], config.get("relaxed", 0.0)
    curvature = config.get("curvature", a)
    own = a * (x.sin() if "waves" in config else x)
    others = curvature * (x - config["zeta"] / curvature)
    if "waves" in config:
        others = own - config["zeta"]
    deviations = [
        (config["sigma"] ** 2 + more * slope.square()).sqrt() if more else config["sigma"]
        for slope in (own, others)
    ]
    averaged = deviations[1] / sqrt(config["collaborators"])
    return own + deviations[0] * noise[0], others + averaged * noise[1]


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _update(name: str, number: int, delta: torch.Tensor) -> Update:
    return Update(name, number, delta, num_samples=1, samples_seen=1)


def rule_of(config: Values) -> ArmBase:
    """This program's rule with the cell's settings."""
    match config["rule"]:
        case "alone":
            return Local()
        case "wga":
            return WeightedGradient(alpha=config["alpha"])
        case _:
            return BiasCorrection(alpha=config["alpha"], beta=config["beta"], warm_up=False)


RULES = ("alone", "wga", "bc")


def exact_steady(config: Values) -> float:
    """Return the loss that is reached in the end: of WGA noise and bias, of BC noise alone."""
    match config["rule"]:
        case "alone":
            exact = alone_steady(config)
        case "wga":
            alpha = config["alpha"]
            noise = (1 - alpha) ** 2 + alpha**2 / config["collaborators"]
            bias = (alpha * config["zeta"]) ** 2 / (2 * config["a"])
            exact = noise * alone_steady(config) + bias
        case _:
            exact = config["a"] * _corrected_variance(config) / 2
    return _rounded(exact)


def alone_steady(config: Values) -> float:
    """Training alone's: eta sigma^2 / (2 (2 - eta a (1 + M)))."""
    a, eta, sigma = (config[k] for k in ("a", "eta", "sigma"))
    return float(eta * sigma**2 / (2 * (2 - eta * a * (1 + config.get("relaxed", 0.0)))))


@dataclass(frozen=True, slots=True)
class Recursion:
    """A round of BC around the means.

    x' = keep_x x + pull c + noise, and c' = keep_c c + lean x + noise.
    x is the model, c the bias as a gradient. Numbers, or arrays of one shape, an entry a setting.
    """

    keep_x: Any
    keep_c: Any
    pull: Any
    lean: Any  # on x, of what c follows: 0 where all have one curvature
    noise_x: Any  # variances of the noise, and their covariance
    noise_c: Any
    noise_xc: Any


def recursion(
    config: Values, eta: Any, alpha: Any, beta: Any, noise: tuple[float, float] | None = None
) -> Recursion:
    """BC's with these settings; `noise` are the variances of the user's and the others' gradient.

    The noise of c is the others' less the user's own, that of x their weighted sum.
    """
    variance = config["sigma"] ** 2
    own, others = noise or (variance, variance / config["collaborators"])
    steeper = config.get("curvature", config["a"]) - config["a"]
    return Recursion(
        keep_x=1 - eta * (config["a"] + alpha * steeper),
        keep_c=1 - beta,
        pull=eta * alpha,
        lean=beta * steeper,
        noise_x=eta**2 * ((1 - alpha) ** 2 * own + alpha**2 * others),
        noise_c=beta**2 * (own + others),
        noise_xc=-eta * beta * (alpha * others - (1 - alpha) * own),
    )


def _corrected_variance(config: Values) -> float:
    """Return the variance of x that BC's recursion leaves as it is.

    With `relaxed` a part of the noise grows with that variance; the others' has M zeta^2 as well.
    """

    def left(own: float, others: float) -> float:
        noise_of = (own, others / config["collaborators"])
        of = recursion(config, config["eta"], config["alpha"], config["beta"], noise_of)
        moves = np.array([[of.keep_x, of.pull], [of.lean, of.keep_c]])
        noise = np.array([[of.noise_x, of.noise_xc], [of.noise_xc, of.noise_c]])
        return float(solve_discrete_lyapunov(moves, noise)[0, 0])

    more, own = config.get("relaxed", 0.0), config["sigma"] ** 2
    slopes = more * config["a"] ** 2
    return left(own, own + more * config["zeta"] ** 2) / (1 - left(slopes, slopes))


def best_alpha(config: Values) -> float:
    """WGA's best: 1 / (1 + 1/N + (2 - eta a) zeta^2 / (eta a sigma^2))."""
    a, eta = config["a"], config["eta"]
    bias = (2 - eta * a) * config["zeta"] ** 2 / (eta * a * config["sigma"] ** 2)
    return float(1 / (1 + 1 / config["collaborators"] + bias))


Floats = NDArray[np.float64]


TUNED_ROUNDS = 1000  # for which all is tuned


def tuned_plans(constants: Constants | None = None) -> list[CellPlan]:
    """Return one cell for each number of collaborators: as given, and ten times as many."""
    base = (constants or Constants()).model_dump(include={"a", "zeta", "sigma", "start"})
    of_all = (constants or Constants()).collaborators
    return [
        CellPlan(f"tuned-n{count}", {**base, "collaborators": count, "rounds": TUNED_ROUNDS})
        for count in (of_all, 10 * of_all)
    ]


def run_tuned(config: Values, data_dir: Path | None) -> Values:
    """Return the best loss after the last round of training alone and of bias correction."""
    del data_dir
    etas = np.geomspace(1e-4, 1, 80) / config["a"]
    alone = _losses(config, etas, np.zeros(1), np.zeros(1))
    alphas = np.linspace(0, 1, 41)
    betas = np.geomspace(1e-4, 1, 60)
    corrected = _losses(config, etas, alphas, betas)
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


def _losses(config: Values, etas: Floats, alphas: Floats, betas: Floats) -> Floats:
    """Expected loss after the rounds for every step size, alpha and beta."""
    grid = np.meshgrid(etas, alphas, betas, indexing="ij")
    losses = np.zeros(grid[0].shape)
    for after in expected_losses(config, *grid):
        losses = after
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
            of.keep_c * (of.keep_x * xc + of.pull * cc)
            + of.lean * (of.keep_x * xx + of.pull * xc)
            + of.noise_xc,
            of.keep_c**2 * cc + 2 * of.keep_c * of.lean * xc + of.lean**2 * xx + of.noise_c,
        )
        x, c = (of.keep_x * x - of.pull * (shift - c), of.keep_c * c + of.lean * x + beta * shift)
        yield config["a"] * (x**2 + xx) / 2


DISTANCES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)


def mean_plans() -> list[CellPlan]:
    """Return one cell for each distance between the populations."""
    same = {"own": 10, "others": 100, "sigma": 1.0, "trials": 200_000, "seed": 0}
    return planned("delta{delta:g}", ({"delta": delta} for delta in DISTANCES), **same)


def run_means(config: Values, data_dir: Path | None) -> Values:
    """Return the weight with the least measured error, and the formula's."""
    del data_dir
    generator = np.random.default_rng(config["seed"])
    v_0, v_1 = (config["sigma"] ** 2 / config[k] for k in ("own", "others"))
    own = generator.normal(0.0, np.sqrt(v_0), config["trials"])
    other = generator.normal(config["delta"], np.sqrt(v_1), config["trials"])
    weights = np.linspace(0, 1, 101)
    errors = [float(np.mean(((1 - w) * own + w * other) ** 2)) for w in weights]
    pooled = config["others"] / (config["own"] + config["others"])  # every draw counts alike
    optimal = v_0 / (v_0 + v_1 + config["delta"] ** 2)
    return {
        "measured": float(weights[int(np.argmin(errors))]),
        "optimal": round(optimal, 4),
        "error": round(min(errors), 6),
        "error_alone": round(errors[0], 6),
        "error_pooled": round(float(np.mean(((1 - pooled) * own + pooled * other) ** 2)), 6),
    }
