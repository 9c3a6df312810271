"""Requests and replies as Flower records: one JSON header and flat float32 arrays, never pickle."""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from pydantic import Field, ValidationError
from torch import Tensor

from erosion.common.errors import ErosionError
from erosion.common.protocol.flower_arrays import to_array, to_record, to_tensor
from erosion.common.protocol.messages import (
    PROTOCOL,
    DescribeReply,
    EvaluateReply,
    EvaluateRequest,
    EvaluateResult,
    Scaling,
    TrainReply,
    TrainRequest,
    TrainResult,
)
from erosion.common.settings.base import Settings
from erosion.common.study.study import Study, study_from_json

# Flower's message types
DESCRIBE, TRAIN, EVALUATE, NOTICE = "query.describe", "train", "evaluate", "query.notice"

_HEADER, _ARRAYS = "header", "arrays"
UPDATE, _PARAMETERS = "update", "parameters"
MAX_ARRAYS = 64  # of one message


class WireError(ErosionError):
    """A message that does not follow the protocol: the other side runs something else."""


class _StudyHeader(Settings):
    protocol: int
    study: dict[str, object]


class _TrainHeader(_StudyHeader):
    arm: str
    round: int = Field(ge=1)
    scaling: Scaling | None
    run: str


class _EvaluateHeader(_StudyHeader):
    arms: tuple[str, ...]
    scaling: Scaling | None
    run: str


H = TypeVar("H", bound=Settings)


def encode_describe(study: Study) -> RecordDict:
    """Ask a hospital to introduce itself."""
    return _record(_StudyHeader(protocol=PROTOCOL, study=json.loads(study.canonical_json())), {})


def decode_describe(record: RecordDict) -> Study:
    """The study that is asked about."""
    return _study(_header(record, _StudyHeader))


def encode_train(request: TrainRequest) -> RecordDict:
    """One record for all who get the same, so that its arrays are stored and hashed once."""
    header = _TrainHeader(
        protocol=PROTOCOL,
        study=json.loads(request.study.canonical_json()),
        arm=request.arm,
        round=request.round,
        scaling=request.scaling,
        run=request.run,
    )
    return _record(header, {_PARAMETERS: request.parameters, **request.enclosed})


def decode_train(record: RecordDict) -> TrainRequest:
    """Raises WireError or StudyError."""
    header = _header(record, _TrainHeader)
    enclosed = _tensors(record)
    parameters = enclosed.pop(_PARAMETERS, None)
    if parameters is None:
        raise WireError("a train request without parameters")
    return TrainRequest(
        _study(header),
        header.arm,
        header.round,
        parameters,
        header.scaling,
        header.run,
        enclosed,
    )


def encode_train_result(result: TrainResult) -> RecordDict:
    """A trained update."""
    return _record(result.header, {UPDATE: result.delta, **result.attachments})


def decode_train_result(record: RecordDict) -> TrainResult:
    """Raises WireError."""
    header = _header(record, TrainReply)
    tensors = _tensors(record)
    delta = tensors.pop(UPDATE, None)
    if delta is None:
        raise WireError("a train reply without an update")
    return TrainResult(header, delta, tensors)


def encode_evaluate(request: EvaluateRequest) -> RecordDict:
    """The final parameters of every arm."""
    header = _EvaluateHeader(
        protocol=PROTOCOL,
        study=json.loads(request.study.canonical_json()),
        arms=tuple(request.parameters),
        scaling=request.scaling,
        run=request.run,
    )
    enclosed = {
        f"{arm}/{name}": tensor  # no arm's name has a slash
        for arm, tensors in request.enclosed.items()
        for name, tensor in tensors.items()
    }
    return _record(header, {**request.parameters, **enclosed})


def decode_evaluate(record: RecordDict) -> EvaluateRequest:
    """Raises WireError or StudyError."""
    header = _header(record, _EvaluateHeader)
    tensors = _tensors(record)
    missing = [arm for arm in header.arms if arm not in tensors]
    if missing:
        raise WireError(f"an evaluate request without parameters of {', '.join(missing)}")
    enclosed: dict[str, dict[str, Tensor]] = {arm: {} for arm in header.arms}
    for key, tensor in tensors.items():
        arm, slash, name = key.partition("/")
        if slash and arm in enclosed:
            enclosed[arm][name] = tensor
    return EvaluateRequest(
        _study(header),
        {arm: tensors[arm] for arm in header.arms},
        header.scaling,
        header.run,
        enclosed,
    )


def encode_describe_reply(reply: DescribeReply) -> RecordDict:
    """A reply without arrays."""
    return _record(reply, {})


def decode_describe_reply(record: RecordDict) -> DescribeReply:
    """Raises WireError."""
    return _header(record, DescribeReply)


def encode_evaluate_result(result: EvaluateResult) -> RecordDict:
    """The user's final figures, and its personal parameters."""
    return _record(result.header, result.personal)


def decode_evaluate_result(record: RecordDict) -> EvaluateResult:
    """Raises WireError."""
    return EvaluateResult(_header(record, EvaluateReply), _tensors(record))


class Notice(Settings):
    """Something that the coordinator tells a site."""

    text: str
    final: bool  # the site is turned away and should not come back as it is
    study_ended: bool = False


def encode_notice(notice: Notice) -> RecordDict:
    """A notice, and its acknowledgement."""
    return _record(notice, {})


def decode_notice(record: RecordDict) -> Notice:
    """Raises WireError."""
    return _header(record, Notice)


def header_of(record: RecordDict) -> dict[str, Any]:
    """The header as plain values, unchecked; empty where there is none. For logs."""
    config = record.get(_HEADER)
    text = config.get("json") if isinstance(config, ConfigRecord) else None
    try:
        values = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def contents_of(record: RecordDict) -> tuple[str, dict[str, Tensor]]:
    """Everything that a reply of this program carries: its header's text, and its arrays."""
    config = record[_HEADER]
    text = config["json"] if isinstance(config, ConfigRecord) else ""
    return str(text), _tensors(record)


def _record(header: Settings, tensors: Mapping[str, Tensor]) -> RecordDict:
    record = RecordDict({_HEADER: ConfigRecord({"json": header.model_dump_json()})})
    if tensors:
        record[_ARRAYS] = to_record({name: to_array(t) for name, t in tensors.items()})
    return record


def _header(record: RecordDict, model: type[H]) -> H:
    config = record.get(_HEADER)
    text = config.get("json") if isinstance(config, ConfigRecord) else None
    if not isinstance(text, str):
        raise WireError("a message without a header")
    try:
        return model.model_validate_json(text)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise WireError(f"a header whose {where or 'content'} is wrong: {first['msg']}") from None


def _tensors(record: RecordDict) -> dict[str, Tensor]:
    arrays = record.get(_ARRAYS)
    if not isinstance(arrays, ArrayRecord):
        return {}
    if len(arrays) > MAX_ARRAYS:
        raise WireError(f"{len(arrays)} arrays, at most {MAX_ARRAYS} are accepted")
    return {name: _tensor(name, array) for name, array in arrays.items()}


def _tensor(name: str, array: Array) -> Tensor:
    try:
        return to_tensor(array)
    except ValueError as problem:
        raise WireError(f"array {name!r} holds {problem}") from None


def _study(header: _StudyHeader) -> Study:
    if header.protocol != PROTOCOL:
        raise WireError(
            f"protocol {header.protocol}, this site speaks {PROTOCOL};"
            " install the same version of erosion on both sides"
        )
    return study_from_json(json.dumps(header.study))
