"""The report's figures, each with the numbers of a run that it shows."""

from collections.abc import Callable, Iterable, Sequence

from erosion.common.rounds.records import HospitalRecord, RoundRecord, curve_of
from erosion.common.tasks.metric import Metric
from erosion.server.output.plain_text import shortened, weight_text
from erosion.server.output.report.chart import LONGEST_NAME, Chart, Line, draw
from erosion.server.output.report.run_data import RunData


def metric_figure(run: RunData, metric: Metric) -> str:
    """One metric of the user's over the rounds, one line an arm, and the base rate's."""
    lines = [
        Line(arm, metric_points(run, arm, metric.name), style)
        for style, arm in enumerate(run.result.arms)
    ]
    called, beside = run.result.task.beside(metric)
    found = run.result.base_rate
    base_rate = None if found is None else found.get(beside)
    chart = Chart(
        title=f"{metric.label} of {run.result.user} after each round, one line for each arm",
        lines=lines,
        x_label="rounds finished",
        y_label=f"{metric.label} ({metric.unit})",
        last_round=max(x for line in lines for x, _ in line.points),
        written=metric.text,
        from_zero=metric.from_zero,
        reference=None if base_rate is None else (called, base_rate),
    )
    return draw(chart)


def metric_points(run: RunData, arm: str, metric: str) -> list[tuple[int, float | None]]:
    """(rounds finished, value)."""
    ended = run.result.arms[arm]
    return [
        (number, None if metrics is None else metrics.get(metric))
        for number, metrics in curve_of(run.of(arm), ended.rounds, ended.metrics)
    ]


def weight_figure(run: RunData) -> str:
    """The weight of every other hospital after each round; "" where there is none."""
    return _peers_figure(
        run,
        _peer_lines(run, _weight_shown, _when_out),
        title=f"weight of each hospital after each round of {run.first_arm}",
        y_label=f"weight ({shortened(run.result.user, LONGEST_NAME)} = 1)"
        if run.own_counts_one
        else "weight (largest = 1)",
        reference=(run.result.user, 1.0) if run.own_counts_one else None,
    )


def _weight_shown(entry: HospitalRecord) -> float | None:
    """The weight in a round; None where its update was not part of it, unless it is out."""
    is_out = entry.outcome == "not_asked" and entry.weight_after == 0.0
    return entry.weight_after if entry.outcome == "accepted" or is_out else None


def _when_out(points: Sequence[tuple[int, float | None]]) -> str:
    """When the weight fell to 0 for good; "" where it did not."""
    known = [(number, weight) for number, weight in points if weight is not None]
    above = [index for index, (_, weight) in enumerate(known) if weight > 0.0]
    first = above[-1] + 1 if above else 0
    return f"out in round {known[first][0]}" if first < len(known) else ""


def distance_figure(run: RunData) -> str:
    """How far every other hospital's update was from the user's; "" where none was measured."""
    return _peers_figure(
        run,
        _peer_lines(run, lambda entry: entry.distance if entry.outcome == "accepted" else None),
        title=f"distance of each hospital's update in each round of {run.first_arm}",
        y_label="distance (1 - cosine)"
        if run.distances_are_angles
        else "distance (length of own update = 1)",
        may_be_logarithmic=True,
    )


def _peer_lines(
    run: RunData,
    value: Callable[[HospitalRecord], float | None],
    ending: Callable[[Sequence[tuple[int, float | None]]], str] = lambda _points: "",
) -> list[Line]:
    """A line for each peer of which the first arm has any value; `ending` is its last word."""
    records = run.of(run.first_arm)
    return [
        Line(name, points, style, ending(points))
        for style, name in enumerate(run.peers)
        if _any_known(points := _points(records, name, value))
    ]


def _peers_figure(
    run: RunData,
    lines: Sequence[Line],
    *,
    title: str,
    y_label: str,
    reference: tuple[str, float] | None = None,
    may_be_logarithmic: bool = False,
) -> str:
    """The lines over the first arm's rounds; "" where there are none."""
    if not lines:
        return ""
    records = run.of(run.first_arm)
    return draw(
        Chart(
            title=title,
            lines=lines,
            x_label="round",
            y_label=y_label,
            last_round=records[-1].round,
            written=weight_text,
            from_zero=True,
            may_be_logarithmic=may_be_logarithmic,
            reference=reference,
            label_room=max(len(name) for name in run.peers) + len(" out in round 10"),
            shaded_rounds=[record.round for record in records if record.outcome == "skipped"],
        )
    )


def _points(
    records: Iterable[RoundRecord], name: str, value: Callable[[HospitalRecord], float | None]
) -> list[tuple[int, float | None]]:
    entries = ((record.round, record.hospitals.get(name)) for record in records)
    return [(number, None if entry is None else value(entry)) for number, entry in entries]


def _any_known(points: Iterable[tuple[int, float | None]]) -> bool:
    return any(y is not None for _, y in points)
