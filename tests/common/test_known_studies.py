"""The studies that a site keeps, so that not every request has to bring its own."""

import json

import pytest
from flwr.app import ConfigRecord, RecordDict
from pydantic import Field

from erosion_common.errors import StudyError
from erosion_common.protocol import wire
from erosion_common.protocol.frames import ProtocolFault, Versions
from erosion_common.protocol.messages import PROTOCOL
from erosion_common.study.study import Study
from tests.support.small_study import make_study


def with_header(header: dict[str, object]) -> RecordDict:
    return RecordDict({"header": ConfigRecord({"json": json.dumps(header)})})


def asked(study: Study, *, with_study: bool = True, **beside: object) -> RecordDict:
    values = {**json.loads(study.canonical_json()), **beside} if with_study else None
    header = {"protocol": PROTOCOL, "digest": study.digest, "study": values, "run": None}
    return with_header(header)


def test_as_many_studies_are_kept_as_have_so_many_characters_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known, studies = wire.KnownStudies(), [make_study(seed=seed) for seed in (11, 12, 13)]
    characters = len(studies[0].canonical_json())
    monkeypatch.setattr(wire, "MOST_CHARACTERS", 2 * characters)
    for study in studies:
        assert wire.decode_describe(asked(study), known)[0] == study
    with pytest.raises(wire.UnknownStudy):
        wire.decode_describe(asked(studies[0], with_study=False), known)
    for study in studies[1:]:
        assert wire.decode_describe(asked(study, with_study=False), known)[0] == study
    monkeypatch.setattr(wire, "MOST_CHARACTERS", characters // 2)  # one that is too large alone
    assert wire.decode_describe(asked(studies[0]), known)[0] == studies[0]
    with pytest.raises(wire.UnknownStudy):
        wire.decode_describe(asked(studies[0], with_study=False), known)


def test_a_request_of_a_later_version_is_refused_by_the_name_of_what_is_lacking() -> None:
    study, known = make_study(), wire.KnownStudies()
    values = json.loads(study.canonical_json())
    later = {"protocol": PROTOCOL + 1, "digest": study.digest, "study": values, "run": None, "x": 1}
    with pytest.raises(wire.AnotherVersion) as refused:
        wire.decode_describe(with_header(later), known)
    assert f"protocol {PROTOCOL + 1}" in refused.value.public
    for change, place in (
        ({"new_key": 1}, "new_key"),
        ({"training": {**values["training"], "warm_up": 3}}, "training.warm_up"),
        ({"arms": {**values["arms"], "b": {"algorithm": "of 2027"}}}, "arms.b"),
        ({"task": {**values["task"], "kind": "of 2027"}}, "task"),
    ):
        with pytest.raises(wire.AnotherVersion) as refused:
            wire.decode_describe(asked(study, **change), known)
        assert place in refused.value.public
    with pytest.raises(StudyError) as wrong:  # a mistake is none of a version
        wire.decode_describe(asked(study, rounds=-1), known)
    assert "its own log" in wrong.value.public


def test_a_new_key_at_its_default_is_no_other_study() -> None:
    """What docs/releasing.md asks of a key that a later version adds."""

    class Later(Study):
        warm_up: int | None = Field(default=None, exclude_if=lambda value: value is None)

    values = json.loads(make_study().canonical_json())
    assert Later.model_validate(values).digest == make_study().digest
    later = Later.model_validate({**values, "warm_up": 3})
    with pytest.raises(wire.AnotherVersion, match="warm_up"):
        wire.decode_describe(asked(later), wire.KnownStudies())


def test_versions_fit_where_they_share_a_protocol() -> None:
    def speaks(latest: int, oldest: int, wire: int = 1) -> Versions:
        return Versions(wire, latest, "1.0", oldest)

    assert speaks(2, 1).fit(speaks(1, 1))
    assert speaks(1, 1).fit(speaks(2, 1))
    assert speaks(3, 2).fit(speaks(2, 1))
    assert not speaks(3, 2).fit(speaks(1, 1))
    assert not speaks(1, 1).fit(speaks(3, 2))
    assert not speaks(1, 1).fit(speaks(1, 1, wire=2))
    assert Versions.read(speaks(3, 2).as_json()) == speaks(3, 2)
    assert Versions.read({"wire": 1, "protocol": 2}).oldest == 2
    for oldest in (True, -1, "1", 1e400):
        with pytest.raises(ProtocolFault):
            Versions.read({**speaks(3, 2).as_json(), "oldest": oldest})


def test_a_testbed_that_comes_with_a_study_is_left_out() -> None:
    """Its digest is without, so that nobody has approved what is in it, however much that is."""
    testbed = {"source": "anything", "options": {"more": [0] * 1000}}
    study, _ = wire.decode_describe(asked(make_study(), testbed=testbed), wire.KnownStudies())
    assert study.testbed is None
