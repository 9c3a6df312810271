"""One round: from the hospitals' answers to the next state and the record of the round."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from erosion.common.aggregation.cohort import Cohort, HospitalName, MemoryCohort, Update
from erosion.common.aggregation.vectors import is_finite
from erosion.common.algorithms.base import Algorithm
from erosion.common.protocol.messages import EvaluateRequest, Metrics, Scaling, TrainRequest
from erosion.common.study.study import Study


@dataclass(frozen=True, slots=True)
class Rejection:
    """An answer that cannot be used, and why. It counts as absent and never ends a run."""

    reason: str


@dataclass(frozen=True, slots=True)
class Absence:
    """No answer, and why."""

    reason: str  # completes "the hospital ...", e.g. "was not connected"


Answer = Update | Rejection | Absence


@dataclass(frozen=True, slots=True, eq=False)
class RunState:
    """The one mutable reference of a run.

    Local training draws its randomness from (study seed, hospital, round), so no generator needs
    to be remembered.
    """

    round: int  # rounds finished, skipped ones included
    params: Tensor  # (dim,) float32
    algorithm_state: Any
    weights: Mapping[HospitalName, float] = field(default_factory=dict)  # after the last round
    skipped_in_a_row: int = 0


@dataclass(frozen=True, slots=True)
class HospitalRecord:
    """What one hospital did in one round."""

    outcome: Literal["accepted", "absent", "rejected", "not_asked"]
    reason: str = ""
    distance: float | None = None  # |d_i - d_0| / |d_0|
    weight_before: float | None = None  # relative to the user's own; None: not known yet
    weight_after: float | None = None
    num_samples: int | None = None
    samples_seen: int | None = None
    site_seconds: float | None = None  # of local work, as the hospital says
    bytes_received: int | None = None  # of the reply
    bytes_sent: int | None = None  # of the request


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


def start(algorithm: Algorithm[Any], params: Tensor) -> RunState:
    """The state before the first round."""
    return RunState(round=0, params=params, algorithm_state=algorithm.init(len(params)))


def wanted(study: Study, algorithm: Algorithm[Any], state: RunState) -> list[HospitalName]:
    """Whose update the next round wants: the user's always, a peer's where the algorithm asks."""
    return [
        name
        for name in study.hospitals
        if name == study.user or algorithm.asks(state.algorithm_state, name)
    ]


def train_requests(
    study: Study,
    arm: str,
    algorithm: Algorithm[Any],
    state: RunState,
    *,
    scaling: Scaling | None,
    run: str = "",
) -> tuple[TrainRequest, TrainRequest]:
    """What the next round asks of peers and of the user: the same object where it is the same."""
    to_peers = TrainRequest(
        study=study,
        arm=arm,
        round=state.round + 1,
        parameters=state.params,
        scaling=scaling,
        run=run,
        enclosed=algorithm.broadcast(state.algorithm_state),
    )
    for_user = algorithm.broadcast_to_user(state.algorithm_state)
    if not for_user:
        return to_peers, to_peers
    return to_peers, replace(to_peers, enclosed={**to_peers.enclosed, **for_user})


def evaluate_request(
    study: Study, finals: Mapping[str, RunState], *, scaling: Scaling | None, run: str = ""
) -> EvaluateRequest:
    """What is asked of the user when every arm has ended."""
    enclosed = {}
    for arm, state in finals.items():
        algorithm = study.arms[arm].build(study.build_context)
        kept = state.algorithm_state
        enclosed[arm] = {**algorithm.broadcast(kept), **algorithm.broadcast_to_user(kept)}
    parameters = {arm: state.params for arm, state in finals.items()}
    return EvaluateRequest(study, parameters, scaling, run, enclosed)


def needed_updates(study: Study, num_wanted: int) -> int:
    """How many usable updates the next round needs.

    Hospitals that the algorithm does not ask (any more) count towards the quorum: it is there for
    hospitals that should have been heard and were not.
    """
    return max(1, study.federation.quorum - (len(study.hospitals) - num_wanted))


def advance(
    state: RunState,
    algorithm: Algorithm[Any],
    answers: Mapping[HospitalName, Answer],
    *,
    arm: str,
    user: HospitalName,
    quorum: int,
    cohort_of: Callable[[Update, Mapping[HospitalName, Update]], Cohort] = MemoryCohort,
) -> tuple[RunState, RoundRecord]:
    """Aggregate what was answered; hospitals that are not in `answers` were not asked.

    `cohort_of` makes the cohort of the user's own update and the peers', which may lie on disk.
    Without the user's own update, or below `quorum` accepted updates (see `needed_updates`), the
    round is skipped: it is recorded and the parameters stay.
    """
    round_number = state.round + 1
    accepted = {agent: a for agent, a in answers.items() if isinstance(a, Update)}
    own = accepted.get(user)
    reason = _why_skip(answers, accepted, user, quorum)
    if own is None or reason:
        return _skip(state, answers, arm, reason)

    peers = {agent: update for agent, update in accepted.items() if agent != user}
    cohort = cohort_of(own, peers)
    step = algorithm.update(state.algorithm_state, cohort)
    distances = dict(zip(cohort.peers, cohort.distances_to_own().tolist(), strict=True)) | {
        user: 0.0
    }
    advanced = step.outcome == "done"
    params = state.params + step.delta if advanced else state.params
    if not is_finite(params):
        return _skip(state, answers, arm, "the aggregate of finite updates is not finite")
    after = RunState(
        round=round_number,
        params=params,
        algorithm_state=step.state,
        weights={**state.weights, **step.weights},
        skipped_in_a_row=0 if advanced else state.skipped_in_a_row + 1,
    )
    records = {
        agent: replace(record, distance=_finite(distances.get(agent)))
        for agent, record in _records(answers, state.weights, after.weights).items()
    }
    return after, RoundRecord(arm, round_number, step.outcome, step.note, records)


def _why_skip(
    answers: Mapping[HospitalName, Answer],
    accepted: Mapping[HospitalName, Update],
    user: HospitalName,
    quorum: int,
) -> str:
    own = answers.get(user, Absence("was not connected"))
    if isinstance(own, Rejection):
        return f"the user's own update was rejected: {own.reason}"
    if isinstance(own, Absence):
        return f"the user's own site {own.reason.removeprefix('the site ')}"
    if len(accepted) < quorum:
        return f"{len(accepted)} usable updates, {quorum} are needed (federation.quorum)"
    return ""


def _skip(
    state: RunState, answers: Mapping[HospitalName, Answer], arm: str, reason: str
) -> tuple[RunState, RoundRecord]:
    after = replace(state, round=state.round + 1, skipped_in_a_row=state.skipped_in_a_row + 1)
    records = _records(answers, state.weights, after.weights)
    return after, RoundRecord(arm, after.round, "skipped", reason, records)


def _records(
    answers: Mapping[HospitalName, Answer],
    before: Mapping[HospitalName, float],
    after: Mapping[HospitalName, float],
) -> dict[HospitalName, HospitalRecord]:
    """A record of every hospital that was asked or has a weight."""
    asked = {
        agent: _record(answer, before.get(agent), after.get(agent))
        for agent, answer in answers.items()
    }
    silent = {
        agent: HospitalRecord("not_asked", weight_before=weight, weight_after=after[agent])
        for agent, weight in before.items()
        if agent not in answers
    }
    return asked | silent


def _record(answer: Answer, before: float | None, after: float | None) -> HospitalRecord:
    match answer:
        case Update():
            return HospitalRecord(
                "accepted",
                weight_before=before,
                weight_after=after,
                num_samples=answer.num_samples,
                samples_seen=answer.samples_seen,
            )
        case Rejection(reason):
            return HospitalRecord("rejected", reason, weight_before=before, weight_after=after)
        case Absence(reason):
            return HospitalRecord("absent", reason, weight_before=before, weight_after=after)


def _finite(value: float | None) -> float | None:
    return None if value is None or value == float("inf") else value
