"""Cross-fitted evaluation: every patient of the user's is predicted by models that never saw it.

The user's patients are cut into folds. For each fold the whole run of every arm is repeated without
its patients, and the models that come of it predict them; `repeats` says with how many such cuts.
The final models are then trained on all of the user's patients.
"""

from collections.abc import Mapping, Sequence

from erosion.common.protocol.messages import Metrics
from erosion.common.study.sections import Fold
from erosion.common.study.study import Study

Curves = Mapping[str, Sequence[Metrics | None]]
# by arm, of the parameters that each round started from, from round 1; None: not measured


def folds_of(study: Study) -> list[Fold]:
    """What is held out in turn, one cut after another; nothing where a test part is set aside."""
    count = study.evaluation.folds
    if count is None:
        return []
    return [
        Fold(number=number, of=count, cut=cut)
        for cut in range(1, study.evaluation.repeats + 1)
        for number in range(count)
    ]


def fold_studies(study: Study) -> list[Study]:
    """The study without each fold's patients."""
    return [study.model_copy(update={"fold": fold}) for fold in folds_of(study)]


def mean_curves(
    folds: Sequence[Curves], rounds: Mapping[str, int]
) -> dict[str, list[Metrics | None]]:
    """The metrics after each round, the mean over all held-out patients; None where a fold's lack.

    `rounds`: how many rounds of an arm are wanted. An arm that a rule stopped earlier in a fold
    stays where it was.
    """
    return {
        arm: [_mean([_after(curves[arm], number) for curves in folds]) for number in range(count)]
        for arm, count in rounds.items()
    }


def _after(curve: Sequence[Metrics | None], number: int) -> Metrics | None:
    return curve[min(number, len(curve) - 1)] if curve else None


def _mean(measured: Sequence[Metrics | None]) -> Metrics | None:
    found = [metrics for metrics in measured if metrics is not None]
    if not found or len(found) < len(measured):
        return None
    patients = sum(metrics.num_patients for metrics in found)
    names = found[0].model_dump(exclude={"num_patients"})
    values: dict[str, float | None] = {}
    for name in names:
        parts = [(metrics.get(name), metrics.num_patients) for metrics in found]
        known = [(value, count) for value, count in parts if value is not None]
        total = sum(count for _, count in known)
        values[name] = sum(v * n for v, n in known) / total if len(known) == len(parts) else None
    return Metrics.model_validate({"num_patients": patients, **values})
