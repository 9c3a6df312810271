"""The registry: one line for each algorithm that a study file can name."""

import inspect
from typing import Annotated, get_args

from pydantic import Field

from common.algorithm import ArmBase
from common.algorithms.fedavg import FedAvg
from common.algorithms.local import Local
from common.algorithms.weight_erosion import WeightErosion

AnyArm = (
    WeightErosion
    | FedAvg
    | Local
)  # fmt: skip

ArmSettings = Annotated[AnyArm, Field(discriminator="algorithm")]

REGISTRY: dict[str, type[ArmBase]] = {
    arm.model_fields["algorithm"].default: arm for arm in get_args(AnyArm)
}


def catalogue() -> str:
    """Every algorithm's paragraph, as its class explains it."""
    return "\n\n".join(f"{name}\n{inspect.getdoc(arm)}" for name, arm in REGISTRY.items())
