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

from erosion_common.program.command_line import parser
from erosion_server.run.run_folder import RunFolder
from tests.support.patience import PATIENCE

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


def erosion(*arguments: str, **environment: str) -> tuple[bytes, bytes]:
    """A command as the coordinator's account, where everything is everybody's by default.

    What it printed, and what it said beside that.
    """
    ended = subprocess.run(
        [sys.executable, "-m", "erosion", *arguments],
        check=True,
        capture_output=True,
        timeout=PATIENCE,
        umask=0,
        env={**os.environ, **environment},
    )
    return ended.stdout, ended.stderr


def may(action: str, path: Path, *groups: int) -> bool:
    """Whether another account may read ("-r"), write ("-w") or enter ("-x") it."""
    looked = subprocess.run(
        ["/usr/bin/test", action, path], user=ANOTHER, group=ANOTHER, extra_groups=list(groups)
    )
    return looked.returncode == 0


def run_folder(place: Path, **environment: str) -> list[Path]:
    """A run's folder, as the command line makes it and what is in it."""
    out = place / "runs" / "made"
    study = ROOT / "erosion" / "studies" / "breast-cancer.toml"
    program = (
        "from pathlib import Path; from erosion_common.program.command_line import main;"
        " from erosion_server.run.run_folder import open_run_folder;"
        " from erosion_common.study.study import load_study;"
        " main(['schema', 'site']);"  # any command sets the mask
        f" open_run_folder(Path({str(out)!r}), load_study(Path({str(study)!r})))"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        timeout=PATIENCE,
        umask=0,
        env={**os.environ, **environment},
    )
    return [out, *out.iterdir()]


def test_another_account_reads_neither_the_federation_nor_a_run(place: Path) -> None:
    control = place / "for-everybody"
    control.write_text("x")
    control.chmod(0o644)  # whatever mask the tests before have left
    assert may("-r", control)
    federation = place / "federation"
    erosion("enroll", "init", "--host", "localhost", "--folder", str(federation))
    erosion("enroll", "site", "north", "--folder", str(federation))
    kept = [federation, *federation.rglob("*"), *run_folder(place)]
    assert {"ca.key", "roster.toml", "north.tar.gz", "study.toml"} <= {path.name for path in kept}
    assert [path for path in kept if may("-r", path) or may("-w", path)] == []


def test_a_group_may_read_runs_and_change_nothing(place: Path) -> None:
    runs = place / "runs"
    runs.mkdir()
    os.chown(runs, -1, READERS)
    runs.chmod(0o2750)
    made = run_folder(place, EROSION_UMASK="027")
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


def test_the_sudo_rules_name_the_units_and_commands_that_there_are() -> None:
    rules = (ROOT / "docker" / "systemd" / "erosion.sudoers").read_text()
    assert (ROOT / "docker" / "systemd" / "erosion-server.service").exists()
    unit = (ROOT / "docker" / "systemd" / "erosion-server.service").read_text()
    assert "/opt/erosion/bin/erosion server" in unit
    active = [line for line in rules.splitlines() if line and not line.startswith("#")]
    said = " ".join(" ".join(active).replace("\\", "").split())
    assert said.count("systemctl") == said.count("erosion-server") == 3


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
    erosion("enroll", "init", "--host", "localhost", "--folder", str(federation))
    before = set(federation.rglob("*"))
    printed, said = erosion("enroll", "site", "north", "--out", "-", "--folder", str(federation))
    with tarfile.open(fileobj=io.BytesIO(printed)) as kit:
        assert {"north/node.key", "north/site.toml"} <= set(kit.getnames())
    assert b"Enrolled north" in said
    assert set(federation.rglob("*")) - before <= {federation / ".lock"}
    renew = ("enroll", "renew", "north", "--out", "-", "--folder", str(federation))
    with tarfile.open(fileobj=io.BytesIO(erosion(*renew)[0])) as kit:
        assert "north/node.crt" in kit.getnames()
