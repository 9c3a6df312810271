"""Names, figures and durations written for people."""

import math
from collections.abc import Sequence

from erosion.common.support.text import printable as printable
from erosion.common.tasks.metric import Metric


def shortened(name: str, width: int) -> str:
    """`name` in at most `width` characters; both ends stay, since names differ there."""
    if len(name) <= width:
        return name
    head = width // 2
    return name[:head] + "…" + name[len(name) - (width - head - 1) :]


def seconds_text(seconds: float) -> str:
    """A duration in the unit that people would say it in, e.g. "14 ms", "2.1 s", "3 min 05 s"."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.00095 else "under 1 ms"
    if seconds < 59.5:
        return f"{seconds:.2f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def figure_text(value: float | None, digits: int = 3) -> str:
    """A figure with `digits` decimals, or a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else f"{value:z.{digits}f}"


def weight_text(weight: float | None) -> str:
    """A weight or a distance with two decimals; at 0 a hospital is out, and a small one is not."""
    return "<0.01" if weight is not None and 0 < weight < 0.005 else figure_text(weight, 2)


def metric_text(metric: Metric, value: float | None) -> str:
    """A metric's figure, or a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else metric.text(value)


def ranges_text(rounds: Sequence[int]) -> str:
    """Ascending round numbers in short: [1, 2, 3, 7] is "1–3, 7"."""
    runs: list[list[int]] = []
    for number in rounds:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)
