"""A study from the opened port to the closed one: for one user, or for every hospital in turn."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Literal

from erosion.common.errors import DiskError, HopelessError, RunError
from erosion.common.rounds.head_bounds import check_sizes
from erosion.common.rounds.study_run import check_start
from erosion.common.rounds.waiting import HospitalsAwayError
from erosion.common.study.study import Study
from erosion.common.support.process import keep_freed_memory, memory_bytes, return_freed_memory
from erosion.server.coordination.coordinator import Coordinator
from erosion.server.coordination.every_user import run_every_user
from erosion.server.coordination.farewells import FAILED, WITHDRAWN, Farewells
from erosion.server.coordination.study_queue import StudyQueue
from erosion.server.enrolment.federation_folder import FederationFolder
from erosion.server.link import Link
from erosion.server.link.open_link import make_link
from erosion.server.output.events import StudyFailed
from erosion.server.output.observers import Observers
from erosion.server.run.overview import Overview
from erosion.server.run.result import Result
from erosion.server.run.run_folder import RunFolder, alone_in
from erosion.server.run.status import CoordinatorStatus, queue_status

logger = logging.getLogger("erosion.queue")

UpdatesIn = Literal["auto", "memory", "disk"]
MEMORY_SHARE = 0.25  # of the memory; while they arrive, updates take up to twice their size


@dataclass(frozen=True, slots=True)
class Setup:
    """What a coordinator runs every study with."""

    address: str | None = None  # to listen at; see `make_link`
    federation: FederationFolder | None = None
    updates: UpdatesIn = "auto"  # where a round's updates are kept; "auto": on the disk if they are
    # many and large
    weights: Path | None = None  # folder with the files that models start from
    longest_wait_seconds: float | None = None  # for hospitals that are needed; None: the study's
    start_with_quorum: bool = False  # whatever the study says of its start
    can_resume: bool = True  # False: the sites end with the coordinator, as in a testbed


def run_study(
    study: Study, folder: RunFolder, observers: Observers, setup: Setup
) -> Result | Overview:
    """Listen and run the study. Raises LinkError, EnrolmentError, RunError, and as `_check`."""
    _check(study, setup)
    on_disk = _are_on_disk(setup, study)
    if on_disk:
        return_freed_memory()
    spool = folder.spool if on_disk else None
    link = make_link(study, setup.address, setup.federation, spool=spool)
    link.start()
    try:
        result = run_on(link, study, folder, observers, setup)
    except BaseException:  # Ctrl-C, too, must close the port
        link.stop(completed=False)
        raise
    link.stop(completed=True)
    return result


def run_queue(
    queue: Path,
    runs: Path,
    observers_of: Callable[[], Observers],
    setup: Setup,
    *,
    until_empty: bool = False,
) -> None:
    """Listen, and run the studies of a folder in turn. Raises LinkError, EnrolmentError, RunError.

    A study whose hospitals are away for its join deadline gives way to the next.
    """
    if not queue.is_dir():
        raise RunError(
            f"--queue {queue}: there is no such folder. Make it, and put studies into it."
        )
    spool = None if setup.updates == "memory" else queue / ".spool"
    link = make_link(None, setup.address, setup.federation, spool=spool)
    link.start()
    farewells = Farewells(link)
    logger.info("listening on %s for the studies in %s", link.address, queue)

    def run_one(study: Study, folder: RunFolder) -> None:
        _check(study, setup)
        on_disk = _are_on_disk(setup, study)
        link.keep_updates(on_disk=on_disk)
        return_freed_memory() if on_disk else keep_freed_memory()
        if (longest := _longest_wait(study, setup)) is None:  # it must not keep the next study
            longest = study.federation.join_deadline_seconds
        bounded = replace(setup, longest_wait_seconds=longest)
        status.show(run=str(folder.path))
        try:
            with alone_in(folder.path), observers_of() as observers:
                run_on(
                    link, study, folder, observers, bounded, others_stay=True, farewells=farewells
                )
        finally:
            status.show(run="")

    try:
        with queue_status(queue, lambda: link.certificate_expires) as status:
            StudyQueue(
                queue,
                runs,
                run_one,
                idle=farewells.catch_up,
                withdrawn=lambda study: farewells.say(study, WITHDRAWN),
            ).serve(until_empty=until_empty)
    except (OSError, DiskError) as problem:
        raise RunError(
            f"The queue {queue} cannot be gone on with ({problem.__cause__ or problem}). Put that"
            " right, then start it again: it goes on with the run that it was at."
        ) from problem
    finally:
        link.stop()


def _check(study: Study, setup: Setup) -> None:
    """Raise StudyError or ModelError where a run could not begin, before anybody waits for it."""
    check_sizes(study)
    check_start(study, setup.weights)


def _longest_wait(study: Study, setup: Setup) -> float | None:
    own = setup.longest_wait_seconds
    return study.federation.longest_wait_seconds if own is None else own


def _are_on_disk(setup: Setup, study: Study) -> bool:
    is_needed = setup.updates == "auto" and need_disk(study, memory_bytes())
    return setup.updates == "disk" or is_needed


def need_disk(study: Study, memory: int) -> bool:
    """Whether a round's updates would take more than MEMORY_SHARE of `memory` bytes."""
    dim = max(int(place.stop) for place in study.build_context.layout().values())
    largest = max(dim + sum(arm.attachment_sizes(dim).values()) for arm in study.arms.values())
    return 4 * largest * len(study.hospitals) > MEMORY_SHARE * memory


def run_on(
    link: Link,
    study: Study,
    folder: RunFolder,
    observers: Observers,
    setup: Setup,
    *,
    others_stay: bool = False,
    farewells: Farewells | None = None,
) -> Result | Overview:
    """Run the study over a link that is open already. Raises RunError.

    `others_stay`: sites that this study does not want wait for another one. `farewells`: of all
    studies of the link; None: there is one.
    """
    farewells = farewells or Farewells(link)
    longest = _longest_wait(study, setup)
    if longest is None and study.has_every_user:  # one that is away must not keep the others
        longest = study.federation.join_deadline_seconds
    status = CoordinatorStatus(folder.status, study, lambda: link.certificate_expires)
    observers.add("status.json", status)

    def run_one(study: Study, folder: RunFolder) -> Result:
        coordinator = Coordinator(
            study,
            link,
            folder,
            observers.notify,
            weights=setup.weights,
            longest_wait_seconds=longest,
            start_with_quorum=setup.start_with_quorum,
            others_stay=others_stay,
            farewells=farewells,
            can_resume=setup.can_resume,
        )
        status.waiting_for = coordinator.waiting_for
        return coordinator.run()

    try:
        if study.has_every_user:
            result: Result | Overview = run_every_user(study, folder, run_one, observers.notify)
        else:
            result = run_one(study, folder)
    except OSError as problem:  # a full disk, say
        observers.notify(StudyFailed(str(problem)))
        where = f" ({problem.filename})" if problem.filename else ""
        raise DiskError(
            f"The run cannot be written to {folder.path}{where}: {problem.strerror or problem}."
            " Every finished round is there. Put that right, then go on with `erosion server"
            f" --resume {quote(str(folder.path))}`."
        ) from problem
    except BaseException as problem:  # Ctrl-C, too, is to be seen in the status
        observers.notify(StudyFailed(str(problem) or "interrupted"))
        if _is_over(problem, in_queue=others_stay):
            farewells.say(study, FAILED)
        raise
    status.ended()
    farewells.say(study)
    return result


def _is_over(problem: BaseException, *, in_queue: bool) -> bool:
    """Whether a run that ended so is not gone on with: a queue puts its study away."""
    if not isinstance(problem, Exception) or isinstance(problem, HospitalsAwayError | DiskError):
        return False
    return in_queue or isinstance(problem, HopelessError)
