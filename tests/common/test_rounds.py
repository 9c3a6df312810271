"""The step from one round to the next: its record, what a rule may give back, its checkpoint."""

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from erosion_common.aggregation.cohort import HospitalName, Update
from erosion_common.algorithms.base import Algorithm, Ask, Payload, RoundStart, Step
from erosion_common.algorithms.fedavg import FedAvg
from erosion_common.algorithms.weight_erosion import WeightErosion, WeightErosionState
from erosion_common.errors import CheckpointError, RunError
from erosion_common.rounds import checkpoint
from erosion_common.rounds.records import Absence, Answer, Rejection, RoundRecord, RunState
from erosion_common.rounds.round import Round, first_state
from experiments.benchmarks.harness import advance
from tests.support.contexts import CONTEXT
from tests.support.refusals import refused


def update(
    agent: HospitalName, *delta: float, round_number: int = 1, num_samples: int = 10, seen: int = 10
) -> Update:
    values = torch.tensor(delta, dtype=torch.float32)
    return Update(agent, round_number, values, num_samples, seen)


def fedavg_round(
    answers: dict[HospitalName, Answer], state: RunState | None = None
) -> tuple[RunState, RoundRecord]:
    algorithm = FedAvg().build(CONTEXT)
    before = state or first_state(algorithm, torch.tensor([1.0, 1.0]))
    return advance(before, algorithm, answers, arm="fedavg", user="own", quorum=1)


def test_a_round_moves_the_parameters_by_the_aggregate() -> None:
    after, record = fedavg_round(
        {"own": update("own", 3.0, 4.0), "b": update("b", -3.0, 4.0, num_samples=30, seen=7)}
    )
    # 1/4 (3, 4) + 3/4 (-3, 4) = (-1.5, 4), from (1, 1)
    assert after.params.tolist() == [-0.5, 5.0]
    assert after.round == 1
    assert after.weights == {"own": 1.0, "b": 3.0}
    assert (record.arm, record.round, record.outcome, record.note) == ("fedavg", 1, "done", "")
    own, b = record.hospitals["own"], record.hospitals["b"]
    assert (own.outcome, own.distance, own.weight_after) == ("accepted", 0.0, 1.0)
    assert (b.outcome, b.distance) == ("accepted", 1.2)  # |(-6, 0)| / 5
    assert (b.weight_before, b.weight_after) == (None, 3.0)
    assert (b.num_samples, b.samples_seen) == (30, 7)


def test_an_absent_and_a_rejected_hospital_are_recorded_with_the_reason() -> None:
    first, _ = fedavg_round({"own": update("own", 1.0, 0.0), "b": update("b", 0.0, 1.0)})
    after, record = fedavg_round(
        {
            "own": update("own", 1.0, 0.0, round_number=2),
            "b": Absence("did not answer within 2 s"),
            "c": Rejection("round 1, expected 2"),
        },
        state=first,
    )
    b, c = record.hospitals["b"], record.hospitals["c"]
    assert (b.outcome, b.reason) == ("absent", "did not answer within 2 s")
    assert (b.weight_before, b.weight_after) == (1.0, 1.0)
    assert (c.outcome, c.reason) == ("rejected", "round 1, expected 2")
    assert (c.weight_before, c.weight_after, c.distance) == (None, None, None)
    assert after.weights == {"own": 1.0, "b": 1.0}


@pytest.mark.parametrize(
    "own",
    [None, Absence("an unexpected KeyError at the site"), Rejection("a value that is not finite")],
)
def test_a_round_without_the_user_is_skipped_and_the_parameters_stay(
    own: Absence | Rejection | None,
) -> None:
    before, _ = fedavg_round({"own": update("own", 1.0, 0.0), "b": update("b", 0.0, 1.0)})
    answers: dict[HospitalName, Answer] = {"b": update("b", 5.0, 5.0, round_number=2)}
    reason = "was not connected"
    if own is not None:
        answers["own"], reason = own, own.reason
    after, record = fedavg_round(answers, state=before)
    assert (record.outcome, record.round) == ("skipped", 2)
    assert record.note.endswith(reason)
    assert torch.equal(after.params, before.params)
    assert after.weights == before.weights
    assert after.algorithm_state == before.algorithm_state
    assert (after.round, after.skipped_in_a_row) == (2, 1)


def test_a_round_below_its_quorum_tells_why_most_updates_are_missing() -> None:
    before, _ = fedavg_round({"own": update("own", 1.0, 0.0)})
    answers: dict[HospitalName, Answer] = {
        "own": update("own", 1.0, 0.0, round_number=2),
        "b": Absence("did not answer within 2 s"),
        "c": Rejection("norm 9, more than 20 times what is usual (0.1)"),
        "d": Rejection("norm 9, more than 20 times what is usual (0.1)"),
    }
    rule = FedAvg().build(CONTEXT)
    _, record = advance(before, rule, answers, arm="fedavg", user="own", quorum=2)
    assert record.note.startswith("1 usable updates, 2 are needed")
    assert record.note.endswith("norm 9, more than 20 times what is usual (0.1)")


def test_finite_updates_whose_sum_overflows_skip_the_round() -> None:
    huge = {"own": update("own", 3e38, 0.0), "b": update("b", 3e38, 0.0)}
    before = RunState(0, torch.full((2,), 3e38), FedAvg().build(CONTEXT).init(2))
    after, record = fedavg_round(dict(huge), state=before)
    assert record.outcome == "skipped"
    assert torch.equal(after.params, before.params)


def erosion_state(**weights: float) -> RunState:
    return RunState(
        round=4,
        params=torch.zeros(2),
        algorithm_state=WeightErosionState(
            4, weights, dict.fromkeys(weights, 40), dict.fromkeys(weights, 1.0), ()
        ),
        weights={"own": 1.0, **weights},
    )


def test_a_frozen_round_counts_as_skipped_and_keeps_all_weights() -> None:
    before = erosion_state(b=0.5)
    after, record = advance(
        before,
        WeightErosion(zero_norm="freeze").build(CONTEXT),
        {
            "own": update("own", 0.0, 0.0),
            "b": update("b", 1.0, 0.0),
            "new": update("new", 1.0, 0.0),
        },
        arm="we",
        user="own",
        quorum=2,
    )
    assert record.outcome == "skipped"
    assert (after.round, after.skipped_in_a_row) == (5, 1)
    assert torch.equal(after.params, before.params)
    assert after.algorithm_state.weights == {**before.algorithm_state.weights, "new": 0.75}
    assert record.hospitals["b"].distance is None  # infinite, which JSON does not know
    assert record.hospitals["b"].weight_after == 0.5


# -- What a rule of one's own gives back is checked before anything comes of it --------------------


@dataclass(frozen=True)
class Inner:
    values: Tensor = field(default_factory=lambda: torch.ones(2))


@dataclass(frozen=True)
class State:
    kept: Any = None
    inner: Inner = field(default_factory=Inner)


@dataclass
class Changing:
    kept: int = 0


class Pair(NamedTuple):
    a: int
    b: int


GOOD = Step(torch.ones(2), {"own": 1.0, "peer": 0.5}, State())


def rule(step: Any, first: Any = None) -> Algorithm[Any]:
    made: Callable[[int], Any] = lambda _dim: State() if first is None else first  # noqa: E731
    return Algorithm(made, lambda _state, _cohort: step)


def played(step: Any, first: Any = None, **changes: Any) -> RunState:
    algorithm = replace(rule(step, first), **changes)
    before = first_state(algorithm, torch.zeros(2))
    answers = {name: update(name, 1.0, 1.0) for name in ("own", "peer")}
    return advance(before, algorithm, answers, arm="mine", user="own", quorum=1)[0]


def test_a_round_whose_aggregate_overflowed_is_skipped_whatever_its_weights_are() -> None:
    wild = {"own": 1.0, "peer": float("nan")}
    after = played(replace(GOOD, delta=torch.full((2,), torch.inf), weights=wild))
    assert after.skipped_in_a_row == 1
    assert after.weights == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"delta": torch.ones(1)}, r"`delta`.* shape \(1,\).*\(2,\)"),  # added to every parameter
        ({"delta": torch.ones(2, dtype=torch.float64)}, "torch.float64"),
        ({"delta": torch.ones(2, requires_grad=True)}, "detach"),
        ({"delta": torch.ones(2).to_sparse()}, "sparse"),
        ({"delta": [1.0, 1.0]}, "`delta` is a list"),
        ({"weights": {"own": 1.0, "peer": float("nan")}}, "weight of peer is nan"),
        ({"weights": {"own": 1.0, "peer": -0.1}}, "weight of peer is -0.1"),
        ({"weights": {"own": 1.0, "peer": torch.tensor(0.5)}}, "weight of peer is a Tensor"),
        ({"weights": {"own": 1.0, "peer": True}}, "weight of peer is a bool"),
        ({"weights": {"own": 1.0}}, "no weight of peer"),
        ({"weights": {"own": 1.0, "peer": 0.5, "pear": 0.5}}, "'pear'"),
        ({"weights": [1.0, 0.5]}, "`weights` is a list"),
        ({"distances": {"peer": float("nan")}}, "distance of peer is nan"),
        ({"distances": {"pear": 1.0}}, "'pear'"),
        ({"rejected": {"pear": "no use"}}, "'pear'"),
        ({"rejected": {"peer": None}}, "peer"),
        ({"rejected": None}, "`rejected` is a NoneType"),
        ({"outcome": "finished"}, "'finished'"),
        ({"note": None}, "`note` is a NoneType"),
        ({"state": None}, "state is a NoneType"),
        ({"state": {"kept": 1}}, "state is a dict"),
        ({"state": Changing()}, "state is a Changing"),
    ],
)
def test_a_wrong_step_ends_the_run_in_words(changes: Mapping[str, Any], said: str) -> None:
    with refused(RunError, "mine", "round 1", "resume") as problem:
        played(replace(GOOD, **changes))
    assert re.search(said, str(problem.value))


@pytest.mark.parametrize("given", [None, torch.ones(2), (torch.ones(2), {})])
def test_a_rule_that_gives_back_no_step(given: Any) -> None:
    with refused(RunError, type(given).__name__):
        played(given)


def test_a_rule_that_raises_is_named() -> None:
    def broken(_state: State, _cohort: Any) -> Any:
        raise ValueError("no luck")

    with refused(RunError, "mine", "round 1", "ValueError: no luck", "-v", "resume") as problem:
        played(GOOD, update=broken)
    assert isinstance(problem.value.__cause__, ValueError)
    with refused(RunError, "round 1", "TypeError"):
        played(GOOD, exchanges=lambda _state, _begun: None)
    with refused(RunError, "round 1", "SystemExit"):
        played(GOOD, update=lambda _state, _cohort: sys.exit())


@pytest.mark.parametrize("what", ["parameters", "update"])
def test_a_rule_changes_nothing_that_it_is_given(what: str) -> None:
    def exchanges(_state: State, begun: RoundStart) -> Any:
        found = yield Ask()
        given = begun.parameters if what == "parameters" else found.cohort.updates[1].delta
        given.add_(1)
        return GOOD

    with refused(RunError, "mine", "round 1", "clone()"):
        played(GOOD, exchanges=exchanges)


def test_a_rule_does_not_ask_for_ever() -> None:
    def exchanges(_state: State, _begun: RoundStart) -> Any:
        while True:
            yield Ask()

    names, algorithm = ("own", "peer"), replace(rule(GOOD), exchanges=exchanges)
    state = first_state(algorithm, torch.zeros(2))
    begun = RoundStart(1, "own", names, state.params)
    round_ = Round(state, algorithm, begun, arm="mine", wanted=names, spare=0)
    with refused(RunError, "mine", "round 1", "32"):
        for _ in range(100):
            round_.answer({name: update(name, 1.0, 1.0) for name in names})


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        ("train", "a str, no Ask"),
        (Ask(hospitals=("own", "pear")), "'pear'"),
        (Ask(hospitals=("peer",)), "own"),  # whose update is the cohort's own
        (Ask(hospitals=()), "nobody"),
        (Ask(to_all=Payload(tensors={"mean": [1.0]})), "'mean', which is a list"),  # type: ignore[dict-item]
        (Ask(to_all=Payload(values={"limit": float("nan")})), "limit"),
        (Ask(to_each={"peer": Payload(values={"limit": torch.ones(1)})}), "limit"),
        (Ask(to_all=Payload(values={"of": {1: 0.5}})), "a site would get {'1': 0.5}"),
        (Ask(to_all=Payload(values={"pair": (1, 2)})), "write lists for tuples"),
        (Ask(to_each={"peer": {"limit": 1.0}}), "sends a dict; it must be a Payload"),  # type: ignore[dict-item]
        (Ask(to_all=None), "sends a NoneType"),  # type: ignore[arg-type]
        (Ask(to_each=[Payload()]), "`to_each` is a list"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_question_is_not_sent(ask: Any, said: str) -> None:
    def exchanges(_state: State, _begun: Any) -> Any:
        yield ask
        return GOOD

    with refused(RunError, said):
        played(GOOD, exchanges=exchanges)


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ({1: 0.5}, r"state\.kept.*\{1: 0.5.*str"),
        ({"a": [1, 2]}, r"state\.kept\['a'\].*list.*tuple"),
        ([1, 2], r"state\.kept.*list.*tuple"),
        (Pair(1, 2), r"state\.kept.*Pair"),
        (np.ones(2), r"state\.kept is a ndarray"),
        ({"a": Inner()}, r"state\.kept\['a'\].*Inner"),
        (Inner(), r"state\.kept.*Inner"),  # None at first, which shows no dataclass
        ({1, 2}, r"state\.kept.*set"),
        (torch.ones(2).double().numpy()[0], r"state\.kept.*float64"),
        (Path("x"), r"state\.kept.*Path"),
        (torch.nn.Parameter(torch.ones(2)), r"state\.kept.*Parameter"),
        (torch.ones(2, requires_grad=True), r"state\.kept.*detach"),
        (torch.ones(3, 3).T[1:], r"state\.kept.*contiguous"),  # sums in another order
        ({"$tensor": 1}, r"state\.kept.*\$tensor"),
    ],
)
def test_a_state_that_a_checkpoint_would_bring_back_as_another_is_refused(
    kept: Any, said: str
) -> None:
    with pytest.raises(RunError) as problem:
        played(replace(GOOD, state=State(kept)))
    assert re.search(said, str(problem.value))


def test_what_is_of_another_kind_than_it_began_as_is_refused() -> None:
    with refused(RunError, "state.kept", "table", "number"):
        played(replace(GOOD, state=State({})), State(1))
    with refused(RunError, "state.inner", "Inner"):
        played(replace(GOOD, state=State(inner={"values": torch.ones(2)})))  # type: ignore[arg-type]


@pytest.mark.parametrize("first", [{}, Changing(), None, State(kept=[1])])
def test_the_first_state_is_looked_at_too(first: Any) -> None:
    with refused(RunError, "'mine'", "`init`"):
        first_state(replace(rule(GOOD), init=lambda _dim: first), VALUES, "mine")


VALUES = torch.arange(2.0)


@pytest.mark.parametrize(
    "kept",
    [
        {"a": {"b": (1, 2.5, None, True, "x", float("nan"))}, "": ()},
        {"a/b": torch.ones(2), "a": {"b": torch.zeros(3)}},  # places that look alike
        (VALUES, VALUES[1:], (VALUES.long(), VALUES.bool(), VALUES.bfloat16(), torch.zeros(0))),
        2**70,
    ],
)
def test_what_is_let_through_comes_back_exactly(kept: Any, tmp_path: Path) -> None:
    after = played(replace(GOOD, state=State(kept)))
    checkpoint.save(tmp_path / "state", after, arm="mine", study_digest="d")
    first = first_state(rule(GOOD), torch.zeros(2))
    back = checkpoint.load(tmp_path / "state", first, arm="mine", study_digest="d")
    assert repr(back) == repr(after)


# -- A state comes back from its file as it went in, however its tensors lie in memor ------------

TEN_VALUES = torch.arange(10.0)


def test_a_bit_that_the_disk_lost_is_noticed_wherever_it_was(tmp_path: Path) -> None:
    state = RunState(round=3, params=TEN_VALUES, algorithm_state=(TEN_VALUES + 1,))
    path = tmp_path / "state"
    checkpoint.save(path, state, arm="a", study_digest="d")
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            back = checkpoint.load(path, state, arm="a", study_digest="d")
        except CheckpointError:
            continue
        # What is left of a name that nobody reads, or of the spaces between.
        assert torch.equal(back.params, TEN_VALUES)
        assert torch.equal(back.algorithm_state[0], TEN_VALUES + 1)
        assert back.round == 3


def test_a_file_that_cannot_be_written_is_an_os_error_and_the_old_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model"
    checkpoint.save_model(path, TEN_VALUES, {"weight": TEN_VALUES.shape})

    def full(*_: object, **__: object) -> None:
        raise safetensors.SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="No space left on device") as problem:
        checkpoint.save_model(path, TEN_VALUES + 1, {"weight": TEN_VALUES.shape})
    assert problem.value.filename == str(path)
    assert torch.equal(checkpoint.load_model(path), TEN_VALUES)
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
