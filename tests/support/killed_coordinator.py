"""A coordinator in a process of its own, which can be killed at a chosen moment of a run."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from erosion.common.rounds import checkpoint, study_run
from erosion.common.study.study import study_from_json
from erosion.server.output.observers import Observers
from erosion.server.run.run_folder import RunFolder, open_run_folder

processes = multiprocessing.get_context("forkserver")


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def coordinate(study: str, folder: str, address: str, phase: str | None) -> None:
    """What `erosion server` does, with a bullet waiting in round 3 of the first arm."""
    from erosion.common.support.logs import configure_logging
    from erosion.server.coordination import coordinator, run_keeper, run_study, strategy
    from erosion.server.link import site_session

    configure_logging(0)
    if phase is not None:
        lay_bullet(phase, coordinator, run_keeper, site_session, strategy)
    parsed = study_from_json(study)
    run = (
        RunFolder(Path(folder)) if Path(folder).exists() else open_run_folder(Path(folder), parsed)
    )
    run_study.run_study(parsed, run, address, Observers({}))


def lay_bullet(
    phase: str, coordinator: Any, run_keeper: Any, site_session: Any, strategy: Any
) -> None:
    def in_round_3(original: Callable[..., Any]) -> Callable[..., Any]:
        def at(self: Any, *arguments: Any, **options: Any) -> Any:
            if self._run.state.round == 2:
                die()
            return original(self, *arguments, **options)

        return at

    arm = strategy.PersonalizedStrategy
    if phase == "before sending":
        arm.configure_train = in_round_3(arm.configure_train)
    elif phase == "between two exchanges":  # of round 2: only a round's later ones come this way
        transport = coordinator.NetworkTransport
        ask, rounds = transport.ask, []

        def ask_or_die(self: Any, requests: Any, seconds: float) -> Any:
            rounds.append(requests)
            return die() if len(rounds) == 2 else ask(self, requests, seconds)

        transport.ask = ask_or_die
    elif phase == "before aggregating":
        arm.aggregate_train = in_round_3(arm.aggregate_train)
    elif phase == "during upload":
        begin, begun = site_session.SiteSession._begin, []

        async def begin_reply(self: Any, body: memoryview) -> None:
            begun.append(body)
            if len(begun) == 3 + 2 * 3 + 2:  # introductions, two rounds, the second of the third
                die()
            await begin(self, body)

        site_session.SiteSession._begin = begin_reply
    elif phase == "between aggregation and journal":
        append = run_keeper.Journal.append
        run_keeper.Journal.append = lambda self, r: die() if r.round == 3 else append(self, r)
    elif phase == "between journal and checkpoint":
        save = checkpoint.save
        vars(checkpoint)["save"] = lambda path, state, **options: (
            die() if state.round == 3 else save(path, state, **options)
        )
    elif phase == "while the checkpoint is written":
        replace = Path.replace
        written: list[Path] = []

        def replace_or_die(self: Path, target: Path) -> Path:
            if Path(target).suffix == ".safetensors":
                written.append(target)
                if len(written) == 3:
                    die()
            return replace(self, target)

        setattr(Path, "replace", replace_or_die)  # noqa: B010 - mypy allows no assignment here
    elif phase == "in bob's part":
        aggregate = arm.aggregate_train
        arm.aggregate_train = lambda self, *given: (
            die()
            if (self._run.study.user, self._run.state.round) == ("bob", 2)
            else aggregate(self, *given)
        )
    elif phase == "during evaluation":
        setattr(study_run.StudyRun, "_evaluate", die)  # noqa: B010 - mypy allows no assignment here
    elif phase == "before the report":
        coordinator.write_report = die
    else:
        raise AssertionError(phase)


def start(program: Callable[..., None], *arguments: object) -> BaseProcess:
    process = processes.Process(target=program, args=arguments, daemon=True)
    process.start()
    return process
