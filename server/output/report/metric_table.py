"""A task's metrics as cells of a table, and the sentences that explain them."""

from erosion.common.protocol.messages import FinalMetrics
from erosion.common.tasks.task import Task
from erosion.server.output.plain_text import metric_text
from erosion.server.output.report.html_table import Cell
from erosion.server.output.result_words import interval_text
from erosion.server.run.result import Result


def metric_cells(task: type[Task], metrics: FinalMetrics) -> list[Cell]:
    """A cell for each of the task's metrics, with its interval."""
    return [
        Cell(
            metric_text(metric, metrics.get(metric.name)),
            "" if metric.of_data else interval_text(metrics, metric),
        )
        for metric in task.metrics
    ]


def reference_row(task: type[Task], name: str, metrics: FinalMetrics) -> list[str | Cell]:
    """The row of a local reference."""
    return [Cell(name, "local reference"), *metric_cells(task, metrics), "–", "–"]


def base_rate_row(task: type[Task], base_rate: FinalMetrics) -> list[str | Cell]:
    """The row that every arm should beat."""
    return [Cell("Base rate", "no model"), *metric_cells(task, base_rate), "–", "–"]


def how_to_read(result: Result, shifted_by: str) -> str:
    """Which way each metric is better, and what the base rate is. `shifted_by`: see the task."""
    task, sentences = result.task, []
    measured = [metric for metric in task.metrics if not metric.of_data]
    for better in ("higher", "lower", "near 1"):
        labels = [metric.label for metric in measured if metric.better == better]
        if labels:
            direction = "Near 1" if better == "near 1" else better.capitalize()
            listed = " and ".join([", ".join(labels[:-1]), labels[-1]] if labels[1:] else labels)
            sentences.append(f"{direction} is better for {listed}.")
    sentences += [metric.remark for metric in task.metrics if metric.remark]
    of_first = next(iter(result.arms.values())).metrics.model_dump()
    remark = task.remark_on(of_first, result.num_patients, result.class_counts)
    sentences += [remark] if remark else []
    if result.references:
        sentences.append(
            f"Local references are tuned models of {result.user}'s training patients alone, fitted"
            " at its own site; their settings were chosen inside that part."
        )
    if result.base_rate:
        whom = "everyone in a fold" if result.cross_fitting else "everyone"
        whose = "the patients outside it" if result.cross_fitting else "the training patients alone"
        sentences.append(
            f"The base rate is one and the same prediction for {whom}, from {whose}: a model whose"
            " loss does not beat it may rank patients, but what it predicts is not to be relied on."
        )
        if shifted_by:
            sentences.append(
                f"The models were trained with {shifted_by}, which shift their probabilities."
            )
    return " ".join(sentences)
