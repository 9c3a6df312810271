"""Compares what a study's hospitals report of their columns, before the first round.

An outcome that is coded the other way round in about half of the patients shows in no rate. It
shows in the first round, when all start from parameters that know nothing: the update of a hospital
where what is learnt is the opposite points away from the user's.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt

from erosion_common.aggregation.cohort import HospitalName
from erosion_common.protocol.messages import FinalMetrics, Summary
from erosion_common.rounds.misfits import Misfit, misfits, problem_with_summary
from erosion_common.rounds.records import RoundRecord
from erosion_common.settings.base import Settings
from erosion_common.study.study import Study

GIVES_NONE = "its site gives no figures of its columns; its own log says why"
IS_PRIVATE = "the study has [privacy], and figures of columns have no noise"
CAME_LATER = "it came after the study had begun"
AWAY, MOST_AWAY = 0.4, 0.8  # cosine of opposite updates, and where parameters are few
BY_CHANCE = 2.0  # deviations of the cosine of two random directions, which are 1 / sqrt(dim)


class DataCheck(Settings):
    """Which hospitals' figures do not fit the others', and which were not compared."""

    misfits: tuple[Misfit, ...] = ()
    compared: tuple[HospitalName, ...] = ()
    unchecked: dict[HospitalName, str] = {}  # noqa: RUF012 - and why

    @property
    def sentences(self) -> list[str]:
        """All of it, for people."""
        return [f"{found.hospital}, {found.column}: {found.text}" for found in self.misfits] + [
            f"{name}: not checked ({why})" for name, why in self.unchecked.items()
        ]


def data_check(study: Study, summaries: Mapping[HospitalName, Summary | None]) -> DataCheck:
    """Compare the hospitals that are there. None: it gave no figures."""
    usable: dict[HospitalName, Summary] = {}
    unchecked: dict[HospitalName, str] = {}
    for name in study.everyone:
        if name not in summaries:
            continue
        if (summary := summaries[name]) is None:
            is_private = study.privacy is not None and name != study.user
            unchecked[name] = IS_PRIVATE if is_private else GIVES_NONE
        elif problem := problem_with_summary(summary, study):
            unchecked[name] = problem
        else:
            usable[name] = summary
    return DataCheck(misfits=tuple(misfits(usable)), compared=tuple(usable), unchecked=unchecked)


def completed(
    found: DataCheck,
    study: Study,
    records: Mapping[str, Sequence[RoundRecord]],
    arms: Mapping[str, FinalMetrics],
) -> DataCheck:
    """Return the same after the last round, by arm: late joiners, and updates that pointed away."""
    took_part = {
        name
        for of_arm in records.values()
        for record in of_arm
        for name, entry in record.hospitals.items()
        if entry.outcome == "accepted"
    }
    later = [n for n in study.hospitals if n in took_part - {*found.compared, *found.unchecked}]
    away = pointing_away(study, records.values(), arms)
    return found.model_copy(
        update={
            "misfits": (*found.misfits, *away),
            "unchecked": {**found.unchecked, **dict.fromkeys(later, CAME_LATER)},
        }
    )


def pointing_away(
    study: Study, records: Iterable[Sequence[RoundRecord]], arms: Mapping[str, FinalMetrics]
) -> list[Misfit]:
    """Return hospitals that learnt the opposite in the first round of the first arm they were in.

    Nothing is said where the user's patients show nothing that could be learnt, nor where the model
    starts from what it learnt elsewhere.
    """
    if study.model.pretrained is not None or not _shows_something(study, arms):
        return []
    directions: dict[str, float] = {}
    for of_arm in records:
        for record in of_arm:
            for name, entry in record.hospitals.items():
                if entry.direction is not None and name != study.user:
                    directions.setdefault(name, entry.direction)
    dim = max((place.stop for place in study.build_context.layout().values()), default=1)
    limit = max(AWAY, min(MOST_AWAY, BY_CHANCE / sqrt(dim)))
    away = {name: cosine for name, cosine in directions.items() if cosine <= -limit}
    column = study.task.target_columns[-1].name
    if len(away) > 1 and len(away) == len(directions):
        text = "its first update points away from all others. Is it coded the same way there?"
        return [Misfit(hospital=study.user, column=column, text=text)]
    return [
        Misfit(
            hospital=name,
            column=column,
            text=f"its first update points away from {study.user}'s (cosine {cosine:.2f}). Is it"
            " coded the same way there?",
        )
        for name, cosine in away.items()
    ]


def _shows_something(study: Study, arms: Mapping[str, FinalMetrics]) -> bool:
    """Return whether some model ranks the user's patients otherwise than chance does."""
    ranked = [metric for metric in study.task.metrics if metric.by_chance is not None]
    intervals = [
        (metric.by_chance, interval)
        for metric in ranked
        for found in arms.values()
        if (interval := found.intervals.get(metric.name)) is not None
    ]
    return not ranked or any(
        not interval.low <= (chance or 0.0) <= interval.high for chance, interval in intervals
    )
