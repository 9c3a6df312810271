"""The same study without a network: hospitals are called in this process, or forked from it."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from erosion.client.training.hospital import Hospital
from erosion.common.errors import StudyError
from erosion.common.rounds.cross_fitting import Curves
from erosion.common.rounds.data_check import DataCheck
from erosion.common.rounds.membership import NobodyListening
from erosion.common.rounds.records import RoundRecord, RunState
from erosion.common.rounds.study_run import Outcome, StudyRun, play_in_turn
from erosion.common.rounds.surroundings import ArmsKeeper, Decisions, Surroundings
from erosion.common.rounds.waiting import UserDeclinedError
from erosion.common.sealed.sums.sum_records import RecordsInMemory
from erosion.common.study.study import Study
from erosion.experiments.in_process import InProcess
from erosion.experiments.sealed_identities import introduce

Simulation = Outcome  # what a simulated study ends with


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
    workers: int | None = 1,
    stacked: bool | None = None,
) -> Simulation:
    """Run every arm of `study` on `hospitals`, which must include the user's.

    The driver is that of a deployment, and so are the steps, their order and the numbers. Raises
    RunError where a deployment would (`weights`: the folder with the files that models start from;
    None: the user's site's), and StudyError for a study with every hospital as its user,
    which `erosion.experiments.every_user` takes apart. As there, an answer that takes longer than
    the round's deadline is too late; by the clock `timeless` none does, so that a figure does not
    depend on the machine. `workers`: processes of one thread each, in which the hospitals train;
    None: what `InProcess` finds best. The figures are the same, to the last bit. `stacked`: whether
    the hospitals of one process are trained as one stack, which ends within float32's rounding of
    the same; None: where that is faster, which with few hospitals on a processor it is not.
    """
    if workers is not None and workers < 1:
        raise StudyError(f"workers = {workers}; it must be 1 or more")
    if study.has_every_user:
        raise StudyError(
            f"Study {study.name} has every hospital as its user; a simulation is for one. Give one"
            " name, or run it with `erosion testbed`."
        )
    if study.federation.sealed:
        introduce(hospitals)
    user = hospitals.get(study.user)
    with InProcess(study, hospitals, clock, workers=workers, stacked=stacked) as transport:
        surroundings = Surroundings(
            transport,
            _Nobody(on_check),
            _TellsOfRounds(on_round),
            play_in_turn(transport),
            weights=weights or (user.site.compute.weights if user is not None else None),
            longest_wait_seconds=0.0,  # nobody comes or goes here
        )
        try:
            return StudyRun(study, surroundings).run()
        except UserDeclinedError:
            if (problem := transport.problems.get(study.user)) is None:
                raise
            raise UserDeclinedError(  # here its own words are nobody else's
                f"The user's own site {study.user!r} cannot take part: {problem}"
            ) from None


class _TellsOfRounds:
    """Keeps nothing, for a simulation that is interrupted starts anew, and hands on the rounds."""

    def __init__(self, on_round: Callable[[RoundRecord], None]) -> None:
        self._on_round = on_round

    def decided(self) -> Decisions | None:
        """Nothing yet."""
        return None

    def decide(self, study: Study, decisions: Decisions) -> None:
        """Not kept."""

    def resume(
        self, study: Study, firsts: Mapping[str, RunState]
    ) -> tuple[Mapping[str, RunState], Sequence[RoundRecord]]:
        """From the start."""
        del study
        return firsts, ()

    def earlier(self, study: Study, arm: str, number: int, first: RunState) -> RunState | None:
        """Not kept."""
        del study, arm, number, first
        return None

    def keep_trial_round(self, record: RoundRecord) -> None:
        """Not kept."""

    def keep_round(self, study: Study, state: RunState, record: RoundRecord) -> None:
        """Hand on the record."""
        del study, state
        self._on_round(record)

    def finished_folds(self) -> Sequence[Curves]:
        """None."""
        return ()

    def of_fold(self, number: int) -> ArmsKeeper:
        """Not kept, and not told either: its rounds are no arm's."""
        del number
        return _TellsOfRounds(lambda _record: None)

    def keep_fold(self, curves: Curves) -> None:
        """Not kept."""

    def sum_records(self, arm: str) -> RecordsInMemory:
        """In memory."""
        del arm
        return RecordsInMemory()


class _Nobody(NobodyListening):
    """Has no use for most that happens: the transport logs what goes wrong."""

    def __init__(self, on_check: Callable[[DataCheck], None]) -> None:
        self._on_check = on_check

    def checked(self, found: DataCheck) -> None:
        """Hand it on."""
        self._on_check(found)

    def arm_started(
        self, arm: str, rounds: int, *, is_trial: bool = False, title: str = ""
    ) -> None:
        """Nothing is done."""

    def round_finished(self, record: RoundRecord, *, is_trial: bool = False) -> None:
        """Handed on already."""

    def arm_finished(self, arm: str) -> None:
        """Nothing is done."""
