"""Processor seconds that a deployment's processes use for a round: the same on a busy machine."""

import os
import threading
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Self

_TICKS = os.sysconf("SC_CLK_TCK")
_EVERY = 0.05  # seconds between two looks


class CpuMeter:
    """Follows this process's children from the end of the first round to the last but one."""

    def __init__(self, journal: Path, rounds: int) -> None:
        """`journal` has a line for each round; at least three are needed."""
        self._journal, self._last = journal, rounds - 1
        self._seen: dict[int, dict[str, float]] = {}  # by rounds done, then by program
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def of_a_round(self, user: str) -> dict[str, float]:
        """Of the coordinator, of the user's site, of a peer's (median), and of all together."""
        begun, *_, ended = (self._seen[number] for number in sorted(self._seen))
        rounds = max(self._seen) - min(self._seen)
        spent = {who: (ended[who] - begun[who]) / rounds for who in begun if who in ended}
        peers = [seconds for who, seconds in spent.items() if who not in ("coordinator", user)]
        return {
            "coordinator": spent["coordinator"],
            "user": spent[user],
            "peer": median(peers),
            "all": sum(spent.values()),
        }

    def _watch(self) -> None:
        while not self._stop.wait(_EVERY):
            try:
                done = len(self._journal.read_bytes().splitlines())
            except OSError:  # nothing is there yet
                continue
            if 0 < done <= self._last and done not in self._seen:
                self._seen[done] = _children()


def _children() -> dict[str, float]:
    """Processor seconds of every program of the deployment so far."""
    spent = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            figures = (process / "stat").read_text().rpartition(")")[2].split()
            arguments = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:  # it has ended
            continue
        if int(figures[1]) != os.getpid():
            continue
        sites = [argument for argument in arguments if argument.endswith("site.toml")]
        who = Path(sites[0]).parent.name if sites else "coordinator"
        spent[who] = (int(figures[11]) + int(figures[12])) / _TICKS
    return spent
