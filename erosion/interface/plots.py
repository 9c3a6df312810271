"""The plots of a run, its methods: on axes of matplotlib."""

import os
from typing import TYPE_CHECKING, Any

from erosion.interface.arguments import check
from erosion_common.errors import ErosionError
from erosion_common.support.software import install_command

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from erosion.interface.run import Run

KEYS = ("patient", "row", "image")  # by one of which a line of the held-out table is known


def axes_or_new(axes: "Axes | None") -> "Axes":
    """Return `axes`, or those of a new figure. Raises ErosionError, also without matplotlib."""
    try:
        from matplotlib.axes import Axes
    except ModuleNotFoundError:
        raise ErosionError(
            f"Plots need the package matplotlib: {install_command('notebook')}"
        ) from None
    check("ax", axes, "axes of matplotlib or None", Axes, type(None))
    if axes is not None:
        return axes
    from matplotlib import pyplot as plt

    return plt.subplots(layout="constrained")[1]


def plot_rounds(run: "Run", metric: str | None = None, ax: "Axes | None" = None) -> "Axes":
    """Plot the user's metric over the rounds, a line for each arm; references are dashed.

    Args:
        run: The run.
        metric: A column of `rounds`; by default the one that the verdict compares.
        ax: Where to draw; None: a new figure.

    Returns:
        The axes, as every plot of a run does.

    Raises:
        ErosionError: For a metric that is not there, and without matplotlib.
    """
    metric = _metric(run, metric)
    axes = axes_or_new(ax)
    for arm, rows in run.rounds.groupby("arm", sort=False):
        axes.plot(rows["round"], rows[metric], label=str(arm))
    for number, (name, found) in enumerate(run.result.references.items()):
        if (value := getattr(found, metric, None)) is not None:
            axes.axhline(value, color=str(0.35 + 0.25 * (number % 2)), linestyle="--", label=name)
    return _labelled(axes, f"{_label(run, metric)} ({run.study.user}'s patients)")


def plot_weights(run: "Run", arm: str | None = None, ax: "Axes | None" = None) -> "Axes":
    """Plot each hospital's weight over the rounds of an arm (the first).

    It is relative to the user's, or to the largest where the rule left the user's out.
    """
    arm = next(iter(run.result.arms)) if arm is None else arm
    if arm not in [*run.result.arms]:  # `arm` may be of any type
        raise ErosionError(f"There is no arm {arm!r}. Known: {', '.join(run.result.arms)}.")
    axes = axes_or_new(ax)
    rows = run.weights[run.weights["arm"] == arm]
    for hospital, of_hospital in rows.groupby("hospital", sort=False):
        axes.plot(of_hospital["round"], of_hospital["weight"], label=str(hospital))
    own = rows.loc[rows["hospital"] == run.study.user, "weight"].dropna()
    largest = f"{run.study.user}'s" if (own == 1).all() else "the largest"
    return _labelled(axes, f"weight, relative to {largest} ({arm})")


def plot_arms(run: "Run", metric: str | None = None, ax: "Axes | None" = None) -> "Axes":
    """Plot each arm's and local reference's final metric with its 95 % interval."""
    metric = _metric(run, metric)
    axes = axes_or_new(ax)
    rows = run.arms[run.arms[metric].notna()]
    values = rows[metric]
    axes.plot(values, rows.index, "o")
    if f"{metric}_low" in rows:
        axes.hlines(rows.index, rows[f"{metric}_low"], rows[f"{metric}_high"])
    axes.invert_yaxis()
    axes.set_xlabel(f"{_label(run, metric)}, 95 % interval")
    return axes


def plot_roc(
    run: "Run",
    event: str | None = None,
    ax: "Axes | None" = None,
    site: str | os.PathLike[str] | None = None,
) -> "Axes":
    """Plot each arm's ROC curve, from the held-out predictions.

    Args:
        run: The run.
        event: The class to find; by default the last one of the task.
        ax: Where to draw; None: a new figure.
        site: As for `predictions`.

    Raises:
        ErosionError: Where there are no such predictions, and without matplotlib.
    """
    from sklearn.metrics import RocCurveDisplay

    event, by_arm = _by_arm(run, event, site)
    axes = axes_or_new(ax)
    for arm, truth, chance in by_arm:
        RocCurveDisplay.from_predictions(truth, chance, name=arm, ax=axes)
    axes.plot([0, 1], [0, 1], color="0.6", linestyle=":")
    axes.set(aspect="equal", xlabel="1 - specificity", ylabel=f"sensitivity ({event})")
    return axes


def plot_calibration(
    run: "Run",
    event: str | None = None,
    ax: "Axes | None" = None,
    site: str | os.PathLike[str] | None = None,
    bins: int = 5,
) -> "Axes":
    """Plot each arm's observed share by predicted probability, in bins of as many patients.

    Arguments and errors are those of `plot_roc`.
    """
    from sklearn.calibration import CalibrationDisplay

    check("bins", bins, "a whole number of 1 or more", int)
    if bins < 1:
        raise ErosionError(f"bins = {bins}; it must be 1 or more.")
    event, by_arm = _by_arm(run, event, site)
    axes = axes_or_new(ax)
    for number, (arm, truth, chance) in enumerate(by_arm):
        CalibrationDisplay.from_predictions(
            truth, chance, n_bins=bins, strategy="quantile", name=arm, ax=axes, ref_line=not number
        )
    axes.set(aspect="equal", xlabel=f"probability of {event}", ylabel="observed share")
    return axes


def _by_arm(
    run: "Run", event: str | None, site: str | os.PathLike[str] | None
) -> tuple[str, list[tuple[str, Any, Any]]]:
    """Return the event, and each arm's outcomes and probabilities, a patient's mean over cuts."""
    predictions, classes = run.predictions(site), getattr(run.study.task, "classes", None)
    if not classes:
        raise ErosionError(f"Study {run.study.name} predicts no classes, so it has no ROC curve.")
    event = str(classes[-1].name if event is None else event)  # 1 is the class "1"
    column, prefix = f"probability_{event}", "probability_"
    if column not in predictions:
        known = [name.removeprefix(prefix) for name in predictions if name.startswith(prefix)]
        raise ErosionError(
            f"No model predicts a probability of {event!r}. Known: {', '.join(known) or 'none'}."
        )
    keys = [name for name in KEYS if name in predictions]
    found = []
    for arm in run.result.arms:
        own = predictions[predictions["arm"] == arm].groupby(keys, sort=False)
        found.append((arm, own["outcome"].first().astype(str) == event, own[column].mean()))
    return event, found


def _metric(run: "Run", metric: str | None) -> str:
    task = type(run.study.task)
    known = [each.name for each in task.metrics]
    if metric is None:
        return task.verdict_metric
    if metric not in known:
        raise ErosionError(f"There is no metric {metric!r}. Known: {', '.join(known)}.")
    return metric


def _label(run: "Run", metric: str) -> str:
    from erosion_server.run.result import unit_of

    found = type(run.study.task).metric(metric)
    return f"{found.column}{found.behind(unit_of(run.study.task), ', ')}"


def _labelled(axes: "Axes", y: str) -> "Axes":
    axes.set_xlabel("round")
    axes.set_ylabel(y)
    axes.legend()
    return axes
