"""Peak memory of groups of processes, sampled from Linux's /proc.

`VmHWM` is the kernel's own high-water mark, so a rare sample still sees the true peak of a process
that lives on; only what a process adds in its last moments before it exits can be missed. The
`ru_maxrss` of wait4 is no substitute: a child inherits it from the process that forked it.
"""

import os
import threading
from pathlib import Path
from types import TracebackType

SAMPLE_SECONDS = 0.1


class MemorySampler:
    """Watches process groups from a thread: every process in them, grandchildren included."""

    def __init__(self) -> None:
        self._role_of_group: dict[int, str] = {}
        self._live: dict[int, tuple[str, float]] = {}  # pid -> role, peak in MB
        self._known: set[int] = set()  # pids that the last sample saw
        self._peaks: dict[str, float] = {}  # role -> peak in MB of the processes that have ended
        self._total_peak = 0.0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="memory-sampler", daemon=True)

    def __enter__(self) -> "MemorySampler":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def watch(self, group: int, role: str) -> None:
        """Count the group leader under `role`, and its descendants under their program's name."""
        with self._lock:
            self._role_of_group[group] = role

    def peaks_mb(self) -> dict[str, float]:
        """Role -> the largest resident set of any one process with that role, so far."""
        with self._lock:
            peaks = dict(self._peaks)
            for role, peak in self._live.values():
                peaks[role] = max(peak, peaks.get(role, 0.0))
        return dict(sorted(peaks.items()))

    def total_peak_mb(self) -> float:
        """Return the largest sum of resident sets over all watched processes at one sample."""
        with self._lock:
            return self._total_peak

    def _loop(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        with self._lock:
            total = 0.0
            seen: dict[int, tuple[str, float]] = {}
            known: set[int] = set()
            for pid in _all_pids():
                found = self._look_at(pid)
                if found is None:
                    continue
                known.add(pid)
                # Between fork and exec a child looks like a second copy of its parent, so a
                # process counts from the second sample on.
                if pid in self._known:
                    role, peak, resident = found
                    total += resident
                    if role:
                        seen[pid] = (role, peak)
            for pid in self._live.keys() - seen.keys():
                role, peak = self._live[pid]
                self._peaks[role] = max(peak, self._peaks.get(role, 0.0))
            self._live = seen
            self._known = known
            self._total_peak = max(self._total_peak, total)

    def _look_at(self, pid: int) -> tuple[str, float, float] | None:
        """Role, peak MB and current MB of a process, or None if it is not ours or has ended.

        The role of a passing helper that is no Python program (`uname`, `file`) is empty.
        """
        try:
            group = os.getpgid(pid)
            if group not in self._role_of_group:
                return None
            peak, resident = _memory_mb(pid)
            role = self._role_of_group[group] if pid == group else _program(pid)
        except (OSError, KeyError, IndexError):  # it ended between two of these lines
            return None
        return role, peak, resident


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208


def _memory_mb(pid: int) -> tuple[float, float]:
    """Return VmHWM and VmRSS; KeyError for a process without memory (a zombie)."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return _kib_to_mb(fields["VmHWM"]), _kib_to_mb(fields["VmRSS"])


def proportional_mb(group: int) -> float:
    """Return the memory of a process group in MB; a page that n processes share counts 1/n in each.

    The kernel walks all pages for it: do not call it ten times a second.
    """
    total = 0.0
    for pid in _all_pids():
        try:
            if os.getpgid(pid) == group:
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
                total += sum(_kib_to_mb(line[4:]) for line in lines if line.startswith("Pss:"))
        except OSError:  # it ended between two of these lines
            continue
    return total


def _kib_to_mb(text: str) -> float:
    return int(text.split()[0]) * 1024 / 1e6


def _program(pid: int) -> str:
    """Return the script or module that a Python process runs; empty for other programs."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    if not Path(words[0]).name.startswith("python"):
        return ""
    return next((Path(word).name for word in words[1:] if word and word[0] != "-"), "")


def resident_bytes(field: str) -> int:
    """This process's memory now ("VmRSS") or at its highest ("VmHWM")."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return int(values[field].split()[0]) * 1024
