"""The terminal's summary of a finished study: the figures, the weights, the verdict."""

from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from erosion.common.protocol.messages import FinalMetrics
from erosion.common.tasks.task import Task
from erosion.server.output.plain_text import metric_text, seconds_text
from erosion.server.output.result_words import (
    absences,
    chosen_text,
    class_sizes,
    data_check,
    interval_text,
    privacy,
    recounts,
    stops,
    verdict_sentences,
    what_may_be_unseen,
)
from erosion.server.output.terminal.weight_bars import WeightBars
from erosion.server.run.result import ArmResult, Result

INTERVAL = " (95 %)"  # the first metric is shown with its interval


def print_summary(console: Console, result: Result, report: Path) -> None:
    """Print the table, the first arm's weights, the verdict and where the report is."""
    console.print()
    for sentence in data_check(result.data_check, named_in="result.json"):
        console.print(Text(sentence, style="bold yellow"), soft_wrap=True)
    console.print(_heading(result))
    console.print()
    console.print(_figures(result, console.width))
    console.print()
    for sentence in (stopped := stops(result)):
        console.print(Text(sentence))
    if stopped:
        console.print()
    first, arm = next(iter(result.arms.items()))
    if len(arm.weights) > 1:
        is_counted = arm.weights.get(result.user, 1.0) > 0  # Krum may leave it out
        unit = f"{result.user}'s own" if is_counted else "the largest"
        console.print(Text(f"Last weights of {first}, relative to {unit}"))
        console.print(WeightBars(user_first(arm.weights, result.user)))
        console.print()
    chosen = [(name, found) for name, arm in result.arms.items() if (found := arm.selected)]
    for name, found in chosen:
        console.print(Text(f"Chosen for {name}: {chosen_text(found)}; {found.rounds} rounds"))
    if chosen:
        console.print()
    finding, figures = verdict_sentences(result.verdict.text)
    console.print(Text(finding, style="bold"))
    console.print(Text(figures))
    if result.comparison is not None and result.verdict.best_arm is not None:
        unseen = what_may_be_unseen(
            result.comparison.num_patients, result.class_counts, result.task
        )
        console.print(Text(unseen, style="dim"))
    for sentence in (*absences(result.absent), *recounts(result.recounts)):
        console.print(Text(sentence, style="yellow"))
    for sentence in privacy(result):
        console.print(Text(sentence))
    console.print()
    # A path is left to the terminal to wrap, so that it can be copied in one piece.
    console.print(Text(f"Report: {report}"), soft_wrap=True)


def user_first(weights: dict[str, float], user: str) -> dict[str, float | None]:
    """The weights with the user's own in front."""
    return {
        **({user: weights[user]} if user in weights else {}),
        **{name: weight for name, weight in weights.items() if name != user},
    }


def _heading(result: Result) -> Text:
    return Text(f"{result.num_patients} {result.tested} of {result.user}").append(
        f" ({class_sizes(result.class_counts)})" if result.class_counts else "", style="dim"
    )


def _figures(result: Result, width: int) -> RenderableType:
    """The widest table that fits into `width` columns, or else a sentence for each arm."""
    columns = _columns(result)
    rows = [
        [name, *_cells(result.task, arm.metrics), *_pace(arm)] for name, arm in result.arms.items()
    ]
    references = result.references.items()
    rows += [[name, *_cells(result.task, metrics), "", ""] for name, metrics in references]
    if result.base_rate is not None:
        rows.append(["base rate", *_cells(result.task, result.base_rate), "", ""])
    for gap, folded in ((2, False), (2, True), (1, True)):
        table = [[_folded(cell) if folded else cell for cell in row] for row in [columns, *rows]]
        widths = [
            max(len(line) for cell in column for line in cell.split("\n"))
            for column in zip(*table, strict=True)
        ]
        if sum(widths) + gap * (len(widths) - 1) <= width:
            return _table(table, gap, result.verdict.best_arm)
    return Group(*(_sentence(columns, row) for row in rows))


def _table(rows: list[list[str]], gap: int, best_arm: str | None) -> Table:
    table = Table.grid(padding=(0, gap, 0, 0))
    for number in range(len(rows[0])):
        table.add_column(justify="left" if number < 2 else "right", no_wrap=True)
    table.add_row(*(Text(cell, style="dim") for cell in rows[0]))
    for row in rows[1:]:
        style = "bold" if row[0] == best_arm else ""
        table.add_row(*(Text(cell, style=style) for cell in row))
    return table


def _folded(cell: str) -> str:
    """A value with its interval on the next line."""
    return cell.replace(" (", "\n(")


def _sentence(columns: list[str], row: list[str]) -> Text:
    names = (column.removesuffix(INTERVAL) for column in columns[1:])
    figures = [f"{name} {figure}" for name, figure in zip(names, row[1:], strict=True) if figure]
    return Text(f"{row[0]}: " + ", ".join(figures))


def _columns(result: Result) -> list[str]:
    first, *others = (metric.column for metric in result.task.metrics)
    return ["arm", first + INTERVAL, *others, "rounds", "per round"]


def _cells(task: type[Task], metrics: FinalMetrics) -> list[str]:
    first, *others = (metric_text(metric, metrics.get(metric.name)) for metric in task.metrics)
    interval = interval_text(metrics, task.metrics[0])
    return [first + (f" ({interval})" if interval else ""), *others]


def _pace(arm: ArmResult) -> list[str]:
    done = arm.rounds - arm.skipped_rounds
    return [
        f"{arm.rounds}" if done == arm.rounds else f"{done} of {arm.rounds}",
        seconds_text(arm.seconds_per_round.median),
    ]
