"""The same study without a network: hospitals are called in this process, or forked from it."""

import gc
import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from erosion.simulation.worker_processes import WorkerProcesses
from erosion_client.sealed.sealed_site import SealedIdentity
from erosion_client.training.hospital import Hospital
from erosion_common.aggregation.cohort import HospitalName
from erosion_common.errors import ErosionError, StudyError
from erosion_common.protocol.messages import EvaluateRequest
from erosion_common.rounds.channel import (
    Connection,
    Declined,
    Introduced,
    News,
    Reply,
    Request,
    Result,
    too_late,
)
from erosion_common.rounds.context import RunContext, Store
from erosion_common.rounds.data_check import DataCheck
from erosion_common.rounds.events import DriverEvent, HospitalsCompared, RoundFinished
from erosion_common.rounds.presence import Presence, UserDeclinedError
from erosion_common.rounds.records import Absence, RoundRecord
from erosion_common.rounds.study import StudyOutcome, run_study
from erosion_common.study.study import Study
from erosion_common.support.keys import new_private_key

logger = logging.getLogger("erosion.simulation")

WORTH_SECONDS = 0.2  # of an exchange, from which on processes cost less than they save


@dataclass(frozen=True, slots=True)
class _Answered:
    """What one hospital made of a request."""

    connection: Connection
    content: Result | Absence
    seconds: float
    problem: str = ""  # in the hospital's own words, for its log


class InProcess:
    """A `Transport` to hospitals that are called in this process, or in processes forked from it.

    In a deployment they would work side by side, so each has the whole of a request's seconds: one
    that takes longer has answered too late. Nobody comes or goes, so waiting takes no time. As a
    context manager it ends the processes.
    """

    def __init__(
        self,
        study: Study,
        hospitals: Mapping[HospitalName, Hospital],
        clock: Callable[[], float] = time.monotonic,
        *,
        workers: int | None = 1,
    ) -> None:
        """Hospitals are known by the study's names for them.

        `workers`: processes to call them in; 1: in turn in this one. None: in turn, until an
        exchange has taken WORTH_SECONDS, from then on in as many as there are cores, where
        processes can be forked. Raises StudyError for workers that cannot be.
        """
        self._study, self._clock = study, clock
        self._hospitals = dict(enumerate(hospitals.values(), start=1))
        self.problems: dict[HospitalName, ErosionError] = {}  # why these take no part
        self._introduced = False
        self._waited = 0.0  # seconds that did not really pass
        self._loads: dict[Connection, int] = {}  # training patients
        self._processes: WorkerProcesses[_Answered] | None = None
        self._longest = 0.0  # seconds of real time that an exchange took
        self._workers = workers
        problem = _why_not_forked(self._hospitals.values())
        if problem and workers is None:
            self._workers = 1
        elif problem and self._num_workers > 1:
            raise StudyError(problem, where=f"workers = {workers}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        gc.unfreeze()
        if self._processes is not None:
            self._processes.close()

    def news(self) -> Iterator[News]:
        """Everybody, when this is first asked."""
        if self._introduced:
            return
        self._introduced = True
        for connection, hospital in self._hospitals.items():
            try:
                described = hospital.describe(self._study)
            except ErosionError as problem:
                logger.error("%s: %s", hospital.name, problem)
                self.problems[hospital.name] = problem
                yield Declined(connection, hospital.name, problem.public)
            else:
                self._loads[connection] = described.num_samples
                yield Introduced(connection, described)
        # What a thousand hospitals hold is not looked through every few rounds: that takes as long
        # as a round.
        gc.freeze()

    def turn_away(self, connection: Connection, reason: str) -> None:
        """It is asked nothing."""
        logger.error("%s: %s", self._hospitals[connection].name, reason)

    def ask(self, requests: Mapping[Connection, Request], seconds: float) -> Iterator[Reply]:
        """One after another in their order, or in processes and as they come."""
        for answered in self._answers(requests):
            connection, content = answered.connection, answered.content
            if answered.problem:
                logger.error("%s: %s", self._hospitals[connection].name, answered.problem)
            took = answered.seconds
            del answered
            yield (
                too_late(connection, seconds)
                if took > seconds
                else Reply(connection, content, seconds=took)
            )

    def hears(self, connection: Connection) -> bool:
        """Everybody is here."""
        del connection
        return True

    def wait_for_change(self, seconds: float) -> None:
        """The time has passed."""
        self._waited += seconds

    def now(self) -> float:
        """This machine's clock, and the time that was waited."""
        return self._clock() + self._waited

    @property
    def _num_workers(self) -> int:
        """Processes to fork; 1: none."""
        if self._workers is not None:
            return min(self._workers, len(self._hospitals))
        if self._longest < WORTH_SECONDS:
            return 1
        return min(len(os.sched_getaffinity(0)), len(self._hospitals))

    def _answers(self, requests: Mapping[Connection, Request]) -> Iterator[_Answered]:
        if self._processes is None and self._num_workers > 1:
            self._processes = WorkerProcesses(self._here, self._loads, self._num_workers)
        if self._processes is not None:
            yield from self._processes.answers(requests)
            return
        started = time.monotonic()
        yield from self._here(requests)
        if len(requests) > 1:  # one hospital alone is not trained any faster
            self._longest = max(self._longest, time.monotonic() - started)

    def _here(self, requests: Mapping[Connection, Request]) -> Iterator[_Answered]:
        for connection, request in requests.items():
            yield self._answer(connection, request)

    def _answer(self, connection: Connection, request: Request) -> _Answered:
        hospital, started, problem = self._hospitals[connection], self._clock(), ""
        content: Result | Absence
        try:
            if isinstance(request, EvaluateRequest):
                content = hospital.evaluate(request)
            else:
                content = hospital.answer(request)
        except ErosionError as refused:
            content, problem = Absence(refused.public), str(refused)
        return _Answered(connection, content, self._clock() - started, problem)


def _why_not_forked(hospitals: Collection[Hospital]) -> str:
    """Return why a fork could not call these hospitals, and the remedy; "" where it can."""
    if multiprocessing.current_process().daemon:
        return "a process of a multiprocessing.Pool may start no others; leave workers out"
    if torch.cuda.is_available():
        return (
            "torch does not train in a forked process on a machine with a GPU; set"
            " CUDA_VISIBLE_DEVICES= (empty) for this program, or leave workers out"
        )
    if any(hospital.site.compute.threads > 1 for hospital in hospitals):
        return (
            "the processes have one thread each; write compute.threads = 1 in every site file, or"
            " leave workers out"
        )
    if kept := [h.name for h in hospitals if h.site.compute.state is not None]:
        return (
            f"{kept[0]} keeps its state in a database, which does not outlive a fork; leave"
            " workers out"
        )
    return ""


def introduce(hospitals: Mapping[str, Hospital]) -> None:
    """Give every hospital a fresh key for sealed rounds, and the others' public ones."""
    keys = {name: new_private_key() for name in hospitals}
    public = {name: key.public_key() for name, key in keys.items()}
    for name, hospital in hospitals.items():
        hospital.identify(SealedIdentity(name, keys[name], public))


Simulation = StudyOutcome  # what a simulated study ends with


def timeless() -> float:
    """A clock that stands still."""
    return 0.0


def simulate(
    study: Study,
    hospitals: Mapping[str, Hospital],
    on_round: Callable[[RoundRecord], None] = lambda _record: None,
    weights: Path | None = None,
    *,
    on_check: Callable[[DataCheck], None] = lambda _found: None,
    clock: Callable[[], float] = time.monotonic,
    store: Store | None = None,
    workers: int | None = 1,
) -> Simulation:
    """Run every arm of `study` on `hospitals`, which must include the user's.

    The driver is that of a deployment, and so are the steps, their order and the numbers. Raises
    RunError where a deployment would (`weights`: the folder with the files that models start from;
    None: the user's site's), and StudyError for a study with every hospital as its user,
    which is one for each of them. As in a deployment, an answer that takes longer than
    the round's deadline is too late; by the clock `timeless` none does, so that a figure does not
    depend on the machine. `workers`: processes of one thread each, in which the hospitals train;
    None: what `InProcess` finds best. The figures are the same, to the last bit.
    """
    if workers is not None and workers < 1:
        raise StudyError(f"workers = {workers}; it must be 1 or more")
    if study.has_every_user:
        raise StudyError(
            f"Study {study.name} has every hospital as its user; a simulation is for one",
            remedy="Give one name, or run it with `erosion testbed`.",
        )
    if study.federation.sealed:
        introduce(hospitals)
    user = hospitals.get(study.user)

    def tell(event: DriverEvent) -> None:
        match event:
            case RoundFinished(record, is_trial=False):
                on_round(record)
            case HospitalsCompared(found):
                on_check(found)

    with InProcess(study, hospitals, clock, workers=workers) as channel:
        ctx = RunContext(
            study=study,
            channel=channel,
            presence=Presence(study, channel, tell, longest_wait_seconds=0.0),  # nobody comes later
            store=store or Store(),
            emit=tell,
            weights=weights or (user.site.compute.weights if user is not None else None),
        )
        try:
            return run_study(ctx)
        except UserDeclinedError:
            if (problem := channel.problems.get(study.user)) is None:
                raise
            raise UserDeclinedError(  # here its own words are nobody else's
                f"The user's own site {study.user!r} cannot take part: {problem}"
            ) from None
