"""`report.html` of a study with every hospital as its user: all of them on one page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erosion_common.protocol.messages import FEWEST_OF_A_CLASS, SIGNIFICANCE
from erosion_common.support.files import write_atomically
from erosion_server.output import words
from erosion_server.output.charts import loss_figure
from erosion_server.output.pages import Cell, render_page
from erosion_server.run.overview import Overview
from erosion_server.run.result import OWN_PATIENTS
from erosion_server.run.run_folder import USERS


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
        "losses": loss_figure(overview),
        "stopped": words.stops_by_user(overview),
        "has_base_rates": any(line.base_rate for line in lines),
        "own_counts_one": all(
            line.weights.get(user) in (None, 1.0) for user, line in overview.users.items()
        ),
        "fewer": words.means_of_fewer(overview, task.metrics),
    }
