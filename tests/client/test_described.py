"""`erosion describe` is declined where the study is: over the program that serves a site."""

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from erosion_client.connection.serve import make_app
from erosion_client.consent.approvals import decide, entry_of
from erosion_client.consent.consent import Consent
from erosion_client.records.records import Records
from erosion_client.site_file import Site
from erosion_client.training.hospital import Hospital
from erosion_common.protocol import wire
from erosion_common.protocol.flower import RequestMessage, read_error
from erosion_common.study.study import Study
from tests.support.small_study import make_site, make_study, twenty_patients


def automatic(folder: Path, **keys: Any) -> tuple[Site, Records]:
    site = make_site(
        folder,
        twenty_patients(),
        name="b",
        compute={"state": str(folder / "state")},
        approval={"automatic": "within_limits"},
        **keys,
    )
    return site, Records.of(site)


def why_not(site: Site, records: Records, study: Study, kind: str) -> str:
    app = make_app(Hospital(site, secret=b"secret"), Consent(site, records, "c"))
    request = RequestMessage(wire.encode_describe(study), "1", 2, kind, group_id="", ttl=60.0)
    reply = app(request, Context(1, 2, {}, RecordDict(), {}))
    return read_error(reply.error).reason if reply.has_error() else ""


@pytest.mark.parametrize("kind", [wire.DESCRIBE, wire.SUMMARY])
def test_no_part_of_a_declined_study_is_described(tmp_path: Path, kind: str) -> None:
    site, records = automatic(tmp_path)
    whole = make_study(user="all")
    assert why_not(site, records, whole.for_user("a"), kind) == ""
    decide(records, entry_of(whole, records), approve=False, by="somebody")
    for study in (whole, whole.for_user("a"), whole.for_user("b")):
        assert "declined study" in why_not(site, records, study, kind)


@pytest.mark.parametrize("kind", [wire.DESCRIBE, wire.SUMMARY])
@pytest.mark.parametrize("user", ["a", "all"])
@pytest.mark.parametrize(
    ("limit", "changes"),
    [
        ({"max_rounds": 2}, {}),
        ({"max_rounds": 3}, {"selection": {"folds": 2}}),
        ({"studies": ["others"]}, {}),
    ],
)
def test_a_study_that_the_limits_refuse_is_not_described(
    tmp_path: Path, kind: str, user: str, limit: dict[str, object], changes: dict[str, object]
) -> None:
    site, records = automatic(tmp_path, limits=limit)
    refused = why_not(site, records, make_study(user=user, **changes), kind)
    assert f"limits.{next(iter(limit))}" in refused
    assert records.studies.all() == []
