"""A hospital serves two federations, in turn or at once, with one account of budgets."""

import json
import tomllib
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import tomli_w

from erosion_client.consent.approvals import account_of
from erosion_client.records.account import claim
from erosion_client.records.records import Records
from erosion_client.site_file import load_site
from erosion_client.training.hospital import Hospital
from erosion_common.errors import SiteError
from erosion_common.program.command_line import main
from erosion_common.study.study import Study
from erosion_common.support.network import free_address
from erosion_server.run.run_folder import RunFolder, write_study
from tests.support.enrolled import make_federation, unpack_kit
from tests.support.federation import simulated_alike, small_study, write_site
from tests.support.forked import Forked
from tests.support.patience import wait_until

ARMS: dict[str, dict[str, float]] = {"weight_erosion": {}, "scaffold": {}}
FIRST = small_study(name="first", hospitals=["alice", "bob"], rounds=6, arms=ARMS)
SECOND = small_study(name="second", user="dave", hospitals=["dave", "bob"], rounds=6, arms=ARMS)


def with_kit(folder: Path, site_file: Path, kit: Path, address: str, **compute: str) -> Path:
    """Give a site file another kit: keys and coordinator, and where its records are."""
    values = tomllib.loads(site_file.read_text())
    values["coordinator"] = {
        "address": address,
        "root_certificate": str(kit / "ca.crt"),
        "certificate": str(kit / "node.crt"),
        "private_key": str(kit / "node.key"),
    }
    values["data"]["path"] = str(site_file.parent / "data.csv")
    values["compute"] |= compute
    folder.mkdir(exist_ok=True)
    path = folder / "site.toml"
    path.write_text(tomli_w.dumps(values))
    return path


def equals_its_simulation(study: Study, runs: Path, sites: dict[str, Path]) -> None:
    (run,) = runs.iterdir()
    folder = RunFolder(run)
    assert json.loads(folder.status.read_text())["phase"] == "finished"
    hospitals = {name: Hospital(load_site(sites[name])) for name in study.hospitals}
    simulated_alike(study, folder, hospitals)


@pytest.mark.parametrize("programs", [1, 2])  # two answer at once
def test_two_federations_have_one_account_of_a_hospitals_data(
    programs: int, tmp_path: Path
) -> None:
    addresses = {"first": free_address(), "second": free_address()}
    sites: dict[str, dict[str, Path]] = {"first": {}, "second": {}}
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> Forked:
            program = Forked(name, arguments, tmp_path / f"{name}.log")
            stack.callback(program.close)
            return program

        servers = []
        for study in (FIRST, SECOND):
            federation = make_federation(tmp_path / f"federation-{study.name}", *study.hospitals)
            for name in study.hospitals:
                kit = unpack_kit(federation, name, tmp_path / f"kits-{study.name}")
                plain = write_site(tmp_path, name, addresses[study.name])
                sites[study.name][name] = with_kit(
                    tmp_path / f"{name}-{study.name}", plain, kit, addresses[study.name]
                )
            file = tmp_path / f"{study.name}.toml"
            write_study(file, study)
            runs = str(tmp_path / f"runs-{study.name}")
            servers.append(
                start(f"server-{study.name}", "server", str(file), "--runs", runs, "--address",
                      addresses[study.name], "--federation", str(federation.path))
            )  # fmt: skip
        both = [str(sites[name]["bob"]) for name in ("first", "second")]
        until = ["--until-study-ends", "--log-format", "json"]
        bobs = [
            start(f"bob-{number}", "client", *both[number::programs], *until)
            for number in range(programs)
        ]
        start("alice", "client", str(sites["first"]["alice"]), "--until-study-ends")
        start("dave", "client", str(sites["second"]["dave"]), "--until-study-ends")
        for server in servers:
            assert server.wait() == 0, server.text()
        for bob in bobs:
            assert bob.wait() == 0, bob.text()
        lines = [json.loads(line) for bob in bobs for line in bob.lines() if line.startswith("{")]
    assert {line["coordinator"] for line in lines if "coordinator" in line} == {*addresses.values()}
    assert all({"time", "level", "component"} <= line.keys() for line in lines)
    first, second = (load_site(sites[name]["bob"]) for name in ("first", "second"))
    assert first.consent_folder.samefile(second.consent_folder)
    assert first.records_folder != second.records_folder
    with closing(Records.of(first)) as records:
        account = account_of(first, records)
    assert ("studies", "", 2, first.budget.studies) in account
    by = {coordinator for budget, coordinator, *_ in account if budget == "rounds"}
    assert len(by) == 2
    for study in (FIRST, SECOND):
        equals_its_simulation(study, tmp_path / f"runs-{study.name}", sites[study.name])


def test_a_kit_of_another_federation_is_named_and_the_other_one_served(tmp_path: Path) -> None:
    address = free_address()
    ours, theirs = (make_federation(tmp_path / name, "bob") for name in ("ours", "theirs"))
    plain = write_site(tmp_path, "bob", address)
    study = small_study(
        user="bob", hospitals=["bob"], rounds=2, arms={"local": {}}, federation={"quorum": 1}
    )
    write_study(tmp_path / "study.toml", study)
    good = with_kit(tmp_path / "good", plain, unpack_kit(ours, "bob", tmp_path / "a"), address)
    bad = with_kit(tmp_path / "bad", plain, unpack_kit(theirs, "bob", tmp_path / "b"), address)
    with ExitStack() as stack:
        server = Forked("server", ["server", str(tmp_path / "study.toml"), "--address", address,
                                   "--federation", str(ours.path), "--runs", str(tmp_path / "r")],
                        tmp_path / "server.log")  # fmt: skip
        stack.callback(server.close)
        bob = Forked("bob", ["client", str(good), str(bad)], tmp_path / "bob.log")
        stack.callback(bob.close)
        assert server.wait() == 0, server.text()
        wait_until(lambda: "authority" in bob.text())
        assert main(["status", str(bad)]) == 1
        bob.end()
        assert "Traceback" not in bob.text()


def test_site_files_that_would_share_a_log_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_site(tmp_path, "bob", "127.0.0.1:1")
    assert main(["client", str(path), str(path)]) == SiteError.exit_code
    assert "records" in capsys.readouterr().err


def test_another_name_for_the_same_patients_needs_the_one_account(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = two(tmp_path, "geneva")
    assert main(["client", *map(str, files)]) == SiteError.exit_code
    assert "account = 'bob'" in capsys.readouterr().err


def test_under_one_account_two_names_have_one_budget(tmp_path: Path) -> None:
    files = two(tmp_path, "geneva", account="bob")
    first = load_site(files[0])
    claim(first)
    second = load_site(files[1])
    claim(second)
    assert second.consent_folder.samefile(first.consent_folder)
    with closing(Records.of(second)) as records:
        assert records.path is not None
        assert records.path.is_relative_to(first.consent_folder)


def two(folder: Path, second: str = "bob", **compute: str) -> list[Path]:
    plain = write_site(folder, "bob", "127.0.0.1:1")
    made = [plain]
    values = tomllib.loads(plain.read_text())
    values |= {"name": second, "data": {"path": str(plain.parent / "data.csv")}}
    values["compute"] |= compute
    (folder / "second").mkdir()
    made.append(folder / "second" / "site.toml")
    made[-1].write_text(tomli_w.dumps(values))
    return made
