"""One study from the first hospital's arrival to the report."""

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from statistics import median
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message
from torch import Tensor

from common import checkpoint, rounds, wire
from common.errors import LinkError, RunError
from common.files import write_atomically
from common.learning.models import build_model, flat_parameters
from common.memory import peak_megabytes
from common.messages import EvaluateReply, EvaluateRequest, Scaling
from common.network import is_loopback
from common.rounds import RoundRecord, RunState
from common.scaling import pool
from common.study import Study
from server import provenance
from server.journal import Journal
from server.link import Link
from server.observer import Observer
from server.report import write_report
from server.result import ArmResult, Contribution, Result, SecondsPerRound, verdict
from server.roster import Roster
from server.run_folder import RunFolder
from server.strategy import PersonalizedStrategy

EVALUATE_SECONDS = 600.0  # bootstrap intervals of every arm, on a slow machine


class Coordinator:
    """Runs one study over a link that is open already."""

    def __init__(self, study: Study, link: Link, folder: RunFolder, observer: Observer) -> None:
        """The caller starts and stops `link`."""
        self._study, self._link, self._folder, self._observer = study, link, folder, observer
        self._records: dict[str, list[RoundRecord]] = {arm: [] for arm in study.arms}
        self._roster = Roster(
            study,
            link.grid,
            on_joined=lambda name, samples: observer.joined(name, samples, self._roster.missing),
            on_declined=observer.declined,
            on_left=observer.left,
        )

    def run(self) -> Result:
        """Run every arm, evaluate, and write the result. Raises RunError."""
        started, clock = datetime.now(UTC), time.monotonic()
        self._observer.listening(self._study, self._link.address, str(self._folder.path))
        self._wait_for_hospitals()
        scaling = self._pooled_scaling()
        finals = self._run_arms(scaling)
        evaluation = self._evaluate(finals, scaling)
        result = self._result(finals, evaluation, started, time.monotonic() - clock)
        self._write(result, finals, evaluation)
        self._say_goodbye()
        self._observer.finished(result, str(self._folder.path))
        return result

    def _wait_for_hospitals(self) -> None:
        """Until all are here, or the join deadline passes and enough are."""
        study, roster = self._study, self._roster
        seconds = study.federation.join_deadline_seconds
        end = time.monotonic() + seconds
        while True:
            roster.refresh()
            if study.user in roster.declined:
                raise RunError(
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

    def _run_arms(self, scaling: Scaling | None) -> dict[str, RunState]:
        study = self._study
        model = build_model(study.model, study.task.input_shape, study.num_classes, study.seed)
        params = flat_parameters(model)
        finals: dict[str, RunState] = {}
        journal = Journal(self._folder.journal)
        try:
            for arm, settings in study.arms.items():
                algorithm = settings.build(study.build_context)
                strategy = PersonalizedStrategy(
                    study,
                    arm,
                    algorithm,
                    rounds.start(algorithm, params),
                    roster=self._roster,
                    scaling=scaling,
                    journal=journal,
                    checkpoint_path=self._folder.checkpoint(arm),
                    on_round=self._note,
                )
                self._observer.arm_started(arm, study.rounds)
                strategy.start(
                    self._link.grid,
                    ArrayRecord(),  # the strategy's own state holds the parameters
                    num_rounds=study.rounds - strategy.state.round,
                    timeout=study.federation.round_deadline_seconds,
                )
                self._observer.arm_finished(arm)
                finals[arm] = strategy.state
        finally:
            journal.close()
        return finals

    def _note(self, record: RoundRecord) -> None:
        self._records[record.arm].append(record)
        self._observer.round_finished(record)

    def _evaluate(self, finals: Mapping[str, RunState], scaling: Scaling | None) -> EvaluateReply:
        """Ask the user's site for the final figures; it may take a moment to come back first."""
        user = self._study.user
        parameters = {arm: state.params for arm, state in finals.items()}
        content = wire.encode_evaluate(EvaluateRequest(self._study, parameters, scaling))
        end = time.monotonic() + EVALUATE_SECONDS
        problem = "it was not connected"
        while (left := end - time.monotonic()) > 0:
            self._roster.refresh()
            member = self._roster.members.get(user)
            if member is None:
                self._link.grid.wait_for_news(min(1.0, left))
                continue
            message = Message(content, member.node_id, wire.EVALUATE, ttl=left)
            replies = self._link.grid.send_and_receive([message], timeout=left)
            if replies and not replies[0].has_error():
                return wire.decode_evaluate_reply(replies[0].content)
            problem = (replies[0].error.reason or "") if replies else "it did not answer"
            if replies and problem.startswith(f"{user}: "):
                break  # it answered that it cannot; asking again would not help
        raise RunError(
            f"The final figures are missing: the user's site {user!r} did not give them"
            f" ({problem})."
            f" The parameters of every arm are in {self._folder.path / 'checkpoints'}."
        )

    def _result(
        self,
        finals: Mapping[str, RunState],
        evaluation: EvaluateReply,
        started: datetime,
        seconds: float,
    ) -> Result:
        arms = {
            arm: ArmResult(
                metrics=evaluation.arms[arm],
                weights=dict(state.weights),
                rounds=state.round,
                skipped_rounds=sum(r.outcome != "done" for r in self._records[arm]),
                seconds_per_round=_seconds(self._records[arm]),
            )
            for arm, state in finals.items()
        }
        return Result(
            study=self._study.name,
            user=self._study.user,
            seed=self._study.seed,
            commit=provenance.commit(),
            command=provenance.command(),
            started=started.isoformat(timespec="seconds"),
            seconds=seconds,
            arms=arms,
            comparison=evaluation.comparison,
            class_counts=evaluation.class_counts,
            contributions=_contributions(self._study, self._records[next(iter(finals))]),
            peak_megabytes=peak_megabytes() or 0.0,
            verdict=verdict(evaluation.comparison, evaluation.arms),
        )

    def _write(
        self, result: Result, finals: Mapping[str, RunState], evaluation: EvaluateReply
    ) -> None:
        folder = self._folder
        arm = result.verdict.best_arm or next(iter(finals))
        write_model(folder, self._study, arm, finals[arm].params, evaluation)
        write_atomically(folder.result, result.model_dump_json(indent=2) + "\n")
        write_report(folder.path)

    def _say_goodbye(self) -> None:
        """Tell the sites; those that do not hear it in time see the connection close."""
        notice = wire.encode_notice(wire.Notice(text="the study has ended", final=False))
        self._link.grid.send_and_receive(
            [
                Message(notice, member.node_id, wire.NOTICE, ttl=5.0)
                for member in self._roster.members.values()
            ],
            timeout=2.0,
        )


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


def run_study(study: Study, folder: RunFolder, address: str, observer: Observer) -> Result:
    """Listen on `address` and run the study. Raises LinkError, RunError."""
    if not is_loopback(address):
        raise LinkError(
            f"--address {address}: without TLS the coordinator listens on this machine only."
            " Use 127.0.0.1:PORT."
        )
    link = Link(address)
    link.start()
    completed = False
    try:
        result = Coordinator(study, link, folder, observer).run()
        completed = True
        return result
    finally:
        link.stop(completed=completed)


def _seconds(records: list[RoundRecord]) -> SecondsPerRound:
    seconds = [record.seconds for record in records]
    return SecondsPerRound(median=median(seconds), p95=float(np.percentile(seconds, 95)))


def _contributions(study: Study, records: list[RoundRecord]) -> dict[str, Contribution]:
    """Grimberg's incentives: rounds taken part in, and the weight summed over them."""
    ledger: dict[str, Contribution] = {}
    for name in study.hospitals:
        entries = [record.hospitals.get(name) for record in records if record.outcome == "done"]
        accepted = [e for e in entries if e is not None and e.outcome == "accepted"]
        ledger[name] = Contribution(
            rounds=len(accepted),
            weight_sum=sum(e.weight_after or 0.0 for e in accepted),
            samples_seen=sum(e.samples_seen or 0 for e in accepted),
        )
    return ledger
