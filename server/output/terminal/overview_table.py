"""The terminal's table after every hospital has had its turn as the user."""

from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from erosion.common.protocol.messages import FinalMetrics
from erosion.common.tasks.metric import Metric
from erosion.server.output.plain_text import metric_text
from erosion.server.output.result_words import (
    absences_by_user,
    data_check,
    means_of_fewer,
    stops_by_user,
    verdict_sentences,
)
from erosion.server.run.overview import TOO_FEW, UNCLEAR, Overview, UserResult

ADJUSTED = (
    "These p-values are adjusted for each other by Holm's method; a hospital's own summary and"
    " report look at its own comparison alone."
)
SHORT = {UNCLEAR: "unclear", TOO_FEW: "too few"}


def print_overview(console: Console, overview: Overview, report: Path | None) -> None:
    """Print the means, a line for each hospital, the verdict, and where the report is."""
    console.print()
    console.print(Text(f"Every hospital's own model, mean over {len(overview.users)} hospitals"))
    console.print(_means(overview))
    for sentence in means_of_fewer(overview, _metrics_of_means(overview)):
        console.print(Text(sentence, style="dim"))
    console.print()
    first = next(iter(overview.users.values()))
    shown = overview.arms[:1]
    if first.comparison is not None:
        shown = [first.comparison.arm, overview.reference]
    console.print(Text(" / ".join(shown), style="bold"))
    console.print(_lines(overview, shown))
    console.print()
    for sentence in (stopped := stops_by_user(overview)):
        console.print(Text(sentence))
    if stopped:
        console.print()
    for user, reason in overview.without_model.items():
        console.print(Text(f"No model for {user}: {reason}", style="yellow"))
    for sentence in data_check(overview.data_check):
        console.print(Text(sentence, style="bold yellow"), soft_wrap=True)
    finding, figures = verdict_sentences(overview.verdict)
    console.print(Text(finding, style="bold"))
    console.print(Text(figures))
    if sum(line.adjusted_p_value is not None for line in overview.users.values()) > 1:
        console.print(Text(ADJUSTED, style="dim"))
    for sentence in absences_by_user(overview):
        console.print(Text(sentence, style="yellow"))
    if report is not None:
        console.print()
        console.print(Text(f"Report: {report}"), soft_wrap=True)


def _metrics_of_means(overview: Overview) -> list[Metric]:
    task = overview.task
    return [*task.of_patients(), *task.shown(task.in_progress)]


def _means(overview: Overview) -> RenderableType:
    metrics = _metrics_of_means(overview)
    table = _table("arm", *(metric.column for metric in metrics))
    for arm in (*overview.arms, *overview.references):
        table.add_row(arm, *(metric_text(m, overview.mean(arm, m.name)) for m in metrics))
    if _has_base_rates(overview):
        figures = (metric_text(m, overview.mean_base_rate(m.name)) for m in metrics)
        table.add_row("base rate", *figures)
    return table


def _lines(overview: Overview, arms: list[str]) -> RenderableType:
    task = overview.task
    given, shown = task.of_patients(), task.shown(task.in_progress)
    loss = task.metric(task.verdict_metric)
    headings = [metric.column for metric in (*given, *shown)]
    base_rate = ["base rate"] if _has_base_rates(overview) else []
    table = _table("for", "test", *headings, *base_rate, "p", "")
    for user, line in overview.users.items():
        first = line.arms[arms[0]]
        table.add_row(
            user,
            str(line.num_patients),
            *(metric_text(metric, first.get(metric.name)) for metric in given),
            *(_pair(_compared(line, arms[0]), metric) for metric in shown),
            *(metric_text(loss, line.of_base_rate(loss.name)) for _ in base_rate),
            line.p_value_text,
            _finding(line),
        )
    return table


def _compared(line: UserResult, arm: str) -> list[FinalMetrics]:
    """Of the arm, and of what it is compared with at that hospital."""
    reference = [line.comparison.reference] if line.comparison is not None else []
    return [line.measured[name] for name in (arm, *reference)]


def _has_base_rates(overview: Overview) -> bool:
    """Whether they were measured: an earlier version did not."""
    return any(line.base_rate for line in overview.users.values())


def _table(*columns: str) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(justify="right" if number and column else "left")
    table.add_row(*(Text(column, style="dim") for column in columns))
    return table


def _pair(metrics: list[FinalMetrics], metric: Metric) -> str:
    return " / ".join(metric_text(metric, found.get(metric.name)) for found in metrics)


def _finding(line: UserResult) -> Text:
    clear = line.conclusion in ("better", "worse")
    return Text(SHORT.get(line.conclusion, line.conclusion), style="bold" if clear else "dim")
