"""A coordinator in a process of its own, which is killed at a chosen moment of a run."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from erosion_common.protocol.messages import TrainRequest, TrainResult
from erosion_common.rounds import checkpoint
from erosion_common.rounds import study as study_module
from erosion_common.rounds.round import Round
from erosion_common.study.study import Study, study_from_json
from erosion_server.coordination.folder_store import FolderStore
from erosion_server.coordination.network import NetworkChannel
from erosion_server.coordination.run_study import run_every_user
from erosion_server.coordination.study_queue import StudyQueue
from erosion_server.coordination.study_strategy import StudyStrategy
from erosion_server.link.site_session import SiteSession
from erosion_server.output.observers import Observers
from erosion_server.run.journal import Journal, read_journal
from erosion_server.run.result import Result
from erosion_server.run.run_folder import RunFolder, open_run_folder
from tests.support.scripted import Kept, Scripted, metrics, study_run, trained


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def coordinate(study: str, folder: str, address: str, phase: str | None) -> None:
    """What `erosion server` does; with a `phase`, only as far as that."""
    from erosion_common.support.logs import configure_logging
    from erosion_server.coordination import run_study

    configure_logging(0)
    if phase is not None:
        EVERY_BULLET[phase]()
    parsed = study_from_json(study)
    run = (
        RunFolder(Path(folder)) if Path(folder).exists() else open_run_folder(Path(folder), parsed)
    )
    run_study.run_study(parsed, run, Observers({}), run_study.Setup(address))


def conduct(study: str, folder: str, phase: str | None) -> None:
    """The same with hospitals that follow a script: their updates depend on the parameters."""
    if phase is not None:
        EVERY_BULLET[phase]()
    conducted(study_from_json(study), RunFolder(Path(folder)))


def conduct_every_user(study: str, folder: str, phase: str | None) -> None:
    """The same with each hospital in turn as the user."""
    if phase is not None:
        EVERY_BULLET[phase]()
    run_every_user(study_from_json(study), RunFolder(Path(folder)), conducted, lambda _: None)


def conduct_queue(queue: str, phase: str | None) -> None:
    """The same with the studies of a folder."""
    if phase is not None:
        EVERY_BULLET[phase]()
    folder = Path(queue)
    StudyQueue(folder, folder.parent / "runs", conducted).serve(until_empty=True)


def conducted(parsed: Study, run: RunFolder) -> Result:
    from erosion_server.coordination import run_end

    transport = Scripted(parsed, towards_ten)
    transport.join(*parsed.hospitals)
    with FolderStore(run) as keeper:
        keeper.check(parsed)
        outcome = study_run(transport, Kept(), store=keeper, run=run.run)
    result = run_end.result_of(outcome, keeper.started, 0.0)
    run_end.write(run, result, outcome)
    return result


def towards_ten(name: str, request: TrainRequest) -> TrainResult:
    """An update, and the user's figures, that depend on where the round begins."""
    assert request.parameters is not None
    answer = trained(name, request)
    away = 10 - request.parameters
    header = answer.header
    if header.metrics is not None:
        header = header.model_copy(update={"metrics": metrics(float(away.abs().mean()) / 10)})
    return replace(answer, header=header, sent=away * answer.delta)


def killed_in(owner: Any, name: str, when: Callable[..., bool], *, after: bool = False) -> None:
    """From now on a call of `owner.name` ends the process where `when` is true of it.

    `when` gets the arguments; `after`: only once the call has been made.
    """
    original = getattr(owner, name)

    def call(*given: Any, **more: Any) -> Any:
        if not after and when(*given):
            die()
        found = original(*given, **more)
        if after and when(*given):
            die()
        return found

    setattr(owner, name, call)


def nth(number: int, counts: Callable[..., bool] = lambda *_: True) -> Callable[..., bool]:
    """Whether it is that call of those that count."""
    calls = iter(range(1, number + 1))
    return lambda *given: counts(*given) and next(calls, None) == number


def before_the_report() -> None:
    from erosion_server.coordination import run_end

    killed_in(run_end, "write_report", nth(1))


def in_trial_round(number: int) -> None:
    """Of all trials' rounds, in turn."""
    killed_in(FolderStore, "keep_round", nth(number, lambda _, study, *__: study.fold is not None))


def in_bobs_part(strategy: Any, *_: Any) -> bool:
    return (strategy._ctx.study.user, strategy._arm.state.round) == ("bob", 2)


Bullet = Callable[[], None]
BULLETS: dict[str, Bullet] = {  # wherever the hospitals are
    "before sending": lambda: killed_in(
        Scripted, "ask", lambda _, asked, __: getattr(next(iter(asked.values())), "round", 0) == 3
    ),
    "before aggregating": lambda: killed_in(
        Round, "answer", lambda self, _: self._started.round == 3
    ),
    "between aggregation and journal": lambda: killed_in(
        Journal, "write", lambda _, record: record.round == 3
    ),
    "between journal and checkpoint": lambda: killed_in(
        checkpoint, "save", lambda _, state: state.round == 3
    ),
    "while the checkpoint is written": lambda: killed_in(
        Path, "replace", nth(3, lambda _, target: Path(target).suffix == ".safetensors")
    ),
    "during evaluation": lambda: killed_in(study_module, "evaluate", nth(1)),
    "before the report": before_the_report,
}
TRIAL_BULLETS: dict[str, Bullet] = {  # of a study that chooses its settings
    "in the first round of a trial": partial(in_trial_round, 1),
    "in a later trial": partial(in_trial_round, 10),
    "in another arm's trial": partial(in_trial_round, 23),
    "between two trials": lambda: killed_in(FolderStore, "keep_fold", nth(3), after=True),
    "before the choice is kept": lambda: killed_in(
        FolderStore, "decide", lambda _, __, decisions: bool(decisions.choices)
    ),
}
EVERY_BULLET: dict[str, Bullet] = {
    **BULLETS,
    **TRIAL_BULLETS,
    # Introductions, two rounds, and the second upload of the first arm's third round.
    "during an upload": lambda: killed_in(SiteSession, "_begin", nth(3 + 2 * 3 + 2)),
    # Of round 2: only a round's later exchanges come this way.
    "between two exchanges": lambda: killed_in(NetworkChannel, "ask", nth(2)),
    "in bob's part": lambda: killed_in(StudyStrategy, "aggregate_train", in_bobs_part),
    "in b's trials": partial(in_trial_round, 8 * 4 + 6),
}


def without_times(line: dict[str, Any]) -> dict[str, Any]:
    """A journal line less what no two runs share."""
    hospitals = {
        name: {key: value for key, value in entry.items() if key != "site_seconds"}
        for name, entry in line["hospitals"].items()
    }
    for entry in hospitals.values():
        entry.pop("bytes_received")  # the digits of the seconds travel too,
        entry.pop("bytes_sent")  # and the run's name
    steps = [{"step": step["step"], "asked": sorted(step["hospitals"])} for step in line["steps"]]
    return {**line, "hospitals": hospitals, "steps": steps, "seconds": 0}


def same_run(study: Study, folder: RunFolder, uninterrupted: RunFolder) -> bool:
    """Are the journals equal but for times, and the final states bit by bit? Has it ended?"""
    journals = [list(map(without_times, read_journal(f.journal))) for f in (folder, uninterrupted)]
    states = [
        [f.checkpoint(arm).read_bytes() for arm in study.arms] for f in (folder, uninterrupted)
    ]
    return folder.has_ended and journals[0] == journals[1] and states[0] == states[1]
