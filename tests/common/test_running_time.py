"""The clock of deadlines: a program that was stopped has not let them pass."""

import ast
from pathlib import Path

import pytest

from erosion_common.support.process import GAP_SECONDS, RunningTime


class Machine:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def test_time_passes_while_the_program_runs() -> None:
    machine = Machine()
    clock = RunningTime(machine)
    begun = clock.now()
    for _ in range(20):
        machine.seconds += 1.0
        clock.now()
    assert clock.now() - begun == pytest.approx(20.0)


@pytest.mark.parametrize("stopped", [GAP_SECONDS, 300.0, 86_400.0])
def test_a_gap_counts_as_one_second_whoever_looks_first(stopped: float) -> None:
    machine = Machine()
    clock = RunningTime(machine)
    begun = clock.now()
    machine.seconds += stopped
    assert clock.now() - begun == pytest.approx(1.0)
    machine.seconds += 2.0
    assert clock.now() - begun == pytest.approx(3.0)


# The wall clock: certificates, logs, names of files, and what Flower wants to see in a message.
# The age of a status file is right again two seconds after a step of the clock: it is rewritten.
WALL_CLOCK = {
    "client/erosion_client/audit/audit_log.py",
    "client/erosion_client/audit/site_observers.py",
    "client/erosion_client/connection/serve.py",
    "client/erosion_client/records/studies.py",
    "common/erosion_common/protocol/flower.py",
    "common/erosion_common/rounds/presence.py",
    "common/erosion_common/support/expiry.py",
    "common/erosion_common/support/status.py",
    "server/erosion_server/coordination/folder_store.py",
    "server/erosion_server/enrolment/enrolment.py",
    "server/erosion_server/output/json_lines.py",
    "server/erosion_server/output/metrics_csv.py",
    "server/erosion_server/output/mlflow_runs.py",
    "common/erosion_common/audit/witness.py",
    "server/erosion_server/run/run_folder.py",
}
READS = {
    ("time", "time"),
    ("time", "time_ns"),
    ("time", "localtime"),
    ("time", "gmtime"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
}


def test_only_certificates_logs_and_names_read_the_wall_clock() -> None:
    root = Path(__file__).parents[2]
    found = set()
    for part in ("client", "common", "server"):
        for path in (root / part).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                match node:
                    case ast.Attribute(value=ast.Name(id=module), attr=name):
                        read = (module, name) in READS
                    case ast.ImportFrom(module="time", names=names):
                        read = any(("time", alias.name) in READS for alias in names)
                    case _:
                        read = False
                if read:
                    found.add(str(path.relative_to(root)))
    assert found == WALL_CLOCK
