"""The same study without a network: hospitals are called in this process, or forked from it."""

import gc
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

import torch
from torch import Tensor, nn

from erosion.simulation.worker_processes import WorkerProcesses
from erosion_client.sealed.sealed_site import SealedIdentity
from erosion_client.training.hospital import Hospital
from erosion_common.aggregation.cohort import HospitalName
from erosion_common.errors import ErosionError, StudyError
from erosion_common.learning.local_sgd import LocalResult, Pull, Samples, Trainer, train_locally
from erosion_common.learning.stacked_sgd import Job, train_stacked, why_not_stacked
from erosion_common.learning.training import Training
from erosion_common.protocol.messages import EvaluateRequest, StepResult, TrainResult
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
FEWEST_STACKED, LARGEST_STACKED = 20, 10_000  # hospitals, and parameters of a model, that a stack
# on a processor is faster with than one hospital after the other


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
        stacked: bool | None = None,
    ) -> None:
        """Hospitals are known by the study's names for them.

        `workers`: processes to call them in; 1: in turn in this one. None: in turn, until an
        exchange has taken WORTH_SECONDS, from then on in as many as there are cores, where
        processes can be forked and nothing may be stacked. `stacked`: whether those of one process
        are trained as a stack; None: where that is faster. Raises StudyError for what cannot be.
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
        self._stacked = stacked  # None: it depends on the requests
        self._on_gpu = any(_device(hospital) != "cpu" for hospital in self._hospitals.values())
        problem = _why_not_stacked(study, self._hospitals.values())
        if problem and stacked is None:
            self._stacked = False
        elif problem and stacked:
            raise StudyError(f"stacked = True: {problem}; leave stacked out")
        # When processes are forked depends on the time, and who is in a stack decides its rounding.
        if workers is None and (stacked or (self._stacked is None and _may_be_stacked(study))):
            self._workers = 1

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
        if not self._are_stacked(requests):
            for connection, request in requests.items():
                yield self._answer(connection, request)
            return
        calls = {
            connection: partial(self._answer, connection, request)
            for connection, request in requests.items()
        }
        for answered, seconds in answers_together(calls, self._clock):
            yield _with_training(answered, seconds)
            del answered

    def _are_stacked(self, requests: Mapping[Connection, Request]) -> bool:
        if self._stacked is not None:
            return self._stacked
        longest = max(map(_length, requests.values()), default=0)
        return self._on_gpu or (len(requests) >= FEWEST_STACKED and longest <= LARGEST_STACKED)

    def _answer(
        self, connection: Connection, request: Request, trainer: Trainer = train_locally
    ) -> _Answered:
        hospital, started, problem = self._hospitals[connection], self._clock(), ""
        content: Result | Absence
        hospital.trainer = trainer
        try:
            if isinstance(request, EvaluateRequest):
                content = hospital.evaluate(request)
            else:
                content = hospital.answer(request)
        except ErosionError as refused:
            content, problem = Absence(refused.public), str(refused)
        finally:
            hospital.trainer = train_locally
        return _Answered(connection, content, self._clock() - started, problem)


def _why_not_forked(hospitals: Collection[Hospital]) -> str:
    """Return why a fork could not call these hospitals, and the remedy; "" where it can."""
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


def _why_not_stacked(study: Study, hospitals: Collection[Hospital]) -> str:
    """Return why these hospitals cannot be trained as a stack; "" where they can."""
    if study.privacy is not None:
        return "with [privacy] an update is one step on gradients of single patients"
    if len({_device(hospital) for hospital in hospitals}) > 1:
        return "the hospitals have different devices (compute.device in the site files)"
    return why_not_stacked(study.model, study.task, study.training)


def _may_be_stacked(study: Study) -> bool:
    longest = max(place.stop for place in study.build_context.layout().values())
    return len(study.hospitals) >= FEWEST_STACKED and longest <= LARGEST_STACKED


def _device(hospital: Hospital) -> str:
    return hospital.site.compute.device


def _with_training(answered: _Answered, seconds: float) -> _Answered:
    """Return the same with the seconds of its training, which were not its own alone."""
    content = answered.content
    if isinstance(content, TrainResult | StepResult):
        header = content.header.model_copy(update={"seconds": content.header.seconds + seconds})
        content = replace(content, header=header)  # type: ignore[arg-type]  # of the same kind
    return replace(answered, content=content, seconds=answered.seconds + seconds)


def _length(request: Request) -> int:
    """Return numbers in the longest vector of parameters that it brings."""
    if isinstance(request, EvaluateRequest):
        return max((len(parameters) for parameters in request.parameters.values()), default=0)
    return 0 if request.sent is None else len(request.sent)


# A rule calls for training wherever it likes. To train hospitals as one stack, a hospital answers
# until it comes to training that has not been done, and is left there. When each was left or has
# answered, all that is to be trained is trained as a stack, and the hospitals that were left answer
# again, now with the result. An answer depends on the request and on what was kept before it alone,
# so a hospital comes to the same place again.

A = TypeVar("A")  # an answer


class _UntrainedError(BaseException):
    """A hospital came to training that has not been done. Handlers of faults let it pass."""

    def __init__(self, job: Job) -> None:
        self.job = job


@dataclass(slots=True)
class _Trained:
    """What was trained for one answer, in the order in which it is asked for."""

    results: list[LocalResult] = field(default_factory=list)
    seconds: float = 0.0  # its shares in the time of the stacks

    def trainer(self, *, alone: bool) -> Trainer:
        """Gives the results one after the other, and beyond them raises `_UntrainedError`.

        `alone`: nobody is left to be trained with, so it trains.
        """
        results = iter(self.results)

        def train(
            model: nn.Module,
            start: Tensor,
            samples: Samples,
            training: Training,
            generator: torch.Generator,
            pull: Pull | None,
            round_number: int,
        ) -> LocalResult:
            if (result := next(results, None)) is not None:
                return result
            job = Job(model, start, samples, training, generator, pull, round_number)
            if alone:
                return train_locally(*job)
            raise _UntrainedError(job)

        return train


def answers_together(
    calls: Mapping[int, Callable[[Trainer], A]], clock: Callable[[], float]
) -> Iterator[tuple[A, float]]:
    """What each call gave, as it comes, and the seconds of its share in the training."""
    trained = {number: _Trained() for number in calls}
    while True:
        jobs: dict[int, Job] = {}
        for number in list(trained):
            trainer = trained[number].trainer(alone=len(trained) == 1)
            try:
                answer = calls[number](trainer)
            except _UntrainedError as left:
                jobs[number] = left.job
                continue
            yield answer, trained.pop(number).seconds
            del answer  # it may be large
        if not jobs:
            return
        started = clock()
        results = train_stacked(list(jobs.values()))
        share = (clock() - started) / len(jobs)
        for number, result in zip(jobs, results, strict=True):
            trained[number].results.append(result)
            trained[number].seconds += share


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
    stacked: bool | None = None,
) -> Simulation:
    """Run every arm of `study` on `hospitals`, which must include the user's.

    The driver is that of a deployment, and so are the steps, their order and the numbers. Raises
    RunError where a deployment would (`weights`: the folder with the files that models start from;
    None: the user's site's), and StudyError for a study with every hospital as its user,
    which is one for each of them. As in a deployment, an answer that takes longer than
    the round's deadline is too late; by the clock `timeless` none does, so that a figure does not
    depend on the machine. `workers`: processes of one thread each, in which the hospitals train;
    None: what `InProcess` finds best. Without stacks the figures are the same, to the last bit.
    `stacked`: whether the hospitals of one process are trained as one stack, which ends within
    float32's rounding of the same; None: where that is faster, which with few hospitals on a
    processor it is not.
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

    with InProcess(study, hospitals, clock, workers=workers, stacked=stacked) as channel:
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
