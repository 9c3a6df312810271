"""The bound on a head follows from the study, and every honest head fits."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict
from pydantic import ValidationError

from erosion_common.algorithms.base import UPDATES, ExpectedReply, TensorSpec
from erosion_common.errors import StudyError
from erosion_common.protocol import wire
from erosion_common.protocol.compression import KINDS, compress
from erosion_common.protocol.envelope import describe, read_description
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
    TrainReply,
    TrainRequest,
    TrainResult,
)
from erosion_common.protocol.wire import WireError
from erosion_common.rounds.bounds import (
    check_sizes,
    most_head_bytes,
    most_reply_bytes,
    problem_with_heads,
)
from erosion_common.rounds.evaluation import evaluate_request
from erosion_common.rounds.round import first_state
from erosion_common.settings.base import MOST_MISTAKES
from erosion_common.study.study import Study
from tests.support.federation import small_study
from tests.support.refusals import refused
from tests.support.scripted import Kept, Scripted, study_run, trained
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
    assert head_bytes(wire.encode_header(reply)) <= most_head_bytes(study)


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
    record = wire.encode_result(EvaluateResult(header, {}))
    assert head_bytes(record) <= most_head_bytes(study)


def header(text: str) -> RecordDict:
    return RecordDict({"header": ConfigRecord({"json": text})})


def test_of_very_many_mistakes_none_is_named() -> None:
    strange = ",".join(f'"{number}":1' for number in range(MOST_MISTAKES + 1))
    with refused(WireError, "places"):
        wire.decode_header(header(f"{{{strange}}}"), DescribeReply)
    with refused(WireError, "hospital"):
        wire.decode_header(header("{}"), DescribeReply)


@pytest.mark.parametrize("wrong", [(None,) * 1000, (0.0,) * (MOST_COLUMNS + 1)])
def test_columns_are_read_up_to_the_first_wrong_one(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(ValidationError) as problem:
        Scaling(mean=wrong, deviation=wrong)
    assert problem.value.error_count() == 2  # one each


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
    assert (
        head_bytes(wire.Encoder().encode(replace(request, scaling=scaling))) <= LARGEST_HEAD_BYTES
    )


# -- The bound on an answer follows from what was asked, and an honest answer fits ---------------

ROOM = 200  # bytes beside the numbers themselves


def num_bytes(record: object) -> int:
    """As the coordinator counts them before it takes any in."""
    records, _ = describe(record)  # type: ignore[arg-type]
    return read_description(records).num_bytes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 5, 255, 256, 257, 1000])
def test_an_update_fits_however_it_is_compressed_and_nothing_much_larger_does(
    dim: int, kind: str
) -> None:
    header = TrainReply(
        hospital="a", arm="fedavg", round=1, num_samples=1, samples_seen=1, seconds=0.0
    )
    sent = compress(torch.randn(dim), kind)  # type: ignore[arg-type]
    found = num_bytes(wire.encode_result(TrainResult(header, sent)))
    assert 0 < found <= most_reply_bytes(UPDATES, dim) <= 4 * dim + ROOM


def test_tensors_of_any_length_are_bound_by_how_many_values_they_may_have() -> None:
    terms = TensorSpec((None, 3), torch.uint8, most_values=300)
    expects = ExpectedReply(tensors={"whole": TensorSpec((2, 5)), "open": terms})
    assert 300 + 40 <= most_reply_bytes(expects, dim=10**6) <= 300 + 40 + ROOM
    assert most_reply_bytes(ExpectedReply(), dim=10**6) == 0


@pytest.mark.parametrize("arm", ["fedavg", "scaffold", "evidence_erosion"])
def test_a_request_says_what_its_answers_need_attachments_included(arm: str) -> None:
    transport = Scripted(small_study(arms={arm: {}}, rounds=1, scaling="none"))
    transport.join(*transport.study.hospitals)
    study_run(transport, Kept())
    asked = [(name, each) for name, each in transport.requests if isinstance(each, TrainRequest)]
    assert asked
    for name, request in asked:
        found = num_bytes(wire.encode_result(trained(name, request)))
        assert request.most_reply_bytes is not None
        assert found <= request.most_reply_bytes <= found + ROOM * 3


def test_final_figures_may_bring_everybodys_model_for_every_arm() -> None:
    study = small_study(arms={"ensemble": {}, "fedavg": {}})
    finals = {
        arm: first_state(study.arms[arm].build(study.build_context), torch.zeros(10))
        for arm in study.arms
    }
    request = evaluate_request(study, finals, scaling=None)
    whole = sum(4 * 10 * len(study.hospitals) for _ in study.arms)
    assert request.most_reply_bytes is not None
    assert whole <= request.most_reply_bytes <= whole + 2 * ROOM
