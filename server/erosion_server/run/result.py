"""The outcome of a study: `result.json`, with the verdict on collaborating."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from pydantic import Field, field_validator

from erosion_common.errors import CheckpointError
from erosion_common.formats.json_file import read_json
from erosion_common.protocol import messages
from erosion_common.protocol.messages import Comparison, FinalMetrics, Metrics
from erosion_common.protocol.performance import Performance
from erosion_common.rounds.data_check import DataCheck
from erosion_common.rounds.records import RoundRecord
from erosion_common.rounds.selection import SelectedSettings, chosen
from erosion_common.rounds.validation import Validated
from erosion_common.settings.base import Settings
from erosion_common.study.study import Study
from erosion_common.tasks import DEFAULT, REGISTRY
from erosion_common.tasks.metric import Metric
from erosion_common.tasks.task import Task
from erosion_server.run.findings import Absent, Contribution, Leak, PrivacySpent, Recount

FORMAT: Final = 1  # raised when a key changes its meaning
REMEDY = "Run the study again."
NOTHING_COMPARED = (
    "Nothing was compared: the study declares a single arm.",
    "Whether collaborating is worth it shows in two, [arms.local] and one that asks the other"
    " hospitals.",
)
PBand = tuple[float, float] | None  # the least and the largest p-value
COMMON_LEVEL = 0.05  # up to which many papers claim a difference
LAST_ROUNDS = 5
OWN_PATIENTS = "patients, each predicted by models that never saw them"


class SecondsPerRound(Settings):
    """Wall clock of a round, from making the requests to the aggregate."""

    median: float
    p95: float


class ArmResult(Settings):
    """How one arm ended."""

    metrics: FinalMetrics
    weights: dict[str, float]  # final, relative to the user's own, which is 1
    rounds: int
    skipped_rounds: int
    stopped: str | None = None  # why the arm's rule ended it in its last round; None: it did not
    seconds_per_round: SecondsPerRound
    selected: SelectedSettings | None = None  # where the study has a selection
    finish: messages.FinishFigures | None = None  # where the arm has one


class Verdict(Settings):
    """What may honestly be said."""

    best_arm: str | None  # an arm, or a local reference; None: no clear difference
    text: str
    finding: str  # its first sentence, without figures in brackets
    figures: str  # the others, and those figures


class CrossFitting(Settings):
    """How the figures were made where no test part was set aside."""

    folds: int
    repeats: int  # cuts into folds


class RunFacts(Settings):
    """What a result and an overview of several begin with."""

    format: Literal[1] = FORMAT
    study: str
    seed: int
    commit: str  # of this program; "unknown" outside a git checkout
    command: str
    started: str  # ISO 8601, UTC
    seconds: float  # since it was started, or taken up again; of all hospitals' parts
    resumed: bool = False  # it, or a part of it, was taken up again after an interruption
    outcome: str = DEFAULT  # of the task; it says what the metrics mean

    @field_validator("outcome")
    @classmethod
    def _is_known(cls, outcome: str) -> str:
        if outcome not in REGISTRY:
            raise ValueError(f"it must be one of {', '.join(REGISTRY)}")
        return outcome

    @property
    def task(self) -> type[Task]:
        """What the metrics mean."""
        return REGISTRY[self.outcome]


class UserFigures(Settings):
    """Of one user; an overview has the same of each."""

    references: dict[str, FinalMetrics] = Field(default_factory=dict)  # local models of the user's
    # patients alone, by name
    base_rate: FinalMetrics | None = None  # of the training part's base rate as everyone's
    # prediction, cross-fitted with every fold
    comparison: Comparison | None
    class_counts: dict[str, int | None]  # of the user's test patients; empty where none are
    # counted; None: not disclosed
    cross_fitting: CrossFitting | None = None  # None: the figures are of a test part
    data_check: DataCheck = DataCheck()  # hospitals with figures that do not fit the others'
    leak: Leak | None = None  # where the figures are too good
    absent: tuple[Absent, ...] = ()  # hospitals that rounds went without


class Result(RunFacts, UserFigures):
    """`result.json`."""

    user: str
    arms: dict[str, ArmResult] = Field(min_length=1)
    performance: Performance = Performance()  # curves, groups and effects of the user's patients
    patients: dict[str, messages.Summary] = Field(
        default_factory=dict
    )  # as hospitals described their
    # training patients before the run: the user's, and of those that counted most
    p_by_round: PBand = None  # see `p_of_last_rounds`
    validation: dict[str, Validated] = Field(default_factory=dict)  # the delivered model at other
    # hospitals, where the study asks for that
    contributions: dict[str, Contribution]
    recounts: tuple[Recount, ...] = ()  # hospitals that came back with other numbers of patients
    privacy: PrivacySpent | None = None  # None: the study promised none
    peak_megabytes: float  # resident memory of the coordinator
    verdict: Verdict

    @property
    def tested(self) -> str:
        """What the patients behind the figures are called."""
        return "patients" if self.cross_fitting else "test patients"

    @property
    def delivered_arm(self) -> str:
        """The arm of the delivered model: the better one of a verdict, or else the first."""
        best = self.verdict.best_arm
        return best if best in self.arms else next(iter(self.arms))

    @property
    def num_patients(self) -> int:
        """The patients behind the figures."""
        return next(iter(self.arms.values())).metrics.num_patients


def study_as_run(study: Study, result: Result) -> Study:
    """Return the study with what was chosen in place of what it leaves open."""
    return chosen(
        study,
        {
            arm: SelectedSettings(
                ended.selected.settings if ended.selected else {}, ended.rounds, None
            )
            for arm, ended in result.arms.items()
        },
    )


def unit_of(task: Task) -> str:
    """Return the unit of a predicted number; "" where it has none, or is a plain number ("1")."""
    unit = str(getattr(task, "unit", ""))
    return "" if unit == "1" else unit


def words_for_tested(study: Study) -> str:
    """Return what the patients are called in a verdict on the study."""
    return "test patients" if study.evaluation.folds is None else OWN_PATIENTS


def read_result(path: Path) -> Result:
    """`result.json`. Raises CheckpointError, and FileNotFoundError where there is none."""
    return read_json(path, Result, version=FORMAT, error=CheckpointError, remedy=REMEDY)


def verdict(
    task: type[Task],
    comparison: Comparison | None,
    arms: Mapping[str, FinalMetrics],
    base_rate: FinalMetrics | None = None,
    *,
    references: Mapping[str, FinalMetrics] = MappingProxyType({}),
    tested: str = "test patients",
    unit: str = "",
    shifted_by: str = "",
    leak: Leak | None = None,
    p_by_round: PBand = None,
    above: "AboveBaseRate | None" = None,
) -> Verdict:
    """Return the finding of the declared comparison, and the figures behind it.

    A column that leaks comes first; too good figures without one follow. `tested`: what the
    patients behind the figures are called. `unit`: of a predicted number. `shifted_by`: as the task
    says. `p_by_round`: see `p_of_last_rounds`. Which arms predict worse than the base rate, or not
    better, is the headline where the delivered one does, and else stands at the end; `above`: these
    arms, where the figures given are rounded.
    """
    best, said = _compared(task, comparison, {**arms, **references}, base_rate, tested, unit)
    if comparison is not None and (near := near_the_line(comparison, p_by_round)):
        said.insert(2, near)
    if best in references:
        said.append(f"{best} was fitted and measured at the user's site: no model of it has left.")
    delivered = best if best in arms else next(iter(arms))
    worse, within, turned = above or above_base_rate(task, arms, base_rate)
    aside = ""
    if within and base_rate is not None:
        aside = _and_base_rate(task, {arm: arms[arm] for arm in within}, base_rate)
    heads: list[str] = []
    tails: list[str] = []
    if leak is not None:
        (tails if leak.column is None else heads).append(leak.sentence(task))
    if worse:
        (heads if delivered in worse else tails).append(worse_sentence(worse, shifted_by))
    if within:
        sentence = not_better_sentence(within, shifted_by, aside)
        (heads if delivered in within else tails).append(sentence)
    tails += turned_sentences(turned)
    finding, *figures = every = [*heads, *said, *tails]
    if delivered in within and len(heads) == 1:  # its figures stand below the finding
        finding = not_better_sentence(within, shifted_by)
        figures.append(f"{aside[0].upper()}{aside[1:]}.")
    return Verdict(best_arm=best, text=" ".join(every), finding=finding, figures=" ".join(figures))


def _compared(
    task: type[Task],
    comparison: Comparison | None,
    measured: Mapping[str, FinalMetrics],
    base_rate: FinalMetrics | None,
    tested: str,
    unit: str,
) -> tuple[str | None, list[str]]:
    if comparison is None:
        return None, [*NOTHING_COMPARED]
    arm, reference = comparison.arm, comparison.reference
    size = f"{comparison.num_patients} {tested}"
    best: str | None = None
    alone = _as_good_alone(task, comparison, measured)
    match comparison.conclusion:
        case "better":
            no_worse = [name for name, loss in alone.items() if loss <= _loss(task, measured[arm])]
            but = f", but not than {' or '.join(no_worse)}" if no_worse else ""
            best, finding = arm, f"On {size}, {arm} predicts better than {reference}{but}."
        case "worse":
            best, finding = reference, f"On {size}, {arm} predicts worse than {reference}."
        case "too few patients":
            finding = (
                f"{size} with fewer than {messages.FEWEST_OF_A_CLASS} {task.group_word} are too few"
                f" to tell {arm} from {reference}."
            )
        case _:
            finding = f"On {size}, no clear difference between {arm} and {reference}."
    figures = figures_of_both(task, measured[arm], measured[reference], base_rate, unit)
    p_value = p_value_text(comparison.p_value, comparison.level, "= ")
    is_small = comparison.level < comparison.p_value <= COMMON_LEVEL
    why = f" (a difference is claimed up to {comparison.level:g})" if is_small else ""
    compared = f"{figures[0].upper()}{figures[1:]}, p {p_value}{why}."
    said = [finding, compared, how_chosen(comparison)]
    if alone:
        metric = task.metric(task.verdict_metric)
        names = [f"{name} ({metric.label} {metric.text(loss)})" for name, loss in alone.items()]
        which = "was not chosen, does" if len(alone) == 1 else "were not chosen, do"
        said.append(
            f"{listed(names)}, which {which} about as well: the user may not need the others."
        )
    return best, [*filter(None, said)]


def _loss(task: type[Task], metrics: FinalMetrics) -> float:
    return metrics.get(task.verdict_metric) or 0.0


def how_chosen(comparison: Comparison) -> str:
    """Return how the better one of several references was found; "" where the study names one."""
    if not comparison.chosen:
        return ""
    if comparison.reference in comparison.chosen:
        where = "the" if sum(comparison.chosen.values()) == 1 else "every fold's"
        return (
            f"Of {listed([*comparison.chosen])}, {comparison.reference} predicted best inside"
            f" {where} training part."
        )
    counts = listed([f"{name} ({count})" for name, count in comparison.chosen.items()])
    return (
        f"{comparison.reference} is in each fold the one that predicted best inside its training"
        f" part, of {counts}, with the number of folds."
    )


def _as_good_alone(
    task: type[Task], comparison: Comparison, measured: Mapping[str, FinalMetrics]
) -> dict[str, float]:
    """Return the losses of models of the user's patients alone that are nearer to the arm's.

    They were not chosen, and the arm is better than the one that was.
    """
    if comparison.conclusion != "better":
        return {}
    arm, reference = (
        _loss(task, measured[name]) for name in (comparison.arm, comparison.reference)
    )
    losses = {n: _loss(task, measured[n]) for n in comparison.chosen if n in measured}
    return {name: loss for name, loss in losses.items() if loss < (arm + reference) / 2}


def p_of_last_rounds(
    task: type[Task], found: messages.EvaluateResult, records: Mapping[str, Sequence[RoundRecord]]
) -> PBand:
    """Return between which p-values the models of the last rounds lie; None where not known.

    Each of these was trained in another order of patients. The p-values are approximate: patients'
    differences are taken to vary as much as those of the final models.
    """
    compared, metric = found.header.comparison, task.verdict_metric
    if compared is None or compared.p_by_cut or not 0 < compared.p_value < 1:
        return None
    losses: list[list[float]] = []
    for name in (compared.arm, compared.reference):
        rounds = records.get(name, ())
        undone = {n for r in rounds if r.undoes for n in range(r.undoes, r.round)}
        each = [
            r.user_metrics.get(metric)
            for r in rounds
            if r.user_metrics and r.measured_after not in undone
        ]
        last = [loss for loss in each[-LAST_ROUNDS:] if loss is not None]
        if name in found.header.references:
            last = [found.header.references[name].get(metric) or 0.0] * LAST_ROUNDS
        is_other = not found.personal.keys().isdisjoint((name, messages.layers_of(name)))
        if is_other or len(last) < LAST_ROUNDS:
            return None  # the rounds' figures are of another model
        losses.append(last)
    normal = NormalDist()
    z = normal.inv_cdf(1 - compared.p_value / 2)
    differences = [one - other for one, other in zip(*losses, strict=True)]
    if not compared.mean_difference:
        return None
    moved = [abs(d / compared.mean_difference) * z for d in differences]
    p_values = [compared.p_value, *(2 * normal.cdf(-each) for each in moved)]
    return min(p_values), max(p_values)


def near_the_line(comparison: Comparison, p_by_round: PBand = None) -> str:
    """That the finding could well be the other one; "" where that is unlikely."""
    level = f"{comparison.level:g}"
    is_enough = comparison.smallest_class >= messages.FEWEST_OF_A_CLASS
    if p_by_round and is_enough and p_by_round[0] <= comparison.level < p_by_round[1]:
        low, high = (p_value_text(p, comparison.level) for p in p_by_round)
        return (
            f"Near the line: by the models of the last {LAST_ROUNDS} rounds, each trained in"
            f" another order of patients, p ranges from {low} to {high}."
        )
    if not comparison.is_near:
        return ""
    if cuts := comparison.p_by_cut:
        low, high = (p_value_text(p, comparison.level) for p in (min(cuts), max(cuts)))
        within = sum(p <= comparison.level for p in cuts)
        return (
            f"Near the line: by each of the {len(cuts)} cuts into folds alone p is {low} to {high},"
            f" and within {level} in {within} of them."
        )
    return (
        f"Near the line: p is not far from {level}, and training in another order of patients, as"
        " at another installation, can move it across."
    )


def p_value_text(p_value: float, level: float, equal: str = "") -> str:
    """On its side of the level; `equal` stands before a number that is no bound."""
    if p_value < 0.001:
        return "< 0.001"
    return f"{equal}{p_value:.{digits_beyond(level, p_value)}g}"


def digits_beyond(level: float, p_value: float) -> int:
    """Return the number of digits: three, or more where it would be rounded onto the level."""
    digits = 3
    while float(f"{p_value:.{digits}g}") <= level < p_value:
        digits += 1
    return digits


def figures_of_both(
    task: type[Task], arm: Metrics, reference: Metrics, base_rate: Metrics | None, unit: str
) -> str:
    """Return the headline's metrics, e.g. "log loss 0.31 against 0.36 (base rate: 0.66)"."""
    parts = []
    for metric in task.shown(task.headline):
        called, other = task.baseline(metric)
        base = f" ({called}: {_figure(base_rate, task.metric(other))})" if base_rate else ""
        two = f"{_figure(arm, metric)} against {_figure(reference, metric)}"
        parts.append(f"{metric.label} {two}{metric.behind(unit)}{base}")
    return ", ".join(parts)


class AboveBaseRate(NamedTuple):
    """The arms with a loss above that of predicting patients alike, by the base rate."""

    clearly: list[str]  # the base rate's is below the arm's 95 % interval, or there is none
    within: list[str]  # it is within: these patients cannot decide
    turned: list[str]  # of the first, those that rank patients the wrong way round


def above_base_rate(
    task: type[Task], arms: Mapping[str, FinalMetrics], base_rate: Metrics | None
) -> AboveBaseRate:
    """Return which arms these are. A hundredth more of log loss in 15 patients is not "WORSE"."""
    found = AboveBaseRate([], [], [])
    loss = task.verdict_metric
    for arm, metrics in arms.items():
        if base_rate is None or metrics[loss] <= base_rate[loss]:
            continue
        interval = metrics.intervals.get(loss)
        is_within = interval is not None and interval.low <= base_rate[loss]
        (found.within if is_within else found.clearly).append(arm)
        if not is_within and ranks_wrong_way_round(task, metrics):
            found.turned.append(arm)
    return found


def worse_sentence(arms: Sequence[str], shifted_by: str, where: str = "") -> str:
    """That these arms predict worse than the base rate, and what not to do for it.

    `where`: for which hospitals, if not for all. What shifts predictions on purpose is named: the
    base rate is without it, and ranks nobody.
    """
    by = f", trained with {shifted_by}, which shift probabilities," if shifted_by else ""
    which, there = "these probabilities" if shifted_by else "them", " there" if where else ""
    return (
        f"Predictions of {listed(arms)}{by} are WORSE than the base rate alone{where}: do not use"
        f" {which}{there}{' as they are' if shifted_by else ''}."
    )


def ranks_wrong_way_round(task: type[Task], metrics: FinalMetrics) -> bool:
    """Return if chance clearly ranks patients better: it is above the 95 % interval."""
    return any(
        metric.by_chance is not None
        and (interval := metrics.intervals.get(metric.name)) is not None
        and interval.high < metric.by_chance
        for metric in task.metrics
    )


def turned_sentences(turned: Sequence[str]) -> list[str]:
    """Return a warning of the arms that do so."""
    who = f"{listed(turned)} rank{'s' * (len(turned) == 1)} patients"
    return [wrong_way_sentence(who)] if turned else []


def wrong_way_sentence(who: str) -> str:
    """That `who`, the subject of the sentence, does so, and what to look for."""
    return f"{who} the wrong way round: is the outcome coded alike in every hospital's file?"


def not_better_sentence(
    arms: Sequence[str], shifted_by: str, figures: str = "", where: str = ""
) -> str:
    """Return the same of arms that are above the base rate, which is within their interval."""
    by = f", trained with {shifted_by}, which shift probabilities," if shifted_by else ""
    there = " there" if where else ""
    return (
        f"Predictions of {listed(arms)}{by} are not better than the base rate alone{where}, nor"
        f" clearly worse{figures and f' ({figures})'}: do not rely on"
        f" {'these probabilities' if shifted_by else 'them'}{there}."
    )


def _and_base_rate(task: type[Task], arms: Mapping[str, FinalMetrics], base_rate: Metrics) -> str:
    """Their losses, e.g. "log loss 0.666, 95 % interval 0.601–0.731; base rate 0.661"."""
    loss = task.metric(task.verdict_metric)
    each = []
    for arm, found in arms.items():
        interval = found.intervals[loss.name]
        low, high = (loss.text(end) for end in (interval.low, interval.high))
        name = f"{arm} " if len(arms) > 1 else ""
        each.append(f"{name}{loss.text(found[loss.name])}, 95 % interval {low}–{high}")
    return f"{loss.label} {'; '.join(each)}; base rate {loss.text(base_rate[loss.name])}"


def listed(names: Sequence[str]) -> str:
    """ "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def _figure(metrics: Metrics, metric: Metric) -> str:
    value = metrics.get(metric.name)
    return "undefined" if value is None else metric.text(value)
