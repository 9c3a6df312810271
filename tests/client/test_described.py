"""`erosion describe` is declined where the study is: over the program that serves a site."""

from pathlib import Path
from typing import Any

import pytest

from erosion_client.consent.approvals import decide, entry_of
from erosion_common.protocol import wire
from tests.support.served import Served
from tests.support.small_study import make_site, make_study, twenty_patients


def served(folder: Path, automatic: str = "within_limits", **keys: Any) -> Served:
    state, approval = {"state": str(folder / "state")}, {"automatic": automatic}
    site = make_site(folder, twenty_patients(), name="b", compute=state, approval=approval, **keys)
    return Served(site)


@pytest.mark.parametrize("kind", [wire.DESCRIBE, wire.SUMMARY])
def test_no_part_of_a_declined_study_is_described(tmp_path: Path, kind: str) -> None:
    site, whole = served(tmp_path), make_study(user="all")
    assert site.refusal(kind, wire.encode_describe(whole.for_user("a"))) == ""
    decide(site.records, entry_of(whole, site.records), approve=False, by="somebody")
    for study in (whole, whole.for_user("a"), whole.for_user("b")):
        assert "declined study" in site.refusal(kind, wire.encode_describe(study))


@pytest.mark.parametrize("kind", [wire.DESCRIBE, wire.SUMMARY])
@pytest.mark.parametrize("user", ["a", "all"])
@pytest.mark.parametrize(
    ("automatic", "limit", "changes"),
    [
        ("never", {"max_rounds": 2}, {}),
        ("within_limits", {"max_rounds": 3}, {"selection": {"folds": 2}}),
        ("within_limits", {"studies": ["others"]}, {}),
    ],
)
def test_a_study_that_the_limits_refuse_is_neither_described_nor_kept_for_a_decision(
    tmp_path: Path,
    kind: str,
    user: str,
    automatic: str,
    limit: dict[str, object],
    changes: dict[str, object],
) -> None:
    site = served(tmp_path, automatic, limits=limit)
    refused = site.refusal(kind, wire.encode_describe(make_study(user=user, **changes)))
    assert f"limits.{next(iter(limit))}" in refused
    assert site.records.studies.all() == []
