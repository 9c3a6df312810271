"""The same study without a network: hospitals are called in this process, or forked from it."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from erosion.client.training.hospital import Hospital
from erosion.common.errors import StudyError
from erosion.common.rounds.context import RunContext, Store
from erosion.common.rounds.data_check import DataCheck
from erosion.common.rounds.events import DriverEvent, HospitalsCompared, RoundFinished
from erosion.common.rounds.presence import Presence, UserDeclinedError
from erosion.common.rounds.records import RoundRecord
from erosion.common.rounds.study import Outcome, run_study
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
    store: Store | None = None,
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
