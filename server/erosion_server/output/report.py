"""`report.html`: a finished run on one page, the answer first; or all users of a study."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

from erosion_common.formats.model_card import ModelCard, read_card
from erosion_common.protocol.messages import FEWEST_OF_A_CLASS, SIGNIFICANCE, FinalMetrics, Summary
from erosion_common.protocol.performance import Estimate, Performance
from erosion_common.study.sections import Evaluation
from erosion_common.study.study import Study
from erosion_common.support.files import write_atomically
from erosion_common.tasks.inputs import few_for_inputs
from erosion_server.output import charts, figures, words
from erosion_server.output.figures import estimate_text
from erosion_server.output.pages import TEMPLATES, Cell, Row, render_page, verbatim
from erosion_server.output.report_patients import MOST_COLUMNS_SHOWN, MOST_FLOWS, patient_values
from erosion_server.output.report_performance import performance_values, with_own_metric
from erosion_server.output.report_validation import (
    travel_sentence,
    turned_elsewhere,
    validation_values,
)
from erosion_server.output.round_facts import grouped
from erosion_server.output.run_data import RunData, check_card, read_run
from erosion_server.output.words import metric_text, seconds_text
from erosion_server.run import provenance
from erosion_server.run import result as results
from erosion_server.run.overview import Overview
from erosion_server.run.result import OWN_PATIENTS, Result, study_as_run
from erosion_server.run.run_folder import USERS, RunFolder


def write_report(run_folder: Path, *, is_rounded: bool = False) -> Path:
    """Write the report of the finished run in `run_folder`, and its figures; returns its path.

    `is_rounded`: the user's own exact figures are rounded for publication, in files of their own.
    Raises StudyError or CheckpointError where the folder's files cannot be used.
    """
    folder = RunFolder(run_folder)
    card = read_card(folder.path) if folder.model_card.exists() else None
    versions = provenance.versions() if card is None else card.versions  # years later, too
    run, path = read_run(folder), folder.report
    if card is not None:
        check_card(card, folder)
    if is_rounded:
        run, path = run.rounded(), path.with_name("report-rounded.html")
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
    measured, unit = [*result.arms, *result.references], results.unit_of(run.study.task)
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
        metric_headings=(
            "Arm",
            *(f"{m.heading}{m.behind(unit, ', ')}" for m in task.metrics),
            "Rounds",
            "Time per round",
        ),
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
        arms_as_run=study_as_run(run.study, result).arms,
        idle_keys=_idle(run.study.evaluation),
        missing=words.missing_values(run.study.task),
        versions=versions,
        most_flows=MOST_FLOWS,
        card=card_rows(run, card),
        tripod=tomllib.loads((TEMPLATES / "tripod_ai.toml").read_text("utf-8"))["part"],
        study_file=verbatim(study_file),
        **performance_values(run),
        **patient_values(run),
        **validation_values(run),
    )
    values["files"] += [*values.pop("travel_files"), *_by_round(run, values)]
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
    result, exact = run.result, run.decisive
    found = [result.leak.sentence(result.task)] if result.leak is not None else []
    shifted = run.study.task.shifted_by
    worse, within, turned = run.above_base_rate
    if worse:
        found.append(results.worse_sentence(worse, shifted))
    if within:
        found.append(results.not_better_sentence(within, shifted))
    found += results.turned_sentences(turned)
    found += words.turned_finishes(result)
    found += turned_elsewhere(run)
    found += words.data_check(result.data_check, named_in="result.json")
    if models := result.performance.models:
        decisive = with_own_metric(exact.performance.models[0], exact)
        slope = decisive.estimates.get("calibration_slope")
        if slope is not None and slope.high < 1:
            shown = with_own_metric(models[0], result).estimates["calibration_slope"]
            found.append(
                f"Predictions of {figures.named(models[0], models)} are too extreme: calibration"
                f" slope {estimate_text(shown)}."
            )
    found += _groups_off(result.performance, exact.performance)
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


def _for_all(ratio: Estimate, num: int) -> tuple[float, float]:
    """Return the interval that holds for all of `num` ratios together, by Bonferroni."""
    normal = NormalDist()
    wider = normal.inv_cdf(1 - 0.025 / num) / normal.inv_cdf(0.975)  # on the scale of logarithms
    ends = (max(0.0, end) / ratio.value for end in (ratio.low, ratio.high))
    low, high = (ratio.value * end**wider for end in ends)
    return low, high


def _groups_off(found: Performance, exact: Performance) -> Iterator[str]:
    if not found.models or not found.models[0].event:
        return  # mean errors of a number have no natural zero that a patient would notice
    both = zip(found.subgroups, exact.subgroups, strict=True)
    ratios = [(each, of) for each, by in both if (of := by.calibration) and of.value > 0]
    for group, ratio in ratios:
        low, high = _for_all(ratio, len(ratios))
        if not low <= 1 <= high:
            yield (
                f"Risks are too {'high' if low > 1 else 'low'} where {group.column} is"
                f" {group.group}: expected over observed {estimate_text(group.calibration)}."
            )


def card_rows(run: RunData, card: ModelCard | None) -> list[Row]:
    """Return the model card: what the model is, and what its users have to know."""
    study, result, task = run.study, run.result, run.study.task
    name = card.arm if card is not None and card.arm in result.arms else result.delivered_arm
    arm, user = result.arms[name].metrics, run.shown(result.user)
    inputs = [f"{each} ({unit})" if unit else each for each, unit in run.units.items()]
    more = len(inputs) - MOST_COLUMNS_SHOWN
    reads = ", ".join(inputs[:MOST_COLUMNS_SHOWN]) or "images"
    unit = results.unit_of(study.task)
    outcomes = {
        "classes": "a chance of each class: "
        + ", ".join(study.task.group_names and result.class_counts),
        "number": f"a number{unit and f' in {unit}'}",
        "times": "the chance of being without the event at each time",
    }
    columns = ", ".join(column.name for column in task.target_columns)
    performance = [
        f"{metric.label} {metric_text(metric, arm.get(metric.name))}{metric.behind(unit)}"
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


def _how_sure(result: Result) -> dict[str, str]:
    """Return what the verdict rests on, in figures; nothing where nothing was compared."""
    if (comparison := result.comparison) is None:
        return {}

    def between(p_values: Sequence[float] | None) -> str:
        ends = (min(p_values), max(p_values)) if p_values else ()
        texts = (results.p_value_text(p, comparison.level) for p in ends)
        return " to ".join(dict.fromkeys(texts))

    needs = result.task.verdict_needs
    by_signs = between(comparison.p_band)
    return {
        "difference": _signed(comparison.mean_difference),
        "share": _share(comparison.p_value, comparison.level),
        "needs": needs.format(fewest=FEWEST_OF_A_CLASS, tested=result.tested),
        "p_band": by_signs if " to " in by_signs else "",
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


def _idle(evaluation: Evaluation) -> set[str]:
    """Return the keys that had no part in the evaluation."""
    is_drawn = evaluation.folds is None and evaluation.split_column is None
    return {*(() if is_drawn else ("test_share",)), *(() if evaluation.folds else ("repeats",))}


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


def write_overview(path: Path, overview: Overview) -> None:
    """Write the page of every hospital as its user, with links to reports that are there."""
    links = {
        user: link
        for user in overview.users
        if (path.parent / (link := f"{USERS}/{user}/report.html")).exists()
    }
    write_atomically(path, render_page("overview.html", **overview_values(overview, links)))


def overview_values(overview: Overview, links: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page of all users shows; `links` leads to hospitals' own reports."""
    task, lines = overview.task, overview.users.values()
    levels = [line.comparison.level for line in lines if line.comparison is not None]
    return {
        "found": overview,
        "links": links,
        "words": words,
        "Cell": Cell,
        "loss": task.metric(task.verdict_metric),
        "has_finding": any(line.conclusion in ("better", "worse") for line in lines),
        "cautions": words.data_check(overview.data_check, named_in="result.json"),
        "away": words.absences_by_user(overview),
        "num_tested": sum(line.adjusted_p_value is not None for line in lines),
        "measured": OWN_PATIENTS if overview.tested == "patients" else overview.tested,
        "level": min(levels, default=SIGNIFICANCE),
        "needs": task.verdict_needs.format(fewest=FEWEST_OF_A_CLASS, tested=overview.tested),
        "losses": charts.loss_figure(overview),
        "stopped": words.stops_by_user(overview),
        "has_base_rates": any(line.base_rate for line in lines),
        "own_counts_one": all(
            line.weights.get(user) in (None, 1.0) for user, line in overview.users.items()
        ),
        "fewer": words.means_of_fewer(overview, task.metrics),
    }
