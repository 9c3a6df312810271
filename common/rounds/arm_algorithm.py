"""The algorithm of a study's arm, on sealed rounds where the study has them."""

from dataclasses import dataclass
from typing import Any

from erosion.common.algorithms.base import Algorithm
from erosion.common.protocol.messages import Scaling
from erosion.common.protocol.scaling import as_text
from erosion.common.sealed.distances.coordinator_keys import CoordinatorKeys
from erosion.common.sealed.rounds.measured_round import SealedTerms
from erosion.common.sealed.rounds.sealed_rounds import seal
from erosion.common.sealed.sums.sum_records import SumRecords
from erosion.common.study.study import Study


@dataclass(frozen=True, slots=True)
class Sealing:
    """What the coordinator of sealed rounds has for them."""

    records: SumRecords | None = None  # None: in memory
    keys: CoordinatorKeys | None = None  # None: fresh ones


def algorithm_of(
    study: Study,
    arm: str,
    *,
    run: str = "",
    scaling: Scaling | None = None,
    sealing: Sealing | None = None,
) -> Algorithm[Any]:
    """With the arm's parameters. What is given beside them is for sealed rounds only."""
    settings = study.arms[arm]
    algorithm = settings.build(study.build_context)
    if not study.federation.sealed or settings.user_only:
        return algorithm
    peers = tuple(name for name in study.hospitals if name != study.user)
    measure = settings.sealed_measure(study.build_context.layout)
    terms = SealedTerms(
        study.digest,
        arm,
        study.user,
        peers,
        run,
        measure,
        as_text(scaling),
        study.longest_noise,
    )
    sealing = sealing or Sealing()
    return seal(algorithm, terms, records=sealing.records, keys=sealing.keys)
