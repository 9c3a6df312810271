"""`report.html`: a finished run on one page, the answer first."""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from erosion_common.formats.model_card import read_card
from erosion_common.protocol.messages import FEWEST_OF_A_CLASS, Comparison, FinalMetrics
from erosion_common.rounds.records import HospitalRecord
from erosion_common.settings.base import Settings
from erosion_common.study.sections import Evaluation
from erosion_common.support.files import write_atomically
from erosion_server.output.charts import distance_figure, metric_figure, weight_figure
from erosion_server.output.pages import Cell, Row, render_page, verbatim
from erosion_server.output.round_facts import NewsGroup, grouped
from erosion_server.output.run_data import RunData, read_run
from erosion_server.output.words import (
    absences,
    chosen_text,
    class_sizes,
    data_check,
    figure_text,
    interval_text,
    metric_text,
    privacy,
    ranges_text,
    recounts,
    seconds_text,
    stops,
    weight_text,
    what_may_be_unseen,
)
from erosion_server.run import provenance
from erosion_server.run.result import (
    ArmResult,
    Result,
    digits_beyond,
    listed,
    p_value_text,
    study_as_run,
)
from erosion_server.run.run_folder import RunFolder

VARIES = " (the first time; then with other numbers)"


def write_report(run_folder: Path) -> Path:
    """Write the report of the finished run in `run_folder`; returns its path.

    Raises StudyError or CheckpointError where the folder's files cannot be used.
    """
    folder = RunFolder(run_folder)
    has_card = folder.model_card.exists()  # a report can be written again years later
    versions = read_card(folder.path).versions if has_card else provenance.versions()
    values = report_values(read_run(folder), folder.study.read_text("utf-8-sig"), versions)
    write_atomically(folder.report, render_page("report.html", **values))
    return folder.report


def report_values(run: RunData, study_file: str, versions: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page shows; `study_file` is the study's TOML."""
    result, task = run.result, run.result.task
    named = [*result.arms, *result.references]
    best = result.verdict.best_arm
    groups = grouped(run.records)
    comparison = result.comparison
    return dict(
        run=run,
        result=result,
        loss=task.metric(task.verdict_metric),
        cautions=data_check(result.data_check, named_in="result.json"),
        away=[*absences(result.absent), *recounts(result.recounts)],
        **({} if comparison is None else _how_sure(result, comparison)),
        classes=class_sizes(result.class_counts),
        how_to_read=_how_to_read(result, run.study.task.shifted_by),
        metric_headings=("Arm", *(m.heading for m in task.metrics), "Rounds", "Time per round"),
        metric_rows=_metric_rows(run),
        best=named.index(best) if best in named else None,
        below_metrics=[*stops(result), *privacy(result)],
        findings=[(g, _when(g)) for g in groups if g.first.kind == "note"],
        choices=_choices(result),
        curves=[(m, metric_figure(run, m)) for m in map(task.metric, task.curves)],
        has_gaps=any(record.user_metrics is None for record in run.records),
        weights=weight_figure(run),
        distances=distance_figure(run),
        has_skipped=any(record.outcome == "skipped" for record in run.of(run.first_arm)),
        ledger=_ledger(run),
        other_rounds=_other_rounds(result),
        events=_events(groups),
        facts=_facts(run, versions),
        study_file=verbatim(study_file),
    )


def _how_sure(result: Result, comparison: Comparison) -> dict[str, str]:
    """Return what the verdict rests on, in figures."""

    def between(p_values: Sequence[float]) -> str:
        ends = [p_value_text(p, comparison.level) for p in (min(p_values), max(p_values))]
        return " to ".join(ends)

    low, high = (p_value_text(p, comparison.level) for p in comparison.p_band)
    needs = result.task.verdict_needs
    return {
        "difference": _signed(comparison.mean_difference),
        "share": _share(comparison.p_value, comparison.level),
        "needs": needs.format(fewest=FEWEST_OF_A_CLASS, tested=result.tested),
        "p_band": f"{low} to {high}" if low != high else "",
        "p_by_cut": between(comparison.p_by_cut) if comparison.p_by_cut else "",
        "unseen": what_may_be_unseen(comparison.num_patients, result.class_counts, result.task),
    }


def _metric_rows(run: RunData) -> list[Row]:
    task, result = run.result.task, run.result

    def cells(metrics: FinalMetrics) -> list[Cell]:
        return [
            Cell(
                metric_text(m, metrics.get(m.name)), "" if m.of_data else interval_text(metrics, m)
            )
            for m in task.metrics
        ]

    rows: list[Row] = []
    for name, arm in result.arms.items():
        settings = run.study.arms.get(name)
        algorithm = settings.algorithm if settings and settings.algorithm != name else ""
        rows.append([Cell(name, algorithm), *cells(arm.metrics), *_rounds_of(arm)])
    for name, metrics in result.references.items():
        rows.append([Cell(name, "local reference"), *cells(metrics), "–", "–"])
    if result.base_rate:
        rows.append([Cell("Base rate", "no model"), *cells(result.base_rate), "–", "–"])
    return rows


def _rounds_of(arm: ArmResult) -> list[Cell]:
    apart = [f"{arm.skipped_rounds} skipped"] if arm.skipped_rounds else []
    apart += ["stopped"] if arm.stopped is not None else []
    seconds = arm.seconds_per_round
    return [
        Cell(str(arm.rounds), ", ".join(apart)),
        Cell(seconds_text(seconds.median), f"95 % within {seconds_text(seconds.p95)}"),
    ]


def _how_to_read(result: Result, shifted_by: str) -> str:
    """Return which way each metric is better and the base rate. `shifted_by`: see the task."""
    task, sentences = result.task, []
    measured = [metric for metric in task.metrics if not metric.of_data]
    for better in ("higher", "lower", "near 1"):
        if labels := [metric.label for metric in measured if metric.better == better]:
            direction = f"{better[0].upper()}{better[1:]}"
            sentences.append(f"{direction} is better for {listed(labels)}.")
    sentences += [metric.remark for metric in task.metrics if metric.remark]
    of_first = next(iter(result.arms.values())).metrics.model_dump()
    sentences.append(task.remark_on(of_first, result.num_patients, result.class_counts))
    if result.references:
        sentences.append(
            f"Local references are tuned models of {result.user}'s training patients alone, fitted"
            " at its own site; their settings were chosen inside that part."
        )
    if result.base_rate:
        everyone = "everyone in a fold" if result.cross_fitting else "everyone"
        source = "patients outside it" if result.cross_fitting else "training patients alone"
        sentences.append(
            f"The base rate is one and the same prediction for {everyone}, from the {source}: a"
            " model with a loss that does not beat it may rank patients, but its predictions are"
            " not reliable."
        )
        if shifted_by:
            sentences.append(
                f"The models were trained with {shifted_by}, which shift their probabilities."
            )
    return " ".join(filter(None, sentences))


def _when(group: NewsGroup) -> str:
    rounds = "round" if len(group.rounds) == 1 else "rounds"
    return f"{group.first.arm}, {rounds} {ranges_text(group.rounds)}{VARIES * group.varies}"


def _choices(result: Result) -> list[Row]:
    """Return what was left open in the study file."""
    return [
        (name, chosen_text(chosen), str(chosen.rounds), figure_text(chosen.loss))
        for name, arm in result.arms.items()
        if (chosen := arm.selected) is not None
    ]


def _ledger(run: RunData) -> list[Row]:
    ended = run.result.arms[run.first_arm]
    samples: dict[str, str] = {}
    for record in run.of(run.first_arm):
        for name, entry in record.hospitals.items():
            if entry.num_samples is not None:
                samples[name] = _samples(entry)
    return [
        (
            name,
            samples.get(name, "–"),
            f"{entry.rounds} of {ended.rounds}",
            weight_text(entry.weight_sum),
            weight_text(ended.weights.get(name)),
            f"{entry.samples_seen:,}".replace(",", "\u202f"),
        )
        for name, entry in run.result.contributions.items()
    ]


def _samples(entry: HospitalRecord) -> str:
    told = entry.described_samples
    if told is None or told == entry.num_samples:
        return str(entry.num_samples)
    return f"{told}, counts as {entry.num_samples}"


def _events(groups: Sequence[NewsGroup]) -> list[Row]:
    return [
        (
            group.first.arm,
            ranges_text(group.rounds),
            group.first.hospital or "all",
            group.first.text + VARIES * group.varies,
        )
        for group in groups
        if group.first.kind != "note"
    ]


def _other_rounds(result: Result) -> str:
    """Return what had rounds before those that made the models; "" for nothing."""
    if result.cross_fitting is not None:
        return "folds, which the figures are of,"
    is_selected = any(arm.selected is not None for arm in result.arms.values())
    return "trials, by which settings were chosen," if is_selected else ""


def _facts(run: RunData, versions: Mapping[str, str]) -> list[Row]:
    study, result = run.study, run.result
    since = " since it was last resumed" if result.resumed else ""
    arms = study_as_run(study, result).arms
    return [
        ("Command", result.command),
        ("Program", f"commit {result.commit}"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("Started", f"{result.started}, took {seconds_text(result.seconds)}{since}"),
        ("Memory", f"{result.peak_megabytes:.0f} MB at most, at the coordinator{since}"),
        ("Seed", str(result.seed)),
        ("Hospitals", ", ".join(study.hospitals)),
        ("Model", _settings(study.model)),
        ("Training", _settings(study.training)),
        ("Scaling", study.scaling),
        *((f"Arm {name}", _settings(arm)) for name, arm in arms.items()),
        ("Evaluation", _settings(study.evaluation, without=_idle(study.evaluation))),
        ("Federation", _settings(study.federation)),
    ]


def _idle(evaluation: Evaluation) -> set[str]:
    """Return keys that have no meaning in combination with the others."""
    is_drawn = evaluation.folds is None and evaluation.split_column is None
    return {*(() if is_drawn else ("test_share",)), *(() if evaluation.folds else ("repeats",))}


def _settings(settings: Settings, without: Set[str] = frozenset()) -> str:
    values = settings.model_dump(mode="json", exclude_none=True, exclude=set(without))
    return ", ".join(f"{key} = {value}" for key, value in values.items())


def _signed(value: float) -> str:
    """With the digits that show on which side of 0 it is; without a sign where six show none."""
    digits = next((digits for digits in range(3, 7) if round(value, digits)), None)
    return "0.000" if digits is None else f"{value:+.{digits}f}".replace("-", "−")


def _share(p_value: float, level: float) -> str:
    """In percent, with the digits that show on which side of the level it is."""
    if p_value < 0.001:
        return "fewer than 0.1 %"
    if p_value >= 0.1:
        return f"{100 * p_value:.0f} %"
    return f"{100 * p_value:.{digits_beyond(level, p_value)}g} %"
