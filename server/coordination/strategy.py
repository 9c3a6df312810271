"""The Flower strategy: ask, screen, advance, record. The mathematics is in `common`."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp.grid import Grid
from flwr.serverapp.strategy import Strategy

from erosion.common.aggregation.cohort import MemoryCohort, Update
from erosion.common.aggregation.disk_cohort import DiskCohort, store
from erosion.common.algorithms.base import Algorithm
from erosion.common.errors import ErosionError, RunError
from erosion.common.protocol import wire
from erosion.common.protocol.flower_arrays import RECEIVED_BYTES
from erosion.common.protocol.messages import Metrics, Scaling, TrainRequest
from erosion.common.rounds import checkpoint
from erosion.common.rounds.one_round import (
    Absence,
    Answer,
    Rejection,
    RoundRecord,
    RunState,
    advance,
    needed_updates,
    train_requests,
    wanted,
)
from erosion.common.rounds.screening import screen
from erosion.common.study.study import Study
from erosion.server.coordination.membership import Membership
from erosion.server.link import LinkGrid
from erosion.server.output.plain_text import printable
from erosion.server.run.journal import Journal
from erosion.server.run.run_folder import RunFolder


def _brief(answer: Answer) -> Answer:
    """The same with a reason that is safe to keep: a site's own words may be megabytes."""
    if isinstance(answer, Rejection | Absence):
        return replace(answer, reason=printable(answer.reason) or "no reason given")
    return answer


def _num_bytes(request: TrainRequest) -> int:
    tensors = (request.parameters, *request.enclosed.values())
    return 4 * sum(tensor.numel() for tensor in tensors) + len(request.study.canonical_json())


class PersonalizedStrategy(Strategy):
    """One arm of a study, for one user. Flower's `start` drives it round by round.

    The round number, the parameters and everything else that lasts are in `state`, not in
    Flower's own bookkeeping, so that a run can be resumed.
    """

    def __init__(
        self,
        study: Study,
        arm: str,
        algorithm: Algorithm[Any],
        state: RunState,
        *,
        roster: Membership,
        scaling: Scaling | None,
        folder: RunFolder,
        spool: Path | None = None,
        journal: Journal,
        checkpoint_path: Path,
        on_round: Callable[[RoundRecord], None],
    ) -> None:
        """Go on from `state`; `scaling` is the pooled one, where the study wants it.

        `spool`: a folder for a round's updates, None to keep them in memory.
        """
        self.state = state
        self._study, self._arm, self._algorithm = study, arm, algorithm
        self._roster, self._scaling, self._folder, self._spool = roster, scaling, folder, spool
        self._journal, self._checkpoint_path, self._on_round = journal, checkpoint_path, on_round
        self._answers: dict[
            str, Answer
        ] = {}  # of this round; filled with reasons for silence first
        self._nodes: dict[int, str] = {}  # of this round: who was asked under which node id
        self._received: dict[str, tuple[float, int]] = {}  # of this round: local seconds, bytes
        self._metrics: Metrics | None = None  # of this round: the user's
        self._user_left = False  # its site's connection broke while it was asked
        self._grid: LinkGrid | None = None
        self._started = 0.0
        self._sent_bytes: dict[str, int] = {}
        self._num_wanted = 0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask every hospital whose update the algorithm wants and that is connected."""
        del server_round, arrays, config
        self._started = time.monotonic()
        self._received, self._metrics, self._user_left = {}, None, False
        if isinstance(grid, LinkGrid):
            self._grid = grid
            self._wait_for_user(grid)
        deadline = self._study.federation.round_deadline_seconds
        names = wanted(self._study, self._algorithm, self.state)
        self._num_wanted = len(names)
        members = self._roster.members
        self._answers = {
            name: Absence(
                f"did not answer within {deadline:g} s" if name in members else self._why_away(name)
            )
            for name in names
        }
        self._nodes = {members[name].node_id: name for name in names if name in members}
        to_peers, to_user = self._requests()
        content = wire.encode_train(to_peers)
        own_content = content if to_user is to_peers else wire.encode_train(to_user)
        user = self._study.user
        self._sent_bytes = {
            name: _num_bytes(to_user if name == user else to_peers) for name in names
        }
        return (  # not a list, which would keep the parameters in memory while the sites train
            self._message(own_content if name == user else content, node_id)
            for node_id, name in list(self._nodes.items())
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Advance the state by what came back; journal first, then the checkpoint."""
        del server_round
        self._take_in(replies)
        if self._user_left and self._grid is not None:
            self._take_in(self._ask_user_again(self._grid))
        after, record = advance(
            self.state,
            self._algorithm,
            self._answers,
            arm=self._arm,
            user=self._study.user,
            quorum=needed_updates(self._study, self._num_wanted),
            cohort_of=partial(DiskCohort, folder=self._spool) if self._spool else MemoryCohort,
        )
        self._answers = {}  # the updates are large; do not hold two rounds of them
        asked, received = set(self._nodes.values()), self._received
        hospitals = {
            name: replace(
                entry,
                site_seconds=received[name][0] if name in received else None,
                bytes_received=received[name][1] if name in received else None,
                bytes_sent=self._sent_bytes[name] if name in asked else None,
            )
            for name, entry in record.hospitals.items()
        }
        record = replace(
            record,
            hospitals=hospitals,
            user_metrics=self._metrics,
            seconds=time.monotonic() - self._started,
        )
        self._journal.append(record)
        self.state = after
        checkpoint.save(
            self._checkpoint_path, after, arm=self._arm, study_digest=self._study.digest
        )
        self._on_round(record)
        self._stop_if_hopeless(record)
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: the user's metrics ride on its train reply."""
        del server_round, arrays, config, grid
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing was asked."""
        del server_round, replies
        return None

    def summary(self) -> None:
        """Nothing: the observer tells people what happens."""

    def _requests(self) -> tuple[TrainRequest, TrainRequest]:
        """What peers and the user are asked in this round."""
        return train_requests(
            self._study,
            self._arm,
            self._algorithm,
            self.state,
            scaling=self._scaling,
            run=self._folder.run,
        )

    def _message(self, content: RecordDict, node_id: int) -> Message:
        deadline = self._study.federation.round_deadline_seconds
        group = f"{self._arm}/{self.state.round + 1}"
        return Message(content, node_id, wire.TRAIN, ttl=deadline, group_id=group)

    def _take_in(self, replies: Iterable[Message]) -> None:
        user = self._study.user
        for reply in replies:
            name = self._nodes[reply.metadata.src_node_id]
            answer, seconds, metrics = self._screen(name, reply)
            self._received[name] = (seconds, reply.__dict__.get(RECEIVED_BYTES, 0))
            if name == user:
                self._metrics = metrics
                self._user_left = (
                    reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE
                )
            del reply  # what is used of it is in the answer
            self._answers[name] = self._stored(answer)
            del answer

    def _ask_user_again(self, grid: LinkGrid) -> Iterable[Message]:
        """Its line broke in the middle of the round: the round is not lost if it comes back."""
        self._wait_for_user(grid)
        user = self._study.user
        if (member := self._roster.members.get(user)) is None:
            return ()
        self._nodes[member.node_id] = user
        message = self._message(wire.encode_train(self._requests()[1]), member.node_id)
        seconds = self._study.federation.round_deadline_seconds
        self._answers[user] = Absence(f"did not answer within {seconds:g} s")
        return grid.send_and_receive([message], timeout=seconds)

    def _wait_for_user(self, grid: LinkGrid) -> None:
        """A round without the user's own update is lost, so give its site time to come back."""
        self._roster.refresh()
        end = time.monotonic() + self._study.federation.round_deadline_seconds
        while self._study.user not in self._roster.members and time.monotonic() < end:
            grid.wait_for_news(min(1.0, max(0.0, end - time.monotonic())))
            self._roster.refresh()

    def _why_away(self, name: str) -> str:
        if name in self._roster.declined:
            return f"declined: {self._roster.declined[name]}"
        return "was not connected"

    def _stored(self, answer: Answer) -> Answer:
        """The answer as it is kept until the round's end."""
        if isinstance(answer, Update) and self._spool is not None:
            return store(self._spool, answer)
        return _brief(answer)

    def _screen(self, name: str, reply: Message) -> tuple[Answer, float, Metrics | None]:
        if reply.has_error():
            reason = (reply.error.reason or "no reason given").removeprefix(f"{name}: ")
            if reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE:
                return Rejection(reason), 0.0, None
            return Absence(reason), 0.0, None
        try:
            result = wire.decode_train_result(reply.content)
        except ErosionError as problem:
            return Rejection(str(problem)), 0.0, None
        answer = screen(
            result,
            agent=name,
            arm=self._arm,
            round_number=self.state.round + 1,
            dim=len(self.state.params),
            max_norm=self._study.federation.max_update_norm,
            attachment_sizes=self._study.arms[self._arm].attachment_sizes(len(self.state.params)),
        )
        return answer, result.header.seconds, result.header.metrics

    def _stop_if_hopeless(self, record: RoundRecord) -> None:
        if record.outcome == "stopped":
            raise RunError(f"Round {record.round} of {self._arm} stopped the run: {record.note}.")
        limit = self._study.federation.max_skipped_rounds
        if self.state.skipped_in_a_row >= limit:
            raise RunError(
                f"{limit} rounds in a row were skipped in {self._arm}; the last because"
                f" {record.note}. Mend that and go on with `erosion server --resume"
                f" {self._folder.to_resume}`; federation.max_skipped_rounds says how many are too"
                " many."
            )
