"""`report.html` of a study with every hospital as its user: all of them on one page."""

from collections.abc import Mapping
from pathlib import Path

from erosion.common.protocol.messages import FEWEST_OF_A_CLASS, SIGNIFICANCE
from erosion.common.support.files import write_atomically
from erosion.common.tasks.metric import Metric
from erosion.server.output.plain_text import metric_text, seconds_text, weight_text
from erosion.server.output.report.html_table import Cell, table, text
from erosion.server.output.report.overview_figures import loss_figure
from erosion.server.output.report.whole_page import day, verdict_box, whole_page
from erosion.server.output.result_words import (
    absences_by_user,
    class_sizes,
    data_check,
    means_of_fewer,
    stops_by_user,
)
from erosion.server.run.overview import Overview, UserResult
from erosion.server.run.result import OWN_PATIENTS
from erosion.server.run.run_folder import USERS

STRONGEST = 0.55  # opacity of a weight's colour at the largest weight; the figure stays legible


def write_overview(path: Path, overview: Overview) -> None:
    """Write the page; the hospitals' own reports are linked from it where they lie beside it."""
    links = {
        user: link
        for user in overview.users
        if (path.parent / (link := f"{USERS}/{user}/report.html")).exists()
    }
    write_atomically(path, render_overview(overview, links))


def render_overview(overview: Overview, links: Mapping[str, str]) -> str:
    """The page; `links` leads to hospitals' own reports."""
    sections = [
        _verdict(overview),
        _figures(overview, links),
        _weights(overview),
        _means(overview),
        _making(overview),
    ]
    return whole_page(f"{overview.study}: whom does collaborating help?", sections)


def _verdict(overview: Overview) -> str:
    lines = overview.users.values()
    found = any(line.conclusion in ("better", "worse") for line in lines)
    tested = sum(line.adjusted_p_value is not None for line in lines)
    levels = [line.comparison.level for line in lines if line.comparison is not None]
    heading = (
        f"Study {text(overview.study)}, for each of {len(overview.users)} hospitals,"
        f" {text(day(overview.started))}"
    )
    measured = OWN_PATIENTS if overview.tested == "patients" else overview.tested
    needs = overview.task.verdict_needs.format(fewest=FEWEST_OF_A_CLASS, tested=overview.tested)
    together = (
        "A single comparison is looked at here, so its p-value is adjusted for no other"
        if tested == 1
        else f"{tested} comparisons are looked at together here, so their p-values are adjusted by"
        " Holm’s method"
    )
    note = (
        '<p class="note">Each hospital was the user once: one model of its own, measured on its own'
        f" {measured}. {together}; a difference is claimed where the adjusted p-value is at most"
        f" {min(levels, default=SIGNIFICANCE):g} and {text(needs)}. A"
        " hospital’s own report looks at its own comparison alone.</p>"
    )
    away = "".join(f'<p class="note">{text(line)}</p>\n' for line in absences_by_user(overview))
    cautions = data_check(overview.data_check, named_in="result.json")
    box = verdict_box(heading, overview.verdict, found=found, cautions=cautions)
    return box + away + (note if tested else "")


def _figures(overview: Overview, links: Mapping[str, str]) -> str:
    first = next(iter(overview.users.values()))
    arm = first.comparison.arm if first.comparison is not None else overview.arms[0]
    task = overview.task
    shown, loss = task.shown(task.in_progress), task.metric(task.verdict_metric)
    rows: list[tuple[str | Cell, ...]] = [
        (
            Cell(user, link=links.get(user, "")),
            Cell(str(line.num_patients), class_sizes(line.class_counts)),
            *(
                metric_text(metric, line.arms[arm].get(metric.name))
                for metric in task.of_patients()
            ),
            *(_beside(line, arm, metric) for metric in shown),
            metric_text(loss, line.of_base_rate(loss.name)),
            line.p_value_text,
            line.conclusion,
        )
        for user, line in overview.users.items()
    ]
    headings = (
        "Hospital",
        overview.tested.capitalize(),
        *(metric.heading for metric in task.of_patients()),
        *(f"{metric.heading}, {arm}" for metric in shown),
        f"{loss.heading}, base rate",
        "p, adjusted",
        "Finding",
    )
    without = [(user, reason) for user, reason in overview.without_model.items()]
    return (
        "<h2>Each hospital’s own model</h2>\n"
        f'<figure><div class="scroll">{loss_figure(overview)}</div>\n<figcaption>'
        f"{text(loss.heading)} on each hospital’s own {overview.tested}, a mark for each arm. The"
        " further apart the marks of a row, the more the choice matters to that hospital."
        "</figcaption></figure>\n"
        + table(headings, rows, numbers=range(1, len(headings) - 1), style="users")
        + "".join(f'\n<p class="note">{text(said)}</p>' for said in stops_by_user(overview))
        + ("\n<h2>Without a model</h2>\n" + table(("Hospital", "Why"), without) if without else "")
    )


def _beside(line: UserResult, arm: str, metric: Metric) -> Cell:
    """One arm's figure with that of what it is compared with below it."""
    reference = line.comparison.reference if line.comparison is not None else ""
    value, beside = (
        metric_text(metric, line.measured[name].get(metric.name)) if name else ""
        for name in (arm, reference)
    )
    return Cell(value, f"{reference} {beside}" if reference else "")


def _weights(overview: Overview) -> str:
    """Who helped whom, as a table with colours."""
    hospitals = list(
        dict.fromkeys(name for line in overview.users.values() for name in line.weights)
    )
    others = [
        weight
        for user, line in overview.users.items()
        for name, weight in line.weights.items()
        if name != user
    ]
    if not any(others):
        return ""
    largest = max(others)
    unit = "the user’s own is 1"
    if any(line.weights.get(user) not in (None, 1.0) for user, line in overview.users.items()):
        unit = "where the rule leaves the user’s own out, the largest is 1; a dot: own is 1"
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in hospitals)
    body = "\n".join(
        f'<tr><th scope="row">{text(user)}</th>'
        + "".join(_weight(line.weights.get(name), name == user, largest) for name in hospitals)
        + "</tr>"
        for user, line in overview.users.items()
    )
    return (
        f"<h2>Who helped whom in {text(overview.arms[0])}</h2>\n"
        '<p class="note">A row is a user, a column a hospital whose updates it used: that'
        " hospital’s weight, averaged over the rounds that made the user’s model"
        f" ({unit}).</p>\n"
        '<div class="scroll"><table class="matrix">\n'
        f'<thead><tr><th scope="col">for</th>{head}</tr></thead>\n<tbody>\n{body}\n'
        "</tbody></table></div>"
    )


def _weight(weight: float | None, is_own: bool, largest: float) -> str:
    if is_own and weight in (None, 1.0):
        return "<td>·</td>"
    strength = STRONGEST * min(1.0, (weight or 0.0) / largest)
    style = f"background: rgba(0, 114, 178, {strength:.3f})"
    return f'<td style="{style}">{text(weight_text(weight))}</td>'


def _means(overview: Overview) -> str:
    metrics = overview.task.metrics
    rows = [
        (arm, *(metric_text(m, overview.mean(arm, m.name)) for m in metrics))
        for arm in (*overview.arms, *overview.references)
    ]
    if any(line.base_rate for line in overview.users.values()):
        base_rates = (metric_text(m, overview.mean_base_rate(m.name)) for m in metrics)
        rows.append(("Base rate", *base_rates))
    return (
        "<h2>Means over the hospitals</h2>\n"
        f'<p class="note">Each hospital counts once, however many {overview.tested} it has. These'
        " figures describe; they prove nothing."
        f"{''.join(f' {text(said)}' for said in means_of_fewer(overview, metrics))}</p>\n"
        + table(
            ("Arm", *(metric.heading for metric in metrics)),
            rows,
            numbers=range(1, len(metrics) + 1),
        )
    )


def _making(overview: Overview) -> str:
    counted = "; of a part that was taken up again, only the time since then counts"
    took = seconds_text(overview.seconds) + (counted if overview.resumed else "")
    rows = [
        ("Command", overview.command),
        ("Program", f"commit {overview.commit}"),
        ("Started", f"{overview.started}, took {took}"),
        ("Seed", str(overview.seed)),
    ]
    return "<h2>How this was made</h2>\n" + table((), rows, style="facts")
