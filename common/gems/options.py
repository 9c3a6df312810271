"""The parameters of GEMS, and the preset that does what the authors' code does."""

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from erosion.common.gems.bisection import RadiusKind
from erosion.common.gems.retraining import Retraining
from erosion.common.settings.base import Settings


class BallOptions(Settings):
    """What good enough means, and how it is measured."""

    # Where the authors' code differs from ours: they return the middle of the bisection's last
    # interval in place of its lower end.
    authors: ClassVar[dict[str, Any]] = {"radius": "midpoint"}

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
            return {**cls.authors, **values}
        return values

    @model_validator(mode="after")
    def _preset_is_one(self) -> "BallOptions":
        values = {name: getattr(self, name) for name in self.authors}
        if self.preset == "authors" and all(values[n] != self.authors[n] for n in values):
            raise ValueError(
                "preset = 'authors' has nothing left to set, because the arm gives"
                f" {', '.join(values)}; leave out one or the other (among the candidates of a"
                " selection, write the settings themselves)"
            )
        return self


class MeetingOptions(BallOptions):
    """And how far a model is from a hospital's."""

    masked_distance: bool = False  # eq. 2 multiplies every difference by the centre's own value


class ConvexOptions(MeetingOptions):
    """Whole models: balls as in the paper, or ellipsoids as in the authors' code."""

    shape: Literal["ball", "ellipsoid"] = "ball"

    @model_validator(mode="after")
    def _one_scale(self) -> "ConvexOptions":
        if self.shape == "ellipsoid" and self.masked_distance:
            raise ValueError(
                "masked_distance = true is for shape = 'ball'; an ellipsoid has a scale of its own"
            )
        return self


class GemsOptions(MeetingOptions):
    """Networks: how hidden neurons are merged.

    The authors' code also leaves cluster 0 out of the merged layer, and trains the layer above it
    from chance. Its mask, `masked_distance`, moves no figure of theirs and is not in the preset.
    """

    authors: ClassVar[dict[str, Any]] = {
        **BallOptions.authors,
        "skip_first_cluster": True,
        "retraining": "authors",
    }

    clusters: int = Field(default=100, ge=1)  # m
    neuron_epsilon: float = Field(default=1.0, gt=0)  # eps_j in eq. 3
    divide_by_count: bool = True  # the change of a neuron's output by the patients; eq. 3 does not
    skip_first_cluster: bool = False
    retraining: Retraining = "zeros"
