"""The studies that a site keeps, so that not every request has to bring its own."""

import json

import pytest
from flwr.app import ConfigRecord, RecordDict

from erosion_common.protocol import wire
from erosion_common.protocol.messages import PROTOCOL
from erosion_common.study.study import Study
from tests.support.small_study import make_study


def asked(study: Study, *, with_study: bool = True, **beside: object) -> RecordDict:
    values = {**json.loads(study.canonical_json()), **beside} if with_study else None
    header = {"protocol": PROTOCOL, "digest": study.digest, "study": values, "run": None}
    return RecordDict({"header": ConfigRecord({"json": json.dumps(header)})})


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


def test_a_testbed_that_comes_with_a_study_is_left_out() -> None:
    """Its digest is without, so that nobody has approved what is in it, however much that is."""
    testbed = {"source": "anything", "options": {"more": [0] * 1000}}
    study, _ = wire.decode_describe(asked(make_study(), testbed=testbed), wire.KnownStudies())
    assert study.testbed is None
