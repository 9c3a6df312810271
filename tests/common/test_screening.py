"""Answers that can be used, and those that cannot."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from erosion_common.aggregation.cohort import Update
from erosion_common.algorithms.base import ExpectedReply, TensorSpec
from erosion_common.algorithms.scaffold import Scaffold
from erosion_common.protocol.messages import (
    LARGEST_COUNT,
    Comparison,
    DescribeReply,
    EvaluateReply,
    EvaluateResult,
    FinalMetrics,
    Metrics,
    StepReply,
    StepResult,
    TrainReply,
    TrainResult,
)
from erosion_common.rounds.evaluation import problem_with_evaluation
from erosion_common.rounds.records import Answer, Rejection, RunState
from erosion_common.rounds.screening import OUTSIZED, Expected, reject_outsized, sample_cap, screen
from erosion_common.study.study import Study
from tests.support.scripted import metrics
from tests.support.small_study import make_study


def answered(
    delta: Tensor,
    *,
    hospital: str = "a",
    arm: str = "fedavg",
    round_number: int = 1,
    num_samples: int = 10,
    samples_seen: int = 8,
    steps: int | None = None,
) -> TrainResult:
    header = TrainReply(
        hospital=hospital,
        arm=arm,
        round=round_number,
        num_samples=num_samples,
        samples_seen=samples_seen,
        seconds=0.1,
        steps=steps,
    )
    return TrainResult(header, delta, {"radius": torch.ones(1)})


def screened(result: TrainResult) -> Answer:
    return screen(result, "a", Expected("fedavg", round=1, dim=2))


@pytest.mark.parametrize(
    ("attached", "kept"),
    [([], False), ([1.0], True), ([0.5, 0.5], True), ([1.0] * 3, False), ([math.nan], False)],
)
def test_what_an_answer_may_bring_is_dropped_where_it_does_not_fit(
    attached: list[float], kept: bool
) -> None:
    terms = {"shares": TensorSpec((None,), most_values=2)}
    result = answered(numbers(1.0, 2.0))
    if attached:
        result = replace(result, attachments={"shares": numbers(*attached)})
    expected = Expected(
        "fedavg", round=1, dim=2, expects=ExpectedReply(update=True, optional=terms)
    )
    update = screen(result, "a", expected)
    assert isinstance(update, Update)
    assert ("shares" in update.attachments) == kept


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def test_a_sound_answer_becomes_an_update() -> None:
    delta = numbers(1.0, 2.0)
    update = screened(answered(delta))
    assert isinstance(update, Update)
    assert (update.agent, update.round) == ("a", 1)
    assert (update.num_samples, update.samples_seen) == (10, 8)
    assert update.delta is delta  # no copy
    assert update.attachments == {}  # what was not asked for is not kept


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (answered(numbers(1, 2), hospital="b"), "answered as 'b'"),
        (answered(numbers(1, 2), arm="local"), "arm 'local', expected 'fedavg'"),
        (answered(numbers(1, 2), round_number=3), "round 3, expected 1"),
        (answered(numbers(1, 2), num_samples=0), "0 samples, expected at least 1"),
        (
            answered(numbers(1, 2), samples_seen=0),
            "0 samples used in the round, expected at least 1",
        ),
        (answered(numbers(1, 2, 3)), "shape (3,), expected (2,)"),
        (answered(numbers(1, math.nan)), "a value that is not finite"),
        (answered(numbers(1, math.inf)), "a value that is not finite"),
        (answered(torch.tensor([1, 2])), "numbers of type torch.int64, expected torch.float32"),
    ],
)
def test_a_faulty_answer_is_rejected_with_its_reason(result: TrainResult, reason: str) -> None:
    assert screened(result) == Rejection(reason)


COUNTS = st.integers(0, LARGEST_COUNT)


@given(
    shape=st.lists(st.integers(0, 3), max_size=3),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64]),
    round_number=COUNTS,
    num_samples=COUNTS,
    samples_seen=COUNTS,
)
def test_screening_answers_whatever_a_hospital_sends(
    shape: list[int], dtype: torch.dtype, round_number: int, num_samples: int, samples_seen: int
) -> None:
    result = answered(
        torch.zeros(shape, dtype=dtype),
        round_number=round_number,
        num_samples=num_samples,
        samples_seen=samples_seen,
    )
    assert isinstance(screened(result), Update | Rejection)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"radius": 1}, None),
        ({"noise": 1}, "without the attachment 'noise'"),
        ({"radius": 2}, "'radius' of shape (1,), expected (2,)"),
    ],
)
def test_an_update_must_bring_what_its_method_needs(
    sizes: dict[str, int], reason: str | None
) -> None:
    terms = {name: TensorSpec((size,)) for name, size in sizes.items()}
    expected = Expected("fedavg", 1, 2, expects=ExpectedReply(update=True, tensors=terms))
    answer = screen(answered(torch.ones(2)), "a", expected)
    assert answer == Rejection(reason) if reason else isinstance(answer, Update)


def test_a_count_that_is_not_the_described_one_is_rejected() -> None:
    expected = Expected("fedavg", round=1, dim=2, num_samples=60)
    answer = screen(answered(numbers(1, 2), num_samples=2**53), "a", expected)
    assert isinstance(answer, Rejection)
    assert "introduced itself with 60" in answer.reason
    assert isinstance(screen(answered(numbers(1, 2), num_samples=60), "a", expected), Update)


def test_a_peer_counts_for_no_more_than_all_others_together() -> None:
    described = {"a": 10**9, "b": 40, "c": 60}
    assert sample_cap(described, "a") == 100
    expected = Expected("fedavg", 1, 2, num_samples=10**9, most_samples=100)
    answer = screen(answered(numbers(1, 2), num_samples=10**9), "a", expected)
    assert isinstance(answer, Update)
    assert (answer.num_samples, answer.all_samples) == (100, 10**9)


def updates_of(**norms: float) -> dict[str, Answer]:
    return {
        name: Update(name, 1, numbers(norm), num_samples=1, samples_seen=1, norm=norm)
        for name, norm in norms.items()
    }


@pytest.mark.parametrize(
    ("norms", "baseline", "rejected"),
    [
        ((1.0, 2.0, 1.5, 3e38), 5.0, True),
        ((1.0, 2.0, 1.5, OUTSIZED * 1.5), 5.0, False),
        ((1e-6, 2.0), 1.0, False),  # training that has converged does not outlaw the only peer
        ((1e-6, 1e6), 1.0, True),
        ((0.0, 0.0, 0.0, 3e38), 0.0, True),  # zeros of others make no room
        ((0.0, 0.0, 0.0, 1.0), 0.0, False),
        ((1e9, 1.0, 1.0, 1.0), 1.0, False),  # the user's own is measured by nobody
    ],
)
def test_a_peers_update_out_of_all_proportion_is_rejected(
    norms: tuple[float, ...], baseline: float, rejected: bool
) -> None:
    answers = updates_of(**dict(zip(("user", "b", "c", "d"), norms, strict=False)))
    *others, last = answers
    screened = reject_outsized(answers, "user", baseline, dim=1)
    assert isinstance(screened[last], Rejection) == rejected
    assert all(screened[name] is answers[name] for name in others)


def test_the_noise_that_a_hospital_had_to_add_is_not_out_of_proportion() -> None:
    answers = updates_of(user=1.0, b=2.0, c=1.5, d=90.0)
    assert isinstance(reject_outsized(answers, "user", 5.0, 1)["d"], Rejection)
    noise = {"b": 0.1, "c": 0.1, "d": 65.0}

    def longest(patients: float, dim: int) -> float:
        return {1: noise["d"], 100: noise["b"]}[int(patients)] * dim

    assert reject_outsized(answers, "user", 5.0, 1, longest) == answers
    beyond = updates_of(user=1.0, b=2.0, c=1.5, d=OUTSIZED * 1.5 + 65.1)
    assert isinstance(reject_outsized(beyond, "user", 5.0, 1, longest)["d"], Rejection)


def stepped(gradient: Tensor, beside: Tensor, *, is_measured: bool) -> Answer:
    terms = {"gradient": TensorSpec((2,), is_measured=is_measured), "radius": TensorSpec((1,))}
    header = StepReply(hospital="a", arm="fedlin", round=1, step="gradient", seconds=0.1)
    expected = Expected("fedlin", 1, 2, step="gradient", expects=ExpectedReply(tensors=terms))
    return screen(StepResult(header, {"gradient": gradient, "radius": beside}), "a", expected)


def test_an_answer_without_an_update_is_measured_by_what_its_terms_say() -> None:
    few, large = numbers(3, 4), numbers(4000)
    answers = {
        "user": stepped(few, large, is_measured=True),
        "b": stepped(few, large / 4000, is_measured=True),
        "c": stepped(2 * few, large, is_measured=True),
        "d": stepped(1e30 * few, large, is_measured=True),
    }
    screened = reject_outsized(answers, "user", baseline_norm=5.0, dim=2)
    rejected = screened.pop("d")
    assert isinstance(rejected, Rejection)
    assert "5e+30" in rejected.reason
    assert all(screened[name] is answers[name] for name in screened)
    free = {
        "user": stepped(few, large, is_measured=False),
        "b": stepped(1e30 * few, large, is_measured=False),
    }
    assert reject_outsized(free, "user", baseline_norm=5.0, dim=2) == free


def with_control(name: str, delta: float, control: Tensor) -> Answer:
    terms = Scaffold().attachment_specs(2)
    expected = Expected("scaffold", 1, 2, expects=ExpectedReply(update=True, tensors=terms))
    result = answered(numbers(delta, 0), hospital=name, arm="scaffold")
    return screen(replace(result, attachments={"control": control}), name, expected)


def test_an_attachment_that_others_train_on_is_measured_by_the_others_attachments() -> None:
    few = numbers(3e-4, 4e-4)  # of another scale than the updates
    answers = {
        "user": with_control("user", 1.0, few),
        "b": with_control("b", 2.0, few),
        "c": with_control("c", 1.5, OUTSIZED * few),
        "d": with_control("d", 1.0, 2 * few),
        "e": with_control("e", 1.0, numbers(1, 0)),
    }
    screened = reject_outsized(answers, "user", baseline_norm=5.0, dim=2)
    assert screened.pop("e") == Rejection(
        "norm 1 of 'control', more than 20 times what is usual (0.00075)"
    )
    assert all(screened[name] is answers[name] for name in screened)


def test_what_one_hospital_alone_is_asked_for_is_measured_by_the_model() -> None:
    far, near = numbers(60, 80), numbers(6, 8)
    for sent, of_model, fits in ((near, 5.0, True), (far, 4.9, False), (far, 0.0, True)):
        answers = {"b": stepped(sent, numbers(1), is_measured=True)}
        assert (reject_outsized(answers, "user", of_model, dim=2) == answers) == fits


ALONE = make_study(arms={"x": {"algorithm": "fedavg"}})
BOTH = make_study(arms={"x": {"algorithm": "fedavg"}, "y": {"algorithm": "local"}})


def evaluated(
    hospital: str = "a",
    arms: Sequence[str] = ("x",),
    changes: Mapping[str, Any] = MappingProxyType({}),
    study: Study = ALONE,
    **personal: Tensor,
) -> str | None:
    figures = FinalMetrics(**metrics().model_dump(), intervals={})
    header = EvaluateReply(
        hospital=hospital,
        arms=dict.fromkeys(arms, figures),
        base_rate=figures,
        comparison=None,
        scaling=None,
        class_counts={},
    ).model_copy(update=changes)
    finals = {name: RunState(1, torch.zeros(2), None) for name in study.arms}
    return problem_with_evaluation(EvaluateResult(header, personal), study, finals)


LOSSLESS = FinalMetrics.model_validate({"num_patients": 10, "auroc": 0.5, "intervals": {}})
UNDEFINED = FinalMetrics.model_validate({**LOSSLESS.model_dump(), "log_loss": None})
FEWER = FinalMetrics.model_validate({"num_patients": 9, "log_loss": 0.5, "intervals": {}})


@pytest.mark.parametrize(
    "given",
    [
        {"hospital": "b"},
        {"arms": ()},
        {"arms": ("x", "y")},
        {"y": torch.zeros(2)},
        {"x": torch.zeros(3)},
        {"x": torch.zeros(0, 2)},
        {"x": torch.tensor(1.0)},
        {"x": torch.full((2,), math.nan)},
        {"x": torch.zeros(2, dtype=torch.float64)},
        {"changes": {"arms": {"x": LOSSLESS}}},  # the loss is what is compared
        {"changes": {"arms": {"x": UNDEFINED}}},
        {"changes": {"base_rate": LOSSLESS}},
        {"changes": {"base_rate": FEWER}},  # arms tested on different patients
        {"changes": {"class_counts": {f"{number}\x1b": 1 for number in range(20_000)}}},
    ],
)
def test_final_figures_are_of_the_user_and_of_every_arm(given: dict[str, Any]) -> None:
    problem = evaluated(**given)
    assert problem
    assert problem.isprintable()
    assert len(problem) < 200


def test_honest_final_figures_have_no_problem() -> None:
    assert evaluated() is None
    assert evaluated(x=torch.zeros(3, 2)) is None
    assert evaluated(changes={"base_rate": None}) is None
    assert evaluated(changes={"class_counts": {"healthy": 6, "ill": None}}) is None


BEYOND: list[tuple[str, float]] = [
    *(("accuracy", value) for value in (412.0, -3.0, 1.001, -0.001)),
    *(("majority_accuracy", value) for value in (1.1, -0.1)),
    *(("auroc", value) for value in (1.1, -0.1)),
    *(("brier", value) for value in (2.1, -0.1)),
    *(("log_loss", value) for value in (4.7, -700.0, 9e99)),
]
AT_THE_ENDS: list[tuple[str, float | None]] = [
    *((name, value) for name in ("accuracy", "majority_accuracy", "auroc") for value in (0, 1)),
    ("auroc", None),
    ("brier", 2 + 1e-12),  # rounded
    ("brier", -1e-12),
    ("log_loss", -math.log(0.01) + 1e-12),
    ("log_loss", 0.0),
]


def final(name: str, value: float | None, **intervals: dict[str, float]) -> FinalMetrics:
    return FinalMetrics.model_validate(
        {**metrics().model_dump(), name: value, "intervals": intervals}
    )


@pytest.mark.parametrize(("name", "value"), BEYOND)
def test_final_figures_that_no_model_has_are_refused(name: str, value: float) -> None:
    """Where all hospitals are users, their mean is everybody's headline."""
    label = ALONE.task.metric(name).label
    for changes in ({"arms": {"x": final(name, value)}}, {"base_rate": final(name, value)}):
        assert f"its {label} is {value:g}, expected at least 0 and" in str(
            evaluated(changes=changes)
        )
    ends = {name: {"low": min(value, 0.5), "high": max(value, 0.5)}}
    assert "the interval of its" in str(
        evaluated(changes={"arms": {"x": final(name, 0.5, **ends)}})
    )


@pytest.mark.parametrize(("name", "value"), AT_THE_ENDS)
def test_figures_at_the_ends_of_what_a_model_can_have_are_not_refused(
    name: str, value: float | None
) -> None:
    ends = {} if value is None else {name: {"low": value, "high": value}}
    figures = final(name, value, **ends)
    assert evaluated(changes={"arms": {"x": figures}, "base_rate": figures}) is None


def test_an_interval_is_of_a_figure_and_lies_the_right_way_round() -> None:
    around = {"log_loss": {"low": 0.4, "high": 0.6}}
    assert evaluated(changes={"arms": {"x": final("accuracy", 0.5, **around)}}) is None
    turned = final("accuracy", 0.5, log_loss={"low": 0.6, "high": 0.4})
    assert "the wrong way round" in str(evaluated(changes={"arms": {"x": turned}}))
    for name in ("auroc", "x"):  # undefined, and of nothing
        alone = final("accuracy", 0.5, **{name: {"low": 0.4, "high": 0.6}})
        said = str(evaluated(changes={"arms": {"x": alone}}))
        assert f"an interval of {name!r}, and no such figure" in said


SHOWN: Mapping[str, Any] = {
    "arm": "x",
    "reference": "y",
    "num_patients": 10,
    "smallest_class": 5,
    "mean_difference": -0.1,
    "p_value": 0.01,
    "conclusion": "better",
}


def compared(**changes: object) -> str | None:
    """What is wrong with figures whose comparison differs by `changes` from what a study shows."""
    comparison = Comparison.model_validate({**SHOWN, **changes})
    return evaluated(arms=("x", "y"), changes={"comparison": comparison}, study=BOTH)


def test_final_figures_compare_what_the_study_declares_by_its_own_rule() -> None:
    """Where all hospitals are users, the first one's comparison once headed everybody's page."""
    assert compared() is None
    assert compared(p_value=0.5, conclusion="no clear difference") is None
    assert compared(mean_difference=0.1, conclusion="worse") is None
    assert compared(smallest_class=4, conclusion="too few patients") is None
    assert evaluated(arms=("x", "y"), study=BOTH) == "it did not compare what the study declares"
    for changes in (
        {"arm": "y", "reference": "x"},
        {"reference": "z"},
        {"level": 1.0},
        {"strict": True},
        {"p_value": 0.03},
        {"smallest_class": 4},
        {"mean_difference": 0.1},
        {"chosen": {"x": 1}},
        {"p_by_cut": (0.01, 0.02)},
        {"conclusion": "worse"},
        {"conclusion": "no clear difference"},
        {"conclusion": "too few patients"},
        {"smallest_class": 11},
        {"num_patients": 11},
        {"mean_difference": -4.7},
        {"mean_difference": -9e99},
    ):
        assert compared(**changes), changes
    alone = Comparison.model_validate({**SHOWN, "reference": "x"})
    assert evaluated(changes={"comparison": alone})


@pytest.mark.parametrize(
    "changes",
    [{"p_value": -1.0}, {"p_value": 1.5}, {"conclusion": "\x1b[2J"}, {"num_patients": -1}],
)
def test_a_comparison_that_nobody_can_make_is_not_read(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Comparison.model_validate({**SHOWN, **changes})


@pytest.mark.parametrize("count", [-1, LARGEST_COUNT + 1, int("9" * 4300)])
def test_a_count_that_is_no_number_of_patients_is_not_read(count: int) -> None:
    """The sum of two of 4,300 digits cannot even be printed."""
    trained: dict[str, Any] = answered(numbers(1)).header.model_dump()
    final: dict[str, Any] = {"hospital": "a", "arms": {}, "comparison": None, "scaling": None}
    sums = {"count": [count], "total": [0.0], "squares": [0.0]}
    for model, raw in (
        (TrainReply, {**trained, "num_samples": count}),
        (TrainReply, {**trained, "samples_seen": count}),
        (TrainReply, {**trained, "steps": count}),
        (TrainReply, {**trained, "round": count}),
        (StepReply, {"hospital": "a", "arm": "x", "round": count, "step": "s", "seconds": 1.0}),
        (DescribeReply, {"hospital": "a", "num_samples": count, "software": "1"}),
        (DescribeReply, {"hospital": "a", "num_samples": 9, "software": "1", "sums": sums}),
        (FinalMetrics, {"num_patients": count, "intervals": {}}),
        (Comparison, {**SHOWN, "num_patients": count}),
        (Comparison, {**SHOWN, "smallest_class": count}),
        (EvaluateReply, {**final, "class_counts": {"ill": count, "healthy": 9}}),
    ):
        with pytest.raises(ValidationError):
            model.model_validate(raw)


@pytest.mark.parametrize(
    "name", ["=cmd|'/C calc'!A0", "+1", "a\nb", "\x1b[2J", "", "Loss", "9", "a" * 101, "a b", "é"]
)
def test_a_metric_that_a_table_or_a_terminal_would_obey_is_not_read(name: str) -> None:
    """Its name gets into `metrics.csv`, which people open in a spreadsheet."""
    with pytest.raises(ValidationError, match="small letters, digits and _"):
        Metrics.model_validate({"num_patients": 9, name: 1.0})
    assert Metrics.model_validate({"num_patients": 9, "a" * 100: 1.0, "r2_x": 0.5}).get("r2_x")


def test_seconds_that_add_up_to_no_number_are_refused() -> None:
    said: dict[str, Any] = {"hospital": "a", "arm": "x", "round": 1, "step": "s"}
    assert StepReply(**said, seconds=1e6).seconds == 1e6
    with pytest.raises(ValueError, match="less than or equal"):
        StepReply(**said, seconds=1.7e308)
