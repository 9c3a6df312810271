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
from erosion_common.rounds.context import Decisions
from erosion_common.rounds.records import RoundRecord, RunState
from erosion_common.rounds.round import Round
from erosion_common.rounds.selection import Curves
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
    return replace(answer, header=header, delta=away * answer.delta)


def before_sending() -> None:
    original = Scripted.ask

    def ask(self: Scripted, requests: Any, seconds: float) -> Any:
        first = next(iter(requests.values()))
        return die() if getattr(first, "round", 0) == 3 else original(self, requests, seconds)

    setattr(Scripted, "ask", ask)  # noqa: B010 - mypy allows no assignment here


def before_aggregating() -> None:
    original = Round.answer

    def answer(self: Round, answers: Any) -> None:
        return die() if self._started.round == 3 else original(self, answers)

    setattr(Round, "answer", answer)  # noqa: B010


def between_aggregation_and_journal() -> None:
    original = Journal.write
    setattr(  # noqa: B010
        Journal, "write", lambda self, r: die() if r.round == 3 else original(self, r)
    )


def between_journal_and_checkpoint() -> None:
    original = checkpoint.save
    vars(checkpoint)["save"] = lambda path, state, **options: (
        die() if state.round == 3 else original(path, state, **options)
    )


def while_the_checkpoint_is_written() -> None:
    original, written = Path.replace, list[Path]()

    def replace_or_die(self: Path, target: Path) -> Path:
        if Path(target).suffix == ".safetensors":
            written.append(target)
            if len(written) == 3:
                die()
        return original(self, target)

    setattr(Path, "replace", replace_or_die)  # noqa: B010


def during_evaluation() -> None:
    vars(study_module)["evaluate"] = die


def before_the_report() -> None:
    from erosion_server.coordination import run_end

    vars(run_end)["write_report"] = die


def in_trial_round(number: int) -> None:
    """Of all trials' rounds, in turn."""
    original, kept = FolderStore.keep_round, list[RoundRecord]()

    def keep(self: FolderStore, study: Study, state: RunState, record: RoundRecord) -> None:
        if study.fold is not None:
            kept.append(record)
        return die() if len(kept) == number else original(self, study, state, record)

    setattr(FolderStore, "keep_round", keep)  # noqa: B010


def after_the_third_trial() -> None:
    original, kept = FolderStore.keep_fold, list[Curves]()

    def keep(self: FolderStore, curves: Curves) -> None:
        original(self, curves)
        kept.append(curves)
        if len(kept) == 3:
            die()

    setattr(FolderStore, "keep_fold", keep)  # noqa: B010


def before_the_choice_is_kept() -> None:
    original = FolderStore.decide

    def decide(self: FolderStore, study: Study, decisions: Decisions) -> None:
        return die() if decisions.choices else original(self, study, decisions)

    setattr(FolderStore, "decide", decide)  # noqa: B010


def during_an_upload() -> None:
    """The second one of the first arm's third round."""
    original, begun = SiteSession._begin, []

    async def begin(self: Any, body: memoryview) -> None:
        begun.append(body)
        if len(begun) == 3 + 2 * 3 + 2:  # introductions, two rounds, the second of the third
            die()
        await original(self, body)

    setattr(SiteSession, "_begin", begin)  # noqa: B010


def between_two_exchanges() -> None:
    """Of round 2: only a round's later ones come this way."""
    original, asked = NetworkChannel.ask, []

    def ask(self: Any, requests: Any, seconds: float) -> Any:
        asked.append(requests)
        return die() if len(asked) == 2 else original(self, requests, seconds)

    setattr(NetworkChannel, "ask", ask)  # noqa: B010


def in_bobs_part() -> None:
    original = StudyStrategy.aggregate_train

    def aggregate(self: Any, *given: Any) -> Any:
        in_it = (self._ctx.study.user, self._arm.state.round) == ("bob", 2)
        return die() if in_it else original(self, *given)

    setattr(StudyStrategy, "aggregate_train", aggregate)  # noqa: B010


Bullet = Callable[[], None]
BULLETS: dict[str, Bullet] = {  # wherever the hospitals are
    "before sending": before_sending,
    "before aggregating": before_aggregating,
    "between aggregation and journal": between_aggregation_and_journal,
    "between journal and checkpoint": between_journal_and_checkpoint,
    "while the checkpoint is written": while_the_checkpoint_is_written,
    "during evaluation": during_evaluation,
    "before the report": before_the_report,
}
TRIAL_BULLETS: dict[str, Bullet] = {  # of a study that chooses its settings
    "in the first round of a trial": partial(in_trial_round, 1),
    "in a later trial": partial(in_trial_round, 10),
    "in another arm's trial": partial(in_trial_round, 23),
    "between two trials": after_the_third_trial,
    "before the choice is kept": before_the_choice_is_kept,
}
EVERY_BULLET: dict[str, Bullet] = {
    **BULLETS,
    **TRIAL_BULLETS,
    "during an upload": during_an_upload,
    "between two exchanges": between_two_exchanges,
    "in bob's part": in_bobs_part,
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
