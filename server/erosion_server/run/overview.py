"""The outcome of a study with every hospital as its user: their results side by side."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Final

from pydantic import Field

from erosion_common.protocol.messages import FinalMetrics
from erosion_common.rounds.data_check import DataCheck
from erosion_common.settings.base import Settings
from erosion_common.study.study import Study
from erosion_common.tasks.metric import Metric
from erosion_server.run import provenance
from erosion_server.run import result as results
from erosion_server.run.findings import Contribution
from erosion_server.run.result import Result, RunFacts, UserFigures

TOO_FEW: Final = "too few patients"
UNCLEAR: Final = "no clear difference"
OWN_REFERENCE: Final = "the best local reference"  # where hospitals' are not all the same


class EarlyStop(Settings):
    """Where an arm's rule ended it."""

    round: int
    reason: str


class UserResult(UserFigures):
    """One hospital's line."""

    arms: dict[str, FinalMetrics]  # of the hospital's model, on its own test patients
    adjusted_p_value: float | None = None  # Holm's, over all hospitals that were compared
    conclusion: str = ""  # by the adjusted p-value
    weights: dict[str, float]  # of each hospital in the first arm: see `mean_weights`
    stopped: dict[str, EarlyStop] = Field(default_factory=dict)  # by arm, those that ended early

    @property
    def num_patients(self) -> int:
        """How many those are."""
        return next(iter(self.arms.values())).num_patients

    @property
    def measured(self) -> dict[str, FinalMetrics]:
        """Of its arms and local references."""
        return {**self.arms, **self.references}

    @property
    def p_value_text(self) -> str:
        """The adjusted p-value; a dash where there is none."""
        if self.comparison is None or self.adjusted_p_value is None:
            return "–"
        return results.p_value_text(self.adjusted_p_value, self.comparison.level)

    def of_base_rate(self, metric: str) -> float | None:
        """Return a metric of its base rate; None where it is undefined or was not measured."""
        return None if self.base_rate is None else self.base_rate.get(metric)


class Overview(RunFacts):
    """`result.json` of such a study; each hospital's own is in `users/NAME/result.json`."""

    users: dict[str, UserResult] = Field(min_length=1)
    without_model: dict[str, str]  # hospital -> why it has none
    verdict: str
    finding: str = ""  # its first sentence
    figures: str = ""  # the others

    @property
    def arms(self) -> list[str]:
        """The arms' names, in their order."""
        return list(next(iter(self.users.values())).arms)

    @property
    def data_check(self) -> DataCheck:
        """What any part of the study found of a hospital's column, each once."""
        found = [line.data_check for line in self.users.values()]
        each = {(m.hospital, m.column): m for part in reversed(found) for m in part.misfits}
        unchecked = {name: why for part in found for name, why in part.unchecked.items()}
        return DataCheck(misfits=tuple(each.values()), unchecked=unchecked)

    @property
    def references(self) -> list[str]:
        """The local references that every hospital has, in their order."""
        lines = self.users.values()
        of_first = next(iter(lines)).references
        return [name for name in of_first if all(name in line.references for line in lines)]

    @property
    def reference(self) -> str:
        """What the arm is compared with; "" where nothing is compared."""
        names = {line.comparison.reference for line in self.users.values() if line.comparison}
        return names.pop() if len(names) == 1 else OWN_REFERENCE * bool(names)

    @property
    def tested(self) -> str:
        """What the patients behind the figures are called."""
        is_cross_fitted = any(line.cross_fitting is not None for line in self.users.values())
        return "patients" if is_cross_fitted else "test patients"

    def with_all(self, metric: str) -> list[str]:
        """Return the hospitals where the metric is defined for every arm."""
        return [
            user
            for user, line in self.users.items()
            if all(found.get(metric) is not None for found in line.measured.values())
        ]

    def mean(self, arm: str, metric: str) -> float | None:
        """Return a metric's mean over those hospitals, each counted once; None without any."""
        return _mean(self.users[user].measured[arm].get(metric) for user in self.with_all(metric))

    def mean_reference(self, metric: str) -> float | None:
        """Return the same of what each hospital's arm is compared with."""
        lines = (self.users[user] for user in self.with_all(metric))
        return _mean(
            line.measured[line.comparison.reference].get(metric)
            for line in lines
            if line.comparison is not None
        )

    def mean_base_rate(self, metric: str) -> float | None:
        """Return the mean of the base rates; None where one was not measured or is undefined."""
        return _mean(self.users[user].of_base_rate(metric) for user in self.with_all(metric))


def overview(
    study: Study,
    users: Mapping[str, UserResult],
    without_model: Mapping[str, str] = MappingProxyType({}),
    *,
    started: str,
    seconds: float,
    resumed: bool = False,
) -> Overview:
    """Put the hospitals side by side; there must be one at least."""
    found = Overview(
        study=study.name,
        seed=study.seed,
        commit=provenance.commit(),
        command=provenance.command(),
        started=started,
        seconds=seconds,
        resumed=resumed,
        outcome=study.task.outcome,
        users=adjusted(users),
        without_model=dict(without_model),
        verdict="",
    )
    finding, *figures = verdict(found, study.task.shifted_by, results.unit_of(study.task))
    said = {"verdict": " ".join([finding, *figures]), "finding": finding}
    return found.model_copy(update={**said, "figures": " ".join(figures)})


def line_of(result: Result) -> UserResult:
    """Return a hospital's line, from its own result."""
    return UserResult(
        **{name: getattr(result, name) for name in UserFigures.model_fields},
        arms={arm: ended.metrics for arm, ended in result.arms.items()},
        weights=mean_weights(result.contributions, result.user),
        stopped={
            arm: EarlyStop(round=ended.rounds, reason=ended.stopped)
            for arm, ended in result.arms.items()
            if ended.stopped is not None
        },
    )


def mean_weights(contributions: Mapping[str, Contribution], user: str) -> dict[str, float]:
    """Return each hospital's mean weight over the user's rounds; away counts as 0."""
    num_rounds = max(1, contributions[user].rounds)
    return {name: given.weight_sum / num_rounds for name, given in contributions.items()}


def adjusted(users: Mapping[str, UserResult]) -> dict[str, UserResult]:
    """Return the same with p-values and conclusions for all hospitals looked at together.

    By Holm's method. Hospitals with too few patients are not tested, which does not depend on the
    models, and so do not count.
    """
    tested = {
        user: line.comparison.p_value
        for user, line in users.items()
        if line.comparison is not None and line.comparison.conclusion != TOO_FEW
    }
    p_values = adjusted_p_values(tested)
    found = {}
    for user, line in users.items():
        p_value, conclusion = p_values.get(user), ""
        if line.comparison is not None:
            is_unclear = p_value is not None and p_value > line.comparison.level
            conclusion = UNCLEAR if is_unclear else line.comparison.conclusion
        update = {"adjusted_p_value": p_value, "conclusion": conclusion}
        found[user] = line.model_copy(update=update)
    return found


def verdict(overview: Overview, shifted_by: str = "", unit: str = "") -> list[str]:
    """Return for which hospitals collaborating helped, and the mean figures, in sentences."""
    comparison = next(iter(overview.users.values())).comparison
    if comparison is None:
        return _with_warnings(results.NOTHING_COMPARED, overview, overview.arms[0], shifted_by)
    arm, reference = comparison.arm, overview.reference
    by_conclusion: dict[str, list[str]] = {}
    for user, line in overview.users.items():
        by_conclusion.setdefault(line.conclusion, []).append(user)
    better, worse = by_conclusion.get("better", []), by_conclusion.get("worse", [])
    unclear, too_few = by_conclusion.get(UNCLEAR, []), by_conclusion.get(TOO_FEW, [])
    clauses = []
    if better or worse:  # an arm's name stays as it is at the beginning
        clauses.append(
            f"{arm} predicts better than {reference} for {_counted(better)} of"
            f" {len(overview.users)} hospitals and worse for {_counted(worse)}"
        )
        clauses += [f"no clear difference for {len(unclear)}"] if unclear else []
    elif unclear:
        clauses.append(
            f"No clear difference between {arm} and {reference} for {len(unclear)} of"
            f" {len(overview.users)} hospitals"
        )
    if too_few:
        word = "too" if clauses else "Too"
        clauses.append(f"{word} few {overview.tested} to tell for {_counted(too_few)}")
    finding = "; ".join(clauses)
    figures = []
    for metric in overview.task.shown(overview.task.headline):
        called, of_base_rate = overview.task.baseline(metric)
        base = overview.mean_base_rate(of_base_rate)
        notes = [] if base is None else [f"{called}: {_text(base, metric)}"]
        if 0 < (number := len(overview.with_all(metric.name))) < len(overview.users):
            notes.append(f"of {number} of {len(overview.users)} hospitals")
        remarks = f" ({'; '.join(notes)})" if notes else ""
        of_both = " against ".join(
            _text(mean, metric)
            for mean in (overview.mean(arm, metric.name), overview.mean_reference(metric.name))
        )
        figures.append(f"{metric.label} {of_both}{metric.behind(unit)}{remarks}")
    said = [f"{finding}.", f"Mean over the hospitals: {', '.join(figures)}."]
    return _with_warnings(said, overview, arm, shifted_by)


def _with_warnings(
    said: Sequence[str], overview: Overview, first: str, shifted_by: str
) -> list[str]:
    """Add where arms are no better than the base rate, in front if `first` is worse."""
    worse: dict[str, list[str]] = {}
    not_better: dict[str, list[str]] = {}
    turned: set[str] = set()
    for user, line in overview.users.items():
        found = results.above_base_rate(overview.task, line.arms, line.base_rate)
        for by_arm, arms in ((worse, found.clearly), (not_better, found.within)):
            for arm in arms:
                by_arm.setdefault(arm, []).append(user)
        turned |= {user} if found.turned else set()

    def where(users: list[str]) -> str:
        return f" for {_counted(users)} of {len(overview.users)} hospitals"

    warnings = {
        arm: results.worse_sentence([arm], shifted_by, where(users)) for arm, users in worse.items()
    }
    before = [warnings.pop(first)] if first in warnings else []
    after = [
        results.not_better_sentence([arm], shifted_by, where=where(users))
        for arm, users in not_better.items()
    ]
    if turned:
        after.append(
            results.wrong_way_sentence(
                f"Models rank patients{where([user for user in overview.users if user in turned])}"
            )
        )
    leaks: dict[str | None, list[str]] = {}
    for user, line in overview.users.items():
        if line.leak is not None:
            leaks.setdefault(line.leak.column, []).append(user)
    too_good = [
        f"For {_counted(users)}: {leak.sentence(overview.task)}"
        for users in leaks.values()
        if (leak := overview.users[users[0]].leak) is not None
    ]
    return [*too_good, *before, *said, *warnings.values(), *after]


def _mean(values: Iterable[float | None]) -> float | None:
    every = list(values)
    known = [value for value in every if value is not None]
    return fmean(known) if known and len(known) == len(every) else None


def _text(value: float | None, metric: Metric) -> str:
    return "undefined" if value is None else metric.text(value)


def _counted(names: list[str]) -> str:
    return f"{len(names)} ({', '.join(names)})" if names else "none"


def adjusted_p_values(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return by name the k-th smallest of m times m - k + 1, and none below a smaller one's."""
    adjusted: dict[str, float] = {}
    at_least = 0.0
    for rank, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        at_least = max(at_least, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = at_least
    return adjusted
