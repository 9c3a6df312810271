"""Requests and replies as Flower records: one JSON header and flat arrays, never pickle.

A study travels once, with `describe` or with the first request of it; after that a request names
its digest. A site that does not have it (any more) answers `StudyWanted`.
"""

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from pydantic import Field, ValidationError
from pydantic_core import from_json
from torch import Tensor

from erosion_common.errors import ErosionError, StudyError
from erosion_common.protocol.compression import (
    KINDS,
    Compression,
    Packed,
    checked,
    sent_arrays,
    unpacked,
)
from erosion_common.protocol.flower import buffer_of, identify, to_array, to_record, to_tensor
from erosion_common.protocol.frames import LARGEST_HEAD_BYTES
from erosion_common.protocol.messages import (
    LARGEST_COUNT,
    OLDEST_PROTOCOL,
    PROTOCOL,
    DescribeReply,
    EvaluateReply,
    EvaluateRequest,
    EvaluateResult,
    Numbers,
    Scaling,
    StepReply,
    StepResult,
    SummaryReply,
    TrainReply,
    TrainRequest,
    TrainResult,
)
from erosion_common.settings.base import PlainValues, Settings, first_mistake, unknown_names
from erosion_common.settings.names import Count, Said, Sha256
from erosion_common.study.study import Study, study_from_values
from erosion_common.support.software import software_version

identify()  # every program that makes or reads our messages imports this module

# Flower's message types
DESCRIBE, TRAIN, EVALUATE, NOTICE = "query.describe", "train", "evaluate", "query.notice"
SUMMARY = "query.summary"  # asked with the content of DESCRIBE


def train_type(step: str) -> str:
    """Return the message type of a step of a round: `train`, `train.gradient`."""
    return TRAIN if step == TRAIN else f"{TRAIN}.{step}"


_HEADER, _ARRAYS = "header", "arrays"
UPDATE, _PARAMETERS = "update", "parameters"
MAX_ARRAYS = 64  # of one message
MOST_STUDIES = 16  # that a site keeps; each trial is a study
MOST_PROTOCOL = 2**31
MOST_CHARACTERS = 4 * LARGEST_HEAD_BYTES  # of these together: in memory one is many times as large


MOST_TABLES = 2**17  # lists and tables in a header: validating a million takes seconds


class WireError(ErosionError):
    """A message that does not follow the protocol: the other side runs something else."""


class AnotherVersion(WireError):  # noqa: N818 - nobody's mistake
    """A request of another version, which this one lacks something for."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"this site's erosion {software_version()} was asked for {what}",
            remedy="Upgrade it, or leave that out of the study.",
        )

    @property
    def public(self) -> str:
        """The whole message: it quotes the coordinator's own request alone."""
        return str(self)


class StudyWanted(Settings):
    """A site's answer to a request of a study that it does not have."""

    unknown_study: Sha256  # the study's digest


class UnknownStudy(ErosionError):  # noqa: N818 - a state that passes, not a mistake
    """A request of a study that the site does not have; it has to be sent with the study."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"this site does not have the study {digest[:12]}")
        self.wanted = StudyWanted(unknown_study=digest)


class _StudyHeader(Settings):
    protocol: int
    digest: Sha256
    study: PlainValues | None  # None where the site is known to have it

    @property
    def own(self) -> dict[str, Any]:
        """What a request has under the same names."""
        return {n: getattr(self, n) for n in type(self).model_fields if n not in _APART}


_APART = {*_StudyHeader.model_fields, "arms"}


class _DescribeHeader(_StudyHeader):
    run: Said | None


class _TrainHeader(_StudyHeader):
    arm: Said
    round: int = Field(ge=1, le=LARGEST_COUNT)
    scaling: Scaling | None
    run: Said
    step: Said
    exchange: int = Field(ge=1, le=LARGEST_COUNT)
    values: PlainValues = Field(default_factory=dict)


class _EvaluateHeader(_StudyHeader):
    arms: tuple[Said, ...] = Field(max_length=MAX_ARRAYS)
    scaling: Scaling | None
    run: Said
    missing_means: Numbers | None = None
    rounds: Annotated[dict[Said, Count], Field(max_length=MAX_ARRAYS)] = Field(default_factory=dict)


H = TypeVar("H", bound=Settings)


class KnownStudies:
    """The studies that a site was sent last, so that a request need not bring its study."""

    def __init__(self) -> None:
        self._studies: OrderedDict[str, Study] = OrderedDict()  # by digest, used last at the end

    def study_of(self, header: "_StudyHeader") -> Study:
        """Raises WireError, StudyError or UnknownStudy."""
        if header.protocol < OLDEST_PROTOCOL:
            raise AnotherVersion(f"protocol {header.protocol}, which is no longer spoken")
        study = self._studies.pop(header.digest, None)
        if study is None:
            if header.study is None:
                raise UnknownStudy(header.digest)
            # The testbed is not in the digest: nobody has approved it, and nothing here needs it.
            values = {key: value for key, value in header.study.items() if key != "testbed"}
            try:
                study = study_from_values(values)
            except StudyError:
                if names := unknown_names(Study, values):
                    raise AnotherVersion(f"what it does not have: {', '.join(names)}") from None
                raise
            if study.digest != header.digest:
                raise AnotherVersion("a study that it reads differently")
        self._studies[header.digest] = study
        sizes = [len(known.canonical_json()) for known in self._studies.values()]
        while len(sizes) > MOST_STUDIES or sum(sizes) > MOST_CHARACTERS:
            self._studies.popitem(last=False)
            del sizes[0]
        return study


class Encoder:
    """Encodes the requests of one exchange; what they share is encoded once."""

    def __init__(self) -> None:
        self._arrays: dict[int, tuple[Tensor, Array]] = {}

    def encode(
        self, request: TrainRequest | EvaluateRequest, *, with_study: bool = True
    ) -> RecordDict:
        """Encode one record for all that get the same: arrays are stored and hashed once."""
        form: type[_StudyHeader]
        more: dict[str, Any]
        if isinstance(request, TrainRequest):
            form, more = _TrainHeader, {"values": dict(request.values)}
            tensors = {**sent_arrays(request.sent, _PARAMETERS), **request.enclosed}
        else:
            form, more = _EvaluateHeader, {"arms": tuple(request.parameters)}
            enclosed = {
                f"{arm}/{name}": tensor  # no arm's name has a slash
                for arm, tensors in request.enclosed.items()
                for name, tensor in tensors.items()
            }
            tensors = {**request.parameters, **enclosed}
        own = {n: getattr(request, n) for n in form.model_fields if n not in _APART}
        about = _of_study(request.study, with_study=with_study)
        # Our own: the receiver checks it.
        return self._record(form.model_construct(**about, **{**own, **more}), tensors)

    def _record(self, header: Settings, tensors: Mapping[str, Tensor]) -> RecordDict:
        arrays = {}
        for name, tensor in tensors.items():
            if id(tensor) not in self._arrays:
                self._arrays[id(tensor)] = tensor, to_array(tensor)
            arrays[name] = self._arrays[id(tensor)][1]
        return _record(header, arrays)


def encode_describe(study: Study, run: str | None = None) -> RecordDict:
    """Ask a hospital to introduce itself for a run, or to describe its columns before any."""
    return _record(
        _DescribeHeader.model_construct(**_of_study(study, with_study=True), run=run), {}
    )


def decode_describe(record: RecordDict, known: KnownStudies) -> tuple[Study, str | None]:
    """Return the study that is asked about, and the run. Raises WireError or StudyError."""
    header = decode_header(record, _DescribeHeader)
    return known.study_of(header), header.run


def decode_train(record: RecordDict, known: KnownStudies) -> TrainRequest:
    """Raises WireError, StudyError or UnknownStudy."""
    header = decode_header(record, _TrainHeader)
    study = known.study_of(header)
    enclosed = _tensors(record)
    sent = _arrived(_PARAMETERS, enclosed, study.federation.compression)
    return TrainRequest(study=study, sent=sent, enclosed=enclosed, **header.own)


def encode_result(result: TrainResult | StepResult | EvaluateResult) -> RecordDict:
    """Encode an update, the answer to a step without one, or final figures with their arrays."""
    if isinstance(result, TrainResult):
        tensors = {**sent_arrays(result.sent, UPDATE), **result.attachments}
    else:
        tensors = {**(result.tensors if isinstance(result, StepResult) else result.personal)}
    return _record(result.header, {name: to_array(tensor) for name, tensor in tensors.items()})


def decode_train_result(
    record: RecordDict, compression: Compression = "none", dim: int | None = None
) -> TrainResult:
    """Raises WireError. `dim`: what a compressed update must have; None: as many as came."""
    header = decode_header(record, TrainReply)
    tensors = _tensors(record)
    delta = _arrived(UPDATE, tensors, compression, dim)
    if delta is None:
        raise WireError("a train reply without an update")
    return TrainResult(header, delta, tensors)


def _arrived(
    name: str, tensors: dict[str, Tensor], compression: Compression, dim: int | None = None
) -> Tensor | Packed | None:
    """Take out the vector of that name, compressed or not; None where there is neither."""
    plain, scales = tensors.pop(name, None), tensors.pop(f"{name}.scales", None)
    codes = tensors.pop(f"{name}.{compression}", None)
    if codes is None:
        return plain
    width = 1 if compression == "int8" else 2
    try:
        packed = Packed(compression, codes, scales)
        return checked(packed, codes.numel() // width if dim is None else dim)
    except ValueError as problem:
        raise WireError(f"a compressed array {name!r} with {problem}") from None


def compressed_update(record: RecordDict) -> Tensor | None:
    """Return the compressed update of a train reply; None if there is none, or it is damaged."""
    try:
        tensors = _tensors(record)
        for kind in KINDS:
            if f"{UPDATE}.{kind}" in tensors:
                update = _arrived(UPDATE, tensors, kind)
                return None if update is None else unpacked(update)
    except WireError:
        return None
    return None


def decode_step_result(record: RecordDict) -> StepResult:
    """Raises WireError."""
    return StepResult(decode_header(record, StepReply), _tensors(record))


def decode_evaluate_result(record: RecordDict) -> EvaluateResult:
    """Raises WireError."""
    return EvaluateResult(decode_header(record, EvaluateReply), _tensors(record))


def decode_evaluate(record: RecordDict, known: KnownStudies) -> EvaluateRequest:
    """Raises WireError, StudyError or UnknownStudy."""
    header = decode_header(record, _EvaluateHeader)
    study = known.study_of(header)
    tensors = _tensors(record)
    missing = [arm for arm in header.arms if arm not in tensors]
    if missing:
        raise WireError(f"an evaluate request without parameters of {', '.join(missing)}")
    enclosed: dict[str, dict[str, Tensor]] = {arm: {} for arm in header.arms}
    for key, tensor in tensors.items():
        arm, slash, name = key.partition("/")
        if slash and arm in enclosed:
            enclosed[arm][name] = tensor
    parameters = {arm: tensors[arm] for arm in header.arms}
    return EvaluateRequest(study, parameters, enclosed=enclosed, **header.own)


def asks_for_study(record: RecordDict) -> bool:
    """Return True if the site does not have the study."""
    if not header_text(record).startswith('{"unknown_study"'):  # cheap, for every other answer
        return False
    try:
        decode_header(record, StudyWanted)
    except WireError:
        return False
    return True


RunName = Annotated[str, Field(max_length=1000)]
MOST_ENDED = 1000  # runs in a notice


class Notice(Settings):
    """A message of the coordinator's to a site, without an answer."""

    text: str = Field(max_length=2**20)  # of which a site looks at the beginning
    final: bool  # the site is rejected and should not come back as it is
    ended: Annotated[tuple[RunName, ...], Field(max_length=MOST_ENDED)] = ()  # runs; an app's is ""
    run: RunName = ""  # that the site is rejected from, where none has ended

    def ends(self, run: str) -> bool:
        """Return if the run has ended, or the whole that it is one user's part of."""
        return any(run == ended or run.startswith(f"{ended}.") for ended in self.ended)


def encode_header(header: DescribeReply | SummaryReply | Notice | StudyWanted) -> RecordDict:
    """Return a message without arrays."""
    return _record(header, {})


def decode_header(record: RecordDict, form: type[H]) -> H:
    """Return the header of a message that is of this form. Raises WireError."""
    if not (text := header_text(record)):
        raise WireError("a message without a header")
    if text.count("[") + text.count("{") > MOST_TABLES:
        raise WireError(f"a header of more than {MOST_TABLES} lists and tables")
    if issubclass(form, _StudyHeader):  # before its keys, which may be new ones
        needed = header_of(record).get("protocol")
        if type(needed) is int and PROTOCOL < needed < MOST_PROTOCOL:
            raise AnotherVersion(f"protocol {needed}, and speaks up to {PROTOCOL}")
    try:
        # Strictly: what logs read of a header must be what was answered, and "3" is no 3 to them.
        return form.model_validate_json(text, strict=True)
    except ValidationError as problem:
        raise WireError(f"a wrong header: {first_mistake(problem, 'content')}") from None


def header_of(record: RecordDict) -> dict[str, Any]:
    """Return the header as plain values, unchecked; empty where there is none. For logs."""
    try:
        values = from_json(header_text(record) or "{}")  # unlike json, refuses lone surrogates
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def header_text(record: RecordDict) -> str:
    """Return the header as it travels; empty where there is none."""
    config = record.get(_HEADER)
    text = config.get("json") if isinstance(config, ConfigRecord) else None
    return text if isinstance(text, str) else ""


def arrays_of(record: RecordDict) -> Iterator[tuple[str, tuple[int, ...], str, memoryview]]:
    """Yield the arrays as they travel, by name: shape, type and bytes."""
    arrays = record.get(_ARRAYS)
    if isinstance(arrays, ArrayRecord):
        for name, array in sorted(arrays.items()):
            yield name, tuple(array.shape), array.dtype, buffer_of(array)


def num_bytes(record: RecordDict) -> int:
    """Return the bytes of the header and the arrays."""
    arrays = sum(buffer.nbytes for *_, buffer in arrays_of(record))
    return len(header_text(record).encode()) + arrays


def _of_study(study: Study, *, with_study: bool) -> dict[str, Any]:
    return {
        "protocol": OLDEST_PROTOCOL,
        "digest": study.digest,
        "study": json.loads(study.canonical_json()) if with_study else None,
    }


def _record(header: Settings, arrays: Mapping[str, Array]) -> RecordDict:
    record = RecordDict({_HEADER: ConfigRecord({"json": header.model_dump_json()})})
    if arrays:
        record[_ARRAYS] = to_record(arrays)
    return record


def _tensors(record: RecordDict) -> dict[str, Tensor]:
    arrays = record.get(_ARRAYS)
    if not isinstance(arrays, ArrayRecord):
        return {}
    if len(arrays) > MAX_ARRAYS:
        raise WireError(f"{len(arrays)} arrays, at most {MAX_ARRAYS} are accepted")
    tensors = {}
    for name, array in arrays.items():
        try:
            tensors[name] = to_tensor(array)
        except ValueError as problem:
            raise WireError(f"array {name!r} holds {problem}") from None
    return tensors
