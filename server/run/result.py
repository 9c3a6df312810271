"""The outcome of a study: `result.json`, with the verdict on collaborating."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from erosion.common.protocol.messages import Comparison, FinalMetrics
from erosion.common.settings.base import Settings


class SecondsPerRound(Settings):
    """Wall clock of a round, from making the requests to the aggregate."""

    median: float
    p95: float


class Selected(Settings):
    """What was chosen for an arm inside the user's training part."""

    settings: dict[str, Any]  # in place of the arm's own
    rounds: int
    log_loss: float  # for the training patients held out


class ArmResult(Settings):
    """How one arm ended."""

    metrics: FinalMetrics
    weights: dict[str, float]  # final, relative to the user's own, which is 1
    rounds: int
    skipped_rounds: int
    stopped: str | None = None  # why the arm's rule ended it in its last round; None: it did not
    seconds_per_round: SecondsPerRound
    selected: Selected | None = None  # where the study has a selection


class Verdict(Settings):
    """What may honestly be said."""

    best_arm: str | None  # None: no clear difference
    text: str


class Contribution(Settings):
    """One line of the ledger: what a hospital gave to the first arm."""

    rounds: int  # in which its update was accepted
    weight_sum: float  # over those rounds
    samples_seen: int


class Result(Settings):
    """`result.json`."""

    format: int = 1
    study: str
    user: str
    seed: int
    commit: str  # of this program; "unknown" outside a git checkout
    command: str
    started: str  # ISO 8601, UTC
    seconds: float
    arms: dict[str, ArmResult] = Field(min_length=1)
    comparison: Comparison | None
    class_counts: dict[str, int]  # of the user's test patients
    contributions: dict[str, Contribution]
    peak_megabytes: float  # resident memory of the coordinator
    verdict: Verdict


def verdict(comparison: Comparison | None, arms: Mapping[str, FinalMetrics]) -> Verdict:
    """Two sentences: the finding of the declared comparison, and the figures behind it."""
    if comparison is None:
        return Verdict(
            best_arm=None,
            text="Nothing was compared: the study declares a single arm. Add [arms.local] to see"
            " whether collaborating is worth it.",
        )
    arm, reference = comparison.arm, comparison.reference
    size = f"{comparison.num_samples} test patients"
    figures = (
        f"Log loss {arms[arm].log_loss:.3f} against {arms[reference].log_loss:.3f}, accuracy"
        f" {arms[arm].accuracy:.3f} against {arms[reference].accuracy:.3f} (always naming the"
        f" commonest class: {arms[arm].majority_accuracy:.3f}), p = {comparison.p_value:.3f}."
    )
    best: str | None
    match comparison.conclusion:
        case "better":
            best, finding = arm, f"On {size}, {arm} predicts better than {reference}."
        case "worse":
            best, finding = reference, f"On {size}, {arm} predicts worse than {reference}."
        case "too few patients":
            best, finding = (
                None,
                f"{size} with {comparison.smallest_class} of the rarest class are too few to tell"
                f" {arm} from {reference}.",
            )
        case _:
            best, finding = None, f"On {size}, no clear difference between {arm} and {reference}."
    return Verdict(best_arm=best, text=f"{finding} {figures}")
