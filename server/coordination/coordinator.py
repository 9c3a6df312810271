"""One study from the first hospital's arrival to the report."""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message
from torch import Tensor

from erosion.common.errors import RunError
from erosion.common.learning.models import build_model, flat_parameters
from erosion.common.protocol import wire
from erosion.common.protocol.messages import EvaluateReply, EvaluateResult, Scaling
from erosion.common.protocol.scaling import pool
from erosion.common.rounds import checkpoint, one_round
from erosion.common.rounds.model_selection import SelectedSettings, choose, chosen
from erosion.common.rounds.one_round import RoundRecord, RunState
from erosion.common.study.study import Study
from erosion.common.support.files import write_atomically
from erosion.common.support.memory import peak_megabytes
from erosion.server.coordination.membership import Membership
from erosion.server.coordination.strategy import PersonalizedStrategy
from erosion.server.link import Link
from erosion.server.output.events import (
    ArmFinished,
    ArmStarted,
    HospitalDeclined,
    HospitalJoined,
    HospitalLeft,
    RoundFinished,
    RunEvent,
    RunFinished,
    StudyStarted,
)
from erosion.server.output.report.write import write_report
from erosion.server.run import provenance
from erosion.server.run.journal import Journal, cut_back
from erosion.server.run.ledger import as_csv, contributions
from erosion.server.run.result import ArmResult, Result, SecondsPerRound, Selected, verdict
from erosion.server.run.run_decisions import RunDecisions, read_run_decisions
from erosion.server.run.run_folder import RunFolder

EVALUATE_SECONDS = 600.0  # bootstrap intervals of every arm, on a slow machine


class UserDeclinedError(RunError):
    """The site of the hospital whom the model is for takes no part."""


class Coordinator:
    """Runs one study over a link that is open already."""

    def __init__(
        self,
        study: Study,
        link: Link,
        folder: RunFolder,
        notify: Callable[[RunEvent], None] = lambda _event: None,
    ) -> None:
        """The caller starts and stops `link`."""
        self._study, self._link, self._folder, self._notify = study, link, folder, notify
        self._records: dict[str, list[RoundRecord]] = {arm: [] for arm in study.arms}
        self._roster = Membership(
            study,
            link.grid,
            on_joined=lambda name, num_samples: notify(
                HospitalJoined(name, num_samples, tuple(self._roster.missing))
            ),
            on_declined=lambda name, reason: notify(HospitalDeclined(name, reason)),
            on_left=lambda name: notify(HospitalLeft(name)),
            enrolment=link if link.enrolled_only else None,
        )

    def run(self) -> Result:
        """Run every arm, evaluate, and write the result. Raises RunError."""
        clock = time.monotonic()
        beginning = read_run_decisions(self._folder)  # there only where a run is resumed
        started = beginning.started if beginning else datetime.now(UTC).isoformat("T", "seconds")
        self._notify(StudyStarted(self._study, self._link.address, self._folder.path))
        self._wait_for_hospitals()
        scaling = beginning.scaling if beginning else self._pooled_scaling()
        choices = beginning.chosen() if beginning else self._choices(scaling)
        RunDecisions.of(started, scaling, choices).write(self._folder.beginning)
        self._study = chosen(self._study, choices)
        finals = self._run_arms(scaling, choices)
        evaluated = self._evaluate(finals, scaling)
        seconds = time.monotonic() - clock
        result = self._result(finals, choices, evaluated.header, started, seconds)
        self._write(result, finals, evaluated)
        self._notify(RunFinished(result, self._folder.path))
        return result

    def waiting_for(self) -> list[str]:
        """Hospitals that were asked and have not answered; for other threads to look at."""
        unanswered = self._link.grid.unanswered()
        members = dict(self._roster.members)
        return sorted(name for name, member in members.items() if member.node_id in unanswered)

    def _wait_for_hospitals(self) -> None:
        """Until all are here, or the join deadline passes and enough are."""
        study, roster = self._study, self._roster
        seconds = study.federation.join_deadline_seconds
        end = time.monotonic() + seconds
        while True:
            roster.refresh()
            if study.user in roster.declined:
                raise UserDeclinedError(
                    f"The user's own site {study.user!r} cannot take part:"
                    f" {roster.declined[study.user]}."
                )
            left = end - time.monotonic()
            if not roster.missing or left <= 0:
                break
            self._link.grid.wait_for_news(min(1.0, left))
        if study.user not in roster.members:
            raise RunError(
                f"The user's own site {study.user!r} did not connect within {seconds:g} s."
                " Start it with `erosion client SITE.toml`, where coordinator.address is"
                f" {self._link.address!r}."
            )
        if len(roster.members) < study.federation.quorum:
            raise RunError(
                f"{len(roster.members)} hospitals connected within {seconds:g} s, the study's"
                f" quorum is {study.federation.quorum}."
                f" Missing: {', '.join(roster.missing) or 'none'};"
                f" declined: {', '.join(roster.declined) or 'none'}."
            )
        roster.open = study.federation.join == "any_time"

    def _pooled_scaling(self) -> Scaling | None:
        if self._study.scaling != "federated":
            return None
        members = self._roster.members
        sums = [members[name].sums for name in sorted(members)]
        return pool([s for s in sums if s is not None], self._study.task)

    def _choices(self, scaling: Scaling | None) -> dict[str, SelectedSettings]:
        """What every arm is run with; where the study leaves it open, after trials."""
        study = self._study
        if study.selection is None:
            return {arm: choose(study, arm, _no_trial) for arm in study.arms}
        self._folder.trials.unlink(missing_ok=True)  # a run that was cut off here tries anew
        with closing(Journal(self._folder.trials)) as journal:

            def run_trial(trial: Study, num_rounds: int) -> list[RoundRecord]:
                records: list[RoundRecord] = []

                def note(record: RoundRecord) -> None:
                    records.append(record)
                    self._notify(RoundFinished(record, is_trial=True))

                (arm,) = trial.arms
                self._notify(ArmStarted(arm, num_rounds, is_trial=True))
                checkpoint_path = self._folder.trial_checkpoint
                self._run_arm(trial, arm, num_rounds, scaling, journal, checkpoint_path, note)
                return records

            return {arm: choose(study, arm, run_trial) for arm in study.arms}

    def _run_arms(
        self, scaling: Scaling | None, choices: Mapping[str, SelectedSettings]
    ) -> dict[str, RunState]:
        states = {arm: self._first_or_last(arm) for arm in choices}
        last_round = {arm: state.round for arm, state in states.items()}
        for record in cut_back(self._folder.journal, last_round):
            self._records[record.arm].append(record)
        finals: dict[str, RunState] = {}
        with closing(Journal(self._folder.journal)) as journal:
            for arm, choice in choices.items():
                self._notify(ArmStarted(arm, choice.rounds))
                path = self._folder.checkpoint(arm)
                finals[arm] = self._run_arm(
                    self._study, arm, choice.rounds, scaling, journal, path, self._note, states[arm]
                )
                self._notify(ArmFinished(arm))
        return finals

    def _first_or_last(self, arm: str) -> RunState:
        """The state of an arm's last finished round, or the one before its first."""
        study = self._study
        first = _first_state(study, arm)
        path = self._folder.checkpoint(arm)
        if not path.exists():
            return first
        return checkpoint.load(path, first, arm=arm, study_digest=study.digest)

    def _run_arm(
        self,
        study: Study,
        arm: str,
        num_rounds: int,
        scaling: Scaling | None,
        journal: Journal,
        checkpoint_path: Path,
        on_round: Callable[[RoundRecord], None],
        state: RunState | None = None,
    ) -> RunState:
        strategy = PersonalizedStrategy(
            study,
            arm,
            study.arms[arm].build(study.build_context),
            state or _first_state(study, arm),
            roster=self._roster,
            scaling=scaling,
            folder=self._folder,
            spool=self._link.updates,
            journal=journal,
            checkpoint_path=checkpoint_path,
            on_round=on_round,
        )
        strategy.start(
            self._link.grid,
            ArrayRecord(),  # the strategy's own state holds the parameters
            num_rounds=num_rounds - strategy.state.round,
            timeout=study.federation.round_deadline_seconds,
        )
        return strategy.state

    def _note(self, record: RoundRecord) -> None:
        self._records[record.arm].append(record)
        self._notify(RoundFinished(record))

    def _evaluate(self, finals: Mapping[str, RunState], scaling: Scaling | None) -> EvaluateResult:
        """Ask the user's site for the final figures; it may take a moment to come back first."""
        user = self._study.user
        request = one_round.evaluate_request(
            self._study, finals, scaling=scaling, run=self._folder.run
        )
        content = wire.encode_evaluate(request)
        end = time.monotonic() + EVALUATE_SECONDS
        problem = "it was not connected"
        while (left := end - time.monotonic()) > 0:
            self._roster.refresh()
            member = self._roster.members.get(user)
            if member is None:
                self._link.grid.wait_for_news(min(1.0, left))
                continue
            message = Message(content, member.node_id, wire.EVALUATE, ttl=left)
            problem = "it did not answer"
            for reply in self._link.grid.send_and_receive([message], timeout=left):
                if not reply.has_error():
                    return wire.decode_evaluate_result(reply.content)
                problem = reply.error.reason or ""
            if problem.startswith(f"{user}: "):
                break  # it answered that it cannot; asking again would not help
        raise RunError(
            f"The final figures are missing: the user's site {user!r} did not give them"
            f" ({problem})."
            f" The parameters of every arm are in {self._folder.path / 'checkpoints'}."
        )

    def _result(
        self,
        finals: Mapping[str, RunState],
        choices: Mapping[str, SelectedSettings],
        evaluation: EvaluateReply,
        started: str,
        seconds: float,
    ) -> Result:
        arms = {
            arm: ArmResult(
                metrics=evaluation.arms[arm],
                weights=dict(state.weights),
                rounds=state.round,
                skipped_rounds=sum(r.outcome != "done" for r in self._records[arm]),
                seconds_per_round=_seconds(self._records[arm]),
                selected=_selected(choices[arm]),
            )
            for arm, state in finals.items()
        }
        return Result(
            study=self._study.name,
            user=self._study.user,
            seed=self._study.seed,
            commit=provenance.commit(),
            command=provenance.command(),
            started=started,
            seconds=seconds,
            arms=arms,
            comparison=evaluation.comparison,
            class_counts=evaluation.class_counts,
            contributions=contributions(self._study.hospitals, self._records[next(iter(finals))]),
            peak_megabytes=peak_megabytes() or 0.0,
            verdict=verdict(evaluation.comparison, evaluation.arms),
        )

    def _write(
        self, result: Result, finals: Mapping[str, RunState], evaluated: EvaluateResult
    ) -> None:
        folder = self._folder
        arm = result.verdict.best_arm or next(iter(finals))
        params = evaluated.personal.get(arm, finals[arm].params)
        write_model(folder, self._study, arm, params, evaluated.header)
        write_atomically(folder.result, result.model_dump_json(indent=2) + "\n")
        ledgers = {a: contributions(self._study.hospitals, r) for a, r in self._records.items()}
        write_atomically(folder.contributions, as_csv(ledgers))
        write_report(folder.path)


def write_model(
    folder: RunFolder, study: Study, arm: str, params: Tensor, evaluation: EvaluateReply
) -> None:
    """`model.safetensors`, and `model.json` with all that predicting needs beside it."""
    card: dict[str, Any] = {
        "format": 1,
        "study": study.name,
        "arm": arm,
        "user": study.user,
        "task": study.task.model_dump(mode="json"),
        "model": study.model.model_dump(mode="json"),
        "scaling": evaluation.scaling and evaluation.scaling.model_dump(mode="json"),
        "missing_means": evaluation.missing_means,
        "versions": provenance.versions(),
    }
    checkpoint.save_model(folder.model, params)
    write_atomically(folder.model_card, json.dumps(card, indent=2) + "\n")


def _first_state(study: Study, arm: str) -> RunState:
    model = build_model(study.model, study.task.input_shape, study.num_classes, study.seed)
    return one_round.start(study.arms[arm].build(study.build_context), flat_parameters(model))


def _no_trial(_trial: Study, _num_rounds: int) -> list[RoundRecord]:
    raise AssertionError("a study that leaves nothing open has no trials")


def _selected(choice: SelectedSettings) -> Selected | None:
    if choice.log_loss is None:
        return None
    return Selected(settings=dict(choice.settings), rounds=choice.rounds, log_loss=choice.log_loss)


def _seconds(records: list[RoundRecord]) -> SecondsPerRound:
    seconds = [record.seconds for record in records]
    return SecondsPerRound(median=median(seconds), p95=float(np.percentile(seconds, 95)))
