"""Aggregation rules for one site's model, as strategies that Flower's own `start` drives."""

import hashlib
import json
import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from torch import Tensor

from erosion.flower.arrangement import Arrangement, Values
from erosion.flower.reading import InconsistentReplyError, Names, Read, Reading, shown
from erosion.flower.rules import needs_more, rule_of
from erosion.flower.saved import Saved
from erosion_common.aggregation.cohort import Update
from erosion_common.aggregation.vectors import norm
from erosion_common.algorithms.base import Algorithm, ArmBase, BuildContext, RoundStart
from erosion_common.errors import RunError, StudyError
from erosion_common.rounds.records import Absence, Answer, Rejection, RoundRecord, RunState
from erosion_common.rounds.round import Round, first_state
from erosion_common.rounds.screening import reject_outsized
from erosion_common.rounds.strategy import RoundStrategy
from erosion_common.support.process import RunningTime

logger = logging.getLogger("flwr").getChild("erosion")  # to where Flower's own lines go

LOOK_SECONDS = 0.5  # between two looks at who is connected
Aggregate = Callable[[list[RecordDict], str], MetricRecord]  # as FedAvg's, of replies and a key


class Personalized(RoundStrategy, FedAvg):
    """A rule of `erosion algorithms` for one site, the user's.

    Every node trains the model that it is sent, as for Flower's FedAvg, and says in its reply's
    metrics who it is. The rule makes the user's next model of the user's own update and of those
    that serve it. Weights and distances of every round are in the metrics that Flower collects,
    and in `records`.
    """

    def __init__(
        self,
        rule: str | ArmBase,
        *,
        user: int | str,
        num_rounds: int,
        settings: Mapping[str, Any] | None = None,
        nodes: Mapping[int, int | str] | None = None,
        buffers: Collection[str] | None = None,
        state: Path | str | None = None,
        quorum: int = 2,
        wait_seconds: float = 600.0,
        max_skipped_rounds: int = 3,
        max_update_norm: float | None = None,
        name_key: str = "partition-id",
        samples_seen_key: str = "samples-seen",
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: Aggregate | None = None,
        evaluate_metrics_aggr_fn: Aggregate | None = None,
    ) -> None:
        """Take the rule by its name, with `settings`, or made already. Raises StudyError.

        `user`: the name of the user's node under `name_key`. `num_rounds`: of the whole run.
        `nodes`: the name of every node, where the coordinator knows them; the nodes' replies are
        not asked for names then. `buffers`: arrays that are not part of the distance; None: those
        of batch normalisation. `state`: a file to resume from, written before every round.
        `quorum`: usable updates that a round needs, the user's included. `wait_seconds`: the
        longest wait of a round for the user's node and for `min_available_nodes`. The last nine are
        FedAvg's, with three differences: the user's node is in every sample, which follows from its
        name and the round; the user's node alone evaluates, unless `fraction_evaluate` is 0; and
        metrics are the user's own where no function aggregates those of all usable replies.
        """
        if not 0 < fraction_train <= 1:
            raise StudyError(
                f"fraction_train = {fraction_train}; it must be above 0 and at most 1."
            )
        for name, value, least in (
            ("num_rounds", num_rounds, 1),
            ("quorum", quorum, 1),
            ("max_skipped_rounds", max_skipped_rounds, 1),
            ("wait_seconds", wait_seconds, 0),
        ):
            if not value >= least:  # nor nan, which would be waited for without end
                raise StudyError(f"{name} = {value}; it must be {least} or more.")
        FedAvg.__init__(
            self,
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_train_nodes=min_train_nodes,
            min_evaluate_nodes=1,
            min_available_nodes=min_available_nodes,
            weighted_by_key=weighted_by_key,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
        )
        self._of_training, self._of_evaluation = train_metrics_aggr_fn, evaluate_metrics_aggr_fn
        self.rule = rule_of(rule, dict(settings or {}))
        self.user, self.num_rounds = shown(user), num_rounds
        self.records: list[RoundRecord] = []
        self._buffers, self._quorum = buffers, quorum
        self._wait_seconds, self._max_skipped = wait_seconds, max_skipped_rounds
        self._reading = Reading(
            arrayrecord_key, name_key, weighted_by_key, samples_seen_key, max_update_norm
        )
        known = None if nodes is None else {node: shown(name) for node, name in nodes.items()}
        if known is not None and self.user not in known.values():
            raise StudyError(f"nodes has no {self.user!r}, the user; name its node, too.")
        self._known, self._names = known, Names(known)
        self._saved = None if state is None else Saved(Path(state))
        self._model: Arrangement | None = None
        self._state: RunState | None = None
        self._algorithm: Algorithm[Any] | None = None
        self._is_resumed = False  # from a state file
        self._rest: dict[str, Values] = {}  # buffers and counters as they go out
        self._asked: list[int] = []
        self._not_sampled: set[str] = set()  # in this round, although the rule would listen to them
        self._connected: list[int] = []
        self._others: set[int] = set()  # nodes without a name that are not the user's

    @property
    def rounds_done(self) -> int:
        """The rounds of `num_rounds` that the state file has; start with the remaining number."""
        if self._state is not None:
            return self._state.round
        return 0 if self._saved is None else self._saved.rounds()

    def saved_arrays(self, first_arrays: ArrayRecord) -> ArrayRecord:
        """Return the model of the state file; `first_arrays` where there is no file yet.

        `start` calls this. Where another strategy wraps this one, pass the arrays to its `start`:
        it would clip and continue from what it was given. Raises CheckpointError, StudyError.
        """
        if self._saved is None or not self._saved.path.exists():
            return first_arrays
        model = Arrangement.of(first_arrays, self._buffers)
        params, rest = _own_parts(model, first_arrays)
        return model.record(*self._saved.model(params, rest, self._digest(model)))

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        should_stop: Callable[[int, Result], bool] | None = None,
    ) -> Result:
        """Run the rounds as every strategy does, from `saved_arrays`.

        Raises RunError, StudyError, InconsistentMessageReplies.
        """
        newer: dict[str, Any] = {} if should_stop is None else {"should_stop": should_stop}
        if newer.keys() - signature(Strategy.start).parameters:
            raise StudyError("should_stop needs flwr 1.43 or newer; leave it out, or install that.")
        first = self.saved_arrays(initial_arrays)
        result = super().start(
            grid, first, num_rounds, timeout, train_config, evaluate_config, evaluate_fn, **newer
        )
        if first is initial_arrays:
            self._raise_if_nothing_was_done()
        result.arrays = result.arrays or first  # all that was left was skipped
        return result

    def summary(self) -> None:
        """Log the settings of the run."""
        logger.info("\t├──> %s for %r: %s", self.rule.algorithm, self.user, self.rule)
        FedAvg.summary(self)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model to the clients that the rule listens to. Raises RunError, StudyError."""
        self._connected = self._wait_for_nodes(grid)
        if server_round == 1:
            self._begin(arrays)
        else:  # as they come: a wrapper may have added noise
            self._take_over(arrays)
        model, _, state = self._ready()
        if state.stopped:
            self._asked = []
            return []
        if self._saved is not None:
            self._saved.write(state, self._names.of_node, self._rest, self._digest(model))
        self._asked = self._sampled([node for node in self._connected if self._wants(node)])
        config["server-round"] = state.round + 1
        content = RecordDict(
            {
                self.arrayrecord_key: model.record(state.params, self._rest),
                self.configrecord_key: config,
            }
        )
        return [
            Message(content, dst_node_id=node, message_type=MessageType.TRAIN)
            for node in self._asked
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the user's next model, or None if the round is skipped. Raises RunError."""
        _, _, state = self._ready()
        if state.stopped:
            return None, None
        return super().aggregate_train(server_round, replies)

    def conclude(
        self, replies: Iterable[Message]
    ) -> tuple[RoundRecord, ArrayRecord | None, Mapping[str, Any]]:
        """Screen the updates, measure distances, erode weights and aggregate."""
        model, algorithm, state = self._ready()
        received = {reply.metadata.src_node_id: reply for reply in replies}
        answers, own = self._answers(model, state, received)
        usable = {name for name, answer in answers.items() if isinstance(answer, Update)}
        contents = [
            reply.content
            for node, reply in received.items()
            if self._of_training and self._names.of_node.get(node) in usable
        ]
        del received
        round_ = Round(
            state,
            algorithm,
            RoundStart(state.round + 1, self.user, tuple(answers), state.params),
            arm=self.rule.algorithm,
            wanted=tuple(answers),
            spare=len(answers.keys() | set(self._names.of_node.values()) - self._not_sampled)
            - self._quorum,
        )
        round_.answer(answers)
        self._state, record = round_.outcome
        record = replace(record, note=record.note.replace("(federation.quorum)", "(quorum)"))
        self.records.append(record)
        self._log(record)
        if record.outcome != "done":
            self._raise_if_hopeless(record)
            return record, None, {}
        self._rest = dict(own.rest)
        if self._of_training:
            own = replace(own, metrics=self._of_training(contents, self.weighted_by_key))
        return record, model.record(self._state.params, self._rest), own.metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the user's node alone: the model is the user's."""
        del server_round
        node = self._names.node_of(self.user)
        if not self.fraction_evaluate or node is None or node not in grid.get_node_ids():
            return []
        config["server-round"] = self.rounds_done
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [Message(content, dst_node_id=node, message_type=MessageType.EVALUATE)]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return what the user's node measured, which need not say of how many patients.

        Raises InconsistentMessageReplies.
        """
        del server_round
        for reply in replies:
            if reply.has_error() or not reply.content.metric_records:
                continue
            if self._of_evaluation:
                return self._of_evaluation([reply.content], self.weighted_by_key)
            try:
                found = self._reading.metrics_of(reply)
            except InconsistentReplyError as problem:
                raise _inconsistent(self.user, problem) from None
            return MetricRecord({n: v for n, v in found.items() if n != self.weighted_by_key})
        return None

    def _begin(self, arrays: ArrayRecord) -> None:
        self._model = model = Arrangement.of(arrays, self._buffers)
        problem = self.rule.problem_with(len(self._connected)) or self.rule.problem_with_model(
            lambda: model.layout
        )
        if problem:
            raise StudyError(str(problem), where=self.rule.algorithm)
        context = BuildContext(self.num_rounds, len(self._connected), lambda: model.layout)
        self._algorithm = self.rule.build(context)
        if problem := needs_more(self.rule, self._algorithm, model):
            raise StudyError(
                f"{self.rule.algorithm} {problem}", remedy="Run it as a study: `erosion server`."
            )
        params, self._rest = _own_parts(model, arrays)
        usual = torch.get_default_dtype()
        torch.set_default_dtype(params.dtype)  # of the vectors that rules begin with
        try:
            self._state = first_state(self._algorithm, params)
        finally:
            torch.set_default_dtype(usual)
        self._names, self._others = Names(self._known), set()
        self.records, self._is_resumed = [], False
        if self._saved is not None and self._saved.path.exists():
            given = self._state.params, self._rest
            self._state, names, self._rest = self._saved.read(
                self._state, self._rest, self._digest(model)
            )
            if not _same(given, (self._state.params, self._rest)):
                raise StudyError(
                    f"`start` was given another model than that of {self._saved.path}, from"
                    " which the run resumes",
                    remedy="Give it strategy.saved_arrays(...) of the arrays that it was given.",
                )
            self._is_resumed = True
            if self._known is None:
                self._names.of_node.update(names)

    def _take_over(self, arrays: ArrayRecord) -> None:
        model, _, state = self._ready()
        params, self._rest = _own_parts(model, arrays)
        self._state = replace(state, params=params)

    def _ready(self) -> tuple[Arrangement, Algorithm[Any], RunState]:
        if self._model is None or self._algorithm is None or self._state is None:
            raise RunError(
                "The strategy has not begun: Flower calls configure_train(1, ...) first."
            )
        return self._model, self._algorithm, self._state

    def _wait_for_nodes(self, grid: Grid) -> list[int]:
        clock = RunningTime()  # a machine that slept has not waited
        end = clock.now() + self._wait_seconds
        needed = max(self.min_available_nodes, self.min_train_nodes)
        while True:
            nodes = sorted(grid.get_node_ids())
            users = self._names.node_of(self.user)
            enough = len(nodes) >= needed
            # Without a list, the user's site may have come back as one of the unknown nodes.
            unknown = self._known is None and set(nodes) - set(self._names.of_node) - self._others
            if enough and (users is None or users in nodes or unknown):
                return nodes
            if clock.now() >= end:
                raise RunError(
                    f"{len(nodes)} nodes are connected after {self._wait_seconds:g} s, and"
                    f" {needed} are needed (min_available_nodes, min_train_nodes)."
                    if not enough
                    else f"The node of {self.user!r} is not connected; waited"
                    f" {self._wait_seconds:g} s for it (wait_seconds)."
                )
            time.sleep(LOOK_SECONDS)

    def _sampled(self, wanted: list[int]) -> list[int]:
        """Return the user's node and, with it, as many as FedAvg samples; all, if it isn't there.

        A round that is done again has the same sample.
        """
        named, users = self._names.of_node, self._names.node_of(self.user)
        size = max(1, int(len(self._connected) * self.fraction_train), self.min_train_nodes)
        others = sorted((n for n in wanted if n != users), key=lambda n: named.get(n, str(n)))
        self._not_sampled = set()
        if users not in wanted or size > len(others):
            return wanted
        draws = random.Random(f"{self.user} {self.rounds_done}")
        chosen = {users, *draws.sample(others, size - 1)}
        self._not_sampled = {named[n] for n in others if n not in chosen and n in named}
        return [n for n in wanted if n in chosen]

    def _wants(self, node: int) -> bool:
        name = self._names.of_node.get(node)
        if name is None:
            return self._known is None  # it says who it is with its reply
        return self._rule_asks(name)

    def _rule_asks(self, name: str) -> bool:
        _, algorithm, state = self._ready()
        return name == self.user or algorithm.asks(state.algorithm_state, name)

    def _answers(
        self, model: Arrangement, state: RunState, received: Mapping[int, Message]
    ) -> tuple[dict[str, Answer], Read]:
        """Return what each site answered, by name; and the user's reply."""
        said: dict[int, str] = {}
        doubts: dict[int, str] = {}
        for node, given in received.items():
            try:
                called = self._reading.name_in(given)
            except InconsistentReplyError as problem:
                doubts[node] = f"a reply with {problem}"
            else:
                said |= {} if called is None else {node: called}
        doubts |= self._names.hear(said, self._connected)
        self._others |= self._not_the_users(said, received)
        answers: dict[str, Answer] = {}
        own = Read(Absence(""))
        counts: dict[str, float] = {}
        for node in self._asked:
            name = self._names.of_node.get(node)
            agent = f"node {node}" if name is None else name
            reply = received.get(node)
            if name is not None and not self._rule_asks(name):
                continue  # asked because nobody knew who it is
            if reply is None or reply.has_error():
                why = "" if reply is None else shown(reply.error.reason or "an error")
                answers.setdefault(agent, Absence(why or "did not answer"))
            elif node in doubts:
                answers[agent] = Rejection(doubts[node])
            elif name is None:
                answers[agent] = Rejection(f"does not say its name ({self._reading.name_key!r})")
            else:
                found = self._reading.read(
                    reply, agent, state.params, model, self.rule, state.round + 1
                )
                answers[agent] = found.answer
                if agent == self.user:
                    own = found
                    if found.is_inconsistent and isinstance(found.answer, Rejection):
                        raise _inconsistent(agent, found.answer.reason)
                if isinstance(found.answer, Update):
                    counts[agent] = found.answer.num_samples
        for name in self._names.of_node.values():
            if name not in answers and name not in self._not_sampled and self._rule_asks(name):
                answers[name] = Absence("was not connected")
        if self.user not in answers:
            answers[self.user] = Absence(f"is not known: {self._why_unknown(answers)}")
        for name, answer in answers.items():
            if isinstance(answer, Update) and name != self.user:
                others = sum(count for other, count in counts.items() if other != name)
                capped = min(answer.num_samples, others or answer.num_samples)
                answers[name] = replace(answer, num_samples=capped)
        params = state.params
        return reject_outsized(answers, self.user, norm(params), len(params)), own

    def _why_unknown(self, answers: Mapping[str, Answer]) -> str:
        """Return why no node is known to be the user's; the first that failed may be it."""
        named = sorted(set(self._names.of_node.values()))
        failed = [
            f"{agent}: {answer.reason}"
            for agent, answer in answers.items()
            if isinstance(answer, Absence) and agent not in named
        ][:1]
        if named:
            heard = ", ".join(map(repr, named))
            return "; ".join([f"no node calls itself so ({heard} heard)", *failed])
        return next(
            iter(failed),
            "no reply says who it is of. Every ClientApp puts its name into its reply's metrics,"
            f" as {self._reading.name_key!r}; or give nodes=",
        )

    def _not_the_users(self, said: Mapping[int, str], received: Mapping[int, Message]) -> set[int]:
        """Return those who answered and those who were asked; nodes without a name are left out."""
        if self._names.node_of(self.user) in said:
            heard = set(self._asked)
        else:
            heard = {node for node, reply in received.items() if not reply.has_error()}
        return {node for node in heard if said.get(node) != self.user}

    def _log(self, record: RoundRecord) -> None:
        for name, site in record.hospitals.items():
            if site.outcome in ("rejected", "absent"):
                logger.warning("round %d: %s: %s", record.round, name, site.reason)
        if record.note:
            logger.warning("round %d (%s): %s", record.round, record.outcome, record.note)

    def _raise_if_hopeless(self, record: RoundRecord) -> None:
        assert self._state is not None
        if self._state.skipped_in_a_row >= self._max_skipped:
            raise RunError(
                f"{self._max_skipped} rounds in a row were skipped (max_skipped_rounds); the last"
                f" because {record.note}."
            )
        if self._state.round >= self.num_rounds and not self._is_resumed:
            self._raise_if_nothing_was_done()

    def _raise_if_nothing_was_done(self) -> None:
        """A run that trained nothing has no model to end with."""
        if self.records and all(record.outcome == "skipped" for record in self.records):
            raise RunError(
                f"No round of the run could be done; the last because {self.records[-1].note}."
            )

    def _digest(self, model: Arrangement) -> str:
        about = [self.rule.model_dump(mode="json"), self.user, model.description(), self.num_rounds]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()


class WeightErosion(Personalized):
    """Sites lose their weight by how far their updates are from the user's."""

    def __init__(self, *, user: int | str, num_rounds: int, **options: Any) -> None:
        """`settings` are those of `weight_erosion`; everything else as for `Personalized`."""
        super().__init__("weight_erosion", user=user, num_rounds=num_rounds, **options)


class EvidenceErosion(Personalized):
    """Sites count by their patients and by how little their distance is more than noise.

    Their replies' metrics bring "noise"; see `mean_and_noise`.
    """

    def __init__(self, *, user: int | str, num_rounds: int, **options: Any) -> None:
        """`settings` are those of `evidence_erosion`; everything else as for `Personalized`."""
        super().__init__("evidence_erosion", user=user, num_rounds=num_rounds, **options)


def _inconsistent(user: str, problem: object) -> InconsistentMessageReplies:
    """Return what FedAvg raises: of the user's own app, all that follows would be the same."""
    return InconsistentMessageReplies(reason=f"{user}: {problem}. Skipping aggregation.")


def _own_parts(model: Arrangement, arrays: ArrayRecord) -> tuple[Tensor, dict[str, Values]]:
    """Return the parts of arrays that come from this side. Raises StudyError."""
    try:
        return model.parts(arrays)
    except ValueError as problem:
        raise StudyError(f"The model to be sent has {problem}.") from None


def _same(one: tuple[Tensor, dict[str, Values]], other: tuple[Tensor, dict[str, Values]]) -> bool:
    """Are parameters and all the rest equal?"""
    rest = all(np.array_equal(values, other[1][name]) for name, values in one[1].items())
    return rest and torch.equal(one[0], other[0])
