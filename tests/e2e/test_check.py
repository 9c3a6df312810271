"""`erosion check` against a coordinator that listens, and against everything that can be wrong."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tomli_w

from erosion_client.commands import hospital
from erosion_client.connection.credentials import credentials_for
from erosion_client.records.account import site_secret
from erosion_client.records.records import Records
from erosion_client.site_file import load_site
from erosion_common.errors import SiteError
from erosion_common.program.command_line import main
from erosion_common.settings.base import read_toml
from erosion_server.enrolment.enrolment import (
    enrol_site,
    renew_coordinator,
    renew_site,
    revoke_site,
)
from erosion_server.enrolment.federation_folder import FederationFolder
from erosion_server.link import Link
from erosion_server.link.link import make_link
from erosion_server.run.run_folder import write_study
from tests.support.enrolled import make_federation, unpack_kit
from tests.support.small_study import make_study, twenty_patients


@dataclass
class Field:
    """A coordinator's port, and a site that could take part."""

    keys: FederationFolder
    link: Link
    site: Path
    study: Path
    capsys: pytest.CaptureFixture[str]

    def change(self, table: str, **values: object) -> None:
        """Replace keys of the site file."""
        raw = read_toml(self.site, "site file", SiteError)
        (raw.setdefault(table, {}) if table else raw).update(values)
        self.site.write_text(tomli_w.dumps(raw))

    def check(self, *more: str) -> tuple[int, dict[str, str]]:
        """The exit code, and of each thing the outcome and what was said."""
        code = main(["check", str(self.site), *more])
        output = self.capsys.readouterr()
        assert "Traceback" not in output.err
        said: dict[str, str] = {}
        what = ""
        for line in output.out.splitlines():
            if line.split()[:1] in (["ok"], ["warning"], ["failed"], ["skipped"]):
                what = line[10:26].strip()
                said[what] = f"{line.split()[0]}: {line[28:].strip()}"
            elif line.startswith(" " * 28) and what:
                said[what] += " " + line.strip()
        return code, said


@pytest.fixture
def field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Field]:
    monkeypatch.setenv("COLUMNS", "400")
    # The coordinator is in this process too: its log must not go to another test's stream.
    monkeypatch.setattr(hospital, "configure_logging", lambda *_, **__: None)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    keys = make_federation(tmp_path / "federation", "a")
    study = make_study()
    link = make_link(study.hospitals, "127.0.0.1:0", keys)
    link.start()
    kit = unpack_kit(keys, "a", tmp_path)
    (kit / "patients.csv").write_text(twenty_patients())
    (kit / "patients.csv").chmod(0o600)
    write_study(tmp_path / "study.toml", study)
    field = Field(keys, link, kit / "site.toml", tmp_path / "study.toml", capsys)
    field.change("coordinator", address=link.address)
    field.change("limits", min_cell=3)  # these twenty patients have a test part of six
    yield field
    link.stop()


def test_a_site_that_can_take_part_passes_every_check(field: Field) -> None:
    code, said = field.check("--study", str(field.study))
    assert code == 0, said
    assert said.pop("sealed rounds").startswith("skipped")  # not asked for here
    assert said.pop("weaker").startswith("warning: limits.min_cell = 3 (by default 10)")
    assert said.pop("approval").startswith("warning: nobody here has approved this study")
    assert said.pop("target").startswith("warning: 10 patients")  # for two inputs
    assert said.pop("leak").startswith("warning")  # a column tells these 20 outcomes by itself
    assert {text.split(":")[0] for text in said.values()} == {"ok"}
    assert {"private key", "data", "state", "budgets", "contract", "limits", "port", "TLS"} < set(
        said
    )
    assert "enrolled for a, valid until" in said["certificate"]
    assert field.link.grid.get_node_ids() == []
    assert field.link.grid.denials() == []


def test_a_site_that_serves_an_app_is_checked_for_what_that_needs(field: Field) -> None:
    raw = read_toml(field.site, "site file", SiteError)
    kept = {key: raw[key] for key in ("name", "coordinator")}
    field.site.write_text(tomli_w.dumps({**kept, "app": {"partition-id": 3}}))
    code, said = field.check()
    assert code == 0, said
    assert {"private key", "records", "TLS", "certificate"} < said.keys()
    assert "data" not in said
    code, _ = field.check("--study", str(field.study))
    assert code == SiteError.exit_code  # data are missing


@pytest.mark.parametrize("user", ["a", "all"])
def test_the_table_says_whether_people_here_decided_about_the_study(
    field: Field, user: str
) -> None:
    write_study(field.study, make_study(user=user))
    _, said = field.check("--study", str(field.study))
    review = said["approval"].partition("→ erosion ")[2].partition(" shows")[0].split()
    assert main([*review, "--approve", "--by", "Ada"]) == 0
    code, said = field.check("--study", str(field.study))
    assert code == 0
    assert said["approval"].startswith("ok: this study was approved by Ada")
    assert main([*review, "--decline", "--by", "Eve"]) == 0
    code, said = field.check("--study", str(field.study))
    assert code == 1
    assert said["approval"].startswith("failed: this study was declined by Eve")


def test_a_site_that_approves_by_itself_is_asked_for_its_budget(field: Field) -> None:
    field.change("approval", automatic="within_limits")
    code, said = field.check("--study", str(field.study))
    assert code == 0
    assert said["approval"].startswith("ok: not asked for yet")
    field.change("budget", studies=1)
    other = field.study.with_name("other.toml")
    write_study(other, make_study(name="other"))
    assert main(["review", str(field.site), "--study", str(other), "--approve"]) == 0
    code, said = field.check("--study", str(field.study))
    assert code == 1
    assert said["approval"].startswith("failed: approved studies: 1 of 1 (budget.studies)")


def test_the_table_says_whether_enough_is_left_for_a_run(field: Field) -> None:
    write_study(field.study, make_study(rounds=40))
    _, said = field.check("--study", str(field.study))
    assert said["a run"].startswith("ok: up to 80 rounds of arms, of 20000 (budget.rounds)")
    field.change("budget", rounds=79)
    code, said = field.check("--study", str(field.study))
    assert code == 1
    assert said["a run"].startswith(
        "failed: 0 rounds were answered, up to 80 rounds are needed, and 79 are"
    )


def test_faults_in_the_data_are_named_by_column(field: Field) -> None:
    patients = field.site.with_name("patients.csv")
    patients.write_text(twenty_patients() + "999,f,0\n,m,1\n40,x,0\n")
    code = main(["check", str(field.site), "--study", str(field.study)])
    output = field.capsys.readouterr().out
    assert code == 1
    assert "column age: outside 0 to 120 years: '999' on line 22" in output
    assert "column sex: not among the categories f, m: 'x' on line 24" in output


def test_what_a_site_keeps_is_looked_at_and_nothing_is_left_behind(field: Field) -> None:
    folder = load_site(field.site).consent_folder
    code, said = field.check()
    assert (code, said["state"]) == (0, f"ok: {folder} can be written")
    assert not folder.exists()
    site_secret(folder)
    Records(folder, load_site(field.site).name).close()
    kept = {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}
    assert field.check()[0] == 0
    assert {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()} == kept
    (folder / "secret.key").chmod(0o644)
    code, said = field.check()
    assert code == 1
    assert said["state"].startswith("failed: The site's secret")
    assert "chmod 600" in said["state"]
    (folder / "secret.key").chmod(0o600)
    (folder / "records.sqlite").write_bytes(b"no database " * 100)
    code, said = field.check("--study", str(field.study))
    assert code == 1
    assert said["state"].startswith("failed")
    assert "records.sqlite" in said["state"]
    assert said["budgets"].startswith("skipped")


def chmod(file: str, bits: int) -> Callable[[Field], None]:
    return lambda field: field.site.with_name(file).chmod(0o600 | bits)


def others_may_change_the_folder(field: Field) -> None:
    field.site.parent.chmod(0o702)


def another_authority(field: Field) -> None:
    other = make_federation(field.study.parent / "other")
    field.site.with_name("ca.crt").write_bytes(other.authority.read_bytes())


def another_federations_certificate(field: Field) -> None:
    folder = field.study.parent
    kit = unpack_kit(make_federation(folder / "other", "a"), "a", folder / "others")
    for file in ("node.crt", "node.key"):
        (kit / file).replace(field.site.with_name(file))


def at(address: str) -> Callable[[Field], None]:
    return lambda field: field.change("coordinator", address=address)


def in_folder(table: str, key: str, path: str) -> Callable[[Field], None]:
    return lambda field: field.change(table, **{key: path})


WRONG: dict[str, tuple[Callable[[Field], object], int, dict[str, str]]] = {
    "limits": (
        lambda field: field.change("limits", min_patients=1000),
        1,
        {"limits": "limits.min_patients = 1000"},
    ),
    "a key that others read": (
        chmod("node.key", 0o044),
        1,
        {"private key": "chmod 600", "certificate": "failed"},
    ),
    "data that others read": (chmod("patients.csv", 0o044), 0, {"data": "warning"}),
    "a file that others change": (chmod("site.toml", 0o002), 0, {"site file": "chmod o-w"}),
    "a folder that others change": (others_may_change_the_folder, 0, {"site file": "chmod o-w"}),
    "records in a file": (in_folder("", "records", "patients.csv/x"), 1, {"records": "folder"}),
    "state in no disk": (in_folder("compute", "state", "/proc/x"), 1, {"state": "folder"}),
    "a name that no DNS knows": (
        at("no-such-host.invalid:9092"),
        1,
        {"DNS": "failed"},
    ),
    "a port at which nobody listens": (
        at("127.0.0.1:9"),
        1,
        {"port": "failed"},
    ),
    "another authority": (another_authority, 1, {"TLS": "fingerprint"}),
    "another federation": (another_federations_certificate, 1, {"TLS": "failed"}),
    "an expired coordinator": (
        lambda field: renew_coordinator(field.keys, days=-0.5),
        1,
        {"TLS": "has expired"},
    ),
    "a coordinator that soon expires": (
        lambda field: renew_coordinator(field.keys, days=20),
        0,
        {"TLS": "erosion enroll renew coordinator"},
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_told_of_where_it_is(field: Field, wrong: str) -> None:
    change, expected, told = WRONG[wrong]
    change(field)
    code, said = field.check("--study", str(field.study))
    assert code == expected, said
    for what, words in told.items():
        assert words in said[what]
        assert not said[what].startswith("ok"), said[what]


def test_a_key_that_is_revoked_expired_or_another_hospitals(field: Field) -> None:
    enrol_site(field.keys, "b")
    field.change("", name="b")
    code, said = field.check()
    assert code == 1
    assert 'write name = "a" in the site file' in said["certificate"]
    field.change("", name="a")
    renew_site(field.keys, "a", days=20)
    code, said = field.check()
    assert code == 0
    assert said["certificate"].startswith("warning")
    renew_site(field.keys, "a", days=-1)
    assert "its key expired on" in field.check()[1]["certificate"]
    revoke_site(field.keys, "a")
    code, said = field.check()
    assert code == 1
    assert "its key was revoked on" in said["certificate"]


def test_a_site_that_runs_already_can_be_checked_and_is_not_disturbed(field: Field) -> None:
    with credentials_for(load_site(field.site).coordinator).connect() as connection:
        code, said = field.check()
        assert code == 0, said
        assert connection.receive(0.5) is None
        assert len(field.link.grid.get_node_ids()) == 1
