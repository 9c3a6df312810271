"""The terminal's tables: the summary of a study, the overview of every user, weights as bars."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from erosion_common.protocol.messages import FinalMetrics
from erosion_common.tasks.metric import Metric
from erosion_common.tasks.task import Task
from erosion_server.output import words
from erosion_server.output.report_validation import travel_sentence
from erosion_server.output.words import metric_text, printable, seconds_text, shortened, weight_text
from erosion_server.run.overview import TOO_FEW, UNCLEAR, Overview
from erosion_server.run.result import Result

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
    for sentence in words.data_check(result.data_check, named_in="result.json"):
        console.print(Text(sentence, style="bold yellow"), soft_wrap=True)
    heading = Text(f"{result.num_patients} {result.tested} of {result.user}")
    if result.class_counts:
        heading.append(f" ({words.class_sizes(result.class_counts)})", style="dim")
    console.print(heading)
    console.print()
    console.print(_figures(result, console.width))
    console.print()
    _say(console, *words.turned_finishes(result), *words.finishes(result), *words.stops(result))
    first, arm = next(iter(result.arms.items()))
    if len(arm.weights) > 1:
        is_counted = arm.weights.get(result.user, 1.0) > 0  # Krum may leave it out
        unit = f"{result.user}'s own" if is_counted else "the largest"
        console.print(Text(f"Last weights of {first}, relative to {unit}"))
        console.print(WeightBars(user_first(arm.weights, result.user)))
        console.print()
    chosen = [(name, found) for name, arm in result.arms.items() if (found := arm.selected)]
    _say(
        console,
        *(
            f"Chosen for {name}: {words.chosen_text(found)}; {found.rounds} rounds"
            for name, found in chosen
        ),
    )
    console.print(Text(result.verdict.finding, style="bold"))
    console.print(Text(result.verdict.figures))
    for sentence in words.unseen_by(result):
        console.print(Text(sentence, style="dim"))
    if elsewhere := travel_sentence(result):
        console.print(Text(elsewhere))
    for sentence in (*words.absences(result.absent), *words.recounts(result.recounts)):
        console.print(Text(sentence, style="yellow"))
    _say(console, *words.privacy(result), or_nothing=False)
    # A path is left to the terminal to wrap, so that it can be copied in one piece.
    console.print(Text(f"Report: {report}"), soft_wrap=True)


def _say(console: Console, *sentences: str, or_nothing: bool = True) -> None:
    """Print sentences, and an empty line after them; `or_nothing`: that only after some."""
    for sentence in sentences:
        console.print(Text(sentence))
    if sentences or not or_nothing:
        console.print()


def user_first(weights: dict[str, float], user: str) -> dict[str, float | None]:
    """Return the weights with the user's own in front."""
    return {
        **({user: weights[user]} if user in weights else {}),
        **{name: weight for name, weight in weights.items() if name != user},
    }


def _figures(result: Result, width: int) -> RenderableType:
    """Return the widest table that fits into `width` columns, or else a sentence for each arm."""
    names = [metric.column for metric in result.task.metrics]
    columns = ["arm", names[0] + INTERVAL, *names[1:], "rounds", "per round"]
    rows = []
    for name, arm in result.arms.items():
        done = arm.rounds - arm.skipped_rounds
        rounds = f"{arm.rounds}" if done == arm.rounds else f"{done} of {arm.rounds}"
        pace = seconds_text(arm.seconds_per_round.median)
        rows.append([name, *_cells(result.task, arm.metrics), rounds, pace])
    references = result.references.items()
    rows += [[name, *_cells(result.task, metrics), "", ""] for name, metrics in references]
    if result.base_rate is not None:
        rows.append(["base rate", *_cells(result.task, result.base_rate), "", ""])
    for gap, folded in ((2, False), (2, True), (1, True)):
        below = "\n(" if folded else " ("  # a value's interval on the next line
        table = [[cell.replace(" (", below) for cell in row] for row in [columns, *rows]]
        widths = [
            max(len(line) for cell in column for line in cell.split("\n"))
            for column in zip(*table, strict=True)
        ]
        if sum(widths) + gap * (len(widths) - 1) <= width:
            return _table(table, gap, result.verdict.best_arm)
    names = [*names, "rounds", "per round"]
    sentences = []
    for row_name, *values in rows:
        pairs = zip(names, values, strict=True)
        said = ", ".join(f"{name} {value}" for name, value in pairs if value)
        sentences.append(Text(f"{row_name}: {said}"))
    return Group(*sentences)


def _table(rows: list[list[str]], gap: int, best_arm: str | None) -> Table:
    table = Table.grid(padding=(0, gap, 0, 0))
    for number in range(len(rows[0])):
        table.add_column(justify="left" if number < 2 else "right", no_wrap=True)
    table.add_row(*(Text(cell, style="dim") for cell in rows[0]))
    for row in rows[1:]:
        style = "bold" if row[0] == best_arm else ""
        table.add_row(*(Text(cell, style=style) for cell in row))
    return table


def _cells(task: type[Task], metrics: FinalMetrics) -> list[str]:
    first, *others = (metric_text(metric, metrics.get(metric.name)) for metric in task.metrics)
    interval = words.interval_text(metrics, task.metrics[0])
    return [first + (f" ({interval})" if interval else ""), *others]


def print_overview(console: Console, overview: Overview, report: Path | None) -> None:
    """Print the means, a line for each hospital, the verdict, and where the report is."""
    console.print()
    console.print(Text(f"Every hospital's own model, mean over {len(overview.users)} hospitals"))
    console.print(_means(overview))
    for sentence in words.means_of_fewer(overview, _metrics_of_means(overview)):
        console.print(Text(sentence, style="dim"))
    console.print()
    first = next(iter(overview.users.values()))
    shown = overview.arms[:1]
    if first.comparison is not None:
        shown = [first.comparison.arm, overview.reference]
    console.print(Text(" / ".join(shown), style="bold"))
    console.print(_lines(overview, shown))
    console.print()
    _say(console, *words.stops_by_user(overview))
    for user, reason in overview.without_model.items():
        console.print(Text(f"No model for {user}: {reason}", style="yellow"))
    for sentence in words.data_check(overview.data_check):
        console.print(Text(sentence, style="bold yellow"), soft_wrap=True)
    console.print(Text(overview.finding, style="bold"))
    console.print(Text(overview.figures))
    if sum(line.adjusted_p_value is not None for line in overview.users.values()) > 1:
        console.print(Text(ADJUSTED, style="dim"))
    for sentence in words.absences_by_user(overview):
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
        reference = [line.comparison.reference] if line.comparison is not None else []
        both = [line.measured[name] for name in (arms[0], *reference)]
        clear = line.conclusion in ("better", "worse")
        table.add_row(
            user,
            str(line.num_patients),
            *(metric_text(metric, first.get(metric.name)) for metric in given),
            *(" / ".join(metric_text(m, each.get(m.name)) for each in both) for m in shown),
            *(metric_text(loss, line.of_base_rate(loss.name)) for _ in base_rate),
            line.p_value_text,
            Text(SHORT.get(line.conclusion, line.conclusion), style="bold" if clear else "dim"),
        )
    return table


def _grid(*columns: str) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(justify="right" if number and column else "left")
    table.add_row(*(Text(column, style="dim") for column in columns))
    return table


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
        names = list(self.weights)
        name_width = min(LONGEST_NAME, max((len(name) for name in names), default=0))
        cells = list(self._cells(name_width, options.ascii_only))
        cell_width = name_width + 1 + BAR + 1 + 4
        columns = max(1, (options.max_width - 2 + len(GAP)) // (cell_width + len(GAP)))
        columns = min(columns, max(1, -(-len(cells) // 2))) if len(cells) > 3 else columns
        rows = [cells[start : start + columns] for start in range(0, len(cells), columns)]
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
