"""The state of an arm between two rounds, and what a round leaves in the journal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from erosion_common.aggregation.cohort import HospitalName, Update
from erosion_common.algorithms.base import SiteAnswer
from erosion_common.protocol.messages import Metrics

LeftOut = Literal["", "late", "slow"]  # what a hospital was several times in a row


RejectionCode = Literal["", "counts", "header", "norm", "not_finite", "rule", "shape", "unreadable"]


@dataclass(frozen=True, slots=True)
class Rejection:
    """An answer that cannot be used, and why. It counts as absent and never ends a run."""

    reason: str
    code: RejectionCode = field(default="unreadable", compare=False)


@dataclass(frozen=True, slots=True)
class Absence:
    """No answer, and why."""

    reason: str  # completes "the hospital ...", e.g. "was not connected"
    late: bool = False  # the round waited for it until its deadline
    over: bool = False  # it cannot answer this run any more
    left_out: LeftOut = ""  # of the round, by the back-off


Answer = Update | SiteAnswer | Rejection | Absence


@dataclass(frozen=True, slots=True, eq=False)
class RunState:
    """All that an arm's next round depends on.

    Local training draws its randomness from (study seed, hospital, round), so no generator needs
    to be remembered.
    """

    round: int  # rounds finished, skipped ones included
    params: Tensor  # (dim,) float32
    algorithm_state: Any
    weights: Mapping[HospitalName, float] = field(default_factory=dict)  # after the last round
    skipped_in_a_row: int = 0
    stopped: bool = False  # the rule has ended the arm: `params` are its result
    distrusted: Mapping[HospitalName, str] = field(default_factory=dict)  # asked no more, and why
    own_losses: tuple[float, ...] = ()  # the user's, on its training part, as rounds began
    lengths: Mapping[HospitalName, Mapping[str, float]] = field(default_factory=dict)
    # of the arrays in the last round that moved anything, by which it may be undone; see `undoing`


@dataclass(frozen=True, slots=True)
class HospitalRecord:
    """What one hospital did in one round."""

    outcome: Literal["accepted", "absent", "rejected", "not_asked"]
    reason: str = ""
    distance: float | None = None  # as the rule measures it; by default |d_i - d_0| / |d_0|
    direction: float | None = None  # cosine with the user's update, until a round is done
    weight_before: float | None = None  # relative to the user's own; None: not known yet
    weight_after: float | None = None
    num_samples: int | None = None  # that it counts for
    described_samples: int | None = None  # that it introduced itself with
    samples_seen: int | None = None
    site_seconds: float | None = None  # of local work, as the hospital says
    bytes_received: int | None = None  # of the reply; of all of them, in several exchanges
    bytes_sent: int | None = None  # of the request
    software: str | None = None  # version of the program at the site, as it says
    left_out: LeftOut = ""  # why it was not asked, if by the back-off
    code: RejectionCode = ""  # of the reason, where it was rejected


@dataclass(frozen=True, slots=True)
class ExchangeRecord:
    """What one hospital did in one exchange of a round."""

    outcome: Literal["accepted", "absent", "rejected"]
    reason: str = ""
    seconds: float | None = None  # from the request to the reply
    site_seconds: float | None = None  # of local work, as the hospital says
    bytes_received: int | None = None
    bytes_sent: int | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One exchange of a round."""

    step: str
    seconds: float  # wall clock
    hospitals: Mapping[HospitalName, ExchangeRecord]  # that were asked


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One line of the journal."""

    arm: str
    round: int
    outcome: Literal["done", "skipped", "stopped"]
    note: str
    hospitals: Mapping[HospitalName, HospitalRecord]
    user_metrics: Metrics | None = None  # of the parameters that this round started from
    seconds: float = 0.0  # wall clock, from making the requests to the aggregate
    steps: tuple[StepRecord, ...] = ()
    # the round's exchanges; empty where there was one, of which `hospitals` says everything
    undoes: int | None = None  # the earlier round that this one undid

    @property
    def measured_after(self) -> int:
        """How many rounds the model of `user_metrics` had been through; 0: the untrained one."""
        return self.round - 1


def counting(records: Sequence[RoundRecord]) -> list[RoundRecord]:
    """Return an arm's rounds that moved its model: neither skipped nor undone."""
    undone = {record.undoes for record in records}
    return [r for r in records if r.outcome == "done" and r.round not in undone]


def curve_of(
    records: Sequence[RoundRecord], rounds: int, final: Metrics
) -> list[tuple[int, Metrics | None]]:
    """Return an arm's metrics by the rounds before each: from 0 to `final`, after `rounds`."""
    return [*((record.measured_after, record.user_metrics) for record in records), (rounds, final)]
