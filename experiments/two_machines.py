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
from contextlib import ExitStack
from pathlib import Path

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


class Machine:
    """A machine with a folder that has nothing in it but the installed program."""

    def __init__(self, name: str, network: Network, folder: Path) -> None:
        """The folder is made."""
        self.name, self.folder, self._network = name, folder / name, network
        self.folder.mkdir()
        (self.folder / ".venv").symlink_to(Path(sys.prefix))
        self._started: list[subprocess.Popen[str]] = []

    def run(self, command: str, hospital: str = "north", *more: str) -> str:
        """Return what a command of the README says; raises AssertionError where it fails."""
        print(f"{self.name}$ {_for(command, hospital)}", flush=True)
        done = subprocess.run(
            [*self._words(command, hospital), *more],
            cwd=self.folder,
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        print(done.stdout + done.stderr, flush=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, command: str, hospital: str = "north") -> "subprocess.Popen[str]":
        """Return a command of the README that goes on; its output is in `log.txt`."""
        print(f"{self.name}$ {_for(command, hospital)} &", flush=True)
        with (self.folder / "log.txt").open("w") as log:
            process = subprocess.Popen(
                self._words(command, hospital),
                cwd=self.folder,
                env=_environment(),
                stdout=log,
                stderr=log,
                text=True,
            )
        self._started.append(process)
        return process

    def said(self) -> str:
        """Return the log of what was started."""
        return (self.folder / "log.txt").read_text()

    def close(self) -> None:
        """End what was started."""
        for process in self._started:
            process.kill()
            process.wait(PATIENCE_SECONDS)

    def _words(self, command: str, hospital: str) -> list[str]:
        assert command in _deployment_section(), f"the README does not say: {command}"
        return [*self._network.inside(self.name), *shlex.split(_for(command, hospital))]


def deploy(folder: Path) -> Path:
    """Return the run folder of a study that went through, from `enroll init` to the report."""
    with ExitStack() as stack:
        network = stack.enter_context(Network(*HOSPITALS, hosts={NAME: COORDINATOR_ADDRESS}))
        machines = {name: Machine(name, network, folder) for name in (COORDINATOR, *HOSPITALS)}
        for machine in machines.values():
            stack.callback(machine.close)
        coordinator = machines[COORDINATOR]
        study = small_study(
            user="north",
            hospitals=HOSPITALS,
            rounds=5,
            model={"name": "mlp", "hidden": [200, 100]},  # too large to travel within one call
            training={"steps": 20, "batch_size": 16, "learning_rate": 0.1},
            arms={"weight_erosion": {}, "fedavg": {}, "local": {}},
        )
        for machine in machines.values():
            write_study(machine.folder / "STUDY.toml", study)

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
        assert server.returncode == 0, coordinator.said()
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


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "110",
        "EROSION_CA_PASSPHRASE": "of these machines alone",
    }


if __name__ == "__main__":
    run_program(main)
