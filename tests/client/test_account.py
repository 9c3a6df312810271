"""Records and budgets are one hospital's and one data set's, whichever kit asks."""

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from erosion_client.audit.audit_log import AuditLog
from erosion_client.finding import Severity
from erosion_client.preflight.check import check_state
from erosion_client.records.account import claim, dataset_of
from erosion_client.records.ledgers import Release
from erosion_client.records.records import FILE_NAME, Records
from erosion_client.records.recovery import recover
from erosion_client.site_file import Site, load_site
from erosion_common.errors import SiteError
from tests.support.said import raises
from tests.support.sent_logs import sent

ROWS = "age,outcome\n" + "".join(f"{50 + n},{n % 2}\n" for n in range(40))


def kit(folder: Path, data: Path, name: str = "north", more: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(
        f'name = "{name}"\n[data]\npath = "{data}"\n[coordinator]\naddress = "127.0.0.1:1"\n{more}'
    )
    return path


def table(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "patients.csv").write_text(ROWS)
    return folder / "patients.csv"


def pay(site: Site) -> None:
    with closing(Records.of(site)) as ledger, ledger.transaction():
        ledger.privacy.pay(Release(dataset_of(site), "study", "run", "arm", 1, 0.5), "reply")


def paid(site: Site) -> float:
    with closing(Records.of(site)) as ledger:
        return ledger.privacy.spent(dataset_of(site)).in_all


def test_two_site_files_in_one_folder_share_nothing(tmp_path: Path) -> None:
    south = load_site(kit(tmp_path, table(tmp_path / "s"), "south"))
    west = load_site(kit(tmp_path, table(tmp_path / "w"), "west"))
    assert south.records_folder != west.records_folder
    assert south.consent_folder != west.consent_folder


def test_a_second_kit_for_the_same_patients_has_the_same_budget(tmp_path: Path) -> None:
    data = table(tmp_path / "data")
    first = load_site(kit(tmp_path / "first", data))
    claim(first)
    pay(first)
    second = load_site(kit(tmp_path / "second", data))
    claim(second)
    assert second.consent_folder.samefile(first.consent_folder)
    assert second.records_folder != first.records_folder
    assert paid(second) == 0.5
    other = load_site(kit(tmp_path / "third", table(tmp_path / "data"), "south"))
    claim(other)
    assert paid(other) == 0, "another hospital's"


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ("postgresql://reader@db.org:5432/omop", "postgresql+psycopg://DB.org./omop?ssl=1", True),
        ("mysql://localhost/omop", "mysql://u@127.0.0.1:3306/omop", True),
        ("sqlite:///data/omop.db", "sqlite:///data/../data/omop.db?timeout=5", True),
        ("postgresql://db.org/omop", "postgresql://db.org/other", False),
        ("postgresql://db.org/omop", "postgresql://db.org:5433/omop", False),
        ("postgresql:///omop?host=a.org", "postgresql:///omop?host=b.org", False),
    ],
)
def test_a_database_has_one_budget_however_its_address_is_written(
    tmp_path: Path, first: str, second: str, is_one: bool
) -> None:
    folders = []
    for name, url in (("first", first), ("second", second)):
        file = kit(tmp_path / name, tmp_path)
        source = f'url = "{url.replace("///data", f"///{tmp_path}/data")}"\nquery = "select 1"'
        file.write_text(file.read_text().replace(f'path = "{tmp_path}"', source))
        claim(site := load_site(file))
        folders.append(site.consent_folder.resolve())
    assert (folders[0] == folders[1]) == is_one


def test_a_kit_with_a_copy_of_the_data_is_told_how_to_share_the_budget(tmp_path: Path) -> None:
    first = load_site(kit(tmp_path / "first", table(tmp_path)))
    claim(first)
    pay(first)
    copy = Path(shutil.copy(tmp_path / "patients.csv", tmp_path / "copy.csv"))
    finding = check_state(load_site(kit(tmp_path / "second", copy)))
    assert finding.outcome is Severity.WARNING
    assert finding.remedy is not None
    line = finding.remedy[finding.remedy.index("state = ") :].partition(" under")[0]
    second = load_site(kit(tmp_path / "second", copy, more=f"[compute]\n{line}\n"))
    claim(second)
    assert paid(second) == 0.5
    assert check_state(second).outcome is Severity.OK


def test_other_patients_of_the_same_hospital_have_a_budget_of_their_own(tmp_path: Path) -> None:
    first = load_site(kit(tmp_path / "kit", table(tmp_path / "old")))
    claim(first)
    pay(first)
    (tmp_path / "new.csv").write_text(ROWS + "99,1\n")
    second = load_site(kit(tmp_path / "kit", tmp_path / "new.csv"))
    claim(second)
    assert (
        paid(load_site(kit(tmp_path / "kit", tmp_path / "old/patients.csv"))),
        paid(second),
    ) == (0.5, 0)


def test_a_site_file_that_names_another_folder_for_the_budget_is_refused(tmp_path: Path) -> None:
    data = table(tmp_path)
    first = load_site(kit(tmp_path / "first", data))
    claim(first)
    with raises(SiteError, str(first.consent_folder)):
        load_site(kit(tmp_path / "second", data, more='[compute]\nstate = "elsewhere"\n'))
    same = f'[compute]\nstate = "{first.consent_folder.parent}"\n'
    assert load_site(kit(tmp_path / "third", data, more=same)).consent_folder.samefile(
        first.consent_folder
    )


def test_a_kit_that_was_moved_keeps_its_budget(tmp_path: Path) -> None:
    data = table(tmp_path)
    first = load_site(kit(tmp_path / "first", data))
    claim(first)
    pay(first)
    (tmp_path / "first").rename(tmp_path / "moved")
    moved = load_site(tmp_path / "moved" / "north.toml")
    claim(moved)
    assert paid(moved) == 0.5


def test_a_damaged_list_of_accounts_is_named_with_the_remedy(tmp_path: Path) -> None:
    path = kit(tmp_path, table(tmp_path))
    claim(load_site(path))
    (Path(os.environ["XDG_STATE_HOME"]) / "erosion" / "accounts.json").write_text(
        '[{"hospital": 3}'
    )
    with raises(SiteError, "accounts.json", "delete it"):
        load_site(path)


def test_a_log_is_one_hospitals_and_names_it(tmp_path: Path) -> None:
    with AuditLog(tmp_path, hospital="south"):
        pass
    log = sent(tmp_path, 1, hospital="south")
    before = log.read_bytes()
    with raises(SiteError, "south", "west", "records"):
        AuditLog(tmp_path, hospital="west")
    assert log.read_bytes() == before


def test_records_are_one_hospitals_and_name_it(tmp_path: Path) -> None:
    Records(tmp_path, "south").close()
    before = (tmp_path / FILE_NAME).read_bytes()
    with raises(SiteError, "south", "west", "compute.state"):
        Records(tmp_path, "west")
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_what_a_log_has_of_other_data_is_not_charged(tmp_path: Path) -> None:
    log = sent(tmp_path / "records", 2, dataset="last year", noise=1.0)
    with closing(Records(tmp_path / "state", "b")) as ledger:
        assert recover(ledger, "c", "this year", log).releases == 0
        assert ledger.privacy.spent("this year").in_all == 0
    with closing(Records(tmp_path / "other", "b")) as ledger:
        assert recover(ledger, "c", "last year", log).releases == 2
