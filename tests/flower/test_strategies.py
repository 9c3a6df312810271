"""`erosion.flower`: the rules as ordinary Flower strategies."""

import logging
import subprocess
import sys
import time
from collections.abc import Callable
from inspect import signature
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
from flwr.serverapp.strategy import FedAvg as FlowersFedAvg

from erosion.flower import (
    EvidenceErosion,
    Personalized,
    WeightErosion,
    mean_and_noise,
    personalized,
)
from erosion_common.errors import CheckpointError, RunError, StudyError
from erosion_common.support.process import RunningTime
from tests.support.flower_grid import InProcessGrid, Node, moved_by, reply
from tests.support.patience import PATIENCE
from tests.support.said import raises

FIRST = {"w": np.zeros(2, dtype=np.float32)}


def arrays(values: dict[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: torch.as_tensor(value) for name, value in values.items()})


def run(strategy: Any, grid: InProcessGrid, rounds: int = 1, first: Any = None) -> Any:
    return strategy.start(grid, arrays(FIRST if first is None else first), num_rounds=rounds)


def w_of(result: Any) -> list[float]:
    values: list[float] = result.arrays["w"].numpy().tolist()
    return values


def erosion(**options: Any) -> WeightErosion:
    given = {"settings": {"distance_penalty": 0.1, "size_penalty": 0.0}, "wait_seconds": 0.0}
    return WeightErosion(**{"user": 0, "num_rounds": 3, **given, **options})


def test_the_numbers_of_one_round_are_those_of_the_paper() -> None:
    grid = InProcessGrid({7: moved_by(1, 0, name=0), 8: moved_by(0, 1, name=1)})
    result = run(erosion(), grid)
    # d = |(0, 1) - (1, 0)| / 1 = sqrt 2; the weight falls from 1 by .1 sqrt 2, with p_s = 0
    weight = 1 - 0.1 * 2**0.5
    metrics = result.train_metrics_clientapp[1]
    assert metrics["weight-1"] == pytest.approx(weight)
    assert metrics["distance-1"] == pytest.approx(2**0.5)
    assert w_of(result) == pytest.approx([1 / (1 + weight), weight / (1 + weight)])


def test_a_site_that_has_lost_its_weight_is_not_asked_again() -> None:
    grid = InProcessGrid(
        {7: moved_by(1, 0, name=0), 8: moved_by(-9, 0, name=1), 9: moved_by(1, 0, name=2)}
    )
    run(erosion(settings={"distance_penalty": 0.2}, quorum=2), grid, rounds=2)
    assert grid.asked == [[7, 8, 9], [7], [7, 9], [7]]  # training, and the user's evaluation


def test_as_fedavg_it_gives_flowers_own_numbers() -> None:
    nodes = {
        n: moved_by(0.25 * n, -1.0, name=n, samples=count) for n, count in ((1, 5), (2, 11), (3, 8))
    }
    ours = Personalized("fedavg", user=1, num_rounds=3, fraction_evaluate=0.0)
    flowers = FlowersFedAvg(fraction_evaluate=0.0)
    assert w_of(run(ours, InProcessGrid(nodes), 3)) == pytest.approx(
        w_of(run(flowers, InProcessGrid(nodes), 3)), abs=1e-6
    )


def test_a_rules_aggregates_go_through_its_server_optimizer() -> None:
    optimizer = {"name": "momentum", "momentum": 0.5}
    rule = Personalized(
        "fedavg",
        user=0,
        num_rounds=3,
        settings={"server_optimizer": optimizer},
        fraction_evaluate=0.0,
    )
    grid = InProcessGrid({7: moved_by(1, 0, name=0), 8: moved_by(3, 0, name=1)})
    # The aggregate is (2, 0) in every round: 2, then 2 + .5 * 2 = 3, then 2 + .5 * 3 = 3.5.
    assert w_of(run(rule, grid, 3)) == [8.5, 0.0]


def test_statistics_of_batch_normalisation_stay_out_of_the_distance() -> None:
    def node(name: int, statistic: float) -> Node:
        def answer(request: Message) -> RecordDict:
            content = request.content.array_records["arrays"]
            w = content["w"].numpy() + np.array([1, 0], dtype=np.float32)
            counted = content["1.num_batches_tracked"].numpy() + 5
            values = {"w": w, "1.running_mean": np.full(1, statistic, np.float32)}
            return reply({**values, "1.num_batches_tracked": counted}, name)

        return answer

    first = {**FIRST, "1.running_mean": np.zeros(1, np.float32), "1.num_batches_tracked": 0}
    grid = InProcessGrid({7: node(0, 2.0), 8: node(1, 20.0)})
    result = run(erosion(), grid, first=first)
    assert result.train_metrics_clientapp[1]["distance-1"] == 0.0
    assert list(result.arrays) == ["w", "1.running_mean", "1.num_batches_tracked"]
    assert result.arrays["1.running_mean"].numpy().tolist() == [2.0]  # the user's own
    assert result.arrays["1.num_batches_tracked"].numpy() == 5
    asked_for = run(erosion(buffers=()), grid, first=first)
    # (20 - 2) / |(1, 0, 2)|
    assert asked_for.train_metrics_clientapp[1]["distance-1"] == pytest.approx(18 / 5**0.5)


@pytest.mark.parametrize("when", ["config", "metrics"])
def test_a_name_is_a_text_or_a_number(when: str) -> None:
    names = ("north", "south") if when == "config" else (0, 1)
    grid = InProcessGrid({7: moved_by(1, 0, name=names[0]), 8: moved_by(0, 1, name=names[1])})
    result = run(erosion(user=names[0]), grid)
    assert f"weight-{names[1]}" in result.train_metrics_clientapp[1]


def outcomes(strategy: Personalized) -> dict[str, str]:
    return {name: site.outcome for name, site in strategy.records[-1].hospitals.items()}


def reasons(strategy: Personalized) -> dict[str, str]:
    return {name: site.reason for name, site in strategy.records[-1].hospitals.items()}


def of_values(**values: Any) -> Node:
    return lambda _request: reply(values, 2)


def two_names(request: Message) -> RecordDict:
    found = moved_by(9, 9, name=2)(request)
    assert isinstance(found, RecordDict)
    found["more"] = ConfigRecord({"partition-id": "0"})
    return found


def no_array(request: Message) -> RecordDict:
    content = moved_by(1, 0, name=2)(request)
    assert isinstance(content, RecordDict)
    content.array_records["arrays"]["w"].data = b"\x80\x04 not an array"
    return content


BAD: dict[str, tuple[Node, str]] = {
    "no name": (moved_by(1, 0, name=None), "does not say its name ('partition-id')"),
    "not finite": (moved_by(float("nan"), 0, name=2), "a value that is not finite"),
    "too large for float32": (of_values(w=np.array([1e300, 0.0])), "a value that is not finite"),
    "changed shape": (of_values(w=np.zeros(3, np.float32)), "'w' of shape (3,), not (2,)"),
    "whole numbers": (of_values(w=np.zeros(2, np.int32)), "another shape or type"),
    "an array too many": (
        of_values(w=np.zeros(2, np.float32), v=np.zeros(2, np.float32)),
        "an array 'v', which the model lacks",
    ),
    "no such array": (of_values(v=np.zeros(2, np.float32)), "no array 'w'"),
    "no arrays": (lambda _: RecordDict({"c": ConfigRecord({"partition-id": "2"})}), "no arrays"),
    "no patients": (moved_by(1, 0, name=2, samples=0), "'num-examples' = 0, not above 0"),
    "less than none": (moved_by(1, 0, name=2, samples=-4), "'num-examples' = -4, not above 0"),
    "no number": (
        moved_by(1, 0, name=2, samples=float("nan")),
        "'num-examples' = nan, not above 0",
    ),
    "everybody": (moved_by(1, 0, name=2, samples=2**60), "9007199254740992"),
    "two names": (two_names, "twice"),
    "other bytes": (no_array, "cannot be read"),
    "an error": (lambda _: Error(2, "disk full"), "disk full"),
    "silence": (lambda _: None, "did not answer"),
    "out of proportion": (moved_by(1e6, 0, name=2), "times what is usual"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_reply_that_cannot_be_used_costs_only_itself(what: str) -> None:
    node, reason = BAD[what]
    good = {7: moved_by(1, 0, name=0), 8: moved_by(1, 0.5, name=1)}
    strategy = erosion(quorum=2)
    result = run(strategy, InProcessGrid({**good, 9: node}))
    assert w_of(result) == w_of(run(erosion(), InProcessGrid(good)))
    assert [r for r in reasons(strategy).values() if reason in r], reasons(strategy)


def with_control_variate(node: Node, **names: str) -> Node:
    """The same node's reply with a second record of arrays before the model, and metrics twice."""

    def answer(request: Message) -> Any:
        found = node(request)
        assert isinstance(found, RecordDict)
        return RecordDict(
            {
                "control": ArrayRecord({"w": Array(np.full(2, 99.0, np.float32))}),
                "timing": MetricRecord({"seconds": 3.0}),
                names.get("arrays", "arrays"): found.array_records["arrays"],
                "metrics": found.metric_records["metrics"],
            }
        )

    return answer


def test_of_two_records_the_one_that_is_named_is_the_model_and_otherwise_none() -> None:
    good = {7: moved_by(1, 0, name=0), 8: moved_by(1, 0.5, name=1)}
    expected = w_of(run(erosion(), InProcessGrid(good)))
    both = {node: with_control_variate(answer) for node, answer in good.items()}
    assert w_of(run(erosion(), InProcessGrid(both))) == expected
    unclear = with_control_variate(moved_by(0, 1, name=2), arrays="model")
    strategy = erosion()
    assert w_of(run(strategy, InProcessGrid({**good, 9: unclear}))) == expected
    assert "'control', 'model'" in reasons(strategy)["2"]
    with pytest.raises(InconsistentMessageReplies, match="2 records of arrays"):
        run(erosion(), InProcessGrid({**good, 7: with_control_variate(good[7], arrays="model")}))


def test_two_records_of_measured_metrics_end_the_run_unless_one_has_the_samples() -> None:
    def measured(**records: dict[str, float]) -> Node:
        def answer(request: Message) -> Any:
            if request.metadata.message_type.startswith("train"):
                return moved_by(1, 0, name=0)(request)
            return RecordDict({name: MetricRecord(dict(of)) for name, of in records.items()})

        return answer

    def evaluated(**records: dict[str, float]) -> dict[str, Any]:
        nodes = {7: measured(**records), 8: moved_by(1, 0.5, name=1)}
        return dict(run(erosion(), InProcessGrid(nodes)).evaluate_metrics_clientapp[1])

    figures = {"num-examples": 10, "accuracy": 0.5}
    assert evaluated(timing={"seconds": 1.0}, found=figures) == {"accuracy": 0.5}
    assert evaluated(found={"accuracy": 0.5}) == {"accuracy": 0.5}
    with pytest.raises(InconsistentMessageReplies, match="2 records of metrics"):
        evaluated(timing={"seconds": 1.0}, found={"accuracy": 0.5})


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_forgotten_name_ends_the_run_and_says_where_it_belongs(rounds: int) -> None:
    grid = InProcessGrid({7: moved_by(1, 0, name=None), 8: moved_by(0, 1, name=None)})
    with pytest.raises(RunError, match="its reply's metrics, as 'partition-id'"):
        run(erosion(), grid, rounds)


def test_numbers_may_come_as_floating_point_numbers() -> None:
    whole = {7: moved_by(1, 0, name=0), 8: moved_by(1, 0.5, name=1, samples=20)}

    def as_floats(node: Node) -> Node:
        def answer(request: Message) -> Any:
            found = node(request)
            assert isinstance(found, RecordDict)
            metrics = found.metric_records["metrics"]
            for key in ("num-examples", "partition-id"):
                metrics[key] = float(metrics[key])  # type: ignore[arg-type]
            return found

        return answer

    floats = {node: as_floats(answer) for node, answer in whole.items()}
    assert w_of(run(erosion(), InProcessGrid(floats))) == w_of(run(erosion(), InProcessGrid(whole)))


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
def test_a_model_keeps_its_type_and_all_its_digits(kind: type[np.floating[Any]]) -> None:
    step = {np.float64: 1e-9, np.float32: 1e-6, np.float16: 1e-2}[kind]

    def node(name: int) -> Node:
        def answer(request: Message) -> Any:
            w = request.content.array_records["arrays"]["w"].numpy()
            assert w.dtype == kind
            return reply({"w": (w + kind(step)).astype(kind)}, name)

        return answer

    first = {"w": np.ones(2, kind)}
    result = run(erosion(), InProcessGrid({7: node(0), 8: node(1)}), 3, first)
    moved = result.arrays["w"].numpy()
    expected = np.ones(2, kind)
    for _ in range(3):
        expected = (expected + kind(step)).astype(kind)
    assert moved.dtype == kind
    np.testing.assert_allclose(moved - 1, expected - 1, rtol=1e-5)
    assert (moved != 1).all()


def test_arrays_of_a_type_that_no_rule_can_add_are_refused() -> None:
    grid = InProcessGrid({7: moved_by(1, 0, name=0), 8: moved_by(0, 1, name=1)})
    with pytest.raises(StudyError, match=r"holds complex64.*buffers"):
        run(erosion(), grid, first={"w": np.zeros(2, np.float32), "c": np.zeros(2, np.complex64)})


@pytest.mark.parametrize("first", [[], [np.nan, 1.0]])
def test_a_model_of_no_numbers_or_of_some_that_are_none_does_not_begin(first: list[float]) -> None:
    grid = InProcessGrid({7: moved_by(*first, name=0), 8: moved_by(*first, name=1)})
    with pytest.raises(StudyError, match="initial"):
        run(erosion(), grid, first={"w": np.array(first, np.float32)})
    assert grid.asked == []


def test_two_new_nodes_of_one_name_are_both_refused() -> None:
    nodes = {7: moved_by(1, 0, name=0), 8: moved_by(0, 1, name=1), 9: moved_by(1, 1, name=1)}
    strategy = erosion(quorum=1)
    run(strategy, InProcessGrid(nodes))
    assert outcomes(strategy) == {"0": "accepted", "node 8": "rejected", "node 9": "rejected"}


def test_a_name_stays_with_the_node_that_had_it_first() -> None:
    grid = InProcessGrid({7: moved_by(1, 0, name=0), 8: moved_by(0, 1, name=1)})
    strategy = erosion(quorum=1, fraction_evaluate=0.0)
    rounds = iter([None, lambda: grid.nodes.update({6: moved_by(9, 9, name=0)}), None])
    _between_rounds(strategy, rounds)
    run(strategy, grid, rounds=2)
    assert "as another node does" in reasons(strategy)["node 6"]
    assert outcomes(strategy)["0"] == "accepted"


def test_a_site_that_comes_back_as_another_node_keeps_its_weight() -> None:
    grid = InProcessGrid({7: moved_by(1, 0, name=0), 8: moved_by(0, 1, name=1)})
    strategy = erosion()

    def back() -> None:
        del grid.nodes[8]
        grid.nodes[5] = moved_by(0, 1, name=1)

    _between_rounds(strategy, iter([None, back]))
    run(strategy, grid, rounds=2)
    before = strategy.records[0].hospitals["1"].weight_after
    assert strategy.records[1].hospitals["1"].weight_before == before != 1.0


def test_a_node_cannot_change_its_name() -> None:
    names = iter([1, 0])
    grid = InProcessGrid(
        {7: moved_by(1, 0, name=0), 8: lambda m: moved_by(0, 1, name=next(names))(m)}
    )
    strategy = erosion(quorum=1)
    run(strategy, grid, rounds=2)
    assert "its name is '1'" in reasons(strategy)["1"]


def test_with_a_list_of_nodes_no_word_of_theirs_counts() -> None:
    grid = InProcessGrid(
        {7: moved_by(1, 0, name=None), 8: moved_by(0, 1, name=None), 9: moved_by(5, 5, name=0)}
    )
    strategy = erosion(user="home", nodes={7: "home", 8: "peer"})
    result = run(strategy, grid)
    assert outcomes(strategy) == {"home": "accepted", "peer": "accepted"}
    assert grid.asked[0] == [7, 8]
    assert "weight-peer" in result.train_metrics_clientapp[1]


def _between_rounds(strategy: Personalized, acts: Any) -> None:
    """Do something before each round."""
    configure = strategy.configure_train

    def before(*given: Any) -> Any:
        act = next(acts, None)
        if act is not None:
            act()
        return configure(*given)

    strategy.configure_train = before  # type: ignore[method-assign,assignment]


def test_an_unknown_user_ends_the_run_with_the_names_that_were_heard() -> None:
    grid = InProcessGrid({7: moved_by(1, 0, name=0), 8: moved_by(0, 1, name=1)})
    with pytest.raises(RunError, match=r"3 rounds in a row .* no node calls itself so .*'0', '1'"):
        run(erosion(user="nobody"), grid, rounds=5)


def test_apps_that_fail_end_the_run_with_what_they_raised() -> None:
    def fails(_: Message) -> Error:
        return Error(code=2, reason="KeyError: 'age'")

    for others in ({8: fails}, {8: moved_by(0, 1, name=1), 9: moved_by(0, 1, name=2)}):
        with raises(RunError, "node 7", "KeyError"):
            run(erosion(num_rounds=1), InProcessGrid({7: fails, **others}))


def test_a_round_without_the_user_is_skipped_and_the_model_stays() -> None:
    replies: list[Callable[[Message], Any]] = [
        moved_by(1, 0, name=0),
        lambda _: None,
        moved_by(1, 0, name=0),
    ]
    turn = iter(replies)
    grid = InProcessGrid({7: lambda m: next(turn)(m), 8: moved_by(0, 1, name=1)})
    strategy = erosion(fraction_evaluate=0.0)
    run(strategy, grid, rounds=3)
    assert [r.outcome for r in strategy.records] == ["done", "skipped", "done"]


def test_nodes_that_do_not_come_end_the_run_in_words() -> None:
    with pytest.raises(RunError, match=r"1 nodes are connected .* 2 are needed"):
        run(erosion(), InProcessGrid({7: moved_by(1, 0, name=0)}))


def test_a_machine_that_slept_has_not_waited_for_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    grid, clock = InProcessGrid({7: moved_by(1, 0, name=0)}), [0.0]
    slept = iter([86_400.0, 0.5])

    def sleep(_seconds: float) -> None:
        clock[0] += (seconds := next(slept))
        if seconds < 1:  # the other node comes back a moment after this machine
            grid.nodes[8] = moved_by(0, 1, name=1)

    monkeypatch.setattr(personalized, "RunningTime", lambda: RunningTime(lambda: clock[0]))
    monkeypatch.setattr(time, "sleep", sleep)
    run(erosion(wait_seconds=60.0), grid)
    assert grid.asked[0] == [7, 8]


@pytest.mark.parametrize(
    "third",
    [moved_by(0, 1, name=2), *(BAD[what][0] for what in ("no name", "an error", "silence"))],
)
def test_a_user_that_stays_away_ends_the_run_and_no_node_is_taken_for_it(third: Node) -> None:
    grid = InProcessGrid({7: moved_by(1, 0, name=0), 8: moved_by(0, 1, name=1), 9: third})
    strategy = erosion()
    _between_rounds(strategy, iter([None, lambda: grid.nodes.pop(7)]))
    with pytest.raises(RunError, match="The node of '0' is not connected"):
        run(strategy, grid, rounds=2)


def test_a_node_that_came_as_the_user_before_its_old_one_was_gone_is_asked_again() -> None:
    grid = InProcessGrid({7: moved_by(1, 0, name=0), 8: moved_by(0, 1, name=1)})
    strategy = erosion(fraction_evaluate=0.0)

    def comes_back() -> None:
        grid.nodes |= {7: lambda _: None, 11: moved_by(1, 0, name=0)}

    _between_rounds(strategy, iter([None, comes_back, lambda: grid.nodes.pop(7)]))
    run(strategy, grid, rounds=3)
    assert [r.outcome for r in strategy.records] == ["done", "skipped", "done"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Personalized("erosion", user=0, num_rounds=1), "no rule 'erosion'"),
        (lambda: erosion(settings={"distance_penalty": -1}), "it must be 0 or more"),
        (lambda: erosion(nodes={1: "a"}), "nodes has no '0'"),
        (lambda: erosion(quorum=0), "quorum"),
        (lambda: erosion(wait_seconds=float("nan")), "wait_seconds"),
        (
            lambda: Personalized(
                "fedavg", user=0, num_rounds=1, settings={"own_parameters": ["w"]}
            ),
            "for its ClientApp to keep",
        ),
    ],
)
def test_an_operators_mistake_is_named(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(StudyError, match=words):
        make()


@pytest.mark.parametrize("rule", ["scaffold", "fedlin", "ditto", "fedprox", "personal_gems"])
def test_a_rule_that_needs_its_own_part_at_the_sites_is_refused(rule: str) -> None:
    grid = InProcessGrid({7: moved_by(1, 0, name=0), 8: moved_by(0, 1, name=1)})
    with pytest.raises(StudyError, match="Run it as a study"):
        run(Personalized(rule, user=0, num_rounds=1), grid)


def test_buffers_that_the_model_does_not_have_are_named() -> None:
    with pytest.raises(StudyError, match="buffers names v; the model's arrays are w"):
        run(erosion(buffers=["v"]), InProcessGrid({7: moved_by(1, 0, name=0), 8: moved_by(name=1)}))


def test_a_run_that_was_cut_off_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    def grid() -> InProcessGrid:
        def drifting(name: int, way: float) -> Node:
            def answer(request: Message) -> RecordDict:
                number = request.content.config_records["config"]["server-round"]
                assert isinstance(number, int)
                made = moved_by(1, way * number, name=name)(request)
                assert isinstance(made, RecordDict)
                return made

            return answer

        return InProcessGrid({7: drifting(0, 0.1), 8: drifting(1, 0.3), 9: drifting(2, -0.7)})

    whole = run(erosion(num_rounds=5), grid(), rounds=5)
    file = tmp_path / "state.safetensors"
    cut_off = erosion(num_rounds=5, state=file)
    _between_rounds(cut_off, iter([None, None, None, _break_off]))
    with pytest.raises(KeyboardInterrupt):
        run(cut_off, grid(), rounds=5)
    resumed = erosion(num_rounds=5, state=file)
    assert resumed.rounds_done == 2  # the third was done, and is done again
    result = run(resumed, grid(), rounds=5 - resumed.rounds_done)
    assert w_of(result) == w_of(whole)
    assert resumed.records[-1].round == 5


def _steady(*, absent_in: int = 0) -> InProcessGrid:
    """Every round moves the model by (1, 0); in one, counted from 1, the user does not answer."""
    rounds = count(1)
    step = moved_by(1, 0, name=0)
    user: Node = lambda request: None if next(rounds) == absent_in else step(request)  # noqa: E731
    return InProcessGrid({7: user, 8: moved_by(1, 0, name=1)})


def _cut_off(file: Path, inside: Callable[[Any], Any] = lambda it: it) -> WeightErosion:
    """A run of 4 rounds that goes on, after 2, from the model (2, 0)."""
    strategy = erosion(num_rounds=4, state=file, fraction_evaluate=0.0)
    _between_rounds(strategy, iter([None, None, None, _break_off]))
    with pytest.raises(KeyboardInterrupt):
        run(inside(strategy), _steady(), rounds=4)
    return erosion(num_rounds=4, state=file, fraction_evaluate=0.0)


@pytest.mark.parametrize(("absent_in", "rounds", "w"), [(0, 2, 4.0), (1, 2, 3.0), (1, 1, 2.0)])
def test_a_skipped_first_round_of_a_resumed_run_keeps_its_model(
    absent_in: int, rounds: int, w: float, tmp_path: Path
) -> None:
    resumed = _cut_off(tmp_path / "state.safetensors")
    result = run(resumed, _steady(absent_in=absent_in), rounds=rounds)
    assert w_of(result) == [w, 0.0]


def test_inside_flowers_differential_privacy_a_run_goes_on_from_the_saved_model(
    tmp_path: Path,
) -> None:
    def private(strategy: WeightErosion) -> DifferentialPrivacyServerSideFixedClipping:
        return DifferentialPrivacyServerSideFixedClipping(strategy, 0.0, 1.5, 2)

    file = tmp_path / "state.safetensors"
    resumed = _cut_off(file, private)
    with pytest.raises(StudyError, match=r"Give it strategy\.saved_arrays"):
        run(private(resumed), _steady(), rounds=2)
    first = resumed.saved_arrays(arrays(FIRST))
    result = private(resumed).start(_steady(absent_in=1), first, num_rounds=2)
    assert w_of(result) == [3.0, 0.0]


def _break_off() -> None:
    raise KeyboardInterrupt


def test_the_state_of_another_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "state.safetensors"
    nodes = {7: moved_by(1, 0, name=0), 8: moved_by(0, 1, name=1)}
    run(erosion(state=file), InProcessGrid(nodes))
    with pytest.raises(CheckpointError, match="another model, rule, user"):
        run(erosion(state=file, settings={"distance_penalty": 0.2}), InProcessGrid(nodes))
    file.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="cannot be read"):
        run(erosion(state=file), InProcessGrid(nodes))


def test_inside_flowers_differential_privacy_the_noise_stays_in_the_model() -> None:
    grid = InProcessGrid({7: moved_by(1, 0, name=0), 8: moved_by(0, 1, name=1)})
    strategy = erosion(fraction_evaluate=0.0)
    private = DifferentialPrivacyServerSideFixedClipping(
        strategy, noise_multiplier=5.0, clipping_norm=0.5, num_sampled_clients=2
    )
    result = private.start(grid, arrays(FIRST), num_rounds=2)
    sent = [content.array_records["arrays"]["w"].numpy() for content in grid.sent if content]
    assert strategy.records[0].hospitals["1"].distance == pytest.approx(2**0.5, rel=1e-5)
    # What the second round starts from is the first one's aggregate with noise, not the aggregate.
    assert np.abs(sent[-1] - 0.25).max() > 1e-3
    assert result.arrays is not None


def test_evidence_erosion_takes_its_noise_from_the_metrics() -> None:
    near = {7: moved_by(1, 0, name=0, noise=0.1), 8: moved_by(0.9, 0.1, name=1, noise=0.1)}
    far = moved_by(-1, 0, name=2, noise=0.1)
    strategy = EvidenceErosion(user=0, num_rounds=2, fraction_evaluate=0.0)
    weights = run(strategy, InProcessGrid({**near, 9: far})).train_metrics_clientapp[1]
    # D_1 = .02 is all noise: weight n_1 / n_0 = 1. D_2 = 4, b^2 = 4 - 2 (.1 + .1) = 3.6:
    # weight 1 / (1 + 2 * 3.6 / .1) = 1 / 73
    assert weights["weight-1"] == 1.0
    assert weights["weight-2"] == pytest.approx(1 / 73, rel=1e-5)
    without = EvidenceErosion(user=0, num_rounds=2, fraction_evaluate=0.0, quorum=1)
    run(without, InProcessGrid({**near, 9: moved_by(1, 0, name=2)}))
    assert "'noise' = None, not 1 numbers" in reasons(without)["2"]
    endless = EvidenceErosion(user=0, num_rounds=2, fraction_evaluate=0.0, quorum=1)
    run(endless, InProcessGrid({**near, 9: moved_by(1, 0, name=2, noise=10**400)}))
    assert "'noise' with a number that is too large" in reasons(endless)["2"]


def test_the_mean_of_two_halves_and_its_noise() -> None:
    first = arrays({"w": [1.0, 2.0], "bn.running_mean": [0.0], "bn.num_batches_tracked": 3})
    second = arrays({"w": [3.0, 2.0], "bn.running_mean": [9.0], "bn.num_batches_tracked": 5})
    mean, noise = mean_and_noise(first, second)
    assert mean["w"].numpy().tolist() == [2.0, 2.0]
    assert mean["bn.num_batches_tracked"].numpy() == 5
    assert noise == 1.0  # |(-2, 0)|^2 / 4, the statistic left out
    assert mean_and_noise(first, second, buffers=())[1] == 1.0 + 81 / 4
    with pytest.raises(ValueError, match="different models"):
        mean_and_noise(first, arrays({"w": [1.0, 2.0]}))
    one = arrays({"w": [3.0]})
    with pytest.raises(ValueError, match="different models"):  # and not repeated to fit
        mean_and_noise(arrays({"w": [1.0, 2.0]}), one)
    half = ArrayRecord({"w": Array(np.full(2, 50_016, dtype=np.float16))})
    assert mean_and_noise(half, half)[0]["w"].numpy().tolist() == [50_016, 50_016]


def float64_run(rule: str, **options: Any) -> Any:
    """Two rounds of a model of float64, whose steps float32 would not see in it."""

    def node(name: int, step: float) -> Node:
        def answer(request: Message) -> Any:
            w = request.content.array_records["arrays"]["w"].numpy()
            return reply({"w": w + np.array([step, 1e-12])}, name)

        return answer

    nodes = {7: node(0, 1e-9), 8: node(1, 1e-9), 9: node(2, 1e-9), 10: node(3, 1e-9)}
    strategy = Personalized(rule, user=0, num_rounds=2, fraction_evaluate=0.0, **options)
    return run(strategy, InProcessGrid(nodes), 2, {"w": np.ones(2)})


@pytest.mark.parametrize(
    "rule",
    [
        *(
            "bias_correction",
            "centered_clipping",
            "coordinate_median",
            "fedavg",
            "geometric_median",
        ),
        *("krum", "local", "multi_krum", "trimmed_mean", "weight_erosion"),
        "weighted_gradient",
    ],
)
def test_updates_have_the_models_own_precision(rule: str, tmp_path: Path) -> None:
    named = {"weight_erosion": {"distance_penalty": 0.1}, "bias_correction": {"warm_up": False}}
    given = {"settings": named.get(rule), "state": tmp_path / "state"}
    moved = float64_run(rule, **given).arrays["w"].numpy() - np.ones(2)
    steps = 0 if rule in ("bias_correction", "centered_clipping", "weighted_gradient") else 2
    assert moved.dtype == np.float64
    if steps:
        assert moved == pytest.approx(np.array([2e-9, 2e-12]), rel=1e-3)
    else:
        assert 0 < moved[0] <= 2.01e-9


def test_a_server_optimizer_has_it_too_and_resumes(tmp_path: Path) -> None:
    settings = {"server_optimizer": {"name": "momentum", "momentum": 0.5}}
    moved = float64_run("fedavg", settings=settings, state=tmp_path / "state").arrays["w"].numpy()
    assert moved - 1 == pytest.approx(np.array([2.5e-9, 2.5e-12]), rel=1e-3)
    resumed = Personalized(
        "fedavg", user=0, num_rounds=2, settings=settings, state=tmp_path / "state"
    )
    assert resumed.rounds_done == 1
    assert resumed.saved_arrays(arrays({"w": np.ones(2)}))["w"].numpy().dtype == np.float64


def test_weights_that_are_fractions_count_as_for_fedavg() -> None:
    nodes = {
        n: moved_by(1.0 * n, 0, name=n, samples=w) for n, w in ((1, 0.5), (2, 0.75), (3, 0.25))
    }
    ours = Personalized("fedavg", user=1, num_rounds=3, fraction_evaluate=0.0)
    flowers = FlowersFedAvg(fraction_evaluate=0.0)
    # (1 * .5 + 2 * .75 + 3 * .25) / 1.5 a round
    assert w_of(run(ours, InProcessGrid(nodes), 3))[0] == pytest.approx(5.5)
    assert w_of(run(flowers, InProcessGrid(nodes), 3))[0] == pytest.approx(5.5)


def test_repeats_follow_from_fractions_as_from_counts() -> None:
    def weights(scale: float) -> list[float]:
        grid = InProcessGrid(
            {7: moved_by(1, 0, name=0, samples=10), 8: moved_by(1, 0.1, name=1, samples=4 * scale)}
        )
        strategy = erosion(settings={"distance_penalty": 0.1, "size_penalty": 0.5})
        found = run(strategy, grid, 3).train_metrics_clientapp
        return [found[number]["weight-1"] for number in (1, 2, 3)]

    assert weights(0.125) == weights(1)


def test_samples_are_as_many_as_fedavgs_and_the_user_is_in_each(tmp_path: Path) -> None:
    nodes = {n: moved_by(1, 0.1 * n, name=n) for n in range(10)}
    options = {"user": 3, "num_rounds": 4, "fraction_train": 0.4, "fraction_evaluate": 0.0}
    strategy, grid = erosion(**options, state=tmp_path / "state"), InProcessGrid(nodes)
    run(strategy, grid, rounds=4)
    first, *samples = grid.asked[::2]
    assert first == list(range(10))  # nobody knows yet who is the user
    assert [len(sample) for sample in samples] == [4, 4, 4]
    assert all(3 in sample for sample in samples)
    assert len({tuple(sample) for sample in samples}) > 1
    unasked = strategy.records[1].hospitals[str(next(n for n in range(10) if n not in samples[0]))]
    assert (unasked.outcome, unasked.weight_before) == ("not_asked", unasked.weight_after)
    again, repeated = erosion(**options, state=tmp_path / "state"), InProcessGrid(nodes)
    run(again, repeated, rounds=1)
    assert repeated.asked[0] == samples[-1]
    with pytest.raises(StudyError, match="fraction_train"):
        erosion(fraction_train=0.0)


def test_a_sample_below_the_quorum_is_skipped() -> None:
    nodes = {n: moved_by(1, 0.1 * n, name=n) for n in range(6)}
    strategy = erosion(fraction_train=0.2, quorum=3, nodes={n: n for n in range(6)})
    with pytest.raises(RunError, match="2 usable updates, 3 are needed"):
        run(strategy, InProcessGrid(nodes), rounds=1)  # of min_train_nodes = 2
    strategy = erosion(
        fraction_train=0.2, min_train_nodes=3, quorum=3, nodes={n: n for n in range(6)}
    )
    run(strategy, InProcessGrid(nodes), rounds=1)
    assert strategy.records[0].outcome == "done"


def test_the_smallest_sample_is_the_user() -> None:
    nodes = {n: moved_by(1, 0.1 * n, name=n) for n in range(6)}
    names = {n: n for n in range(6)}
    strategy = erosion(fraction_train=0.1, min_train_nodes=0, quorum=1, nodes=names)
    grid = InProcessGrid(nodes)
    run(strategy, grid, rounds=1)
    assert [list(asked) for asked in grid.asked[:1]] == [[int(strategy.user)]]


def test_metrics_are_aggregated_by_the_functions_that_fedavg_takes() -> None:
    def total(replies: list[RecordDict], key: str) -> MetricRecord:
        counts = [r.metric_records["metrics"][key] for r in replies]
        return MetricRecord({key: sum(count for count in counts if isinstance(count, int))})

    nodes = {
        7: moved_by(1, 0, name=0),
        8: moved_by(1, 0.1, name=1, samples=30),
        9: BAD["silence"][0],
    }
    strategy = erosion(train_metrics_aggr_fn=total, evaluate_metrics_aggr_fn=total)
    result = run(strategy, InProcessGrid(nodes))
    assert result.train_metrics_clientapp[1]["num-examples"] == 40
    assert "weight-1" in result.train_metrics_clientapp[1]
    assert result.evaluate_metrics_clientapp[1] == {"num-examples": 10}  # the user's alone


def test_an_inconsistent_reply_of_the_user_ends_the_run_as_fedavgs_does() -> None:
    def without_samples(request: Message) -> Any:
        found = moved_by(1, 0, name=0)(request)
        assert isinstance(found, RecordDict)
        del found.metric_records["metrics"]["num-examples"]
        return found

    nodes = {7: without_samples, 8: moved_by(0, 1, name=1)}
    for strategy in (erosion(), FlowersFedAvg()):
        with pytest.raises(InconsistentMessageReplies):
            run(strategy, InProcessGrid(nodes))


def test_it_is_a_fedavg_with_its_start_and_summary(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)  # our programs end that
    strategy = erosion(min_train_nodes=2, fraction_evaluate=0.5)
    assert isinstance(strategy, FlowersFedAvg)
    assert (strategy.min_train_nodes, strategy.fraction_evaluate) == (2, 0.5)
    ours, flowers = (list(signature(each.start).parameters) for each in (strategy, FlowersFedAvg))
    assert flowers in (["self", *ours], ["self", *ours[:-1]])  # should_stop is of 1.43
    with caplog.at_level("INFO", logger="flwr"):
        strategy.summary()
    assert {record.name.partition(".")[0] for record in caplog.records} == {"flwr"}
    stops: list[int] = []

    def stop(number: int, _result: Any) -> bool:
        stops.append(number)
        return number == 2

    grid = InProcessGrid({7: moved_by(1, 0, name=0), 8: moved_by(1, 0, name=1)})
    if "should_stop" in signature(FlowersFedAvg.start).parameters:
        strategy.start(grid, arrays(FIRST), num_rounds=3, should_stop=stop)
        assert stops == [1, 2]
    else:
        with pytest.raises(StudyError, match=r"1\.43"):
            strategy.start(grid, arrays(FIRST), num_rounds=3, should_stop=stop)


def test_a_rule_that_stops_asks_nobody_any_more() -> None:
    grid = InProcessGrid({7: moved_by(0, 0, name=0), 8: moved_by(0, 1, name=1)})
    run(erosion(settings={"zero_norm": "stop"}, fraction_evaluate=0.0), grid, rounds=3)
    assert grid.asked[::2] == [[7, 8], [], []]


def test_flowers_own_process_keeps_its_identity() -> None:
    """A stock ServerApp's process knows its task; our line's stand-in must not replace that."""
    script = "import sys, erosion.flower; sys.exit('erosion_common.protocol.wire' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE)


def test_a_client_app_of_numpy_needs_no_torch() -> None:
    script = (
        "import sys, numpy as np; from flwr.app import ArrayRecord;"
        "from erosion.flower import mean_and_noise;"
        "mean_and_noise(*[ArrayRecord([np.ones(2) * n]) for n in (1, 3)]);"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE)
