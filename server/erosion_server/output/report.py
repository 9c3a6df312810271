"""`report.html`: a finished run on one page, the answer first."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any

from markupsafe import Markup

from erosion_common.formats.model_card import ModelCard, read_card
from erosion_common.protocol.messages import (
    FEWEST_OF_A_CLASS,
    Comparison,
    FinalMetrics,
    Metrics,
    Summary,
)
from erosion_common.protocol.performance import Estimate, ModelFigures, Performance
from erosion_common.rounds.records import HospitalRecord, RoundRecord
from erosion_common.settings.base import Settings
from erosion_common.study.sections import Evaluation
from erosion_common.study.study import Study
from erosion_common.support.files import write_atomically
from erosion_common.tasks.inputs import few_for_inputs
from erosion_server.output.charts import (
    MOST_LINES,
    distance_figure,
    metric_figure,
    strip,
    weight_figure,
)
from erosion_server.output.figures import (
    FOLDER,
    MOST_SHOWN,
    calibration,
    decisions,
    dependences,
    discrimination,
    drawable,
    estimate_text,
    named,
    over_time,
    residuals,
    tables,
    useful_range,
    write_figures,
)
from erosion_server.output.pages import TEMPLATES, Cell, Row, render_page, verbatim
from erosion_server.output.report_patients import (
    MOST_COLUMNS_SHOWN,
    MOST_FLOWS,
    hospital_cell,
    patient_values,
)
from erosion_server.output.report_validation import travel_sentence, validation_values
from erosion_server.output.round_facts import NewsGroup, grouped
from erosion_server.output.run_data import RunData, read_run
from erosion_server.output.words import (
    absences,
    chosen_text,
    class_sizes,
    data_check,
    figure_text,
    finishes,
    interval_text,
    metric_text,
    privacy,
    ranges_text,
    recounts,
    seconds_text,
    stops,
    turned_finishes,
    weight_text,
    what_may_be_unseen,
)
from erosion_server.run import provenance
from erosion_server.run.result import (
    ArmResult,
    Result,
    above_base_rate,
    digits_beyond,
    listed,
    near_the_line,
    not_better_sentence,
    p_value_text,
    ranks_wrong_way_round,
    study_as_run,
    verdict,
    worse_sentence,
    wrong_way_sentence,
)
from erosion_server.run.run_folder import RunFolder

VARIES = " (the first time; then with other numbers)"
FEW = "too few patients on a side, or up to another threshold"
LARGEST_LOG_RATIO = 3.0  # in a plot of ratios: 20 and 1/20
TRIPOD = TEMPLATES / "tripod_ai.toml"
SECTIONS = {  # in the page's order, with what shows them
    "glance": ("Key figures", ""),
    "apart": ("Telling apart", "apart"),
    "times": ("By time", "timed"),
    "calibration": ("Calibration", "calibrated"),
    "decisions": ("Decisions", "thresholds"),
    "groups": ("Groups of patients", "groups"),
    "travel": ("Other hospitals", "travel"),
    "effects": ("What the model uses", "effects important"),
    "patients": ("Patients", ""),
    "hospitals": ("Hospitals by round", ""),
    "made": ("How it was made", ""),
    "card": ("Model card", ""),
    "tripod": ("TRIPOD+AI", ""),
}
STATES = {
    "here": Markup('<span class="state-here">\u2713 Here</span>'),
    "part": Markup('<span class="state-part">\u25d0 Partly</span>'),
    "you": Markup('<span class="state-you">\u270e You write</span>'),
}
MISSING = {
    "drop": "A patient with an empty cell is left out.",
    "refuse": "None were allowed.",
    "impute": "Filled in with the training mean; categories as the study file says.",
}
SCALED_BY = {
    "local": "Each hospital uses its own means and deviations.",
    "federated": "Means and deviations are over all hospitals' training patients.",
    "user": "Means and deviations are those of {user}.",
    "none": "None.",
}


def write_report(run_folder: Path, *, is_rounded: bool = False) -> Path:
    """Write the report of the finished run in `run_folder`, and its figures; returns its path.

    `is_rounded`: the user's own exact figures are rounded for publication, in files of their own.
    Raises StudyError or CheckpointError where the folder's files cannot be used.
    """
    folder = RunFolder(run_folder)
    card = read_card(folder.path) if folder.model_card.exists() else None
    versions = provenance.versions() if card is None else card.versions  # years later, too
    run, path = read_run(folder), folder.report
    if is_rounded:
        run = replace(run, result=rounded(run.result), records=[*map(_rounded_record, run.records)])
        path = path.with_name("report-rounded.html")
    study_file = folder.study.read_text("utf-8-sig")
    values = report_values(run, study_file, versions, card=card, is_rounded=is_rounded)
    write_figures(folder.path, values["files"], "figures-rounded" if is_rounded else FOLDER)
    write_atomically(path, render_page("report.html", **values))
    return path


def report_values(
    run: RunData,
    study_file: str,
    versions: Mapping[str, str],
    *,
    card: ModelCard | None = None,
    is_rounded: bool = False,
) -> dict[str, Any]:
    """Return what the page shows; `study_file` is the study's TOML."""
    result, task = run.result, run.result.task
    named = [*result.arms, *result.references]
    shown = result.model_copy(update={"user": run.shown(result.user)})
    best = result.verdict.best_arm
    groups = grouped(run.records)
    comparison = result.comparison
    values = dict(
        run=run,
        result=shown,
        is_rounded=is_rounded,
        loss=task.metric(task.verdict_metric),
        cautions=[each for each in warnings_of(run) if each not in run.result.verdict.finding],
        bullets=_bullets(run),
        **({} if comparison is None else _how_sure(result, comparison)),
        classes=class_sizes(result.class_counts),
        how_to_read=_how_to_read(shown, run.study.task.shifted_by),
        metric_headings=("Arm", *(m.heading for m in task.metrics), "Rounds", "Time per round"),
        metric_rows=_metric_rows(run),
        best=named.index(best) if best in named else None,
        below_metrics=[*stops(result), *finishes(result), *privacy(result)],
        findings=[(g, _when(g)) for g in groups if g.first.kind == "note"],
        choices=_choices(result),
        curves=[(m, metric_figure(run, m)) for m in map(task.metric, task.curves)],
        has_gaps=any(record.user_metrics is None for record in run.records),
        weights=weight_figure(run),
        distances=distance_figure(run),
        hidden_peers=len(run.peers) - MOST_LINES,
        has_skipped=any(record.outcome == "skipped" for record in run.of(run.first_arm)),
        ledger=_ledger(run),
        other_rounds=_other_rounds(result),
        events=_events(run, groups),
        facts=_facts(run, versions),
        card=card_rows(run, card),
        study_file=verbatim(study_file),
        **_performance(run),
        **patient_values(run),
        **validation_values(run),
    )
    values["files"] += values.pop("travel_files")
    values["contents"] = [
        (name, words)
        for name, (words, keys) in SECTIONS.items()
        if not keys or any(values[key] for key in keys.split())
    ]
    values["tripod"] = _tripod(values)
    return values


def _bullets(run: RunData) -> list[tuple[str, str]]:
    """Return what was compared, on which patients, how sure it is, and what it does not say."""
    result, comparison = run.result, run.result.comparison
    peers = len(run.study.hospitals) - 1
    others = f"{peers} other hospital{'s' * (peers != 1)}"
    if comparison is None:
        compared = f"One arm was run with {others}; nothing was compared."
        sure = "There is no test of a difference."
    else:
        against = run.study.arms.get(comparison.reference)
        is_alone = against is None or against.user_only
        kind = "a tuned model" if against is None else "a model"
        whose = (
            f"{kind} of {run.shown(result.user)}'s patients alone"
            if is_alone
            else "which does, too"
        )
        compared = (
            f"{comparison.arm}, which learns with {others}, with {comparison.reference}, {whose}."
            " This was declared before the run."
        )
        p_value = p_value_text(comparison.p_value, comparison.level, "= ")
        sure = (
            f"p {p_value}, and a difference is claimed only up to {comparison.level:g}."
            f" {near_the_line(comparison)}"
        )
        metric = result.task.metric(result.task.leak_metric or result.task.verdict_metric)
        measured = {**{n: a.metrics for n, a in result.arms.items()}, **result.references}
        figures = measured.get(comparison.arm)
        if figures is not None and (interval := interval_text(figures, metric)):
            said = metric_text(metric, figures.get(metric.name))
            sure += f" {metric.label} of {comparison.arm}: {said}, 95 % interval {interval}."
    classes = class_sizes(result.class_counts)
    seen = (
        "Each was predicted by models that never saw it."
        if result.cross_fitting
        else "No model was trained on them."
    )
    unseen = what_may_be_unseen(result.num_patients, result.class_counts, result.task)
    elsewhere = travel_sentence(result)
    silent = "hospitals that did not measure it" if elsewhere else "other hospitals' patients"
    return [
        ("What was compared", compared),
        (
            "On which patients",
            f"{result.num_patients} {result.tested} of {run.shown(result.user)}"
            f"{f' ({classes})' if classes else ''}. {seen}",
        ),
        ("How sure it is", sure),
        *([("Elsewhere", elsewhere)] if elsewhere else []),
        (
            "What it does not say",
            f"Nothing about {silent}, and nothing about causes. {unseen}",
        ),
    ]


def warnings_of(run: RunData) -> list[str]:
    """Return what must be read before the model is used, the gravest first."""
    result, task = run.result, run.result.task
    found = [result.leak.sentence(task)] if result.leak is not None else []
    arms = {name: arm.metrics for name, arm in result.arms.items()}
    shifted = run.study.task.shifted_by
    worse, within = above_base_rate(task, arms, result.base_rate)
    if worse:
        found.append(worse_sentence(worse, shifted))
    if within:
        found.append(not_better_sentence(within, shifted))
    if turned := [arm for arm in worse if ranks_wrong_way_round(task, arms[arm])]:
        found.append(
            wrong_way_sentence(f"{listed(turned)} rank{'s' * (len(turned) == 1)} patients")
        )
    found += turned_finishes(result)
    found += data_check(result.data_check, named_in="result.json")
    for model in result.performance.models[:1]:
        slope = model.estimates.get("calibration_slope")
        if slope is not None and slope.high < 1:
            found.append(
                f"Predictions of {named(model, result.performance.models)} are too extreme:"
                f" calibration slope {estimate_text(slope)}."
            )
    found += _groups_off(result.performance)
    if summary := result.patients.get(result.user):
        found += few_patients(run.study, summary)
    found += [*absences(result.absent), *recounts(result.recounts)]
    return found


def few_patients(study: Study, summary: Summary) -> Iterator[str]:
    """Say that the user's training patients, as described, are few for the model's inputs."""
    for column in summary.columns:
        if column.kind == "outcome" and len(column.shares) > 1:
            *others, _ = sorted(column.shares.values())
            if any(others):
                few = few_for_inputs(study.task, sum(others), "About ")
            else:  # each is of fewer than a cell
                few = few_for_inputs(study.task, len(others) * summary.min_cell, "Fewer than ")
            yield from [f"{few}."] if few else []


def _groups_off(found: Performance) -> Iterator[str]:
    """Say of which declared groups the risks are too high or too low, beyond chance."""
    if not found.models or not found.models[0].event:
        return  # mean errors of a number have no natural zero that a patient would notice
    for group in found.subgroups:
        ratio = group.calibration
        if ratio is not None and not ratio.low <= 1 <= ratio.high:
            high = "high" if ratio.low > 1 else "low"
            yield (
                f"Risks are too {high} where {group.column} is {group.group}: expected over"
                f" observed {estimate_text(ratio)}."
            )


def _performance(run: RunData) -> dict[str, Any]:
    """Return the sections about predictions, and the files of their figures."""
    found, task = run.result.performance, run.study.task
    shown = map(drawable, _models_shown(found))
    models = [_with_own_metric(model, run.result) for model in shown]
    is_number = bool(models) and not models[0].event
    unit = getattr(task, "unit", "") if is_number else ""
    time_unit = getattr(getattr(task, "target", None), "unit", "")
    apart = list(discrimination(models))
    calibrated = list(calibration(models, unit))
    decided = decisions(models)
    timed = list(over_time(models, time_unit))
    outcome = f"mean {'prediction' if is_number else 'risk, %'}"
    dependent = list(dependences(found.dependence, outcome, is_share=not is_number))
    spread = residuals(models)
    first = models[0] if models else None
    files = [*apart, *calibrated, *timed, *dependent, *tables(found)]
    files += [each for each in (decided, spread) if each is not None]
    horizon = None if first is None else first.horizon
    return {
        "shown": found.shown,
        "why_no_curves": found.why_not,
        "apart": apart,
        "calibrated": calibrated,
        "is_number": is_number,
        "decided": decided,
        "useful": _useful(first),
        "thresholds": _thresholds(first),
        "timed": timed,
        "horizon": None if horizon is None else f"{horizon:g} {time_unit}".strip(),
        "errors": [] if spread is None else [[_plain(each) for each in r] for r in spread.rows],
        "groups": _groups(found),
        "group_measures": ("R²", "Mean error") if is_number else ("AUROC", "Expected/observed"),
        "dependent": dependent,
        "important": _important(found),
        "files": files,
        **_effects(run, found),
    }


def _models_shown(found: Performance) -> list[ModelFigures]:
    """Return the compared two and one more; of several classes, each class."""
    several = len({model.event for model in found.models}) > 1
    return [*found.models] if several else [*found.models[:MOST_SHOWN]]


def _with_own_metric(model: ModelFigures, result: Result) -> ModelFigures:
    """Return it with the AUROC that the key figures give, where it is of two classes."""
    arm = result.arms.get(model.model)
    metrics = result.references.get(model.model) if arm is None else arm.metrics
    interval = None if metrics is None else metrics.intervals.get("auroc")
    if metrics is None or interval is None or len(result.class_counts) != 2:
        return model
    own = Estimate(value=metrics["auroc"], low=interval.low, high=interval.high)
    return model.model_copy(update={"estimates": {**model.estimates, "auroc": own}})


def _useful(model: ModelFigures | None) -> str:
    if model is None:
        return ""
    ends = useful_range(model)
    if ends is None:
        return (
            f"At no range of thresholds is acting on {model.model} clearly better than acting on"
            " everybody or on nobody."
        )
    return (
        f"From a threshold of {100 * ends[0]:g} to {100 * ends[1]:g} % acting on {model.model} is"
        " clearly better than acting on everybody and on nobody."
    )


def _thresholds(model: ModelFigures | None) -> list[Row]:
    def share(found: Estimate | None) -> Cell:
        if found is None:
            return Cell("–")
        ends = f"{100 * found.low:.0f}–{100 * found.high:.0f}"
        return Cell(f"{100 * found.value:.0f} %", ends)

    rows: list[Row] = []
    for row in model.thresholds if model is not None else ():
        if row.alerts is None:
            rows.append((f"{100 * row.threshold:g} %", FEW, "", "", "", "", ""))
            continue
        benefit = row.net_benefit
        rows.append(
            (
                f"{100 * row.threshold:g} %",
                f"{100 * row.alerts:.0f}",
                share(row.sensitivity),
                share(row.specificity),
                share(row.positive_predictive_value),
                share(row.negative_predictive_value),
                Cell("–")
                if benefit is None
                else Cell(f"{benefit.value:z.3f}", f"{benefit.low:z.2f}–{benefit.high:z.2f}"),
            )
        )
    return rows


def _estimated(found: Estimate | None, digits: int = 2) -> Cell:
    if found is None:
        return Cell("–")
    low, high = (f"{each:z.{digits}f}".replace("-", "−") for each in (found.low, found.high))
    return Cell(f"{found.value:z.{digits}f}".replace("-", "−"), f"{low} to {high}")


def _groups(found: Performance) -> list[Row]:
    whole = found.models[0].estimates.get("auroc") if found.models else None
    rows: list[Row] = []
    for group in found.subgroups:
        name = f"{group.column}: {group.group}"
        drawn = strip(group.discrimination, (0.4, 1.0), None if whole is None else whole.value)
        if group.num_patients is None:
            rows.append((name, "too few", strip(None, (0.4, 1.0)), "–", "–", "–"))
            continue
        rows.append(
            (
                name,
                str(group.num_patients),
                drawn,
                *map(_estimated, (group.discrimination, group.gap, group.calibration)),
            )
        )
    return rows


def _important(found: Performance) -> list[Row]:
    shown = found.importance[:MOST_COLUMNS_SHOWN]
    ends = [0.0, *(each.loss.low for each in shown), *(each.loss.high for each in shown)]
    span = (min(ends), max(*ends, min(ends) + 1e-9))
    return [(each.column, _estimated(each.loss, 3), strip(each.loss, span, 0.0)) for each in shown]


def _effects(run: RunData, found: Performance) -> dict[str, Any]:
    """Return a linear model's coefficients: ratios of odds or hazards, or differences."""
    is_ratio = run.study.task.predicts != "number"
    what = {
        "classes": "Odds ratio",
        "times": "Ratio of the hazard's odds",
    }.get(run.study.task.predicts, "Difference")

    def shown(estimate: Estimate | None) -> Estimate | None:
        if estimate is None or not is_ratio:
            return estimate
        value, low, high = (
            exp(min(each, 50.0)) for each in (estimate.value, estimate.low, estimate.high)
        )
        return Estimate(value=value, low=low, high=high)

    refitted = any(each.refits is not None for each in found.coefficients)
    has_errors = any(each.pooled is not None for each in found.coefficients)
    rows: list[Row] = []
    every = [
        (
            each,
            shown(
                each.pooled
                or each.refits
                or Estimate(value=each.value, low=each.value, high=each.value)
            ),
        )
        for each in found.coefficients[:MOST_COLUMNS_SHOWN]
    ]
    ends = [
        end for each, own in every for e in (own, shown(each.alone)) if e for end in (e.low, e.high)
    ]
    reach = max((abs(log(max(end, 1e-9))) if is_ratio else abs(end) for end in ends), default=1.0)
    reach = min(max(reach, 1e-9), LARGEST_LOG_RATIO) if is_ratio else max(reach, 1e-9)
    span = (exp(-reach), exp(reach)) if is_ratio else (-reach, reach)
    for each, estimate in every:
        name = each.column if each.category is None else f"{each.column}: {each.category}"
        own = _estimated(estimate)
        alone = shown(each.alone)
        middle = 1.0 if is_ratio else 0.0
        drawn = strip(estimate, span, middle, alone, logarithmic=is_ratio)
        own = own if refitted or has_errors else Cell(own.value)
        rows.append((name, own, _estimated(alone), drawn))
    remark = (
        "The model's own figure has no interval, because it was trained once; a study with"
        " evaluation.folds refits it."
    )
    if has_errors:
        remark = (
            "The first interval is 1.96 standard errors to either side, of the regression of all"
            " hospitals' patients together."
        )
    elif refitted:
        remark = (
            "The first interval comes from the folds' models (a grouped jackknife): it shows how"
            " far the figure moves with the user's patients, the other hospitals' being the same."
        )
    return {
        "effects": rows,
        "effect_caption": f"{what}s of {found.shown}, per standard deviation or category",
        "effect_headings": ("Column", what, f"{run.shown(run.result.user)} alone", "Plot"),
        "effect_remark": remark,
    }


def _plain(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def card_rows(run: RunData, card: ModelCard | None) -> list[Row]:
    """Return the model card: what the model is, and what its users have to know."""
    study, result, task = run.study, run.result, run.study.task
    features = getattr(task, "features", ())
    named_features = [
        f"{each.name}{f' ({each.unit})' if getattr(each, 'unit', '') else ''}" for each in features
    ]
    name = card.arm if card is not None and card.arm in result.arms else result.delivered_arm
    arm = result.arms[name].metrics
    figures = [
        f"{metric.label} {metric_text(metric, arm.get(metric.name))}"
        f"{f' ({found})' if (found := interval_text(arm, metric)) else ''}"
        for metric in result.task.metrics
        if not metric.of_data
    ]
    outcome = {
        "classes": "a chance of each class: "
        + ", ".join(study.task.group_names and result.class_counts),
        "number": "a number",
        "times": "the chance of being without the event at each time",
    }.get(task.predicts, task.outcome)
    columns = ", ".join(column.name for column in task.target_columns)
    more = len(named_features) - MOST_COLUMNS_SHOWN
    said = travel_sentence(result) if name == result.delivered_arm else ""
    elsewhere = "" if said else "at other hospitals, "
    inputs = ", ".join(named_features[:MOST_COLUMNS_SHOWN]) or "images"
    return [
        ("Model", f"{study.model.described()}, the arm {name}"),
        ("Predicts", f"{columns}: {outcome}"),
        ("Reads", f"{inputs}{f', and {more} more columns' if more > 0 else ''}"),
        (
            "Meant for",
            f"Patients like those of {run.shown(result.user)}. You write: purpose and users.",
        ),
        (
            "Trained by",
            f"{len(study.hospitals)} hospitals, in {result.arms[name].rounds} rounds",
        ),
        ("Tested on", f"{result.num_patients} {result.tested} of {run.shown(result.user)} alone"),
        ("Performance", "; ".join(figures)),
        *([("Elsewhere", said)] if said else []),
        (
            "Not known",
            f"How it does {elsewhere}in other years, and in groups that are not shown here. You"
            " write: known limits, and who is responsible.",
        ),
        *([("SHA-256", str(card.sha256))] if card is not None and card.sha256 else []),
    ]


def _tripod(values: Mapping[str, Any]) -> list[tuple[str, list[Row]]]:
    """Return TRIPOD+AI's items by part, filled in as far as the page shows them."""
    contents: dict[str, str] = dict(values["contents"])
    parts = tomllib.loads(TRIPOD.read_text("utf-8"))["part"]
    found: list[tuple[str, list[Row]]] = []
    for part in parts:
        rows: list[Row] = []
        for number, asks, state, section, note, needs in part["items"]:
            is_there = (not needs or values.get(NEEDED.get(needs, needs))) and (
                section in contents or section in ("", "top")
            )
            where = "Top of the page" if section == "top" else contents.get(section, "")
            shown = state if is_there else "you"
            link = f"#{section}" if is_there and section else ""
            place = Cell(where if link else "", note if is_there or not needs else "", link)
            rows.append((number, asks, STATES[shown], place))
        found.append((part["name"], rows))
    return found


NEEDED = {"coefficients": "effects", "subgroups": "groups"}


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
        "p_by_round": between(result.p_by_round) if result.p_by_round else "",
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
            hospital_cell(run, name),
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


def _events(run: RunData, groups: Sequence[NewsGroup]) -> list[Row]:
    return [
        (
            group.first.arm,
            ranges_text(group.rounds),
            run.shown(group.first.hospital or "all"),
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
    missing = MISSING.get(str(getattr(study.task, "missing", "")))
    shown = [_with_id(run, name) for name in study.hospitals[:MOST_FLOWS]]
    more = len(study.hospitals) - len(shown)
    return [
        ("Hospitals", f"{', '.join(shown)}{f' and {more} more' if more > 0 else ''}"),
        *([("Missing values", missing)] if missing else []),
        ("Scaling", SCALED_BY.get(study.scaling, study.scaling).format(user=run.shown(study.user))),
        ("Model", _settings(study.model)),
        ("Training", _settings(study.training)),
        *((f"Arm {name}", _settings(arm)) for name, arm in arms.items()),
        ("Evaluation", _settings(study.evaluation, without=_idle(study.evaluation))),
        ("Federation", _settings(study.federation)),
        ("Seed", str(result.seed)),
        ("Command", result.command),
        ("Program", f"commit {result.commit}"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("Started", f"{result.started}, took {seconds_text(result.seconds)}{since}"),
        ("Memory", f"{result.peak_megabytes:.0f} MB at most, at the coordinator{since}"),
    ]


def _with_id(run: RunData, hospital: str) -> str:
    called = run.shown(hospital)
    return hospital if called == hospital else f"{called} ({hospital})"


def _idle(evaluation: Evaluation) -> set[str]:
    """Return keys that have no meaning in combination with the others."""
    is_drawn = evaluation.folds is None and evaluation.split_column is None
    return {*(() if is_drawn else ("test_share",)), *(() if evaluation.folds else ("repeats",))}


def _settings(settings: Settings, without: Set[str] = frozenset()) -> str:
    values = settings.model_dump(mode="json", exclude_none=True, exclude=set(without))
    return "; ".join(f"{key.replace('_', ' ')}: {_said(value)}" for key, value in values.items())


def _said(value: object) -> str:
    """Return a setting's value for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_said(each)}" for key, each in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_said, value)) or "none"
    return str(value)


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


COUNTED = {"num_patients", "num_events", "smallest_class", "class_counts"}
EXACT = {"threshold", "level", "p_value", "p_by_cut", "horizon", "flips", "chosen"}
ROUNDED_TO = 10  # patients


def rounded(result: Result) -> Result:
    """Return it with the user's own figures rounded: counts to tens, others to two digits."""
    parts = {"arms", "references", "base_rate", "comparison", "class_counts", "performance"}
    values = result.model_dump()
    values |= {part: _rounded_values(values[part], part) for part in parts}
    values["arms"] = {
        name: {**result.arms[name].model_dump(), "metrics": arm["metrics"]}
        for name, arm in values["arms"].items()
    }
    made = Result.model_validate(values)
    said = verdict(
        made.task,
        made.comparison,
        {name: arm.metrics for name, arm in made.arms.items()},
        made.base_rate,
        references=made.references,
        tested=made.tested,
        leak=made.leak,
        p_by_round=made.p_by_round,
    )
    return made.model_copy(update={"verdict": said})


def _rounded_values(value: Any, key: str) -> Any:
    """Return plain values, rounded by the key that they stand at."""
    if isinstance(value, Mapping):
        is_counts = key == "class_counts"
        return {k: _rounded_values(v, key if is_counts else str(k)) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded_values(each, key) for each in value]
    if isinstance(value, bool) or value is None or key in EXACT:
        return value
    if key in COUNTED and isinstance(value, int):
        return ROUNDED_TO * round(value / ROUNDED_TO)
    if isinstance(value, float):
        return float(f"{value:.2g}") if abs(value) < 1 else float(f"{value:.3g}")
    return value


def _rounded_record(record: RoundRecord) -> RoundRecord:
    if record.user_metrics is None:
        return record
    values = _rounded_values(record.user_metrics.model_dump(), "")
    return replace(record, user_metrics=Metrics.model_validate(values))
