"""An arm while it runs: its method, where it stands, and how its last round is undone.

Screening bounds what one update can do; undoing is for what passes. The divergence shows in the
round after: the user's loss explodes, or honest training is not finite any more. Then the arm goes
back, and does not ask the hospital with the outlying update again. What others train on works a
round later, so such attachments of the round before count, too. If nobody stands out, the study's
own training diverges, and going back would not help.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from erosion_common.aggregation.cohort import HospitalName
from erosion_common.algorithms.base import Algorithm
from erosion_common.learning.models import first_parameters
from erosion_common.protocol.messages import Scaling, as_text
from erosion_common.rounds.context import RunContext
from erosion_common.rounds.presence import BackOff
from erosion_common.rounds.records import Answer, Rejection, RoundRecord, RunState
from erosion_common.rounds.round import first_state, undone
from erosion_common.rounds.screening import NOT_FINITE
from erosion_common.sealed.power_residues import CoordinatorKeys
from erosion_common.sealed.records import SumRecords
from erosion_common.sealed.round import SealedTerms
from erosion_common.sealed.rounds import seal
from erosion_common.study.study import Study

EXPLODED = 5.0  # times the baseline of the user's loss
STANDS_OUT = 3.0  # times what is usual, in any of the arrays that a hospital sends

Lengths = Mapping[str, float]  # Euclidean, of what a hospital sent in a round, by array


@dataclass(frozen=True, slots=True, eq=False)
class LastRound:
    """What a round started from, and who sent what in it."""

    number: int  # of rounds before it
    lengths: Mapping[HospitalName, Lengths]  # of those with arrays in it
    baseline_loss: float | None  # the user's; None: it measured none
    before: RunState | None = None  # the state then; None: the store keeps it


@dataclass(slots=True)
class Arm:
    """One arm of a run. What a resumed run needs is in `state`."""

    name: str
    method: Algorithm[Any]
    state: RunState
    records: list[RoundRecord]  # of all rounds so far
    last: LastRound | None = None  # that may still be undone
    back_off: BackOff = field(default_factory=BackOff)
    over: dict[HospitalName, str] = field(default_factory=dict)  # cannot answer this run any more

    def is_over(self, num_rounds: int) -> bool:
        """Returns True after `num_rounds`, or if its rule stopped it."""
        return self.state.stopped or self.state.round >= num_rounds

    def wanted(self, study: Study) -> list[HospitalName]:
        """Returns the hospitals that the next round wants updates of: always the user."""
        return [
            name
            for name in study.hospitals
            if name == study.user
            or (
                name not in self.state.distrusted
                and self.method.asks(self.state.algorithm_state, name)
            )
        ]

    def undo(
        self, ctx: RunContext, own_loss: float | None, answers: Mapping[HospitalName, Answer]
    ) -> tuple[RunState, RoundRecord] | None:
        """Returns the state before the last round if that diverged and one update stood out."""
        if (last := self.last) is None:
            return None
        usual = last.baseline_loss  # the user's
        failing = [n for n in last.lengths if answers.get(n) == Rejection(NOT_FINITE)]
        user = ctx.study.user
        if user in failing or 2 * len(failing) > len(last.lengths):
            divergence = f"the training of {', '.join(failing)} was not finite after it"
        elif own_loss is None or usual is None or own_loss <= EXPLODED * usual:
            return None
        else:
            divergence = f"the user's loss was {own_loss:.4g} after it, and usually {usual:.4g}"
        if (found := outlier_of(last, user)) is None:
            return None
        if (before := last.before) is None:
            first = initial_state(ctx.study, self.name, ctx.weights)
            before = ctx.store.earlier(ctx.study, self.name, last.number, first)
        if before is None:
            return None
        outlier, times = found
        reason = f"{divergence}; what {outlier} sent was {times:.4g} times as long as usual"
        return undone(
            self.state,
            before,
            self.method,
            answers,
            arm=self.name,
            outlier=outlier,
            reason=reason,
        )

    def advance(
        self,
        ctx: RunContext,
        after: RunState,
        record: RoundRecord,
        lengths: Mapping[HospitalName, Lengths],
        own_loss: float | None,
    ) -> None:
        """Moves to the state `after` a round, and remembers what an undo needs."""
        study = ctx.study
        if record.outcome == "done" and own_loss is not None:
            after = replace(after, own_losses=(*after.own_losses, own_loss))
        if record.undoes is not None or study.federation.sealed:
            after, self.last = replace(after, lengths={}), None
        elif record.outcome == "done":
            # The lengths of those arrays of the round before on which this one trained.
            measured = study.arms[self.name].measured_attachments
            before = {
                name: {f"{array} before": of[array] for array in measured if array in of}
                for name, of in self.state.lengths.items()
                if any(array in of for array in measured)
            }
            after = replace(
                after,
                lengths={
                    name: {**before.get(name, {}), **lengths.get(name, {})}
                    for name in study.hospitals
                    if name in lengths or name in before
                },
            )
            held = None if ctx.store.keeps_states else self.state
            self.last = _undoable(self.state.round, after, held)
        self.state = after


def _undoable(number: int, after: RunState, before: RunState | None = None) -> LastRound:
    """Returns what it takes to undo the round that led to `after`."""
    # The loss as it began, or as it mostly was: one that creeps up changes neither.
    losses = after.own_losses
    baseline = max(losses[0], median(losses)) if losses else None
    return LastRound(number, after.lengths, baseline, before)


def arms_of(ctx: RunContext) -> Iterator[Arm]:
    """Yields the study's arms in turn, each where the store has left it."""
    firsts = {arm: initial_state(ctx.study, arm, ctx.weights) for arm in ctx.study.arms}
    kept, finished = ctx.store.resume(ctx.study, firsts)
    states = dict(kept)
    del firsts, kept
    for name in ctx.study.arms:  # what was handed over is not held on to here: it is a model
        records = [record for record in finished if record.arm == name]
        yield _resumed(ctx, name, states.pop(name), records)


def _resumed(ctx: RunContext, name: str, state: RunState, records: list[RoundRecord]) -> Arm:
    method = algorithm_of(
        ctx.study,
        name,
        run=ctx.run,
        scaling=ctx.scaling,
        sums=ctx.store.sums(name),
        keys=ctx.sealing_keys,
    )
    moved = [record.round for record in records if record.outcome == "done"]
    last = _undoable(moved[-1] - 1, state) if moved and state.lengths else None
    return Arm(name, method, state, records, last)


def initial_state(study: Study, arm: str, weights: Path | None = None) -> RunState:
    """Returns an arm's state before its first round. Raises ModelError, RunError."""
    task = study.task
    first = first_parameters(study.model, task.input_shape, task.num_outputs, study.seed, weights)
    return first_state(algorithm_of(study, arm), first, arm)


def algorithm_of(
    study: Study,
    arm: str,
    *,
    run: str = "",
    scaling: Scaling | None = None,
    sums: SumRecords | None = None,
    keys: CoordinatorKeys | None = None,
) -> Algorithm[Any]:
    """Returns an arm's method; in a sealed study, on sealed rounds, which need all of these."""
    settings = study.arms[arm]
    algorithm = settings.build(study.build_context)
    if not study.federation.sealed or settings.user_only:
        return algorithm
    peers = tuple(name for name in study.hospitals if name != study.user)
    terms = SealedTerms(
        study.digest, arm, study.user, peers, run, as_text(scaling), study.longest_noise
    )
    return seal(algorithm, terms, records=sums, keys=keys)


def outlier_of(last: LastRound, user: HospitalName) -> tuple[HospitalName, float] | None:
    """Returns the hospital with the most outlying arrays, and by what factor."""
    found: tuple[HospitalName, float] | None = None
    for name, lengths in last.lengths.items():
        if name == user:
            continue
        for array, length in lengths.items():
            others = [o[array] for n, o in last.lengths.items() if n != name and array in o]
            if not others:  # it stands out from nothing
                continue
            typical = median(others)
            times = length / typical if typical > 0 else math.inf if length > 0 else 0.0
            if times >= STANDS_OUT and (found is None or times > found[1]):
                found = name, times
    return found
