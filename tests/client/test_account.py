"""Records and budgets are one hospital's and one data set's, whichever kit asks."""

import json
import os
import shutil
from contextlib import closing
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Message

from erosion_client import site_file
from erosion_client.consent.approvals import listing
from erosion_client.consent.consent import Consent
from erosion_client.finding import Severity
from erosion_client.preflight.check import check_state
from erosion_client.records.account import claim, dataset_of
from erosion_client.records.answers import Answer
from erosion_client.records.audit_log import AuditLog
from erosion_client.records.ledgers import Release
from erosion_client.records.records import FILE_NAME, Records
from erosion_client.records.recovery import recover
from erosion_client.site_file import Site, load_site, load_with_account
from erosion_client.training.limits import needs_of
from erosion_common.errors import Refusal, SiteError
from erosion_common.formats.sent_log import full_files, hash_of
from erosion_common.protocol import wire
from erosion_common.protocol.messages import StepReply, StepResult, TrainRequest
from erosion_common.rounds.selection import (
    SelectedSettings,
    candidates,
    chosen,
    fold_studies,
    trials,
)
from erosion_common.study.study import Study
from erosion_common.support.status import FORMAT
from tests.support import approval
from tests.support.approval import approve
from tests.support.said import raises
from tests.support.sent_logs import long_log, sent
from tests.support.small_study import make_site, make_study

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
    (tmp_path / "first").rename(tmp_path / "moved")
    assert paid(load_site(tmp_path / "moved" / "north.toml")) == 0.5
    other = load_site(kit(tmp_path / "third", table(tmp_path / "data"), "south"))
    claim(other)
    assert paid(other) == 0, "another hospital's"


def test_an_account_that_another_program_begins_meanwhile_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = table(tmp_path / "data")
    second = kit(tmp_path / "second", data)
    early = load_site(second)
    first = load_with_account(kit(tmp_path / "first", data))
    reads = iter([early])
    monkeypatch.setattr(site_file, "load_site", lambda path: next(reads, None) or load_site(path))
    shared = load_with_account(second)
    assert shared.consent_folder != early.consent_folder
    assert shared.consent_folder.samefile(first.consent_folder)


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


def test_a_relative_xdg_state_home_is_ignored_as_its_specification_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    claim(load_site(kit(tmp_path / "kit", table(tmp_path))))
    assert (tmp_path / "home/.local/state/erosion/accounts.json").exists()
    assert not Path("state").exists()


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
        assert recover(ledger, "c", "this year", log).releases == 2
        assert ledger.privacy.spent("this year").in_all == 0
        assert ledger.privacy.spent("last year").in_all > 0  # which may be asked about again
        assert {dataset for _, dataset in ledger.answers.pairs()} == {"last year"}


DIGEST = make_study().digest
ARMS = ("fedavg", "local")


def answer(number: int) -> Answer:
    return Answer(DIGEST, "run-7", DIGEST, "fedavg", number, "train")


def noted(folder: Path, numbers: range) -> Records:
    records = Records(folder / "state", "b")
    for number in numbers:
        records.answers.note(("c", "d"), answer(number), f"hash {number}")
    return records


def test_what_the_log_alone_has_is_used_up_and_not_answered_again(tmp_path: Path) -> None:
    long_log(tmp_path, 5)
    records = noted(tmp_path, range(1, 6))
    assert recover(records, "c", "d", tmp_path / "sent.jsonl").answers == 0
    assert records.log_was_read_to(tmp_path / "sent.jsonl") == (True, 5)
    records.close()
    file = tmp_path / "state" / FILE_NAME
    shutil.copy(file, tmp_path / "backup")
    long_log(tmp_path, 9)  # rounds 1 to 9 again: the log has fourteen lines
    shutil.copy(tmp_path / "backup", file)
    records = Records(tmp_path / "state", "b")
    assert recover(records, "c", "d", tmp_path / "sent.jsonl").answers == 4
    assert records.answers.used(("c", "d")).rounds == 9
    assert (records.answers.runs(("c", "d"), DIGEST), records.answers.pairs()) == (
        ["run-7"],
        [("c", "d")],
    )
    assert [
        records.answers.is_recovered(("c", "d"), answer(number)) for number in (5, 6, 9, 10)
    ] == [False, True, True, False]
    assert recover(records, "c", "d", tmp_path / "sent.jsonl").answers == 0
    assert records.answers.used(("c", "d")).rounds == 9


@pytest.mark.parametrize("kept", [0, 3])
def test_a_log_older_than_the_records_is_named_and_frees_no_budget(
    tmp_path: Path, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "sent.jsonl"
    long_log(tmp_path, 5)
    records = noted(tmp_path, range(1, 6))
    recover(records, "c", "d", log)
    assert caplog.messages == []
    text = "".join(file.read_text() for file in (*full_files(log), log))
    for file in full_files(log):
        file.unlink()
    log.write_text("".join(text.splitlines(keepends=True)[:kept]))
    assert recover(records, "c", "d", log).answers == 0
    assert [f"ends with line {kept}," in each for each in caplog.messages] == [True]
    assert records.answers.used(("c", "d")).rounds == 5


def test_lines_that_the_log_lost_since_the_last_start_are_missed_by_the_status(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, records = tmp_path / "sent.jsonl", noted(tmp_path, range(1, 6))
    long_log(tmp_path, 5)
    status = tmp_path / "status.json"
    lines = "".join(file.read_text() for file in (*full_files(log), log)).splitlines(keepends=True)
    for file in full_files(log):
        file.unlink()
    for kept, noted_line, is_missed in ((5, 4, False), (3, 3, False), (3, 5, True)):
        log.write_text("".join(lines[:kept]))
        head = hash_of(lines[noted_line - 1].removesuffix("\n"))
        status.write_text(json.dumps({"format": FORMAT, "log_head": head}))
        caplog.clear()
        recover(records, "c", "d", log)
        assert [f"{status} knows of more" in each for each in caplog.messages] == [True] * is_missed
        records.execute("delete from log_read")
    status.write_text("{")
    recover(records, "c", "d", log)


def test_decisions_and_disclosures_that_a_copy_without_wal_lacks_are_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "records" / "sent.jsonl"
    site = approval.site(tmp_path, records=log.parent)
    sent(log.parent, 2)
    status, file = log.parent / "status.json", site.consent_folder / FILE_NAME
    Records.of(site).close()
    with closing(Records.of(site)) as records:
        approve(records, make_study())
        patients = {"values": np.arange(40, dtype=np.uint64)}
        records.disclosures.disclose(patients, "age", 10, 50, str)
        assert records.num_noted() == 2
        status.write_text(json.dumps({"format": FORMAT, "noted": records.num_noted()}))
        assert [*records.forgotten(status)] == []
        shutil.copy(file, tmp_path / "copy")  # while its -wal has the latest writes
    shutil.copy(tmp_path / "copy", file)
    with closing(Records.of(site)) as records:
        assert "knows of 2" in next(listing(site, records))
        recover(records, "c", "d", log)
        assert any("0 decisions and disclosures" in each for each in caplog.messages)
        status.unlink()  # the next program's knows no more than these records
        assert next(listing(site, records)).startswith("2 answers are known from the log alone")


def neurons(place: int) -> Answer:
    return Answer(DIGEST, "run-7", DIGEST, "network_gems", 1, f"neurons ({place})")


def neurons_sent(folder: Path, places: tuple[int, ...]) -> Path:
    """A log of one step at these places of a round."""
    header = StepReply(hospital="b", arm="network_gems", round=1, step="neurons", seconds=0.1)
    with AuditLog(folder) as log:
        for place in places:
            asked = TrainRequest(
                make_study(), "network_gems", 1, None, None, "run-7", {}, "neurons", place
            )
            message = Message(wire.Encoder().encode(asked), 1, wire.train_type("neurons"))
            result = StepResult(header, {"neurons": torch.zeros(2, 3)})
            log.record(message, Message(wire.encode_result(result), reply_to=message))
        return log.path


def test_of_a_step_that_is_asked_for_twice_a_round_the_book_may_have_one(tmp_path: Path) -> None:
    path = neurons_sent(tmp_path, (1, 2))
    records = Records(tmp_path / "state", "b")
    records.answers.note(("c", "d"), neurons(1), "hash")
    assert recover(records, "c", "d", path).answers == 1
    assert not records.answers.is_recovered(("c", "d"), neurons(1))
    assert records.answers.is_recovered(("c", "d"), neurons(2))
    assert records.answers.steps(("c", "d"), neurons(3)) == ["neurons (1)", "neurons (2)"]


def test_another_log_is_read_from_its_beginning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    long_log(tmp_path / "one", 9)
    long_log(tmp_path / "other", 3)
    records = noted(tmp_path, range(1, 10))
    recover(records, "c", "d", tmp_path / "one" / "sent.jsonl")
    recover(records, "c", "d", tmp_path / "other" / "sent.jsonl")
    assert records.log_was_read_to(tmp_path / "other" / "sent.jsonl") == (True, 3)
    assert records.log_was_read_to(tmp_path / "one" / "sent.jsonl") == (True, 9)
    assert caplog.messages == []
    (tmp_path / "second kit").mkdir()
    (tmp_path / "second kit" / "sent.jsonl").touch()
    for _ in range(2):
        recover(records, "c", "d", tmp_path / "second kit" / "sent.jsonl")
    assert caplog.messages == []


def variants_of(kind: str) -> tuple[Study, list[Study]]:
    """A study, and those that it leads to."""
    if kind == "every user":
        approved = make_study(user="all")
        return approved, [approved.for_user(user) for user in ("a", "b")]
    if kind == "folds":
        approved = make_study(evaluation={"folds": 2})
        return approved, [*fold_studies(approved), approved]
    approved = make_study(
        selection={"folds": 2, "candidates": {"fedavg": [{"weighting": "uniform"}]}}
    )
    picked = {arm: SelectedSettings(dict(candidates(approved, arm)[0]), 3, 0.1) for arm in ARMS}
    tried = [trial for arm in ARMS for folds in trials(approved, arm) for trial in folds]
    return approved, [*tried, chosen(approved, picked)]


def answers_sent(folder: Path, studies: list[Study], runs: list[str]) -> Path:
    """A log of one answer about each study in each run."""
    header = StepReply(hospital="b", arm="fedavg", round=1, step="train", seconds=0.1)
    with AuditLog(folder) as log:
        for study, run in product(studies, runs):
            asked = TrainRequest(study, next(iter(study.arms)), 1, torch.zeros(6), None, run)
            message = Message(wire.Encoder().encode(asked), 1, wire.train_type("train"))
            result = StepResult(header, {})
            log.record(message, Message(wire.encode_result(result), reply_to=message))
        return log.path


@pytest.mark.parametrize(
    ("kind", "is_known"),
    [("every user", False), *((kind, True) for kind in ("every user", "folds", "trials"))],
)
def test_runs_of_the_log_count_for_the_study(tmp_path: Path, kind: str, is_known: bool) -> None:
    """Also where the book lacked it until it was asked for."""
    approved, studies = variants_of(kind)
    here = make_site(tmp_path, name="b", file="b.csv", budget={"runs_per_study": 5})
    records, dataset = Records(tmp_path / "state", "b"), dataset_of(here)
    if is_known:
        approve(records, approved)
    most = 5 * needs_of(here, approved).runs  # for each of its users
    runs = [f"r{number}" for number in range(most)]
    recover(records, "c", dataset, answers_sent(tmp_path, studies, runs))
    if is_known:
        used = records.answers.used(("c", dataset))
        assert (used.studies, used.runs, used.rounds) == (1, most, most * len(studies))
    else:
        approve(records, approved)
    consent = Consent(here, records, "c")
    for study in studies:
        more = TrainRequest(study, next(iter(study.arms)), 1, torch.zeros(6), None, "more")
        with raises(Refusal, f"{most} runs"):
            consent.authorise(more)
