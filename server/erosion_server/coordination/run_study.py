"""Studies from the opened port to the closed one: one, several at once, or those of a queue."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Literal

from erosion_common.errors import DiskError, ErosionError, HopelessError, RunError, StudyError
from erosion_common.rounds.bounds import check_sizes
from erosion_common.rounds.presence import HospitalsAwayError
from erosion_common.rounds.study import check_start
from erosion_common.study.study import Study
from erosion_common.support.process import keep_freed_memory, memory_bytes, return_freed_memory
from erosion_server.coordination.coordinator import Coordinator
from erosion_server.coordination.end_notices import FAILED, WITHDRAWN, EndNotices
from erosion_server.coordination.every_user import run_every_user
from erosion_server.coordination.study_queue import StudyQueue
from erosion_server.enrolment.federation_folder import FederationFolder
from erosion_server.link import Link
from erosion_server.link.link import make_link
from erosion_server.output.events import StudyFailed
from erosion_server.output.observers import Observers
from erosion_server.run.overview import Overview
from erosion_server.run.result import Result
from erosion_server.run.run_folder import RunFolder, alone_in
from erosion_server.run.status import CoordinatorStatus, queue_status

logger = logging.getLogger("erosion.queue")

UpdatesIn = Literal["auto", "memory", "disk"]
STOP_SECONDS = 10.0  # for the studies of a coordinator that is stopped
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
    start_with_quorum: bool = False  # even where the study waits for all of its hospitals
    can_resume: bool = True  # False: the sites end with the coordinator, as in a testbed


@dataclass(frozen=True, slots=True)
class Planned:
    """One study of a coordinator, and where its figures go."""

    study: Study
    folder: RunFolder
    observers: Observers


def run_study(
    study: Study, folder: RunFolder, observers: Observers, setup: Setup
) -> Result | Overview:
    """Listen and run one study. Raises as `run_studies`."""
    return run_studies([Planned(study, folder, observers)], setup)[0]


def run_studies(planned: Sequence[Planned], setup: Setup) -> list[Result | Overview]:
    """Listen and run studies at the same time, over one port and one connection a site.

    One that fails costs no other its result. Raises LinkError, EnrolmentError, RunError, and as
    `_check`.
    """
    for each in planned:
        _check(each.study, setup)
    studies = [each.study for each in planned]
    if len({study.digest for study in studies}) < len(studies):
        raise StudyError("One study is given twice. Leave it out, or give it another name.")
    setup = replace(setup, updates="disk" if _are_on_disk(setup, *studies) else "memory")
    if setup.updates == "disk":
        return_freed_memory()
    hospitals = dict.fromkeys(name for study in studies for name in study.hospitals)
    link = make_link(
        tuple(hospitals),
        setup.address,
        setup.federation,
        is_short_of_memory=setup.updates == "disk",
    )
    link.start()
    try:
        if len(planned) == 1:
            each = planned[0]
            return [run_on(link, each.study, each.folder, each.observers, setup)]
        return _run_at_once(link, planned, setup)
    finally:  # after Ctrl-C, too
        link.stop()


def _run_at_once(link: Link, planned: Sequence[Planned], setup: Setup) -> list[Result | Overview]:
    end_notices = EndNotices(link)
    for each in planned:  # a site that has done with one of them stays for the others
        end_notices.begin(each.folder.run, each.study.hospitals)
    results: dict[int, Result | Overview] = {}
    problems: dict[int, BaseException] = {}

    def run(number: int, each: Planned) -> None:
        try:
            results[number] = run_on(
                link,
                each.study,
                each.folder,
                each.observers,
                setup,
                others_stay=True,
                end_notices=end_notices,
            )
        except BaseException as problem:  # noqa: BLE001 - raised below, in the main thread
            problems[number] = problem
            if isinstance(problem, ErosionError):
                logger.error("%s: %s", each.study.name, problem)

    threads = [
        threading.Thread(target=run, args=each, name=each[1].study.name, daemon=True)
        for each in enumerate(planned)
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(1.0)
    except BaseException:
        link.interrupt()
        for thread in threads:
            thread.join(STOP_SECONDS)
        raise
    faults = [p for p in problems.values() if not isinstance(p, ErosionError)]
    if faults:
        raise faults[0]
    if problems:
        failed = ", ".join(planned[number].study.name for number in sorted(problems))
        raise RunError(
            f"{len(problems)} of {len(planned)} studies have no result: {failed}. The reasons are"
            " above, and in the status of each run."
        )
    return [results[number] for number in range(len(planned))]


def run_queue(
    queue: Path,
    runs: Path,
    observers_of: Callable[[], Observers],
    setup: Setup,
    *,
    until_empty: bool = False,
) -> None:
    """Listen, and run the studies of a folder in turn. Raises LinkError, EnrolmentError, RunError.

    A study with hospitals still away at its join deadline gives way to the next.
    """
    if not queue.is_dir():
        raise RunError(
            f"--queue {queue}: there is no such folder. Make it, and put studies into it."
        )
    link = make_link(
        (), setup.address, setup.federation, is_short_of_memory=setup.updates != "memory"
    )
    link.start()
    end_notices = EndNotices(link)
    logger.info("listening on %s for the studies in %s", link.address, queue)

    def run_one(study: Study, folder: RunFolder) -> None:
        _check(study, setup)
        return_freed_memory() if _are_on_disk(setup, study) else keep_freed_memory()
        if (longest := _longest_wait(study, setup)) is None:  # it must not keep the next study
            longest = study.federation.join_deadline_seconds
        bounded = replace(setup, longest_wait_seconds=longest)
        status.show(run=str(folder.path))
        try:
            with alone_in(folder.path), observers_of() as observers:
                run_on(
                    link,
                    study,
                    folder,
                    observers,
                    bounded,
                    others_stay=True,
                    end_notices=end_notices,
                )
        finally:
            status.show(run="")

    def withdrawn(folder: RunFolder) -> None:
        end_notices.say(folder.run, WITHDRAWN)

    try:
        with queue_status(queue, lambda: link.certificate_expires) as status:
            StudyQueue(queue, runs, run_one, idle=end_notices.resend, withdrawn=withdrawn).serve(
                until_empty=until_empty
            )
    except (OSError, DiskError) as problem:
        raise RunError(
            f"The queue {queue} cannot continue ({problem.__cause__ or problem}). Put that right,"
            " then start it again: it resumes the run that it was at."
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


def _are_on_disk(setup: Setup, *studies: Study) -> bool:
    is_needed = setup.updates == "auto" and need_disk(memory_bytes(), *studies)
    return setup.updates == "disk" or is_needed


def need_disk(memory: int, *studies: Study) -> bool:
    """Return if the studies' updates of one round take more than MEMORY_SHARE of `memory` bytes."""
    return sum(map(_largest_round, studies)) > MEMORY_SHARE * memory


def _largest_round(study: Study) -> int:
    """Return the bytes of a round's updates."""
    dim = max(int(place.stop) for place in study.build_context.layout().values())
    largest = max(dim + sum(arm.attachment_sizes(dim).values()) for arm in study.arms.values())
    return 4 * largest * len(study.hospitals)


def run_on(
    link: Link,
    study: Study,
    folder: RunFolder,
    observers: Observers,
    setup: Setup,
    *,
    others_stay: bool = False,
    end_notices: EndNotices | None = None,
) -> Result | Overview:
    """Run the study over a link that is open already. Raises RunError.

    `others_stay`: sites that this study does not want wait for another one. `end_notices`: of all
    studies of the link; None: there is one.
    """
    end_notices = end_notices or EndNotices(link)
    end_notices.begin(folder.run, study.hospitals)
    channel = link.open(folder.spool if _are_on_disk(setup, study) else None)
    longest = _longest_wait(study, setup)
    if longest is None and study.has_every_user:  # one that is away must not keep the others
        longest = study.federation.join_deadline_seconds
    status = CoordinatorStatus(folder.status, study, lambda: link.certificate_expires)
    observers.add("status.json", status)

    def run_one(study: Study, folder: RunFolder) -> Result:
        coordinator = Coordinator(
            study,
            link,
            channel,
            folder,
            observers.notify,
            weights=setup.weights,
            longest_wait_seconds=longest,
            start_with_quorum=setup.start_with_quorum,
            others_stay=others_stay,
            end_notices=end_notices,
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
            " Every finished round is there. Put that right, then resume with `erosion server"
            f" --resume {quote(str(folder.path))}`."
        ) from problem
    except BaseException as problem:  # Ctrl-C, too, is to be seen in the status
        observers.notify(StudyFailed(str(problem) or "interrupted"))
        if _is_over(problem, in_queue=others_stay):
            end_notices.say(folder.run, FAILED)
        raise
    finally:
        channel.close()
    status.ended()
    end_notices.say(folder.run)
    return result


def _is_over(problem: BaseException, *, in_queue: bool) -> bool:
    """Return whether a run that ended so is not resumed: a queue puts its study away."""
    if not isinstance(problem, Exception) or isinstance(problem, HospitalsAwayError | DiskError):
        return False
    return in_queue or isinstance(problem, HopelessError)
