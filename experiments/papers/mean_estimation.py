"""Estimating a mean with another population's help (Grimberg et al. 2021, as Chayti recovers it).

The user averages its own n_0 draws with n_1 draws of a population whose mean lies Delta away. The
weight of the other mean with the least expected error is V_0 / (V_0 + V_1 + Delta^2), where V_0 and
V_1 are the variances of the two means.
"""

from pathlib import Path

import numpy as np

from erosion.experiments.cells import CellPlan, Tick, Values

DISTANCES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)


def plans() -> list[CellPlan]:
    """One cell for each distance between the populations."""
    return [
        CellPlan(
            f"delta{delta:g}",
            {"delta": delta, "own": 10, "others": 100, "sigma": 1.0, "trials": 200_000, "seed": 0},
            1,
        )
        for delta in DISTANCES
    ]


def run(config: Values, data_dir: Path | None, tick: Tick) -> Values:
    """The weight with the least measured error, and the formula's."""
    del data_dir
    generator = np.random.default_rng(config["seed"])
    v_0, v_1 = (config["sigma"] ** 2 / config[k] for k in ("own", "others"))
    own = generator.normal(0.0, np.sqrt(v_0), config["trials"])
    other = generator.normal(config["delta"], np.sqrt(v_1), config["trials"])
    weights = np.linspace(0, 1, 101)
    errors = [float(np.mean(((1 - w) * own + w * other) ** 2)) for w in weights]
    pooled = config["others"] / (config["own"] + config["others"])  # every draw counts alike
    optimal = v_0 / (v_0 + v_1 + config["delta"] ** 2)
    tick()
    return {
        "measured": float(weights[int(np.argmin(errors))]),
        "optimal": round(optimal, 4),
        "error": round(min(errors), 6),
        "error_alone": round(errors[0], 6),
        "error_pooled": round(float(np.mean(((1 - pooled) * own + pooled * other) ** 2)), 6),
    }
