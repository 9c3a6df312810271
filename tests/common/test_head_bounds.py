"""The bound on a head follows from the study, and every honest head fits."""

from dataclasses import replace
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict
from pydantic import ValidationError

from erosion_common.errors import StudyError
from erosion_common.protocol import wire
from erosion_common.protocol.envelope import describe
from erosion_common.protocol.frames import LARGEST_HEAD_BYTES, Kind, json_frame
from erosion_common.protocol.messages import (
    CROSS_FITTED_SIGNIFICANCE,
    LONGEST_METRIC,
    MOST_COLUMNS,
    MOST_METRICS,
    QUANTILES,
    ColumnSummary,
    Comparison,
    DescribeReply,
    EvaluateReply,
    EvaluateResult,
    FeatureSums,
    FinalMetrics,
    Scaling,
    Summary,
    TrainRequest,
)
from erosion_common.protocol.wire import WireError
from erosion_common.rounds.bounds import check_sizes, most_head_bytes, problem_with_heads
from erosion_common.settings.base import MOST_MISTAKES
from erosion_common.study.study import Study
from tests.support.refusals import refused
from tests.support.small_study import TASK, make_study

LONGEST_NUMBER = -1.2345678901234567e-100
NAME = "spin\u00e4l-\U0001f9ea {}"  # what JSON takes most characters for


def study_of(num_columns: int) -> Study:
    features: list[Any] = [NAME.format(number) for number in range(num_columns - 1)]
    categories = [NAME.format(number) for number in range(num_columns)]
    kinds = {"name": "kind", "categories": categories}
    task = {**TASK, "features": [*features, kinds], "missing": "impute"}
    return make_study(task=task, scaling="federated")


def head_bytes(record: RecordDict) -> int:
    return len(json_frame(Kind.MESSAGE, {"re": "x" * 40, "records": describe(record)[0]}))


def numbers(study: Study) -> tuple[float, ...]:
    return (LONGEST_NUMBER,) * study.task.input_shape[0]


def test_a_study_of_few_columns_needs_much_less_than_what_a_frame_can_have() -> None:
    assert most_head_bytes(study_of(30)) < 2**19


@pytest.mark.parametrize("num_columns", [3, 30, 1000])
def test_the_longest_honest_introduction_and_description_fit(num_columns: int) -> None:
    study = study_of(num_columns)
    each = numbers(study)
    columns = [
        ColumnSummary(
            name=feature.name,
            kind="number",
            count=10**9,
            missing=10**9,
            mean=LONGEST_NUMBER,
            deviation=-LONGEST_NUMBER,
            quantiles=(LONGEST_NUMBER,) * len(QUANTILES),
            shares=dict.fromkeys(getattr(feature, "categories", ()), 10**9),
        )
        for feature in study.task.features  # type: ignore[attr-defined]
    ]
    summary = Summary(min_cell=5, num_samples=10**9, num_patients=10**9, columns=tuple(columns))
    sums = FeatureSums(count=(10**9,) * len(each), total=each, squares=each)
    reply = DescribeReply(
        hospital="a", num_samples=10**9, software="9" * 40, sums=sums, summary=summary
    )
    assert head_bytes(wire.encode_describe_reply(reply)) <= most_head_bytes(study)


@pytest.mark.parametrize("num_columns", [3, 30, 1000])
def test_the_longest_honest_figures_fit(num_columns: int) -> None:
    study = study_of(num_columns)
    each = numbers(study)
    scaling = Scaling(mean=each, deviation=each)
    names = [f"m{number}_".ljust(LONGEST_METRIC // 4, "m") for number in range(MOST_METRICS // 4)]
    bounds = {"low": LONGEST_NUMBER, "high": LONGEST_NUMBER}
    figures = FinalMetrics.model_validate(
        {
            "num_patients": 10**9,
            "intervals": dict.fromkeys(names, bounds),
            **dict.fromkeys(names, LONGEST_NUMBER),
        }
    )
    header = EvaluateReply(
        hospital="a",
        arms=dict.fromkeys(study.arms, figures),
        base_rate=figures,
        comparison=Comparison(
            arm="fedavg",
            reference="local",
            num_patients=10**9,
            smallest_class=10**9,
            mean_difference=LONGEST_NUMBER,
            p_value=0.5,
            conclusion="no clear difference",
            level=CROSS_FITTED_SIGNIFICANCE,
        ),
        scaling=scaling,
        own_scaling=scaling,
        missing_means=each,
        class_counts={"healthy": 10**9, "ill": 10**9},
    )
    record = wire.encode_evaluate_result(EvaluateResult(header, {}))
    assert head_bytes(record) <= most_head_bytes(study)


def header(text: str) -> RecordDict:
    return RecordDict({"header": ConfigRecord({"json": text})})


def test_of_very_many_mistakes_none_is_named() -> None:
    strange = ",".join(f'"{number}":1' for number in range(MOST_MISTAKES + 1))
    with refused(WireError, "places"):
        wire.decode_describe_reply(header(f"{{{strange}}}"))
    with refused(WireError, "hospital"):
        wire.decode_describe_reply(header("{}"))


@pytest.mark.parametrize("wrong", [(None,) * 1000, (0.0,) * (MOST_COLUMNS + 1)])
def test_columns_are_read_up_to_the_first_wrong_one(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(ValidationError) as problem:
        Scaling(mean=wrong, deviation=wrong)
    assert problem.value.error_count() == 2  # one each


@pytest.mark.parametrize("num_columns", [3, 1000])
def test_a_study_that_can_be_sent_is_not_refused(num_columns: int) -> None:
    assert problem_with_heads(study_of(num_columns)) is None


def test_a_study_of_too_many_columns_is_refused_with_their_number_and_the_remedy() -> None:
    task = {**TASK, "features": [f"cg{number:08d}" for number in range(40_000)]}
    study = make_study(task=task, scaling="federated")
    with refused(StudyError, "40,000", "4 MiB"):
        check_sizes(study)
    _, remedy = problem_with_heads(study) or ("", "")
    fit = int(remedy.split("about ")[1].removesuffix(" fit").replace(",", ""))
    fewer = make_study(task={**task, "features": task["features"][:fit]}, scaling="federated")
    assert problem_with_heads(fewer) is None
    request = TrainRequest(fewer, "fedavg", 1, None, Scaling(mean=(1.0,), deviation=(1.0,)))
    scaling = Scaling(mean=numbers(fewer), deviation=numbers(fewer))
    assert head_bytes(wire.encode_train(replace(request, scaling=scaling))) <= LARGEST_HEAD_BYTES
