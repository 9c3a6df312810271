"""Studies from the opened port to the closed one: one, several at once, or those of a queue."""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from erosion_common.aggregation.cohort import DiskCohort, store
from erosion_common.errors import (
    CheckpointError,
    DiskError,
    ErosionError,
    HopelessError,
    RunError,
    StudyError,
)
from erosion_common.formats.json_file import write_json
from erosion_common.formats.sent_log import Witness
from erosion_common.rounds.bounds import check_sizes
from erosion_common.rounds.context import RunContext, Updates
from erosion_common.rounds.presence import HospitalsAwayError, Presence, UserDeclinedError
from erosion_common.rounds.study import check_start
from erosion_common.sealed.power_residues import CoordinatorKeys
from erosion_common.study.study import Study
from erosion_common.support.logs import about
from erosion_common.support.process import keep_freed_memory, memory_bytes, return_freed_memory
from erosion_server.coordination.end_notices import FAILED, WITHDRAWN, EndNotices
from erosion_server.coordination.folder_store import FolderStore
from erosion_server.coordination.network import NetworkChannel
from erosion_server.coordination.run_end import result_of, write
from erosion_server.coordination.study_queue import StudyQueue, text_of_fault
from erosion_server.coordination.study_strategy import StudyStrategy
from erosion_server.enrolment.federation_folder import FederationFolder
from erosion_server.link import Link, LinkGrid
from erosion_server.link.link import make_link
from erosion_server.output import events
from erosion_server.output.observers import Observers
from erosion_server.output.report import write_overview
from erosion_server.run.overview import Overview, line_of, overview
from erosion_server.run.result import Result, read_result
from erosion_server.run.run_folder import RunFolder, alone_in, user_folder
from erosion_server.run.status import CoordinatorStatus, queue_status

logger = logging.getLogger("erosion.queue")

STOP_SECONDS = 10.0  # for the studies of a coordinator that is stopped
MEMORY_SHARE = 0.25  # of the memory; while they arrive, updates take up to twice their size


@dataclass(frozen=True, slots=True)
class Setup:
    """What a coordinator runs every study with."""

    address: str | None = None  # to listen at; see `make_link`
    federation: FederationFolder | None = None
    updates: Literal["auto", "memory", "disk"] = "auto"  # where a round's updates are kept; "auto":
    # on the disk if they are many and large
    weights: Path | None = None  # folder with the files that models start from
    longest_wait_seconds: float | None = None  # for hospitals that are needed; None: the study's
    start_with_quorum: bool = False  # even where the study waits for all of its hospitals
    can_resume: bool = True  # False: the sites end with the coordinator, as in a testbed
    gives_way: bool = False  # a study waits no longer than its join deadline: others come next


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

    One that fails costs no other its result. Raises LinkError, EnrolmentError and RunError, and
    StudyError or ModelError where a run could not begin.
    """
    studies = [each.study for each in planned]
    for study in studies:
        check_sizes(study)
        check_start(study, setup.weights)
    if len({study.digest for study in studies}) < len(studies):
        raise StudyError(
            "One study is given twice", remedy="Leave it out, or give it another name."
        )
    setup = replace(setup, updates="disk" if _are_on_disk(setup, *studies) else "memory")
    if setup.updates == "disk":
        return_freed_memory()
    hospitals = dict.fromkeys(name for study in studies for name in study.everyone)
    with _listening(setup, hospitals) as link:
        if len(planned) == 1:
            return [run_on(link, planned[0], setup)]
        return _run_at_once(link, planned, setup)


def run_queue(
    queue: Path,
    runs: Path,
    observers_of: Callable[[], Observers],
    setup: Setup,
    *,
    until_empty: bool = False,
) -> None:
    """Run a folder's studies in turn, over one link. Raises LinkError, EnrolmentError, RunError."""
    if not queue.is_dir():
        raise RunError(
            "there is no such folder",
            where=f"--queue {queue}",
            remedy="Make it, and put studies into it.",
        )
    setup = replace(setup, gives_way=True)
    with _listening(setup) as link:
        notices = EndNotices(link)
        logger.info("listening on %s for the studies in %s", link.address, queue)

        def run_one(study: Study, folder: RunFolder) -> None:
            check_sizes(study)
            check_start(study, setup.weights)
            return_freed_memory() if _are_on_disk(setup, study) else keep_freed_memory()
            status.show(run=str(folder.path))
            try:
                with alone_in(folder.path), observers_of() as observers:
                    run_on(link, Planned(study, folder, observers), setup, notices)
            finally:
                status.show(run="")

        studies = StudyQueue(
            queue,
            runs,
            run_one,
            idle=notices.resend,
            withdrawn=lambda folder: notices.say(folder.run, WITHDRAWN),
        )
        try:
            with queue_status(
                queue, lambda: link.certificate_expires, lambda: link.denials
            ) as status:
                studies.serve(until_empty=until_empty)
        except (OSError, DiskError) as problem:
            raise RunError(
                f"The queue {queue} cannot continue ({problem.__cause__ or problem})",
                remedy="Put that right, then start it again: it resumes the run that it was at.",
            ) from problem


@contextmanager
def _listening(setup: Setup, hospitals: Collection[str] = ()) -> Iterator[Link]:
    """Open the port, and close it after Ctrl-C, too."""
    link = make_link(tuple(hospitals), setup.address, setup.federation)
    link.start()
    try:
        yield link
    finally:
        link.stop()


def _run_at_once(link: Link, planned: Sequence[Planned], setup: Setup) -> list[Result | Overview]:
    notices = EndNotices(link)
    for each in planned:  # a site that has done with one of them stays for the others
        notices.begin(each.folder.run, each.study.everyone)
    results: dict[int, Result | Overview] = {}
    problems: dict[int, BaseException] = {}

    def run(number: int, each: Planned) -> None:
        try:
            results[number] = run_on(link, each, setup, notices)
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


def run_on(
    link: Link, planned: Planned, setup: Setup, notices: EndNotices | None = None
) -> Result | Overview:
    """Run a study over an open link, with the `notices` of its other studies. Raises RunError."""
    with about(study=planned.study.name, run=planned.folder.run):
        return _run_on(link, planned, setup, notices)


def _run_on(
    link: Link, planned: Planned, setup: Setup, notices: EndNotices | None
) -> Result | Overview:
    study, folder, observers = planned.study, planned.folder, planned.observers
    others_stay, notices = notices is not None, notices or EndNotices(link)
    notices.begin(folder.run, study.everyone)
    is_on_disk = _are_on_disk(setup, study)
    if not is_on_disk:  # where it was, a coordinator that was killed has left updates
        shutil.rmtree(folder.spool, ignore_errors=True)
    grid = link.open(folder.spool if is_on_disk else None)
    status = CoordinatorStatus(
        folder.status,
        study,
        lambda: link.certificate_expires,
        run=folder.run,
        denials=lambda: link.denials,
    )
    observers.add("status.json", status)
    longest = setup.longest_wait_seconds
    if longest is None:
        longest = study.federation.longest_wait_seconds
    if longest is None and (setup.gives_way or study.has_every_user):
        longest = study.federation.join_deadline_seconds  # the next must not wait for this one's

    def run_one(study: Study, folder: RunFolder) -> Result:
        again = f"resume with {folder.resume_command}" if setup.can_resume else "start it again"
        remedy = f"Put that right, then {again}."
        channel = NetworkChannel(
            study,
            grid,
            link if link.enrolled_only else None,
            others_stay=others_stay,
            end_notices=notices,
            run=folder.run,
            whole_run=RunFolder(folder.to_resume).run,
            witness=Witness(folder.witness),
        )
        presence = Presence(
            study,
            channel,
            observers.notify,
            longest_wait_seconds=longest,
            start_with_quorum=setup.start_with_quorum,
            address=link.address_for_sites,
            remedy=remedy,
        )
        ctx = RunContext(
            study=study,
            channel=channel,
            presence=presence,
            emit=observers.notify,
            updates=updates_in(grid.updates),
            sealing_keys=CoordinatorKeys(sites=link.keys),
            run=folder.run,
            weights=setup.weights,
            every_user=folder.within is not None,
            remedy=remedy,
            states_kept_in=f"The parameters of every arm are in {folder.path / 'checkpoints'}.",
        )

        def waiting_for() -> list[str]:
            unanswered = channel.unanswered()
            members = dict(presence.members)  # other threads ask
            return sorted(name for name, m in members.items() if m.connection in unanswered)

        status.waiting_for = waiting_for
        observers.notify(events.StudyStarted(study, link.address, folder.path))
        result = run_for_user(ctx, channel, grid, folder)
        observers.notify(events.RunFinished(result, folder.path))
        return result

    try:
        if study.has_every_user:
            result: Result | Overview = run_every_user(study, folder, run_one, observers.notify)
        else:
            result = run_one(study, folder)
    except OSError as problem:  # a full disk, say
        observers.notify(events.StudyFailed(str(problem)))
        where = f" ({problem.filename})" if problem.filename else ""
        raise DiskError(
            f"The run cannot be written to {folder.path}{where}:"
            f" {problem.strerror or problem}. Every finished round is there",
            remedy=f"Put that right, then resume with {folder.resume_command}.",
        ) from problem
    except BaseException as problem:  # Ctrl-C, too, is to be seen in the status
        observers.notify(events.StudyFailed(str(problem) or "interrupted"))
        may_resume = not isinstance(problem, Exception) or isinstance(
            problem, HospitalsAwayError | DiskError
        )
        if not may_resume and (others_stay or isinstance(problem, HopelessError)):
            notices.say(folder.run, FAILED)
        raise
    finally:
        grid.close()
    status.ended()
    notices.say(folder.run)
    return result


def run_for_user(
    ctx: RunContext, channel: NetworkChannel, grid: LinkGrid, folder: RunFolder
) -> Result:
    """Run every arm, evaluate, and write the result. Raises RunError."""
    clock = time.monotonic()
    with FolderStore(folder) as kept:
        kept.check(ctx.study, ctx.weights)
        strategy = StudyStrategy(replace(ctx, store=kept), channel)
        try:
            strategy.start(grid)
        finally:
            channel.close()
    result = result_of(strategy.outcome, kept.started, time.monotonic() - clock)
    result = result.model_copy(update={"resumed": kept.is_resumed})
    write(folder, result, strategy.outcome)
    return result


def run_every_user(
    study: Study,
    folder: RunFolder,
    run_one: Callable[[Study, RunFolder], Result],
    notify: Callable[[events.RunEvent], None],
) -> Overview:
    """Run the study once for each of its hospitals; what is finished already is not run again.

    A hospital that fails costs no other its model. The overview is written with those there are.
    Raises RunError where a hospital has no model and may get one when the run is resumed,
    HopelessError where none has and none may, and CheckpointError where a part was run with other
    settings.
    """
    results: dict[str, Result] = {}
    without: dict[str, tuple[type[Exception], str]] = {}  # no exception is kept: it holds its
    # part's parameters
    parts = {user: user_folder(folder, study.for_user(user)) for user in study.hospitals}
    for user, part in parts.items():
        try:
            if part.has_ended:  # by an earlier start of this run
                results[user] = _read(part)
            else:
                results[user] = run_one(study.for_user(user), part)
            continue
        except (OSError, DiskError):  # the run's own disk
            raise
        except ErosionError as problem:
            without[user] = type(problem), str(problem)
        except Exception as problem:  # noqa: BLE001 - it must not cost the others their models
            without[user] = type(problem), text_of_fault(f"the part of {user}", problem)
        notify(events.UserFailed(user, without[user][1]))
    kinds = {user: kind for user, (kind, _) in without.items()}
    final = UserDeclinedError | HopelessError  # would end in the same way again
    failed = [user for user, kind in kinds.items() if not issubclass(kind, final)]
    are_away = failed and all(issubclass(kinds[user], HospitalsAwayError) for user in failed)
    unfinished: type[RunError] = HospitalsAwayError if are_away else RunError  # they may come
    if not results:
        hopeless = [user for user, kind in kinds.items() if issubclass(kind, HopelessError)]
        first, *_ = failed or hopeless or kinds
        kind = HopelessError if hopeless and not failed else unfinished
        raise kind(f"No hospital has a model. The first one's reason: {without[first][1]}")
    found = overview(
        study,
        {user: line_of(result) for user, result in results.items()},
        {user: why for user, (_, why) in without.items()},
        started=min(result.started for result in results.values()),
        seconds=sum(result.seconds for result in results.values()),
        resumed=any(result.resumed for result in results.values()),
    )
    write_overview(folder.report, found)
    if failed:
        raise unfinished(
            f"{', '.join(failed)}: no model yet, for the reasons above. {folder.report} shows the"
            f" others. Resume with {folder.resume_command}."
        )
    write_json(folder.result, found)
    notify(events.EveryUserFinished(found, folder.path))
    return found


def _read(part: RunFolder) -> Result:
    try:
        return read_result(part.result)
    except CheckpointError as problem:  # written by another version, or edited
        raise RunError(f"{problem} To do so, delete {part.path} and resume.") from None


def _are_on_disk(setup: Setup, *studies: Study) -> bool:
    is_needed = setup.updates == "auto" and need_disk(memory_bytes(), *studies)
    return setup.updates == "disk" or is_needed


def need_disk(memory: int, *studies: Study) -> bool:
    """Return if the studies' updates of one round take more than MEMORY_SHARE of `memory` bytes."""
    num_bytes = 0
    for study in studies:
        dim = max(int(place.stop) for place in study.build_context.layout().values())
        largest = max(dim + sum(arm.attachment_sizes(dim).values()) for arm in study.arms.values())
        num_bytes += 4 * largest * len(study.hospitals)
    return num_bytes > MEMORY_SHARE * memory


def updates_in(spool: Path | None) -> Updates:
    """Return where updates are held: in a folder, or in memory."""
    if spool is None:
        return Updates()
    return Updates(partial(store, spool), partial(DiskCohort, folder=spool))
