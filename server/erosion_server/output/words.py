"""Names, figures and results in words: the terminal and the pages say the same."""

import math
import re
from collections.abc import Callable, Mapping, Sequence

from erosion_common.protocol.messages import (
    FEWEST_OF_A_CLASS,
    ColumnSummary,
    FinalMetrics,
    FinishFigures,
    Summary,
)
from erosion_common.rounds.data_check import DataCheck
from erosion_common.rounds.misfits import share_text
from erosion_common.rounds.selection import SelectedSettings
from erosion_common.support.text import printable as printable
from erosion_common.tasks.inputs import TabularTask
from erosion_common.tasks.metric import Metric
from erosion_common.tasks.task import Task
from erosion_server.run.findings import Absent, Recount
from erosion_server.run.overview import EarlyStop, Overview
from erosion_server.run.result import Result

RESULT_OF_STOPPED = "the model reached there is the arm's result"
LEFT_OUT = {"slow": "much slower than the others", "late": "too late"}
MOSTLY_ALONE = 0.5  # of a finish's weight
MOST_ABSENT = 6  # hospitals named, of each kind
MOST_MISFITS = 12  # columns of hospitals
MISSING = {
    "refuse": "none were allowed",
    "drop": "patients without a value were left out",
    "impute": "filled in with the training mean",
    "mode": "filled in with the hospital's commonest category",
    "indicator": "a separate input marks them, and a number is filled in with the training mean",
}


def shortened(name: str, width: int) -> str:
    """`name` in at most `width` characters; both ends stay, since names differ there."""
    if len(name) <= width:
        return name
    head = width // 2
    return name[:head] + "…" + name[len(name) - (width - head - 1) :]


def seconds_text(seconds: float) -> str:
    """Return a duration in a readable unit, e.g. "14 ms", "2.1 s", "3 min 05 s"."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.00095 else "under 1 ms"
    if seconds < 59.5:
        return f"{seconds:.2f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def figure_text(value: float | None, digits: int = 3) -> str:
    """Return a figure with `digits` decimals, or a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else f"{value:z.{digits}f}"


def weight_text(weight: float | None) -> str:
    """Return a weight or a distance with two decimals; "0" only for 0, where a hospital is out."""
    return "<0.01" if weight is not None and 0 < weight < 0.005 else figure_text(weight, 2)


def metric_text(metric: Metric, value: float | None) -> str:
    """Return a metric's figure, or a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else metric.text(value)


def ranges_text(rounds: Sequence[int]) -> str:
    """Ascending round numbers in short: [1, 2, 3, 7] is "1–3, 7"."""
    runs: list[list[int]] = []
    for number in rounds:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)


def finishes(result: Result) -> list[str]:
    """Return of each finish how far it follows the others' model, in sentences."""
    said = []
    for name, arm in result.arms.items():
        if (found := arm.finish) is None:
            continue
        alone, little = 100 * found.share_alone, ""
        if found.share_alone > MOSTLY_ALONE:
            little = f" So these patients gain little from the others in {name}."
        said.append(
            f"The finish of {name} counts what the other hospitals have learned {_slope(found)}"
            f" times, and {alone:.0f} % of its weight is in models that ignore it.{little} Its"
            " curve is of the model before that, but for the last point."
        )
    return said


def turned_finishes(result: Result) -> list[str]:
    """Warn of finishes that turn round what the others have learned, and gain by it.

    A chance of 5 in 6 that the slope is below 0, and less than half of the weight alone: a model
    that says nothing of these patients is hardly ever turned so.
    """
    return [
        f"The finish of {name} turns round what the other hospitals have learned (slope"
        f" {_slope(found)}): is the outcome coded alike in every hospital's file?"
        for name, arm in result.arms.items()
        if (found := arm.finish) is not None
        and found.slope.value + (found.slope.high - found.slope.value) / 1.96 < 0
        and found.share_alone < MOSTLY_ALONE
    ]


def _slope(found: FinishFigures) -> str:
    of = found.slope
    return f"{of.value:z.2f} ({of.low:z.2f} to {of.high:z.2f})".replace("-", "−")


def what_may_be_unseen(
    num_patients: int, class_counts: Mapping[str, int | None], task: type[Task]
) -> str:
    """Return what no test on this number of patients can show, for a remark on a verdict.

    Of errors on one in k patients, 3 k patients show none with a chance of 5 %. `class_counts`: of
    them by class; None: not disclosed, because it is small or would give away one that is.
    """
    few: list[str] = []
    hidden: list[str] = []
    for name, count in class_counts.items():
        if count is None:
            hidden.append(printable(name))
        elif count < FEWEST_OF_A_CLASS:
            few.append(printable(name))
    said = (
        f"Errors that a model makes on fewer than 1 in {max(2, num_patients // 3)} patients may not"
        f" show on any of these {num_patients}."
    )
    if few and len(class_counts) > len(few):
        who = task.of_group.format(" or ".join(few))
        said += f" Too few were {who} for the verdict to be about those."
    if hidden:
        who = task.of_group.format(" or ".join(hidden))
        of_which = " of one of these at least" if hidden[1:] else ""
        said += (
            f" The hospital does not tell how many were {who}:{of_which} there were too few for"
            " that, and the verdict may not be about those."
        )
    return said


def beside_verdict(result: Result, *, named_in: str) -> list[str]:
    """Return all remarks on a verdict but its own. `named_in`: what the result is called there."""
    compared = data_check(result.data_check, named_in=f"{named_in}.data_check")
    finished = [*stops(result), *turned_finishes(result), *finishes(result)]
    unseen = unseen_by(result)
    missing = absences(result.absent, named_in=f"{named_in}.absent")
    changed = recounts(result.recounts, named_in=f"{named_in}.recounts")
    return [*compared, *finished, *unseen, *missing, *changed, *privacy(result)]


def unseen_by(result: Result) -> list[str]:
    """Return `what_may_be_unseen` where the verdict names a better arm."""
    if result.comparison is None or result.verdict.best_arm is None:
        return []
    num_patients = result.comparison.num_patients
    return [what_may_be_unseen(num_patients, result.class_counts, result.task)]


def some(names: Sequence[str], most: int = MOST_ABSENT) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def data_check(found: DataCheck, *, named_in: str = "") -> list[str]:
    """Return figures that do not fit the others', and who was not compared."""
    where = f"; {named_in} has them" if named_in else ""
    said = [
        f"Check {printable(misfit.column)} at {printable(misfit.hospital, at_most=48)}:"
        f" {printable(misfit.text)}"
        for misfit in found.misfits[:MOST_MISFITS]
    ]
    if (more := len(found.misfits) - MOST_MISFITS) > 0:
        said.append(f"{more} more columns do not fit{where}.")
    by_reason: dict[str, list[str]] = {}
    for name, why in found.unchecked.items():
        by_reason.setdefault(why, []).append(printable(name, at_most=48))
    for why, names in by_reason.items():
        said.append(f"Columns of {some(names)} were not checked: {printable(why)}.")
    return said


def stops(result: Result) -> list[str]:
    """Return a sentence for each arm that its rule ended early."""
    return [
        f"{name} stopped in round {arm.rounds}: {printable(arm.stopped)}; {RESULT_OF_STOPPED}."
        for name, arm in result.arms.items()
        if arm.stopped is not None
    ]


def absences(
    missing: Sequence[Absent], *, named_in: str = "result.json", shown: Callable[[str], str] = str
) -> list[str]:
    """Return who was missing, as remarks on the verdict; `named_in` has all.

    `shown`: what people call a hospital.
    """
    everywhere = [a for a in missing if a.everywhere]
    at_times = [a for a in missing if not a.everywhere]
    said = [
        f"{printable(shown(a.hospital), at_most=60)} took no part ({printable(a.reason)})."
        for a in everywhere[:MOST_ABSENT]
    ]
    for absent in at_times[:MOST_ABSENT]:
        missed = ", ".join(
            f"{count} of {absent.wanted[arm]} in {printable(arm)}"
            for arm, count in absent.rounds.items()
        )
        why = "; ".join(
            f"left out of {count} rounds, because it answered {LEFT_OUT[cause]}"
            for cause, count in absent.left_out.items()
        )
        said.append(
            f"{printable(shown(absent.hospital), at_most=60)} was missing in some rounds: {missed}"
            f" ({why or f'the last time: {printable(absent.reason)}'})."
        )
    if more := len(missing) - len(said):
        named = f"; {named_in} names them" if named_in else ""
        were = "hospital was" if more == 1 else "hospitals were"
        said.append(f"{more} more {were} missing{named}.")
    if any(absent.arms_differ for absent in at_times):
        said.append("So the arms were not trained with the same hospitals throughout.")
    return said


def recounts(found: Sequence[Recount], *, named_in: str = "result.json") -> list[str]:
    """Return hospitals with another number of patients since the middle of the run."""
    said = [
        f"{printable(r.hospital, at_most=48)} introduced itself with {r.before} training samples,"
        f" and from round {r.round} of {printable(r.arm)} on with {r.after}: its data, or its site"
        " file, changed in the middle of the run."
        for r in found[:MOST_ABSENT]
    ]
    more = len(found) - len(said)
    return said + [f"{more} more changes of this kind; {named_in} has them."] * (more > 0)


def privacy(result: Result) -> list[str]:
    """Return the privacy cost to other hospitals' patients; empty where nothing was promised."""
    if (found := result.privacy) is None:
        return []
    spent = ", ".join(f"{printable(name)} {epsilon:.3g}" for name, epsilon in found.spent.items())
    return [
        f"Differential privacy at the other hospitals: epsilon {found.epsilon:g} at delta"
        f" {found.delta:g} was promised to each patient, by noise of {found.noise_multiplier:.3g}"
        f" times the most that one counts. This run has cost at most: {spent}.",
        f"The promise is not about {result.user}'s own patients, nor about how many patients a"
        " hospital has.",
    ]


def absences_by_user(overview: Overview) -> list[str]:
    """Return who was missing for which user, where every hospital is one."""
    missed: dict[str, list[str]] = {}
    for user, line in overview.users.items():
        for absent in line.absent:
            missed.setdefault(absent.hospital, []).append(user)
    said = [
        f"{printable(who, at_most=48)} was missing, at least at times, while the model of"
        f" {some(users)} was made."
        for who, users in missed.items()
    ]
    more = ["More hospitals were missing; their own reports say so."]
    return said[:MOST_ABSENT] + more * (len(said) > MOST_ABSENT)


def stops_by_user(overview: Overview) -> list[str]:
    """Return a sentence for each arm and reason; numbers in a reason are the first hospital's."""
    found: dict[tuple[str, str], list[tuple[str, EarlyStop]]] = {}
    for user, line in overview.users.items():
        for arm, stop in line.stopped.items():
            same = arm, re.sub(r"\d+", "#", stop.reason)
            found.setdefault(same, []).append((user, stop))
    return [
        f"{arm} stopped for "
        + ", ".join(f"{printable(user)} in round {stop.round}" for user, stop in stops)
        + f": {printable(stops[0][1].reason)}; {RESULT_OF_STOPPED}."
        for (arm, _), stops in found.items()
    ]


def means_of_fewer(overview: Overview, metrics: Sequence[Metric]) -> list[str]:
    """Return a sentence for each metric with a mean that leaves out some hospitals."""
    said = []
    for metric in metrics:
        there = overview.with_all(metric.name)
        if missing := [user for user in overview.users if user not in there]:
            named = some([printable(user, at_most=48) for user in missing])
            said.append(
                f"The means of {metric.label} are over {len(there)} of {len(overview.users)}"
                f" hospitals: at {named} it is undefined for some arm."
            )
    return said


def unreadable(described: Summary) -> str:
    """Return how many files a hospital left out because it cannot read them; "" for none."""
    most = described.num_unreadable
    return f"up to {most} files cannot be read, and are left out" if most else ""


def class_sizes(counts: Mapping[str, int | None]) -> str:
    """Return the test patients of each class, as "57 benign, 34 malignant"; None: undisclosed."""
    # A class that is called 0 would read as another number.
    names = [f"of class {name}" if name[:1].isdigit() else printable(name) for name in counts]
    return ", ".join(
        f"{name}: not told" if count is None else f"{count} {name}"
        for name, count in zip(names, counts.values(), strict=True)
    )


def interval_text(metrics: FinalMetrics, metric: Metric) -> str:
    """Return the metric's 95 % interval, e.g. "0.91–0.98", or "" where there is none."""
    interval = metrics.intervals.get(metric.name)
    if interval is None:
        return ""
    figure = metrics.get(metric.name) or interval.high
    form = metric.form(figure) if metric.in_target_unit else "z.2f"
    dash = " to " if interval.low < 0 else "–"
    return f"{interval.low:{form}}{dash}{interval.high:{form}}"


def chosen_text(selected: SelectedSettings) -> str:
    """Return the chosen settings, e.g. "distance_penalty = 0.1"; the arm's own if none are."""
    settings = ", ".join(f"{key} = {value}" for key, value in selected.settings.items())
    return printable(settings) or "as in the study"


def missing_values(task: Task) -> str:
    """Return what became of missing values, by column where they differ; "" for images."""
    if not isinstance(task, TabularTask):
        return ""
    columns: dict[str, list[str]] = {}
    for feature in task.features:
        columns.setdefault(task.policy(feature), []).append(feature.name)
    if len(columns) == 1:
        return MISSING[next(iter(columns))]
    return "; ".join(f"{some(names)}: {MISSING[policy]}" for policy, names in columns.items())


def missing_share(column: ColumnSummary) -> str:
    """Return the share of patients without a value, in words where it is not disclosed."""
    if not column.missing:
        return "few or none"
    return share_text(column.missing / (column.count + column.missing))
