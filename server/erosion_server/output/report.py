"""`report.html`: a finished run on one page, the answer first."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any

from erosion_common.formats.model_card import ModelCard, read_card
from erosion_common.protocol.messages import FEWEST_OF_A_CLASS, FinalMetrics, Metrics, Summary
from erosion_common.protocol.performance import Coefficient, Estimate, ModelFigures, Performance
from erosion_common.rounds.records import RoundRecord
from erosion_common.settings.base import Settings
from erosion_common.study.sections import Evaluation
from erosion_common.study.study import Study
from erosion_common.support.files import write_atomically
from erosion_common.tasks.count import Count
from erosion_common.tasks.inputs import few_for_inputs
from erosion_server.output import charts, figures, words
from erosion_server.output.figures import estimate_cell, estimate_text
from erosion_server.output.pages import TEMPLATES, Cell, Row, render_page, verbatim
from erosion_server.output.report_patients import MOST_COLUMNS_SHOWN, MOST_FLOWS, patient_values
from erosion_server.output.report_validation import travel_sentence, validation_values
from erosion_server.output.round_facts import grouped
from erosion_server.output.run_data import RunData, read_run
from erosion_server.output.words import metric_text, seconds_text
from erosion_server.run import provenance
from erosion_server.run import result as results
from erosion_server.run.result import Result, study_as_run
from erosion_server.run.run_folder import RunFolder

FEW = "too few patients on a side, or up to another threshold"
LARGEST_LOG_RATIO = 3.0  # in a plot of ratios: 20 and 1/20
UNSEEN = 1e-6  # an effect that no patient has moved
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
    name = "figures-rounded" if is_rounded else figures.FOLDER
    figures.write_figures(folder.path, values["files"], name)
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
    measured = [*result.arms, *result.references]
    best, groups = result.verdict.best_arm, grouped(run.records)
    values = dict(
        run=run,
        result=result.model_copy(update={"user": run.shown(result.user)}),
        words=words,
        results=results,
        is_rounded=is_rounded,
        loss=task.metric(task.verdict_metric),
        cautions=[each for each in warnings_of(run) if each not in result.verdict.finding],
        elsewhere=travel_sentence(result),
        **_how_sure(result),
        metric_headings=("Arm", *(m.heading for m in task.metrics), "Rounds", "Time per round"),
        metric_rows=_metric_rows(run),
        best=measured.index(best) if best in measured else None,
        below_metrics=[*words.stops(result), *words.finishes(result), *words.privacy(result)],
        groups_of_news=groups,
        curves=[(m, charts.metric_figure(run, m)) for m in map(task.metric, task.curves)],
        has_gaps=any(record.user_metrics is None for record in run.records),
        weights=charts.weight_figure(run),
        distances=charts.distance_figure(run),
        hidden_peers=len(run.peers) - charts.MOST_LINES,
        has_skipped=any(record.outcome == "skipped" for record in run.of(run.first_arm)),
        events=[
            (
                group.first.arm,
                words.ranges_text(group.rounds),
                run.shown(group.first.hospital or "all"),
                group.text,
            )
            for group in groups
            if group.first.kind != "note"
        ],
        facts=_facts(run, versions),
        card=card_rows(run, card),
        study_file=verbatim(study_file),
        **_performance(run),
        **patient_values(run),
        **validation_values(run),
    )
    values["files"] += [*values.pop("travel_files"), *_by_round(run, values)]
    values["contents"] = [
        (name, heading)
        for name, (heading, keys) in SECTIONS.items()
        if not keys or any(values[key] for key in keys.split())
    ]
    values["tripod"] = _tripod(values)
    return values


def _by_round(run: RunData, values: Mapping[str, Any]) -> Iterator[figures.Drawing]:
    """Yield the charts of the rounds, for their files."""
    for metric, svg in values["curves"]:
        lines = {arm: charts.metric_points(run, arm, metric.name) for arm in run.result.arms}
        points = [(arm, *point) for arm, line in lines.items() for point in line]
        columns, name = ("arm", "round", metric.name), figures.file_name("rounds", metric.name)
        yield figures.Drawing(name, metric.heading, svg, columns, points)
    for name, shown in (("weight", charts.weight_shown), ("distance", charts.distance_shown)):
        rows = [
            (record.round, hospital, value)
            for record in run.of(run.first_arm)
            for hospital, entry in record.hospitals.items()
            if (value := shown(entry)) is not None and hospital != run.result.user
        ]
        if svg := values[f"{name}s"]:
            yield figures.Drawing(f"{name}s", name, svg, ("round", "hospital", name), rows)


def warnings_of(run: RunData) -> list[str]:
    """Return what must be read before the model is used, the gravest first."""
    result, task = run.result, run.result.task
    found = [result.leak.sentence(task)] if result.leak is not None else []
    arms = {name: arm.metrics for name, arm in result.arms.items()}
    shifted = run.study.task.shifted_by
    worse, within = results.above_base_rate(task, arms, result.base_rate)
    if worse:
        found.append(results.worse_sentence(worse, shifted))
    if within:
        found.append(results.not_better_sentence(within, shifted))
    found += results.turned_sentences(task, arms, worse)
    found += words.turned_finishes(result)
    found += words.data_check(result.data_check, named_in="result.json")
    models = result.performance.models
    slope = models[0].estimates.get("calibration_slope") if models else None
    if slope is not None and slope.high < 1:
        found.append(
            f"Predictions of {figures.named(models[0], models)} are too extreme: calibration slope"
            f" {estimate_text(slope)}."
        )
    found += _groups_off(result.performance)
    if summary := result.patients.get(result.user):
        found += few_patients(run.study, summary)
    away = words.absences(result.absent, shown=run.shown)
    return [*found, *away, *words.recounts(result.recounts)]


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
    found, task = run.result.performance, run.study.task
    several = len({model.event for model in found.models}) > 1
    chosen = found.models if several else found.models[: figures.MOST_SHOWN]
    models = [_with_own_metric(figures.drawable(model), run.result) for model in chosen]
    is_number = bool(models) and not models[0].event
    unit = getattr(task, "unit", "") if is_number else ""
    time_unit = getattr(getattr(task, "target", None), "unit", "")
    apart = list(figures.discrimination(models))
    calibrated = list(figures.calibration(models, unit))
    decided = figures.decisions(models)
    timed = list(figures.over_time(models, time_unit))
    outcome = f"mean {'prediction' if is_number else 'risk, %'}"
    dependent = list(
        figures.dependences(found.dependence, outcome, run.units, is_share=not is_number)
    )
    spread = figures.residuals(models)
    first = models[0] if models else None
    files = [*apart, *calibrated, *timed, *dependent, *figures.tables(found)]
    files += [each for each in (decided, spread) if each is not None]
    horizon = None if first is None else first.horizon
    return {
        "shown": found.shown,
        "why_no_curves": found.why_not,
        "apart": apart,
        "calibrated": calibrated,
        "is_number": is_number,
        "decided": decided,
        "useful": None if first is None else (first.model, figures.useful_range(first)),
        "thresholds": _thresholds(first),
        "timed": timed,
        "horizon": None if horizon is None else f"{horizon:g} {time_unit}".strip(),
        "errors": [
            [f"{x:.4g}" if isinstance(x, float) else str(x) or "–" for x in row]
            for row in (spread.rows if spread is not None else ())
        ],
        "groups": _groups(run, found),
        "dependent": dependent,
        "important": _important(found),
        "files": files,
        **_effects(run, found),
    }


def _with_own_metric(model: ModelFigures, result: Result) -> ModelFigures:
    """Return it with the AUROC that the key figures give, where it is of two classes."""
    arm = result.arms.get(model.model)
    metrics = result.references.get(model.model) if arm is None else arm.metrics
    interval = None if metrics is None else metrics.intervals.get("auroc")
    if metrics is None or interval is None or len(result.class_counts) != 2:
        return model
    own = Estimate(value=metrics["auroc"], low=interval.low, high=interval.high)
    return model.model_copy(update={"estimates": {**model.estimates, "auroc": own}})


def _thresholds(model: ModelFigures | None) -> list[Row]:
    def share(found: Estimate | None) -> Cell:
        if found is None:
            return Cell("–")
        ends = f"{100 * found.low:.0f}–{100 * found.high:.0f}"
        return Cell(f"{100 * found.value:.0f} %", ends)

    rows: list[Row] = []
    for row in model.thresholds if model is not None else ():
        threshold, benefit = f"{100 * row.threshold:g} %", row.net_benefit
        if row.alerts is None:
            rows.append((threshold, FEW, "", "", "", "", ""))
            continue
        last = Cell("–")
        if benefit is not None:
            last = estimate_cell(benefit, 3)
        shares = (
            row.sensitivity,
            row.specificity,
            row.positive_predictive_value,
            row.negative_predictive_value,
        )
        rows.append((threshold, f"{100 * row.alerts:.0f}", *map(share, shares), last))
    return rows


def _groups(run: RunData, found: Performance) -> list[Row]:
    whole = found.models[0].estimates.get("auroc") if found.models else None
    arm = run.result.arms.get(found.shown)
    reference = whole.value if whole else arm.metrics.get("r2") if arm else None
    lows = [each.low for group in found.subgroups if (each := group.discrimination) is not None]
    span = (min([0.4, *lows]), 1.0)
    rows: list[Row] = []
    for group in found.subgroups:
        tested = "too few" if group.num_patients is None else str(group.num_patients)
        at = None if group.num_patients is None else reference
        drawn = charts.strip(group.discrimination, span, at)
        figures = map(estimate_cell, (group.discrimination, group.gap, group.calibration))
        rows.append((f"{group.column}: {group.group}", tested, drawn, *figures))
    return rows


def _important(found: Performance) -> list[Row]:
    shown = found.importance[:MOST_COLUMNS_SHOWN]
    ends = [0.0, *(each.loss.low for each in shown), *(each.loss.high for each in shown)]
    span = (min(ends), max(*ends, min(ends) + 1e-9))
    return [
        (each.column, estimate_cell(each.loss, 3), charts.strip(each.loss, span, 0.0))
        for each in shown
    ]


def _effects(run: RunData, found: Performance) -> dict[str, Any]:
    """Return a linear model's coefficients: ratios of odds or hazards, or differences."""
    task = run.study.task
    is_ratio = task.predicts != "number" or isinstance(task, Count)
    ratios = {"classes": "Odds ratio", "times": "Hazard odds ratio"}
    what = "Rate ratio" if isinstance(task, Count) else ratios.get(task.predicts, "Difference")

    def shown(estimate: Estimate) -> Estimate:
        if not is_ratio:
            return estimate
        ends = estimate.model_dump().items()
        return Estimate(**{name: exp(min(end, 50.0)) for name, end in ends})

    has_errors = any(each.pooled is not None for each in found.coefficients)
    has_interval = has_errors or any(each.refits is not None for each in found.coefficients)
    features = {feature.name: feature for feature in getattr(run.study.task, "features", ())}
    summary = run.result.patients.get(run.result.user)
    deviations = {} if summary is None else {c.name: c.deviation for c in summary.columns}
    curved = {name for name, feature in features.items() if getattr(feature, "knots", ())}
    told = [
        each
        for each in found.coefficients
        if each.column not in curved
        and not (each.category == "missing" and abs(each.value) < UNSEEN)  # nobody lacks it
    ]

    def per(each: Coefficient) -> str:
        """Return by how much a number is moved."""
        deviation = deviations.get(each.column)
        if each.category is not None or not deviation:
            return ""
        rounded = float(f"{deviation:.2g}")  # 360, not 3.6e+02
        return f"per {rounded:g} {run.units.get(each.column, '')}".strip()

    every = []
    for each in told[:MOST_COLUMNS_SHOWN]:
        plain = Estimate(value=each.value, low=each.value, high=each.value)
        alone = None if each.alone is None else shown(each.alone)
        every.append((each, shown(each.pooled or each.refits or plain), alone))
    ends = [end for _, *pair in every for e in pair if e is not None for end in (e.low, e.high)]
    reach = max((abs(log(max(end, 1e-9))) if is_ratio else abs(end) for end in ends), default=1.0)
    reach = max(1e-9, min(reach, LARGEST_LOG_RATIO) if is_ratio else reach)
    span = (exp(-reach), exp(reach)) if is_ratio else (-reach, reach)
    has_alone = any(alone is not None for *_, alone in every)
    rows: list[Row] = []
    for each, own, alone in every:
        name = each.column if each.category is None else f"{each.column}: {each.category}"
        drawn = charts.strip(own, span, float(is_ratio), alone, logarithmic=is_ratio)
        cell = estimate_cell(own)
        own_cell = cell if has_interval else Cell(cell.value)
        label = Cell(name, moved) if (moved := per(each)) else name
        rows.append((label, own_cell, *([estimate_cell(alone)] if has_alone else []), drawn))
    of_user = [f"{run.shown(run.result.user)} alone"] if has_alone else []
    return {
        "effects": rows,
        "curved": [each.column for each in found.coefficients if each.category == "curve 1"],
        "effect_caption": f"{what}s of {found.shown}, per standard deviation or category",
        "effect_headings": ("Column", what, *of_user, "Plot"),
        "effects_from": "errors" if has_errors else "folds" if has_interval else "",
    }


def card_rows(run: RunData, card: ModelCard | None) -> list[Row]:
    """Return the model card: what the model is, and what its users have to know."""
    study, result, task = run.study, run.result, run.study.task
    name = card.arm if card is not None and card.arm in result.arms else result.delivered_arm
    arm, user = result.arms[name].metrics, run.shown(result.user)
    inputs = [f"{each} ({unit})" if unit else each for each, unit in run.units.items()]
    more = len(inputs) - MOST_COLUMNS_SHOWN
    reads = ", ".join(inputs[:MOST_COLUMNS_SHOWN]) or "images"
    outcomes = {
        "classes": "a chance of each class: "
        + ", ".join(study.task.group_names and result.class_counts),
        "number": "a number",
        "times": "the chance of being without the event at each time",
    }
    columns = ", ".join(column.name for column in task.target_columns)
    performance = [
        f"{metric.label} {metric_text(metric, arm.get(metric.name))}"
        f"{f' ({found})' if (found := words.interval_text(arm, metric)) else ''}"
        for metric in result.task.metrics
        if not metric.of_data
    ]
    said = travel_sentence(result) if name == result.delivered_arm else ""
    trained = 1 + run.trained_with(name)
    return [
        ("Model", f"{study.model.described()}, the arm {name}"),
        ("Predicts", f"{columns}: {outcomes.get(task.predicts, task.outcome)}"),
        ("Reads", f"{reads}{f', and {more} more columns' if more > 0 else ''}"),
        ("Meant for", f"Patients like those of {user}. You write: purpose and users."),
        ("Trained by", f"{trained} hospitals, in {result.arms[name].rounds} rounds"),
        ("Tested on", f"{result.num_patients} {result.tested} of {user} alone"),
        ("Performance", "; ".join(performance)),
        *([("Elsewhere", said)] if said else []),
        (
            "Not known",
            f"How it does {'' if said else 'at other hospitals, '}in other years, and in groups"
            " that are not shown here. You write: known limits, and who is responsible.",
        ),
        *([("SHA-256", str(card.sha256))] if card is not None and card.sha256 else []),
    ]


def _tripod(values: Mapping[str, Any]) -> list[tuple[str, list[Sequence[str]]]]:
    """Return TRIPOD+AI's items by part, filled in as far as the page shows them.

    Of each: number, what it asks for, the state, the section's name and heading, and a note.
    """
    contents: dict[str, str] = {"": "", "top": "Top of the page", **dict(values["contents"])}
    found = []
    for part in tomllib.loads(TRIPOD.read_text("utf-8"))["part"]:
        rows: list[Sequence[str]] = []
        for number, asks, state, section, note, needs in part["items"]:
            is_there = section in contents and (not needs or values[NEEDED.get(needs, needs)])
            place = (section, contents[section]) if is_there else ("", "")
            note = note if is_there or not needs else ""
            rows.append((number, asks, state if is_there else "you", *place, note))
        found.append((part["name"], rows))
    return found


NEEDED = {"coefficients": "effects", "subgroups": "groups"}


def _how_sure(result: Result) -> dict[str, str]:
    """Return what the verdict rests on, in figures; nothing where nothing was compared."""
    if (comparison := result.comparison) is None:
        return {}

    def between(p_values: Sequence[float] | None) -> str:
        ends = (min(p_values), max(p_values)) if p_values else ()
        return " to ".join(results.p_value_text(p, comparison.level) for p in ends)

    needs = result.task.verdict_needs
    low_to_high = between(comparison.p_band).split(" to ")
    return {
        "difference": _signed(comparison.mean_difference),
        "share": _share(comparison.p_value, comparison.level),
        "needs": needs.format(fewest=FEWEST_OF_A_CLASS, tested=result.tested),
        "p_band": " to ".join(low_to_high) if len({*low_to_high}) > 1 else "",
        "p_by_cut": between(comparison.p_by_cut),
        "p_by_round": between(result.p_by_round),
    }


def _metric_rows(run: RunData) -> list[Row]:
    task, result = run.result.task, run.result

    def cells(metrics: FinalMetrics) -> list[Cell]:
        return [
            Cell(
                metric_text(metric, metrics.get(metric.name)),
                "" if metric.of_data else words.interval_text(metrics, metric),
            )
            for metric in task.metrics
        ]

    rows: list[Row] = []
    for name, arm in result.arms.items():
        settings = run.study.arms.get(name)
        algorithm = settings.algorithm if settings and settings.algorithm != name else ""
        apart = [f"{arm.skipped_rounds} skipped"] if arm.skipped_rounds else []
        apart += ["stopped"] if arm.stopped is not None else []
        seconds = arm.seconds_per_round
        pace = Cell(seconds_text(seconds.median), f"95 % within {seconds_text(seconds.p95)}")
        rounds = Cell(str(arm.rounds), ", ".join(apart))
        rows.append([Cell(name, algorithm), *cells(arm.metrics), rounds, pace])
    for name, metrics in result.references.items():
        rows.append([Cell(name, "local reference"), *cells(metrics), "–", "–"])
    if result.base_rate:
        rows.append([Cell("Base rate", "no model"), *cells(result.base_rate), "–", "–"])
    return rows


def _facts(run: RunData, versions: Mapping[str, str]) -> list[Row]:
    study, result = run.study, run.result
    since = " since it was last resumed" if result.resumed else ""
    arms = study_as_run(study, result).arms
    missing = MISSING.get(str(getattr(study.task, "missing", "")))
    called = {name: run.shown(name) for name in study.hospitals[:MOST_FLOWS]}
    shown = [who if who == name else f"{who} ({name})" for name, who in called.items()]
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


def _idle(evaluation: Evaluation) -> set[str]:
    is_drawn = evaluation.folds is None and evaluation.split_column is None
    return {*(() if is_drawn else ("test_share",)), *(() if evaluation.folds else ("repeats",))}


def _settings(settings: Settings, without: Set[str] = frozenset()) -> str:
    values = settings.model_dump(mode="json", exclude_none=True, exclude=set(without))
    return "; ".join(f"{key.replace('_', ' ')}: {_said(value)}" for key, value in values.items())


def _said(value: object) -> str:
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
    return f"{100 * p_value:.{results.digits_beyond(level, p_value)}g} %"


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
    said = results.verdict(
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
