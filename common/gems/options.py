"""The parameters of GEMS, and the preset that does what the authors' code does."""

from typing import Any, Literal

from pydantic import Field, model_validator

from erosion.common.gems.bisection import RadiusKind
from erosion.common.gems.retraining import Retraining
from erosion.common.settings.base import Settings

# Where their code differs from ours: the middle of the bisection's last interval in place of its
# lower end, cluster 0 left out of the merged layer, and the layer above trained from chance.
AUTHORS: dict[str, Any] = {
    "radius": "midpoint",
    "skip_first_cluster": True,
    "retraining": "authors",
}


class BallOptions(Settings):
    """What good enough means, and how it is measured."""

    preset: Literal["ours", "authors"] = "ours"
    epsilon: float = Field(default=0.7, ge=0, le=1)  # accuracy that is good enough
    epsilon_of: Literal["accuracy", "own_accuracy"] = "accuracy"  # or a share of the own model's
    directions: int = Field(default=500, ge=1, le=100_000)  # p, tried from each centre
    radius: RadiusKind = "lower_bound"

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, values: Any) -> Any:
        """The preset's values where none is given."""
        if isinstance(values, dict) and values.get("preset") == "authors":
            theirs = {name: value for name, value in AUTHORS.items() if name in cls.model_fields}
            return {**theirs, **values}
        return values


class GemsOptions(BallOptions):
    """And how hidden neurons are merged."""

    clusters: int = Field(default=100, ge=1)  # m
    neuron_epsilon: float = Field(default=1.0, gt=0)  # eps_j in eq. 3
    divide_by_count: bool = True  # the change of a neuron's output by the patients; eq. 3 does not
    skip_first_cluster: bool = False
    retraining: Retraining = "zeros"
