"""Parts of a result in words: the terminal and the report say the same."""

from erosion.common.protocol.messages import FinalMetrics
from erosion.server.output.plain_text import printable
from erosion.server.output.round_news import RESULT_OF_STOPPED
from erosion.server.run.result import Result, Selected


def verdict_sentences(text: str) -> tuple[str, str]:
    """The finding, and the figures behind it."""
    finding, stop, figures = text.partition(". ")
    return finding + stop.strip(), figures


def stops(result: Result) -> list[str]:
    """A sentence for each arm whose rule ended it early."""
    return [
        f"{name} stopped in round {arm.rounds}: {printable(arm.stopped)}; {RESULT_OF_STOPPED}."
        for name, arm in result.arms.items()
        if arm.stopped is not None
    ]


def class_sizes(result: Result) -> str:
    """How many test patients of each class, e.g. "57 benign, 34 malignant"."""
    return ", ".join(f"{count} {printable(name)}" for name, count in result.class_counts.items())


def interval_text(metrics: FinalMetrics, name: str) -> str:
    """The 95 % interval of the metric `name`, e.g. "0.91–0.98", or "" where there is none."""
    interval = metrics.intervals.get(name)
    return "" if interval is None else f"{interval.low:.2f}–{interval.high:.2f}"


def chosen_text(selected: Selected) -> str:
    """The settings that were chosen, e.g. "distance_penalty = 0.1"; the arm's own if none are."""
    settings = ", ".join(f"{key} = {value}" for key, value in selected.settings.items())
    return printable(settings) or "as in the study"
