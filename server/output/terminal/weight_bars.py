"""The hospitals' weights as small bars in a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from erosion.server.output.plain_text import printable, shortened, weight_text

BAR = 8  # characters; room for the word "rejected" in a bar's place
LONGEST_NAME = 18
GAP = "   "
EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(share: float, width: int = BAR, *, ascii_only: bool = False) -> str:
    """A bar that fills `share` (0 to 1) of `width` characters, in steps of an eighth."""
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
