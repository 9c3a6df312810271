"""Machines imitated by Linux network namespaces: one for the coordinator, one for every site."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Self

from experiments.faults.program import PATIENCE_SECONDS

ETC = Path("/etc/netns")
COORDINATOR = "coordinator"
SUBNET = "10.77.0"
COORDINATOR_ADDRESS = f"{SUBNET}.1"


def why_no_networks() -> str | None:
    """Return the reason why no network namespaces can be made here; None if they can be."""
    missing = [program for program in ("ip", "iptables") if shutil.which(program) is None]
    if missing:
        return f"network namespaces need {' and '.join(missing)}, not installed here"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    name = f"erosion-probe-{os.getpid()}"
    try:
        _run("ip", "netns", "add", name)
        try:
            _run("ip", "netns", "exec", name, "iptables", "-A", "INPUT", "-j", "ACCEPT")
            _run("ip", "-n", name, "link", "add", "probe", "type", "bridge")
        finally:
            _run("ip", "netns", "delete", name)
    except subprocess.CalledProcessError as problem:
        said = problem.stderr.decode(errors="replace").strip()
        return f"network namespaces are not permitted here: {said}"
    except (OSError, subprocess.TimeoutExpired) as problem:
        return f"network namespaces cannot be made here: {problem}"
    return None


class Network:
    """A switch at the coordinator with one cable to every site. Use as a context manager."""

    def __init__(self, *sites: str, hosts: Mapping[str, str] = MappingProxyType({})) -> None:
        """`sites` are numbered from 2: the first is SUBNET.2. `hosts`: names -> addresses."""
        self._prefix = f"er{os.getpid()}"
        self._sites, self._hosts = sites, hosts
        self._names: list[str] = []

    def __enter__(self) -> Self:
        """Lay the cables."""
        try:
            hub = self._add(COORDINATOR)
            _run("ip", "-n", hub, "link", "add", "switch", "type", "bridge")
            _run("ip", "-n", hub, "addr", "add", f"{COORDINATOR_ADDRESS}/24", "dev", "switch")
            _run("ip", "-n", hub, "link", "set", "switch", "up")
            for number, site in enumerate(self._sites, 2):
                space, port = self._add(site), f"port{number}"
                peer = ("type", "veth", "peer", "name", port, "netns", hub)
                _run("ip", "-n", space, "link", "add", "cable", *peer)
                _run("ip", "-n", space, "addr", "add", f"{SUBNET}.{number}/24", "dev", "cable")
                _run("ip", "-n", space, "link", "set", "cable", "up")
                _run("ip", "-n", hub, "link", "set", port, "master", "switch", "up")
        except BaseException:  # with a failed `__enter__`, nobody else would take it down
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Take everything down that was put up."""
        for name in self._names:
            with suppress(subprocess.CalledProcessError):
                _run("ip", "netns", "delete", name)
            shutil.rmtree(ETC / name, ignore_errors=True)

    def inside(self, machine: str) -> list[str]:
        """Return what to put before a command so that it runs on `machine`."""
        return ["ip", "netns", "exec", self._space(machine)]

    def cut(self, site: str) -> None:
        """Let every packet to and from a site vanish without a word, as a dead line does."""
        for chain in ("INPUT", "OUTPUT"):
            _run(*self.inside(site), "iptables", "-A", chain, "-j", "DROP")

    def restore(self, site: str) -> None:
        """Restore the connection."""
        _run(*self.inside(site), "iptables", "-F")

    def slow_down(self, site: str, kilobits: int) -> None:
        """Bound what a site can send in a second."""
        limit = ("tbf", "rate", f"{kilobits}kbit", "burst", "16kb", "latency", "2s")
        _run(*self.inside(site), "tc", "qdisc", "add", "dev", "cable", "root", *limit)

    def _space(self, machine: str) -> str:
        return f"{self._prefix}-{machine}"

    def _add(self, machine: str) -> str:
        name = self._space(machine)
        _run("ip", "netns", "add", name)
        self._names.append(name)
        if self._hosts:  # `ip netns exec` shows this file as /etc/hosts
            (ETC / name).mkdir(parents=True)
            lines = [f"{address} {host}\n" for host, address in self._hosts.items()]
            (ETC / name / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))
        _run("ip", "-n", name, "link", "set", "lo", "up")
        return name


def why_no_small_disk() -> str | None:
    """Return the reason why no disk can be mounted here; None if one can be."""
    try:
        with tempfile.TemporaryDirectory() as folder, SmallDisk(Path(folder), 64):
            return None
    except OSError as problem:
        return str(problem)


class SmallDisk:
    """A disk of a few kilobytes, in memory. Use as a context manager."""

    def __init__(self, path: Path, kilobytes: int) -> None:
        """`path` becomes the disk."""
        self.path, self._kilobytes = path, kilobytes

    def __enter__(self) -> Self:
        """Mount it; raises OSError where that is not permitted."""
        self.path.mkdir(parents=True, exist_ok=True)
        size = f"size={self._kilobytes}k"
        try:
            _run("mount", "-t", "tmpfs", "-o", size, "erosion-small-disk", str(self.path))
        except subprocess.CalledProcessError as problem:
            said = problem.stderr.decode(errors="replace").strip()
            raise OSError(f"no disk can be mounted here: {said}") from None
        return self

    def __exit__(self, *_: object) -> None:
        """Unmount it, with all that is on it."""
        _run("umount", "--lazy", str(self.path))

    def free_bytes(self) -> int:
        """Return the free bytes."""
        return shutil.disk_usage(self.path).free

    def grow(self, kilobytes: int) -> None:
        """Somebody made room."""
        _run("mount", "-o", f"remount,size={kilobytes}k", str(self.path))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
