"""`report.html` of a study with every hospital as its user: all of them on one page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erosion_common.protocol.messages import FEWEST_OF_A_CLASS, SIGNIFICANCE
from erosion_common.support.files import write_atomically
from erosion_common.tasks.metric import Metric
from erosion_server.output import words
from erosion_server.output.charts import loss_figure
from erosion_server.output.pages import Cell, Row, render_page
from erosion_server.output.words import metric_text, seconds_text, weight_text
from erosion_server.run.overview import Overview, UserResult
from erosion_server.run.result import OWN_PATIENTS
from erosion_server.run.run_folder import USERS

STRONGEST = 0.55  # opacity of a weight's colour at the largest weight; the figure stays legible


def write_overview(path: Path, overview: Overview) -> None:
    """Write the page, with links to the hospitals' own reports where these exist."""
    links = {
        user: link
        for user in overview.users
        if (path.parent / (link := f"{USERS}/{user}/report.html")).exists()
    }
    write_atomically(path, render_overview(overview, links))


def render_overview(overview: Overview, links: Mapping[str, str]) -> str:
    """Return the page; `links` leads to hospitals' own reports."""
    return render_page("overview.html", **overview_values(overview, links))


def overview_values(overview: Overview, links: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page shows."""
    task, lines = overview.task, overview.users.values()
    levels = [line.comparison.level for line in lines if line.comparison is not None]
    headings, rows = _figures(overview, links)
    means: list[Row] = [
        (arm, *(metric_text(m, overview.mean(arm, m.name)) for m in task.metrics))
        for arm in (*overview.arms, *overview.references)
    ]
    if any(line.base_rate for line in lines):
        base_rates = (metric_text(m, overview.mean_base_rate(m.name)) for m in task.metrics)
        means.append(("Base rate", *base_rates))
    counted = "; of a part that was resumed, only the time since then counts" * overview.resumed
    return {
        "found": overview,
        "loss": task.metric(task.verdict_metric),
        "has_finding": any(line.conclusion in ("better", "worse") for line in lines),
        "cautions": words.data_check(overview.data_check, named_in="result.json"),
        "away": words.absences_by_user(overview),
        "num_tested": sum(line.adjusted_p_value is not None for line in lines),
        "measured": OWN_PATIENTS if overview.tested == "patients" else overview.tested,
        "level": min(levels, default=SIGNIFICANCE),
        "needs": task.verdict_needs.format(fewest=FEWEST_OF_A_CLASS, tested=overview.tested),
        "losses": loss_figure(overview),
        "headings": headings,
        "rows": rows,
        "stopped": words.stops_by_user(overview),
        "weights": _weights(overview),
        "own_counts_one": all(
            line.weights.get(user) in (None, 1.0) for user, line in overview.users.items()
        ),
        "mean_headings": ("Arm", *(metric.heading for metric in task.metrics)),
        "means": means,
        "fewer": words.means_of_fewer(overview, task.metrics),
        "facts": [
            ("Command", overview.command),
            ("Program", f"commit {overview.commit}"),
            ("Started", f"{overview.started}, took {seconds_text(overview.seconds)}{counted}"),
            ("Seed", str(overview.seed)),
        ],
    }


def _figures(overview: Overview, links: Mapping[str, str]) -> tuple[Row, list[Row]]:
    first = next(iter(overview.users.values()))
    arm = first.comparison.arm if first.comparison is not None else overview.arms[0]
    task = overview.task
    given, shown = task.of_patients(), task.shown(task.in_progress)
    loss = task.metric(task.verdict_metric)
    rows: list[Row] = [
        (
            Cell(user, link=links.get(user, "")),
            Cell(str(line.num_patients), words.class_sizes(line.class_counts)),
            *(metric_text(metric, line.arms[arm].get(metric.name)) for metric in given),
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
        *(metric.heading for metric in given),
        *(f"{metric.heading}, {arm}" for metric in shown),
        f"{loss.heading}, base rate",
        "p, adjusted",
        "Finding",
    )
    return headings, rows


def _beside(line: UserResult, arm: str, metric: Metric) -> Cell:
    names = [arm] if line.comparison is None else [arm, line.comparison.reference]
    value, *below = (metric_text(metric, line.measured[name].get(metric.name)) for name in names)
    return Cell(value, " ".join([*names[1:], *below]))


def _weights(overview: Overview) -> dict[str, Any] | None:
    lines = overview.users
    hospitals = list(dict.fromkeys(name for line in lines.values() for name in line.weights))
    others = [w for user, line in lines.items() for name, w in line.weights.items() if name != user]
    if not any(others):
        return None
    largest = max(others)

    def cell(weight: float | None, *, is_own: bool) -> tuple[str, float | None]:
        if is_own and weight in (None, 1.0):
            return "·", None
        return weight_text(weight), STRONGEST * min(1.0, (weight or 0.0) / largest)

    rows = [
        (user, [cell(line.weights.get(name), is_own=name == user) for name in hospitals])
        for user, line in lines.items()
    ]
    return {"hospitals": hospitals, "rows": rows}
