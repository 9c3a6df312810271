"""A disk that is full at each place where a coordinator or a site writes, in real processes."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from erosion_client.site_file import load_site
from erosion_client.training.hospital import Hospital
from erosion_common.errors import RunError
from erosion_common.program.ending import FAULT
from erosion_common.study.study import Study
from erosion_common.support.network import free_address
from erosion_server.run.journal import read_journal
from erosion_server.run.result import read_result
from erosion_server.run.run_folder import RunFolder, write_study
from experiments.faults.program import Program
from tests.support.enrolled import make_federation, unpack_kit
from tests.support.federation import simulated_alike, small_study, write_site
from tests.support.forked import Forked
from tests.support.full_disk import FullDisk, why_no_full_disk

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
MORE_THAN_ARE_DONE = 10_000  # rounds, while a test looks
NO_ROOM = "No space left on device"
# At the user's site; what it must note before it answers, and what only others read.
WAITED_FOR = ("records.sqlite", "sent.jsonl", f"/{STUDY.digest[:16]}/")  # what scaffold keeps
GOES_ON = ("status.json", ".prom")
# At the coordinator, in the middle of a run and at its end.
ENDS = ("rounds.jsonl", "checkpoints", "witness.jsonl", "spool")
AT_THE_END = ("result.json", "report.html")


class Deployment:
    """A coordinator and its two sites, each with a disk that can be full."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.run, self._address = RunFolder(folder / "run"), free_address()
        self.files = {name: write_site(folder, name, self._address) for name in STUDY.hospitals}
        self.disks: dict[str, FullDisk] = {}
        for name in ("coordinator", *self.files):
            (folder / f"{name}-disk").mkdir()
            self.disks[name] = FullDisk(folder / f"{name}-disk")

    def begin(self, study: Study) -> Program:
        """Start all; returns the coordinator, which is in the middle of the run."""
        write_study(self.folder / "study.toml", study)
        server = self.coordinator(
            str(self.folder / "study.toml"), "--run-folder", str(self.run.path)
        )
        self.sites = {n: self._start(n, "client", str(path)) for n, path in self.files.items()}
        server.wait_until(lambda: self.rounds() > 1, "round")
        return server

    def coordinator(self, *what: str) -> Program:
        where = ["--insecure", "--address", self._address, "--updates", "disk"]
        return self._start("coordinator", "server", *what, *where)

    def _start(self, name: str, *arguments: str) -> Program:
        metrics = ["--metrics", str(self.folder / f"{name}.prom")]
        log, disk = self.folder / f"{name}.log", self.disks[name]
        program = Forked(name, [*arguments, *metrics], log, environment=disk.environment)
        self._stack.callback(program.close)
        return program

    def rounds(self) -> int:
        return len(list(read_journal(self.run.journal))) if self.run.journal.exists() else 0

    def goes_on(self, server: Program) -> None:
        before = self.rounds()
        server.wait_until(lambda: self.rounds() > before + 1, "round")

    def fill(self, program: Program, name: str, place: str) -> None:
        """Fill a place of the program, and wait until it says so."""
        mark = program.mark
        self.disks[name].fill(place)
        self.disks[name].wait_until_noticed()
        program.wait_until(lambda: "cannot be written" in program.text(mark), place)
        assert place in program.text(mark)


def test_a_full_disk_costs_no_round_wherever_it_is_and_a_resumed_run_no_bit(tmp_path: Path) -> None:
    with ExitStack() as stack:
        of = Deployment(tmp_path, stack)
        server, disk = of.begin(STUDY), of.disks["coordinator"]
        for place in WAITED_FOR:
            of.fill(of.sites["alice"], "alice", place)
            of.disks["alice"].make_room()
            of.goes_on(server)
        for place in (*ENDS, *AT_THE_END):
            disk.fill(place)
            disk.wait_until_noticed()
            assert server.wait() == RunError.exit_code, (place, server.text())
            assert NO_ROOM in server.lines()[-1]
            assert str(of.run.path) in server.lines()[-1]
            disk.make_room()
            server = of.coordinator("--resume", str(of.run.path))
        assert server.wait() == 0, server.text()
        assert "Traceback" not in "".join(log.read_text() for log in tmp_path.glob("*.log"))
    entries = list(read_journal(of.run.journal))
    assert [(entry["round"], entry["outcome"]) for entry in entries] == [
        (number, "done") for number in range(1, STUDY.rounds + 1)
    ]
    hospitals = {name: Hospital(load_site(path)) for name, path in of.files.items()}
    simulated = simulated_alike(STUDY, of.run, hospitals)
    result = read_result(of.run.result)
    assert result.arms["scaffold"].metrics == simulated.evaluation.arms["scaffold"]
    assert of.run.report.exists()


def test_rounds_go_on_while_what_others_read_cannot_be_written(tmp_path: Path) -> None:
    with ExitStack() as stack:
        of = Deployment(tmp_path, stack)
        server = of.begin(STUDY.model_copy(update={"rounds": MORE_THAN_ARE_DONE}))
        for name, program in (("alice", of.sites["alice"]), ("coordinator", server)):
            for place in GOES_ON:
                of.fill(program, name, place)
                of.goes_on(server)
                of.disks[name].make_room()


def test_what_is_made_by_hand_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    disk, federation = FullDisk(tmp_path), make_federation(tmp_path / "federation", "alice")
    kit = unpack_kit(federation, "alice", tmp_path)

    def erosion(words: Sequence[str | Path]) -> tuple[int, str]:
        log, given = tmp_path / "said.log", list(map(str, words))
        run = Forked("erosion", given, log, environment=disk.environment)
        return run.wait(), run.text()

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
