"""The terminal's tables: the summary of a study, the overview of every user, weights as bars."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from erosion_common.protocol.messages import FinalMetrics
from erosion_common.tasks.metric import Metric
from erosion_common.tasks.task import Task
from erosion_server.output.report_validation import travel_sentence
from erosion_server.output.words import (
    absences,
    absences_by_user,
    chosen_text,
    class_sizes,
    data_check,
    finishes,
    interval_text,
    means_of_fewer,
    metric_text,
    printable,
    privacy,
    recounts,
    seconds_text,
    shortened,
    stops,
    stops_by_user,
    turned_finishes,
    weight_text,
    what_may_be_unseen,
)
from erosion_server.run.overview import TOO_FEW, UNCLEAR, Overview, UserResult
from erosion_server.run.result import ArmResult, Result

BAR = 8  # characters; room for the word "rejected" in a bar's place
LONGEST_NAME = 18
GAP = "   "
EIGHTHS = " ▏▎▍▌▋▊▉"
INTERVAL = " (95 %)"  # the first metric is shown with its interval
ADJUSTED = (
    "These p-values are adjusted for each other by Holm's method; a hospital's own summary and"
    " report look at its own comparison alone."
)
SHORT = {UNCLEAR: "unclear", TOO_FEW: "too few"}


def print_summary(console: Console, result: Result, report: Path) -> None:
    """Print the table, the first arm's weights, the verdict and where the report is."""
    console.print()
    for sentence in data_check(result.data_check, named_in="result.json"):
        console.print(Text(sentence, style="bold yellow"), soft_wrap=True)
    console.print(_heading(result))
    console.print()
    console.print(_figures(result, console.width))
    console.print()
    said = [*turned_finishes(result), *finishes(result), *stops(result)]
    for sentence in said:
        console.print(Text(sentence))
    if said:
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
    finding, figures = result.verdict.finding, result.verdict.figures
    console.print(Text(finding, style="bold"))
    console.print(Text(figures))
    if result.comparison is not None and result.verdict.best_arm is not None:
        unseen = what_may_be_unseen(
            result.comparison.num_patients, result.class_counts, result.task
        )
        console.print(Text(unseen, style="dim"))
    if elsewhere := travel_sentence(result):
        console.print(Text(elsewhere))
    for sentence in (*absences(result.absent), *recounts(result.recounts)):
        console.print(Text(sentence, style="yellow"))
    for sentence in privacy(result):
        console.print(Text(sentence))
    console.print()
    # A path is left to the terminal to wrap, so that it can be copied in one piece.
    console.print(Text(f"Report: {report}"), soft_wrap=True)


def user_first(weights: dict[str, float], user: str) -> dict[str, float | None]:
    """Return the weights with the user's own in front."""
    return {
        **({user: weights[user]} if user in weights else {}),
        **{name: weight for name, weight in weights.items() if name != user},
    }


def _heading(result: Result) -> Text:
    return Text(f"{result.num_patients} {result.tested} of {result.user}").append(
        f" ({class_sizes(result.class_counts)})" if result.class_counts else "", style="dim"
    )


def _figures(result: Result, width: int) -> RenderableType:
    """Return the widest table that fits into `width` columns, or else a sentence for each arm."""
    names = [metric.column for metric in result.task.metrics]
    columns = ["arm", names[0] + INTERVAL, *names[1:], "rounds", "per round"]
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
    names = [*names, "rounds", "per round"]
    return Group(*(_sentence(names, row) for row in rows))


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
    """Return a value with its interval on the next line."""
    return cell.replace(" (", "\n(")


def _sentence(names: list[str], row: list[str]) -> Text:
    figures = [f"{name} {figure}" for name, figure in zip(names, row[1:], strict=True) if figure]
    return Text(f"{row[0]}: " + ", ".join(figures))


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
    console.print(Text(overview.finding, style="bold"))
    console.print(Text(overview.figures))
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
    table = _grid("arm", *(metric.column for metric in metrics))
    for arm in (*overview.arms, *overview.references):
        table.add_row(arm, *(metric_text(m, overview.mean(arm, m.name)) for m in metrics))
    if any(line.base_rate for line in overview.users.values()):
        figures = (metric_text(m, overview.mean_base_rate(m.name)) for m in metrics)
        table.add_row("base rate", *figures)
    return table


def _lines(overview: Overview, arms: list[str]) -> RenderableType:
    task = overview.task
    given, shown = task.of_patients(), task.shown(task.in_progress)
    loss = task.metric(task.verdict_metric)
    headings = [metric.column for metric in (*given, *shown)]
    has_base_rates = any(line.base_rate for line in overview.users.values())
    base_rate = ["base rate"] if has_base_rates else []
    table = _grid("for", "test", *headings, *base_rate, "p", "")
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


def _grid(*columns: str) -> Table:
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


def bar(share: float, width: int = BAR, *, ascii_only: bool = False) -> str:
    """Return a bar that fills `share` (0 to 1) of `width` characters, in steps of an eighth."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    if share > 0 and eighths == 0:
        eighths = 1  # small is not nothing
    full, rest = divmod(eighths, 8)
    if ascii_only:
        return ("#" * full + ("-" if rest else "")).ljust(width)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(width)


@dataclass(frozen=True, slots=True)
class WeightBars:
    """As many columns of bars as fit into the terminal."""

    weights: Mapping[str, float | None]  # relative to the user's own; None: not known yet
    remarks: Mapping[str, str] = field(default_factory=dict)  # in the bar's place, e.g. "absent"
    most_rows: int | None = None  # None: all

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich."""
        names = list(self.weights)
        name_width = min(LONGEST_NAME, max((len(name) for name in names), default=0))
        cells = list(self._cells(name_width, options.ascii_only))
        cell_width = name_width + 1 + BAR + 1 + 4
        columns = max(1, (options.max_width - 2 + len(GAP)) // (cell_width + len(GAP)))
        columns = min(columns, max(1, -(-len(cells) // 2))) if len(cells) > 3 else columns
        rows = _rows(cells, columns)
        shown = rows if self.most_rows is None else rows[: max(1, self.most_rows)]
        for row in shown:
            yield Text("  ").append_text(Text(GAP).join(row))
        hidden = len(cells) - sum(len(row) for row in shown)
        if hidden:
            yield Text(f"  and {hidden} more", style="dim")

    def _cells(self, name_width: int, ascii_only: bool) -> Iterator[Text]:
        # Weights above 1 exist (FedAvg by samples): the longest bar is then the largest weight.
        largest = max([1.0, *(w for w in self.weights.values() if w is not None)])
        for name, weight in self.weights.items():
            remark = self.remarks.get(name, "" if weight != 0.0 else "out")
            cell = Text(shortened(printable(name), name_width).ljust(name_width) + " ")
            if remark:
                cell.append(remark[:BAR].ljust(BAR), style="dim italic")
            else:
                cell.append(bar((weight or 0.0) / largest, ascii_only=ascii_only), style="cyan")
            figure = weight_text(weight).replace("<0.", "<.")  # in four characters
            yield cell.append(f" {figure:>4}", style="dim" if remark else "")


def _rows(cells: Sequence[Text], columns: int) -> list[list[Text]]:
    return [list(cells[start : start + columns]) for start in range(0, len(cells), columns)]
