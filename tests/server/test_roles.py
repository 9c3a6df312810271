"""Rights to read at the coordinator are those of the system's accounts and groups."""

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from erosion_common.program.command_line import main, parser
from erosion_common.study.study import load_study
from erosion_server.run.run_folder import RunFolder, open_run_folder
from tests.support.patience import PATIENCE
from tests.support.processes import start

ROOT = Path(__file__).resolve().parents[2]
ANOTHER, READERS = 65534, 65533  # an account, and a group, of nobody else's

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can look at files as another account"
)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every account may enter; pytest's own are for one account alone."""
    folder = Path(tempfile.mkdtemp(prefix="erosion-roles-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def printed(*arguments: str) -> tuple[bytes, bytes]:
    """What a command prints, and what it says beside that."""
    ended = subprocess.run(
        [sys.executable, "-m", "erosion", *arguments],
        check=True,
        capture_output=True,
        timeout=PATIENCE,
        umask=0,
    )
    return ended.stdout, ended.stderr


def _in_a_process(environment: dict[str, str], commands: list[list[str]], out: Path | None) -> None:
    os.umask(0)
    os.environ.update(environment)
    for command in commands:
        assert main(command) == 0
    if out is not None:
        study = ROOT / "erosion" / "studies" / "breast-cancer.toml"
        open_run_folder(out, load_study(study))


def make(*commands: list[str], out: Path | None = None, **environment: str) -> None:
    """Commands, and a run's folder, of an account where everything is everybody's by default."""
    process = start(_in_a_process, environment, list(commands), out)
    process.join(PATIENCE)
    assert process.exitcode == 0


def may(action: str, path: Path, *groups: int) -> bool:
    """Whether another account may read ("-r"), write ("-w") or enter ("-x") it."""
    looked = subprocess.run(
        ["/usr/bin/test", action, path], user=ANOTHER, group=ANOTHER, extra_groups=list(groups)
    )
    return looked.returncode == 0


def test_a_revocation_by_root_is_read_by_the_account_whose_federation_it_is(place: Path) -> None:
    folder = place / "federation"
    arguments = "--folder", str(folder)
    make(
        ["enroll", "init", "--host", "localhost", *arguments], ["enroll", "site", "bob", *arguments]
    )
    for path in (folder, *folder.rglob("*")):
        os.chown(path, ANOTHER, ANOTHER)
    make(["enroll", "revoke", "bob", *arguments], ["enroll", "renew", *arguments])
    for name in ("roster.toml", "coordinator.pem"):
        assert may("-r", folder / name), name


def test_another_account_reads_neither_the_federation_nor_a_run(place: Path) -> None:
    control = place / "for-everybody"
    control.write_text("x")
    control.chmod(0o644)  # whatever mask the tests before have left
    assert may("-r", control)
    federation, run = place / "federation", place / "runs" / "made"
    where = ["--folder", str(federation)]
    enrol = ["enroll", "site", "north", *where]
    make(["enroll", "init", "--host", "localhost", *where], enrol, out=run)
    kept = [federation, *federation.rglob("*"), run, *run.iterdir()]
    assert {"ca.key", "roster.toml", "north.tar.gz", "study.toml"} <= {path.name for path in kept}
    assert [path for path in kept if may("-r", path) or may("-w", path)] == []


def test_a_group_may_read_runs_and_change_nothing(place: Path) -> None:
    runs, run = place / "runs", place / "runs" / "made"
    runs.mkdir()
    os.chown(runs, -1, READERS)
    runs.chmod(0o2750)
    make(["schema", "site"], out=run, EROSION_UMASK="027")  # any command sets the mask
    made = [run, *run.iterdir()]
    assert all(may("-r", path, READERS) for path in made)
    assert not any(may("-w", path, READERS) for path in made)
    assert not any(may("-r", path) for path in made)


def test_the_service_starts_until_both_files_of_a_run_that_has_ended_are_there() -> None:
    unit = (ROOT / "docker" / "systemd" / "erosion-server.service").read_text()
    said = "ConditionPathExists="
    conditions = {line.removeprefix(said) for line in unit.splitlines() if line.startswith(said)}
    folder = RunFolder(Path("/var/lib/erosion/run"))
    # "|": one that holds is enough; RunFolder.has_ended wants both files
    assert conditions == {f"|!{folder.result}", f"|!{folder.report}"}


@pytest.mark.parametrize("left", [(), ("run/study.toml",)])
def test_the_service_gives_the_study_file_whether_or_not_a_run_was_cut_off(
    tmp_path: Path, left: tuple[str, ...]
) -> None:
    """A study that is corrected before the run has begun is to be the one that is run."""
    unit = (ROOT / "docker" / "systemd" / "erosion-server.service").read_text()
    (script,) = re.findall(r"^ExecStart=/bin/sh -c '(.*?)'$", unit, re.MULTILINE | re.DOTALL)
    (tmp_path / "run").mkdir()
    for name in left:
        (tmp_path / name).touch()
    printed = subprocess.run(
        ["sh", "-ec", script.replace("/opt/erosion/bin/erosion", "/bin/echo")],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    ).stdout
    options = parser().parse_args(printed.split())
    assert options.study == [Path("study.toml")]
    assert (options.resume, options.run_folder) == (
        ([Path("run")], None) if left else (None, Path("run"))
    )


FEDERATION = "--folder /var/lib/erosion/federation"


def test_a_registrar_gets_a_kit_and_writes_no_file_of_the_account(place: Path) -> None:
    rules = (ROOT / "docker" / "systemd" / "erosion.sudoers").read_text()
    allowed = re.findall(r"/opt/erosion/bin/erosion \^(enroll .*)\$", rules)
    shown = re.findall(r"# +sudo -u erosion /opt/erosion/bin/erosion (.*)", rules)
    as_given = [
        line.partition(" >")[0].replace("$F", FEDERATION).replace("NAME", "north") for line in shown
    ]
    assert len(as_given) == 3
    for command in (
        *as_given,
        f"enroll list {FEDERATION}",
        f"enroll renew north --new-key --out - {FEDERATION}",
        f"enroll sign /tmp/node.csr --replace --out - {FEDERATION}",
    ):
        assert any(re.fullmatch(rule, command) for rule in allowed), command
    for command in (
        "enroll peers --out /var/lib/erosion/study.toml",
        "enroll init --folder /var/lib/erosion/another",
        f"enroll site north --out /var/lib/erosion/study.toml {FEDERATION}",
        f"enroll site north --out study.toml --out - {FEDERATION}",
        "enroll site north --out - --folder /var/lib/erosion/another",
    ):
        assert not any(re.fullmatch(rule, command) for rule in allowed), command

    federation = place / "federation"
    make(["enroll", "init", "--host", "localhost", "--folder", str(federation)])
    before = set(federation.rglob("*"))
    kit_printed, said = printed(
        "enroll", "site", "north", "--out", "-", "--folder", str(federation)
    )
    with tarfile.open(fileobj=io.BytesIO(kit_printed)) as kit:
        assert {"north/node.key", "north/site.toml"} <= set(kit.getnames())
    assert b"Enrolled north" in said
    assert set(federation.rglob("*")) - before <= {federation / ".lock"}
    renew = ("enroll", "renew", "north", "--out", "-", "--folder", str(federation))
    with tarfile.open(fileobj=io.BytesIO(printed(*renew)[0])) as kit:
        assert "north/node.crt" in kit.getnames()
