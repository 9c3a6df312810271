"""The README's deployment section, word for word, on machines that are Linux network namespaces.

`python -m experiments.two_machines`, as root. The coordinator and two hospitals each have a machine
with separate addresses and folders; only the kits are carried between them. Every command is
looked up in the README before it is run.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from erosion_server.run.run_folder import write_study
from experiments.faults.network import COORDINATOR, COORDINATOR_ADDRESS, Network, why_no_networks
from experiments.faults.program import PATIENCE_SECONDS, wait_until
from experiments.faults.stage import small_study, write_patients
from experiments.program import run_program, unpack_kit

ROOT = Path(__file__).resolve().parent.parent
NAME = "erosion.example.org"
HOSPITALS = ("north", "south")  # north is the user

INIT = f".venv/bin/erosion enroll init --host {NAME}"
REQUEST = ".venv/bin/erosion enroll request north"
SIGN = ".venv/bin/erosion enroll sign node.csr"
SERVER = ".venv/bin/erosion server STUDY.toml"
CHECK = ".venv/bin/erosion check north/site.toml --study STUDY.toml"
REVIEW = ".venv/bin/erosion review north/site.toml --study STUDY.toml"
CLIENT = ".venv/bin/erosion client north/site.toml"
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "COLUMNS": "110",
    "EROSION_CA_PASSPHRASE": "of these machines alone",
}


class Process(Protocol):
    """What is needed of one; `Popen` is one."""

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""

    def wait(self, timeout: float, /) -> int | None:
        """Return the exit code once it ended."""

    def kill(self) -> None:
        """End it."""


class Machine:
    """A machine with a folder that has nothing in it but the installed program."""

    def __init__(self, name: str, network: Network, folder: Path) -> None:
        """The folder is made."""
        self.name, self.folder, self.network = name, folder / name, network
        self.folder.mkdir()
        (self.folder / ".venv").symlink_to(Path(sys.prefix))
        self._started: list[Process] = []

    def run(self, command: str, hospital: str = "north", *more: str) -> None:
        """Run a command of the README to its end; raises AssertionError where it fails."""
        code = self.start(command, hospital, *more).wait(PATIENCE_SECONDS)
        print(self.said(), flush=True)
        assert code == 0, self.said()

    def start(self, command: str, hospital: str = "north", *more: str) -> Process:
        """Return a command of the README that goes on; its output is in `log.txt`."""
        assert command in _deployment_section(), f"the README does not say: {command}"
        print(f"{self.name}$ {_for(command, hospital)}", flush=True)
        words = [*shlex.split(_for(command, hospital)), *more]
        self._started.append(self.begin(words, self.folder / "log.txt"))
        return self._started[-1]

    def begin(self, words: Sequence[str], output: Path) -> Process:
        """Start a program on this machine, in its folder."""
        command = [*self.network.inside(self.name), *words]
        with output.open("w") as log:
            return subprocess.Popen(
                command, cwd=self.folder, env=ENVIRONMENT, stdout=log, stderr=log
            )

    def said(self) -> str:
        """Return the output of the last command."""
        return (self.folder / "log.txt").read_text()

    def close(self) -> None:
        """End what was started."""
        for process in self._started:
            process.kill()
            process.wait(PATIENCE_SECONDS)


def deploy(folder: Path, machine: type[Machine] = Machine) -> Path:
    """Return the run folder of a study that went through, from `enroll init` to the report."""
    with ExitStack() as stack:
        network = stack.enter_context(Network(*HOSPITALS, hosts={NAME: COORDINATOR_ADDRESS}))
        machines = {name: machine(name, network, folder) for name in (COORDINATOR, *HOSPITALS)}
        for each in machines.values():
            stack.callback(each.close)
        coordinator = machines[COORDINATOR]
        study = small_study(
            user="north",
            hospitals=HOSPITALS,
            rounds=5,
            model={"name": "mlp", "hidden": [200, 100]},  # too large to travel within one call
            training={"steps": 20, "batch_size": 16, "learning_rate": 0.1},
            arms={"weight_erosion": {}, "fedavg": {}, "local": {}},
        )
        for each in machines.values():
            write_study(each.folder / "STUDY.toml", study)

        coordinator.run(INIT)
        for hospital in HOSPITALS:
            machines[hospital].run(REQUEST, hospital)
            asked = machines[hospital].folder / "node.csr"
            asked.rename(coordinator.folder / asked.name)  # carried there by hand
            coordinator.run(SIGN)
        server = coordinator.start(SERVER)
        wait_until(lambda: "Listening" in coordinator.said(), coordinator.said)
        for hospital in HOSPITALS:
            kit = coordinator.folder / "federation" / "kits" / f"{hospital}.tar.gz"
            unpack_kit(kit, machines[hospital].folder)  # likewise
            key = machines[hospital].folder / "node.key"
            key.rename(machines[hospital].folder / hospital / key.name)
            write_patients(machines[hospital].folder / hospital / "patients.csv", hospital)
            if hospital == study.user:
                machines[hospital].run(CHECK, hospital)
            machines[hospital].run(REVIEW, hospital, "--approve")  # nobody types an answer
            machines[hospital].start(CLIENT, hospital)
        wait_until(lambda: server.poll() is not None, coordinator.said)
        print(coordinator.said(), flush=True)
        assert server.poll() == 0, coordinator.said()
        (run,) = (coordinator.folder / "runs").iterdir()
        assert (run / "report.html").exists()
        return run


def main() -> int:
    """Deploy in a folder that is removed afterwards."""
    if (reason := why_no_networks()) is not None:
        print(f"This needs network namespaces: {reason}.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="erosion-two-machines-") as folder:
        deploy(Path(folder))
    return 0


def _deployment_section() -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return text.partition("\n## Deploy it\n")[2].partition("\n## ")[0]


def _for(command: str, hospital: str) -> str:
    return command.replace("north", hospital)


if __name__ == "__main__":
    run_program(main)
