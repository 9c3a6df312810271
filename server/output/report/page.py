"""The report's sections, the answer first."""

from collections.abc import Mapping, Set
from html import escape

from erosion.common.rounds.records import HospitalRecord
from erosion.common.settings.base import Settings
from erosion.common.study.sections import Evaluation
from erosion.common.tasks.metric import Metric
from erosion.server.output.plain_text import figure_text, ranges_text, seconds_text, weight_text
from erosion.server.output.report.figures import distance_figure, metric_figure, weight_figure
from erosion.server.output.report.findings import findings
from erosion.server.output.report.html_table import Cell, table, text
from erosion.server.output.report.metric_table import (
    base_rate_row,
    how_to_read,
    metric_cells,
    reference_row,
)
from erosion.server.output.report.run_data import RunData
from erosion.server.output.report.verdict_section import verdict_section
from erosion.server.output.report.whole_page import whole_page
from erosion.server.output.result_words import (
    chosen_text,
    class_sizes,
    privacy,
    stops,
)
from erosion.server.output.round_news import grouped
from erosion.server.run.result import ArmResult, Result, study_as_run

MOST_EVENTS = 200  # rows; the journal has them all


def render(run: RunData, study_file: str, versions: Mapping[str, str]) -> str:
    """The page; `study_file` is the study's TOML."""
    result = run.result
    sections = [
        verdict_section(result),
        _key_figures(run),
        findings(run),
        _choices(run.result),
        _learning(run),
        _weights(run),
        _ledger(run),
        _events(run),
        _making(run, study_file, versions),
    ]
    return whole_page(f"{result.study}: does collaborating help {result.user}?", sections)


def _key_figures(run: RunData) -> str:
    result = run.result
    arms = list(result.arms)
    named = [*arms, *result.references]
    best = named.index(result.verdict.best_arm) if result.verdict.best_arm in named else None
    classes = f" ({text(class_sizes(result.class_counts))})" if result.class_counts else ""
    headings = (
        "Arm",
        *(metric.heading for metric in result.task.metrics),
        "Rounds",
        "Time per round",
    )
    return (
        "<h2>Key figures</h2>\n"
        f'<p class="note">{_measured_on(run, classes)} Small print: 95 %'
        f" intervals. {text(how_to_read(result, run.study.task.shifted_by))}</p>\n"
        + table(
            headings,
            [
                *(_arm_row(run, name, arm) for name, arm in result.arms.items()),
                *(reference_row(result.task, *each) for each in result.references.items()),
                *([base_rate_row(result.task, result.base_rate)] if result.base_rate else []),
            ],
            numbers=range(1, len(headings)),
            best=best,
        )
        + "".join(
            f'<p class="note">{text(sentence)}</p>\n'
            for sentence in (*stops(result), *privacy(result))
        )
    )


def _measured_on(run: RunData, classes: str) -> str:
    """Whom the figures are of, and which model is delivered."""
    result = run.result
    user, cross, size = (
        text(result.user),
        result.cross_fitting,
        f"{result.num_patients} {result.tested}",
    )
    delivered = f" The run’s model (model.safetensors) is that of {text(result.delivered_arm)}."
    if cross is None:
        return f"Measured on {size} of {user}{classes} on whom nothing was trained.{delivered}"
    cuts = f" This was done with {cross.repeats} different cuts," if cross.repeats > 1 else ""
    return (
        f"Measured on all {size} of {user}{classes}, cut into {cross.folds} folds: each"
        " was predicted by runs of every arm that were made without its fold."
        f"{cuts + ' and the figures are means over them.' if cuts else ''} The models in the run"
        " folder were then trained on all of these patients, so they have seen a little more than"
        " those that the figures are of."
        + " Means and deviations for scaling include every patient, but in arms that ask nobody"
        " else." * (run.study.scaling in ("federated", "user")) + delivered
    )


def _arm_row(run: RunData, name: str, arm: ArmResult) -> list[str | Cell]:
    settings = run.study.arms.get(name)
    algorithm = settings.algorithm if settings and settings.algorithm != name else ""
    apart = [f"{arm.skipped_rounds} skipped"] if arm.skipped_rounds else []
    apart += ["stopped"] if arm.stopped is not None else []
    seconds = arm.seconds_per_round
    return [
        Cell(name, algorithm),
        *metric_cells(run.result.task, arm.metrics),
        Cell(str(arm.rounds), ", ".join(apart)),
        Cell(seconds_text(seconds.median), f"95 % within {seconds_text(seconds.p95)}"),
    ]


def _choices(result: Result) -> str:
    """What was left open in the study file; "" where nothing was."""
    loss = result.task.metric(result.task.verdict_metric).label
    rows = [
        (name, chosen_text(chosen), str(chosen.rounds), figure_text(chosen.loss))
        for name, arm in result.arms.items()
        if (chosen := arm.selected) is not None
    ]
    if not rows:
        return ""
    return (
        "<h2>What was chosen</h2>\n"
        f'<p class="note">The study leaves settings and the number of rounds open. They were chosen'
        f" by trials in which part of {text(result.user)}’s training patients was held out; the"
        f" {text(loss)} here is on those. No test patient had a part in it.</p>\n"
        + table(
            ("Arm", "Settings", "Rounds", f"{loss.capitalize()}, held out"),
            rows,
            numbers=range(2, 4),
        )
    )


def _learning(run: RunData) -> str:
    user = text(run.result.user)
    gap = ""
    if any(record.user_metrics is None for record in run.records):
        gap = f" A gap is a round in which the site of {user} sent no figures."
    if run.result.cross_fitting is not None:
        gap += (
            " Each figure is the mean over the folds; only the last, after all rounds, is of"
            " all patients at once."
        )
    first, *others = (run.result.task.metric(name) for name in run.result.task.curves)
    return (
        f"<h2>How well each arm predicts for {user}</h2>\n"
        + _figure(
            metric_figure(run, first),
            f"{text(first.heading)} on the {run.result.tested} of {user} after each round; 0 is the"
            f" untrained model. {text(first.caption)}{gap}",
        )
        + "".join(
            _figure(metric_figure(run, metric), _of_the_same(run.result, metric))
            for metric in others
        )
    )


def _of_the_same(result: Result, metric: Metric) -> str:
    """What a curve below the first one shows."""
    is_tested = result.comparison is not None and metric.name == result.task.verdict_metric
    verdict = ", which the verdict is about" if is_tested else ""
    return f"{text(metric.heading)} of the same models{verdict}. {text(metric.caption)}"


def _weights(run: RunData) -> str:
    arm, user = text(run.first_arm), text(run.result.user)
    weights, distances = weight_figure(run), distance_figure(run)
    heading = f"<h2>How much each hospital counts in {arm}</h2>\n"
    if not weights:
        return heading + f"<p>{arm} used no update of another hospital.</p>"
    unit = f"{user}’s own is 1 throughout"
    if not run.own_counts_one:
        unit = f"where the rule leaves {user}’s own out, the largest is 1"
    skipped = any(record.outcome == "skipped" for record in run.of(run.first_arm))
    shade = " Shaded: skipped rounds, in which nothing was learned." if skipped else ""
    return (
        heading
        + _figure(
            weights,
            f"Weight of each hospital’s update after each round in which it took part;"
            f" {unit}. At weight 0 a hospital has no more influence.{shade}",
        )
        + _figure(
            distances,
            f"Distance of each hospital’s update from that of {user}, {_how_far(run)}.",
        )
    )


def _how_far(run: RunData) -> str:
    """What the distances are, as the first arm's rule measures them; HTML."""
    if run.distances_are_angles:
        return (
            "1 minus the cosine of the angle between them: 0 where they point the same way, 1 at"
            " right angles, 2 where they point opposite ways"
        )
    return (
        f"in lengths of {text(run.result.user)}’s own: near 0 they pull the same way, above 1 they"
        " differ by more than the whole step"
    )


def _figure(svg: str, caption: str) -> str:
    """`caption` is HTML."""
    if not svg:
        return ""
    return f'<figure><div class="scroll">{svg}</div>\n<figcaption>{caption}</figcaption></figure>\n'


def _ledger(run: RunData) -> str:
    result = run.result
    rounds = result.arms[run.first_arm].rounds
    final = result.arms[run.first_arm].weights
    samples: dict[str, str] = {}
    for record in run.of(run.first_arm):
        for name, entry in record.hospitals.items():
            if entry.num_samples is not None:
                samples[name] = _samples(entry)
    rows = [
        (
            name,
            samples.get(name, "–"),
            f"{entry.rounds} of {rounds}",
            weight_text(entry.weight_sum),
            weight_text(final.get(name)),
            f"{entry.samples_seen:,}".replace(",", "\u202f"),
        )
        for name, entry in result.contributions.items()
    ]
    return (
        f"<h2>What each hospital contributed to {text(run.first_arm)}</h2>\n"
        '<p class="note">A hospital takes part in a round when its update arrives and is accepted.'
        " The weight summed over those rounds is the measure that Grimberg et al. (2020) propose"
        " for crediting hospitals. The last weight of one that was away at the end is the one that"
        " it had before. The numbers of training samples (rows of a table, or images) are those"
        " that the hospitals state, rounded so as never to be about only a few patients. A peer"
        " counts for at most as many as all other hospitals have together. Weights are rounded to"
        " two decimals; contributions.csv has six digits of each sum.</p>\n"
        + table(
            (
                "Hospital",
                "Training samples, rounded",
                "Rounds taken part in",
                "Weight, summed",
                "Last weight",
                "Samples used, repeats counted",
            ),
            rows,
            numbers=range(1, 6),
        )
    )


def _samples(entry: HospitalRecord) -> str:
    told = entry.described_samples
    if told is None or told == entry.num_samples:  # older journals do not have it
        return str(entry.num_samples)
    return f"{told}, counts as {entry.num_samples}"


def _events(run: RunData) -> str:
    groups = [group for group in grouped(run.records) if group.first.kind != "note"]
    heading = "<h2>What happened on the way</h2>\n"
    others = _other_rounds(run.result)
    if others:
        heading += (
            '<p class="note">In the rounds that made the models in the run folder. Those of the'
            f" {others} are in trials.jsonl.</p>\n"
        )
    if not groups:
        these = "one of these rounds" if others else "round"
        return heading + f"<p>Every hospital that was asked answered in every {these}.</p>"
    rows = [
        (
            group.first.arm,
            ranges_text(group.rounds),
            group.first.hospital or "all",
            group.first.text + (" (the first time; then with other numbers)" * group.varies),
        )
        for group in groups[:MOST_EVENTS]
    ]
    more = len(groups) - len(rows)
    rest = f'<p class="note">And {more} more: see rounds.jsonl.</p>' if more else ""
    return heading + table(("Arm", "Rounds", "Hospital", "What"), rows, style="events") + rest


def _other_rounds(result: Result) -> str:
    """What had rounds of its own before those that made the models; "" for nothing."""
    if result.cross_fitting is not None:
        return "folds, which the figures are of,"
    is_selected = any(arm.selected is not None for arm in result.arms.values())
    return "trials, by which settings were chosen," if is_selected else ""


def _making(run: RunData, study_file: str, versions: Mapping[str, str]) -> str:
    study, result = run.study, run.result
    since = " since it was last taken up" if result.resumed else ""
    rows: list[tuple[str, str]] = [
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
        *(
            (f"Arm {name}", _settings(arm))
            for name, arm in study_as_run(study, result).arms.items()
        ),
        ("Evaluation", _settings(study.evaluation, without=_idle(study.evaluation))),
        ("Federation", _settings(study.federation)),
    ]
    return (
        "<h2>How this was made</h2>\n"
        + table((), rows, style="facts")
        + "\n<details><summary>The study file, every default written out</summary>\n"
        f"<pre>{escape(study_file)}</pre></details>"
    )


def _idle(evaluation: Evaluation) -> set[str]:
    """Keys that have no meaning beside the others."""
    is_drawn = evaluation.folds is None and evaluation.split_column is None
    return {*(() if is_drawn else ("test_share",)), *(() if evaluation.folds else ("repeats",))}


def _settings(settings: Settings, without: Set[str] = frozenset()) -> str:
    values = settings.model_dump(mode="json", exclude_none=True, exclude=set(without))
    return ", ".join(f"{key} = {value}" for key, value in values.items())
