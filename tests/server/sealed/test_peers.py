"""The other hospitals' keys: written at the coordinator, pinned and shown at a site."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from erosion_client.enrolment.install import pin_peers
from erosion_client.finding import Severity
from erosion_client.preflight.check import check_site
from erosion_client.preflight.study_checks import check_sealed
from erosion_client.site_file import load_site
from erosion_common.errors import EnrolmentError, SiteError
from erosion_common.program.command_line import main
from erosion_common.sealed.pinned_keys import as_text, read_pinned_keys
from erosion_common.support.files import write_private
from erosion_common.support.keys import fingerprint, new_private_key, private_pem
from erosion_server.enrolment.enrolment import write_peers
from erosion_server.enrolment.federation_folder import read_key_registry
from tests.support.enrolled import make_federation
from tests.support.refusals import refused
from tests.support.sealed_study import sealed_study

NAMES = ("alice", "bob", "carol", "dave", "erin", "frank")


def test_the_enrolled_keys_are_what_a_site_pins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = make_federation(tmp_path / "federation", "bob", "carol"), tmp_path / "peers.pem"
    assert main(["enroll", "peers", "--folder", str(folder.path), "--out", str(out)]) == 0
    keys = {key.hospital: key.fingerprint for key in read_key_registry(folder.roster).keys}
    pinned = read_pinned_keys(out, SiteError)
    assert {name: fingerprint(key) for name, key in pinned.items()} == keys
    said = capsys.readouterr().out
    assert all(each in said for each in keys.values())  # to be compared
    with refused(EnrolmentError):
        write_peers(make_federation(tmp_path / "of nobody"), tmp_path / "none.pem")


def keys_of(*names: str) -> str:
    return as_text({name: new_private_key().public_key() for name in names})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "peers.pem"),
        (keys_of("bob") + keys_of("bob"), "bob"),
        ((one := keys_of("bob")) + one.replace("# bob", "# dave"), "bob and dave"),
        (keys_of("bob") + "and more\n", "peers.pem"),
        (keys_of("bob").replace("# bob", "# Bob!"), "Bob!"),
        (f"# bob\n{private_pem(new_private_key()).decode()}", "private key"),
        (keys_of("bob").replace("MFk", "XXX"), "public key"),
    ],
)
def test_a_malformed_list_of_keys_has_a_remedy(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "peers.pem"
    path.write_text(text)
    with refused(SiteError, reason):
        read_pinned_keys(path, SiteError)


def site_with(folder: Path, **files: str) -> Any:
    (folder / "site.toml").write_text(
        'name = "bob"\n[data]\npath = "d.csv"\n[coordinator]\naddress = "127.0.0.1:1"\n'
        '[sealed]\nprivate_key = "node.key"\n'
    )
    write_private(folder / "node.key", private_pem(new_private_key()))
    for name, text in files.items():
        (folder / f"{name}.pem").write_text(text)
    return load_site(folder / "site.toml")


def test_a_key_that_another_hospital_has_is_not_pinned(tmp_path: Path) -> None:
    site, offered = site_with(tmp_path, peers=(known := keys_of("carol"))), tmp_path / "new.pem"
    offered.write_text(known.replace("# carol", "# dave"))
    with refused(EnrolmentError, "carol", "dave"):
        pin_peers(offered, site)
    assert (tmp_path / "peers.pem").read_text() == known


def test_a_check_shows_the_fingerprints_to_compare(tmp_path: Path) -> None:
    site = site_with(tmp_path, peers=keys_of(*NAMES))
    (found,) = check_sealed(site, sealed_study())
    assert found.outcome is Severity.OK
    for key in read_pinned_keys(tmp_path / "peers.pem", SiteError).values():
        assert fingerprint(key) in found.text
    shown = io.StringIO()
    check_site(tmp_path / "site.toml", None, Console(file=shown, width=200))
    assert "coordinator" in shown.getvalue()


def test_a_sealed_study_needs_everybodys_key(tmp_path: Path) -> None:
    _, missing = check_sealed(site_with(tmp_path, peers=keys_of("carol", "dave")), sealed_study())
    assert missing.outcome is Severity.FAILED
    assert "erin, frank" in missing.text


def test_only_who_trains_in_a_sealed_study_needs_keys(tmp_path: Path) -> None:
    site, others = site_with(tmp_path), [*NAMES[:1], *NAMES[2:], "gina"]
    measuring = sealed_study(hospitals=others, validation={"hospitals": ["bob"]})
    studies = None, measuring, sealed_study()
    outcomes = [finding.outcome for study in studies for finding in check_sealed(site, study)]
    assert outcomes == [Severity.SKIPPED, Severity.SKIPPED, Severity.FAILED]


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"summed_with": ["carol"]}, "3 of its 5 hospitals are not in limits.summed_with"),
        ({"summed_with": ["carol", "dave"]}, "3 hospitals in the sum"),
        ({"min_summed": 5}, "5 hospitals in the sum"),
        ({"largest_share": 0.2}, "one hospital has 0.25 of the sum"),
        ({"summed_with": ["carol", "dave", "erin"]}, ""),
    ],
)
def test_a_check_says_where_a_sites_own_limits_keep_it_out_of_every_sum(
    limits: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """It would be absent from round after round."""
    site = site_with(tmp_path, peers=keys_of(*NAMES))
    strict = site.model_copy(update={"limits": site.limits.model_copy(update=limits)})
    _, *found = check_sealed(strict, sealed_study())
    assert [reason in finding.text for finding in found] == [True] * bool(reason)
