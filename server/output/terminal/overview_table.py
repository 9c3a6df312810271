"""The terminal's table after every hospital has had its turn as the user."""

from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from erosion.common.protocol.messages import FinalMetrics
from erosion.server.output.plain_text import figure_text
from erosion.server.output.result_words import verdict_sentences
from erosion.server.run.overview import TOO_FEW, UNCLEAR, Overview, UserResult

SHORT = {UNCLEAR: "unclear", TOO_FEW: "too few"}


def print_overview(console: Console, overview: Overview, report: Path | None) -> None:
    """Print the means, a line for each hospital, the verdict, and where the report is."""
    console.print()
    console.print(Text(f"Every hospital's own model, mean over {len(overview.users)} hospitals"))
    console.print(_means(overview))
    console.print()
    first = next(iter(overview.users.values()))
    shown = overview.arms[:1]
    if first.comparison is not None:
        shown = [first.comparison.arm, first.comparison.reference]
    console.print(Text(" / ".join(shown), style="bold"))
    console.print(_lines(overview, shown))
    console.print()
    for user, reason in overview.without_model.items():
        console.print(Text(f"No model for {user}: {reason}", style="yellow"))
    finding, figures = verdict_sentences(overview.verdict)
    console.print(Text(finding, style="bold"))
    console.print(Text(figures))
    if report is not None:
        console.print()
        console.print(Text(f"Report: {report}"), soft_wrap=True)


def _means(overview: Overview) -> RenderableType:
    table = _table("arm", "accuracy", "majority", "log loss")
    for arm in overview.arms:
        figures = (overview.mean(arm, m) for m in ("accuracy", "majority_accuracy", "log_loss"))
        table.add_row(arm, *map(figure_text, figures))
    return table


def _lines(overview: Overview, arms: list[str]) -> RenderableType:
    table = _table("for", "test", "majority", "accuracy", "log loss", "p", "")
    for user, line in overview.users.items():
        first = line.arms[arms[0]]
        table.add_row(
            user,
            str(first.num_samples),
            figure_text(first.majority_accuracy),
            _pair([line.arms[arm] for arm in arms], "accuracy"),
            _pair([line.arms[arm] for arm in arms], "log_loss"),
            figure_text(line.adjusted_p_value),
            _finding(line),
        )
    return table


def _table(*columns: str) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(justify="right" if number and column else "left")
    table.add_row(*(Text(column, style="dim") for column in columns))
    return table


def _pair(metrics: list[FinalMetrics], name: str) -> str:
    return " / ".join(figure_text(getattr(found, name)) for found in metrics)


def _finding(line: UserResult) -> Text:
    clear = line.conclusion in ("better", "worse")
    return Text(SHORT.get(line.conclusion, line.conclusion), style="bold" if clear else "dim")
