"""The noisy quadratic model (Chayti et al. 2021, figures 2 to 6): one user, N collaborators.

The user minimises f_0(x) = a x^2 / 2, the collaborators' average is a (x - x*)^2 / 2 with
a |x*| = zeta, and every gradient carries Gaussian noise of deviation sigma. Many trials run at once
as the coordinates of one vector, which the rules never mix. The N collaborators, whose average is
all that these rules use, are one peer with noise sigma / sqrt(N). The rules are this program's own.
"""

from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from typing import Any

import torch

from erosion.common.aggregation.cohort import MemoryCohort, Update
from erosion.common.algorithms.base import Algorithm, BuildContext
from erosion.common.algorithms.bias_correction import BiasCorrection
from erosion.common.algorithms.local import Local
from erosion.common.algorithms.weighted_gradient import WeightedGradient
from erosion.experiments.cells import CellPlan, Tick, Values

CONSTANTS: Mapping[str, float] = {
    "a": 1.0,
    "zeta": 1.0,
    "sigma": 1.0,
    "collaborators": 10,
    "eta": 0.1,
    "alpha": 10 / 11,
    "beta": 0.01,
    "start": 1.0,
    "rounds": 3000,
    "trials": 500,
    "seed": 0,
}
STEADY_SHARE = 1 / 3  # of the rounds, the last ones, whose mean is the steady state
RECORDS = 60  # losses that a cell keeps, evenly over the rounds


def plans() -> list[CellPlan]:
    """The curves of all five figures."""
    found = [
        *(_plan(2, rule, f"zeta{zeta:g}", zeta=zeta) for zeta in (1, 2) for rule in RULES),
        *(_plan(3, "bc", f"zeta{zeta:g}", zeta=zeta) for zeta in (0, 1, 2, 5, 10)),
        *(_plan(4, "wga", f"zeta{zeta:g}", zeta=zeta, alpha=0.5) for zeta in (0, 0.5, 1, 2, 5)),
    ]
    for number in (1, 2, 5, 10, 50, 100, 1000):
        alpha = number / (number + 1)
        found.append(_plan(5, "bc", f"fixed-n{number}", collaborators=number, alpha=alpha))
        if number <= 100:  # above, 1 / beta is more rounds than are worth waiting for
            rounds = max(3000, 20 * number / 0.1)
            found.append(
                _plan(
                    5,
                    "bc",
                    f"scaled-n{number}",
                    collaborators=number,
                    alpha=alpha,
                    beta=0.1 / number,
                    rounds=int(rounds),
                    trials=200,
                )
            )
    for zeta in (0, 0.02, 0.05, 0.1, 0.2, 0.5, 1):
        best = best_alpha({**CONSTANTS, "zeta": zeta})
        found.append(_plan(6, "wga", f"zeta{zeta:g}", zeta=zeta, alpha=best))
    return found


def _plan(figure: int, rule: str, name: str, **changes: float) -> CellPlan:
    config: dict[str, Any] = {**CONSTANTS, **changes, "rule": rule, "figure": figure}
    return CellPlan(f"figure{figure}-{rule}-{name}", config, int(config["rounds"]))


def run(config: Values, data_dir: Path | None, tick: Tick) -> Values:
    """Mean loss over the trials, every few rounds, and its mean in the steady state.

    The trials' noise is their own, so that their means differ by chance alone: `standard_error`.
    """
    del data_dir
    rounds, trials = int(config["rounds"]), int(config["trials"])
    a, eta, sigma, count = (config[k] for k in ("a", "eta", "sigma", "collaborators"))
    optimum = config["zeta"] / a
    rule = _rule(config)
    state = rule.init(trials)
    generator = torch.Generator().manual_seed(int(config["seed"]))
    x = torch.full((trials,), float(config["start"]))
    every = rounds // RECORDS
    losses, steady = [], torch.zeros(trials, dtype=torch.float64)
    first_steady = rounds - int(rounds * STEADY_SHARE)
    for number in range(1, rounds + 1):
        noise = torch.randn(2, trials, generator=generator)
        own = a * x + sigma * noise[0]
        others = a * (x - optimum) + sigma / sqrt(count) * noise[1]
        cohort = MemoryCohort(
            _update("user", number, -eta * own),
            {"others": _update("others", number, -eta * others)},
        )
        done = rule.update(state, cohort)
        state, x = done.state, x + done.delta
        of_trials = a * x.double().square() / 2
        if number % every == 0:
            losses.append([number, _rounded(float(of_trials.mean()))])
        if number > first_steady:
            steady += of_trials / (rounds - first_steady)
        tick()
    return {
        "losses": losses,
        "steady": _rounded(float(steady.mean())),
        "standard_error": _rounded(float(steady.std()) / sqrt(trials)),
        "exact": exact_steady(config),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _update(name: str, number: int, delta: torch.Tensor) -> Update:
    return Update(name, number, delta, num_samples=1, samples_seen=1)


def _rule(config: Values) -> Algorithm[Any]:
    context = BuildContext(int(config["rounds"]), 2, dict)
    match config["rule"]:
        case "alone":
            return Local().build(context)
        case "wga":
            return WeightedGradient(alpha=config["alpha"]).build(context)
        case _:
            return BiasCorrection(alpha=config["alpha"], beta=config["beta"], warm_up=False).build(
                context
            )


RULES = ("alone", "wga", "bc")


def exact_steady(config: Values) -> float:
    """The loss that is reached in the end, in closed form; BC's for alpha = N / (N + 1)."""
    a, eta, sigma, count = (config[k] for k in ("a", "eta", "sigma", "collaborators"))
    alone = eta * sigma**2 / (2 * (2 - eta * a))
    match config["rule"]:
        case "alone":
            exact = alone
        case "wga":
            alpha = config["alpha"]
            noise = (1 - alpha) ** 2 + alpha**2 / count
            exact = noise * alone + (alpha * config["zeta"]) ** 2 / (2 * a)
        case _:
            beta = config["beta"]
            exact = alone * (1 + count * beta / (beta + eta * a)) / (count + 1)
    return _rounded(exact)


def best_alpha(config: Values) -> float:
    """WGA's best: 1 / (1 + 1/N + (2 - eta a) zeta^2 / (eta a sigma^2))."""
    a, eta = config["a"], config["eta"]
    bias = (2 - eta * a) * config["zeta"] ** 2 / (eta * a * config["sigma"] ** 2)
    return float(1 / (1 + 1 / config["collaborators"] + bias))
