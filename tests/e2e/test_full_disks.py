"""A disk that is full at each place where a coordinator or a site writes, in real processes."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from erosion.simulation.free_ports import free_address
from erosion_client.site_file import load_site
from erosion_client.training.hospital import Hospital
from erosion_common.errors import RunError
from erosion_common.program.ending import FAULT
from erosion_server.run.journal import read_journal
from erosion_server.run.result import read_result
from erosion_server.run.run_folder import RunFolder, write_study
from experiments.faults.program import Program
from tests.support.enrolled import make_federation, unpack_kit
from tests.support.federation import simulated_alike, small_study, write_site
from tests.support.full_disk import FullDisk, why_no_full_disk
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.skipif(why_no_full_disk() is not None, reason=why_no_full_disk() or "")

# A round needs both; scaffold keeps state at the sites.
STUDY = small_study(
    name="full-disks",
    hospitals=["alice", "bob"],
    rounds=60,
    arms={"scaffold": {}},
    training={"steps": 400, "batch_size": 8, "learning_rate": 0.05},
    federation={"quorum": 2},
)
NO_ROOM = "No space left on device"
# At the user's site; what it must note before it answers, and what only others read.
WAITED_FOR = ("records.sqlite", "sent.jsonl", "scaffold.safetensors")
GOES_ON = ("status.json", ".prom")
# At the coordinator, in the middle of a run and at its end.
ENDS = ("rounds.jsonl", "checkpoints", "witness.jsonl", "spool")
AT_THE_END = ("result.json", "report.html")


def test_a_full_disk_costs_no_round_wherever_it_is_and_a_resumed_run_no_bit(tmp_path: Path) -> None:
    run, address = RunFolder(tmp_path / "run"), free_address()
    write_study(tmp_path / "study.toml", STUDY)
    files = {name: write_site(tmp_path, name, address) for name in STUDY.hospitals}
    for name in ("coordinator", *files):
        (tmp_path / f"{name}-disk").mkdir()
    disks = {name: FullDisk(tmp_path / f"{name}-disk") for name in ("coordinator", *files)}
    with ExitStack() as stack:

        def begin(name: str, *arguments: str) -> Program:
            metrics = ["--metrics", str(tmp_path / f"{name}.prom")]
            log, disk = tmp_path / f"{name}.log", disks[name]
            program = Program(name, [*arguments, *metrics], log, environment=disk.environment)
            stack.callback(program.close)
            return program

        def coordinator(*what: str) -> Program:
            where = ["--insecure", "--address", address, "--updates", "disk"]
            return begin("coordinator", "server", *what, *where)

        def rounds() -> int:
            return len(list(read_journal(run.journal))) if run.journal.exists() else 0

        def goes_on(program: Program) -> None:
            before = rounds()
            program.wait_until(lambda: rounds() > before + 1, "round")

        server = coordinator(str(tmp_path / "study.toml"), "--run-folder", str(run.path))
        sites = {name: begin(name, "client", str(path)) for name, path in files.items()}
        server.wait_until(lambda: rounds() > 1, "round")

        for place in (*WAITED_FOR, *GOES_ON):
            disk, alice, mark = disks["alice"], sites["alice"], sites["alice"].mark
            disk.fill(place)
            disk.wait_until_noticed()
            alice.wait_until(lambda: "cannot be written" in alice.text(mark), place)  # noqa: B023
            assert place in alice.text(mark)
            if place in GOES_ON:
                goes_on(server)
            disk.make_room()
            goes_on(server)
        for place in GOES_ON:
            mark = server.mark
            disks["coordinator"].fill(place)
            goes_on(server)
            server.wait_until(lambda: place in server.text(mark), place)  # noqa: B023
            disks["coordinator"].make_room()
        for place in (*ENDS, *AT_THE_END):
            disks["coordinator"].fill(place)
            disks["coordinator"].wait_until_noticed()
            assert server.wait() == RunError.exit_code, (place, server.text())
            assert NO_ROOM in server.lines()[-1]
            assert str(run.path) in server.lines()[-1]
            disks["coordinator"].make_room()
            server = coordinator("--resume", str(run.path))
        assert server.wait() == 0, server.text()
        assert "Traceback" not in "".join((tmp_path / f"{name}.log").read_text() for name in disks)
    entries = list(read_journal(run.journal))
    assert [(entry["round"], entry["outcome"]) for entry in entries] == [
        (number, "done") for number in range(1, STUDY.rounds + 1)
    ]
    hospitals = {name: Hospital(load_site(path)) for name, path in files.items()}
    simulated = simulated_alike(STUDY, run, hospitals)
    result = read_result(run.result)
    assert result.arms["scaffold"].metrics == simulated.evaluation.arms["scaffold"]
    assert run.report.exists()


def test_what_is_made_by_hand_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    disk, federation = FullDisk(tmp_path), make_federation(tmp_path / "federation", "alice")
    kit = unpack_kit(federation, "alice", tmp_path)

    def erosion(words: Sequence[str | Path]) -> tuple[int, str]:
        run = subprocess.run(
            [sys.executable, "-m", "erosion", *map(str, words)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**os.environ, **disk.environment},
        )
        return run.returncode, run.stderr

    commands: dict[str, tuple[str | Path, ...]] = {
        "ca.crt": ("enroll", "init", "--host", "localhost", "--folder", tmp_path / "second"),
        "roster.toml": ("enroll", "site", "bob", "--folder", federation.path),
        "carol.csr": ("enroll", "request", "carol", "--out", tmp_path / "carol.key"),
        "records.sqlite": ("review", kit / "site.toml"),
    }
    for place, words in commands.items():
        disk.fill(place)
        code, said = erosion(words)
        assert code not in (0, FAULT), place
        assert place in said
        disk.make_room()
        assert erosion(words)[0] == 0, place
