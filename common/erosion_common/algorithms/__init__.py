"""The registry: one line for each method that comes with the program; packages bring others."""

import inspect
from collections.abc import Mapping
from functools import lru_cache, reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, create_model

from erosion_common.algorithms.apfl import Apfl, FedAla
from erosion_common.algorithms.base import ArmBase
from erosion_common.algorithms.bias_correction import BiasCorrection
from erosion_common.algorithms.centered_clipping import CenteredClipping
from erosion_common.algorithms.ditto import Ditto, PFedMe
from erosion_common.algorithms.ensemble import Ensemble
from erosion_common.algorithms.evidence_erosion import EvidenceErosion
from erosion_common.algorithms.fedavg import (
    FedAvg,
    FedProx,
    FineTuning,
    PerFedAvg,
    PersonalIntercept,
)
from erosion_common.algorithms.fedfomo import FedFomo
from erosion_common.algorithms.fedlin import FedLin
from erosion_common.algorithms.gems.network import NetworkGems
from erosion_common.algorithms.gems.personal import PersonalGems
from erosion_common.algorithms.gems.rounds import Gems
from erosion_common.algorithms.geometric_median import GeometricMedian
from erosion_common.algorithms.ifca import Ifca
from erosion_common.algorithms.krum import Krum, MultiKrum
from erosion_common.algorithms.local import Local
from erosion_common.algorithms.model_averaging import ModelAveraging
from erosion_common.algorithms.newton import Newton
from erosion_common.algorithms.own_model import FedAmp
from erosion_common.algorithms.personal_layers import FedBn, FedPer, FedRep, LgFedAvg
from erosion_common.algorithms.scaffold import Scaffold
from erosion_common.algorithms.server_optimizer import AggregatingArm
from erosion_common.algorithms.trimmed_mean import CoordinateMedian, TrimmedMean
from erosion_common.algorithms.waffle import Waffle
from erosion_common.algorithms.weight_erosion import WeightErosion
from erosion_common.algorithms.weighted_gradient import WeightedGradient
from erosion_common.settings.names import Sha256
from erosion_common.settings.packages import hash_in, load_class, open_union

_OURS: tuple[type[ArmBase], ...] = (
    WeightErosion,
    FedAvg,
    Local,
    WeightedGradient,
    BiasCorrection,
    Krum,
    MultiKrum,
    CoordinateMedian,
    TrimmedMean,
    GeometricMedian,
    CenteredClipping,
    EvidenceErosion,
    PersonalIntercept,
    FineTuning,
    FedPer,
    FedRep,
    LgFedAvg,
    FedBn,
    Ditto,
    Apfl,
    PFedMe,
    PerFedAvg,
    FedAla,
    FedAmp,
    Ifca,
    Waffle,
    ModelAveraging,
    FedFomo,
    FedProx,
    Scaffold,
    FedLin,
    Newton,
    Ensemble,
    Gems,
    NetworkGems,
    PersonalGems,
)

# By name; a package's is added when the first study that names it is read.
REGISTRY: dict[str, type[ArmBase]] = {arm.model_fields["algorithm"].default: arm for arm in _OURS}


def load_method(name: str, sha256: str | None) -> type[ArmBase]:
    """Import a package's method and register it. Raises ModelError and Refusal."""
    return REGISTRY.setdefault(name, load_class("method", name, sha256, ArmBase))


def _table_of(raw: Mapping[str, Any]) -> type[ArmBase]:
    name, sha256 = str(raw["algorithm"]), hash_in(raw, "method")
    return _with_hash(name, sha256, load_method(name, sha256))


@lru_cache
def _with_hash(name: str, sha256: str, arm: type[ArmBase]) -> type[ArmBase]:
    of_package = (Sha256, Field(description="SHA-256 of the package's files."))
    made = f"{name}_{sha256}"
    form = create_model(made, __base__=arm, __module__=__name__, sha256=of_package)
    globals()[made] = form  # where pickle looks for it
    return form


if TYPE_CHECKING:
    AnyArm = ArmBase
    ArmSettings = ArmBase
else:
    AnyArm = reduce(or_, _OURS)
    ArmSettings = Annotated[
        Annotated[AnyArm, Field(discriminator="algorithm")],
        *open_union("method", "algorithm", REGISTRY, _table_of),
    ]


def steps_of(algorithm: str) -> frozenset[str]:
    """Return the names of what a hospital can be asked in a round of it."""
    return frozenset(REGISTRY[algorithm](algorithm=algorithm).site_steps())


OF_EVERY_METHOD = Path(__file__).with_name("of_every_method.md").read_text("utf-8").rstrip()


def catalogue() -> str:
    """Return every method with its parameters, and what all have in common."""
    return "\n\n".join(
        [*(_paragraph(name, arm) for name, arm in REGISTRY.items()), OF_EVERY_METHOD]
    )


def _paragraph(name: str, arm: type[ArmBase]) -> str:
    built = arm(algorithm=name)
    parameters = [
        f"- `{key}`: {field.description}"
        for key, field in arm.model_fields.items()
        if key not in AggregatingArm.model_fields
    ]
    promises = (
        ("Sealed rounds", built.problem_with_sealing()),
        ("Differential privacy", built.problem_with_privacy()),
    )
    possible = [f"{what}: {'yes' if no is None else f'no, {no}'}." for what, no in promises]
    parts = (inspect.getdoc(arm), "\n".join(parameters), "\n".join(possible))
    return "\n\n".join([f"## {name}", *(part for part in parts if part)])
