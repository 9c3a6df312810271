"""The page of a run, from its status and journal: `erosion watch`, and the output `watch`."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import TypeAdapter

from erosion_common.errors import ErosionError
from erosion_common.formats.json_file import without_checksum
from erosion_common.rounds.records import RoundRecord
from erosion_common.study.study import load_study
from erosion_common.support import status
from erosion_common.support.files import open_named
from erosion_common.support.live_page import LivePage
from erosion_server.output.events import RunEvent, StudyStarted
from erosion_server.output.observers import Observer
from erosion_server.output.round_facts import News, news_of
from erosion_server.output.words import printable, seconds_text

MOST_RUNS = 6  # on a page
MOST_POINTS = 300  # of a curve; longer ones are thinned out
MOST_CURVES = 7  # hospitals in a chart: the user and those of the largest weights
MOST_HOSPITALS = 60  # in the table
MOST_NEWS = 30
LAST_ROUNDS = 10  # by which the time left is estimated
_RECORD = TypeAdapter(RoundRecord)
Event = tuple[int, int, News]  # its first round, how often, and the last of it


def open_output(where: str) -> Observer:
    """Return the output; `where` is the port, "" for a free one. Raises ValueError."""
    if where and not (where.isascii() and where.isdecimal() and int(where) < 2**16):
        raise ValueError("takes a port, such as watch=8000")
    return WatchPage(int(where or 0))


class WatchPage:
    """Serves the page for as long as the run lasts, and prints its address."""

    def __init__(self, port: int) -> None:
        """`port` 0: a free one."""
        self._port, self._page = port, ExitStack()

    def notify(self, event: RunEvent) -> None:
        """Begin when the run has a folder. Raises LinkError where the port is in use."""
        if isinstance(event, StudyStarted):
            self._page.close()  # the last user's
            served = LivePage(WatchedRuns(event.run_folder), self._port)
            print(f"Watch it at {self._page.enter_context(served).url}", file=sys.stderr)

    def close(self) -> None:
        """Answer nobody any more."""
        self._page.close()


class WatchedRuns:
    """Reads a run's folder, or a folder of runs, again and again: only what is new of journals."""

    def __init__(self, where: Path) -> None:
        """Read nothing yet; the folder may still be empty."""
        self._where = where
        self._journals: dict[Path, _RoundsSoFar] = {}

    def __call__(self) -> Mapping[str, Any]:
        """Return the page's snapshot."""
        return {"parts": [self._part(folder, seen) for folder, seen in self._runs()]}

    def _runs(self) -> Iterator[tuple[Path, status.Seen]]:
        """The run itself; of a folder of runs those under way, or the newest one."""
        files = (
            [self._where / status.STATUS_NAME]
            if (self._where / status.STATUS_NAME).exists()
            else []
        )
        files = files or sorted(
            self._where.glob(f"*/{status.STATUS_NAME}"), key=status.seconds_apart
        )
        found = []
        for path in files:
            try:
                seen = status.read_status_file(path)
            except (ErosionError, OSError):
                continue  # of another program, or being replaced
            if seen is not None and "study" in seen.values:
                found.append((path.parent, seen))
        alive = [run for run in found if run[1].is_alive]
        yield from (alive or found[:1])[:MOST_RUNS]

    def _part(self, folder: Path, seen: status.Seen) -> dict[str, Any]:
        values, user = seen.values, str(seen.values.get("user"))
        names = values.get("names")
        called = {k: str(v) for k, v in names.items()} if isinstance(names, dict) else {}
        journal = self._journals.setdefault(folder, _RoundsSoFar(folder / "rounds.jsonl"))
        journal.read()
        made: dict[str, Any] = {
            "title": f"{values.get('study')} for {called.get(user, user)}",
            "lines": [("run", str(folder))],
        }
        try:
            level, problems = status.health(folder / status.STATUS_NAME, seen)
            words = "; ".join(problems)
            made["level"] = level.name
            made["lines"] += [("attention", words)] if words else []
            made["lines"] += status.lines_of_status(values)
        except (ErosionError, AttributeError, TypeError, ValueError) as problem:
            made["lines"] += [("status", f"cannot be read: {problem}")]
        done, rounds = values.get("round"), values.get("rounds")
        if values.get("phase") == "training" and done and rounds:
            made["bar"] = {
                "label": f"{values.get('arm')}: round {done} of {rounds}{journal.left(rounds)}",
                "done": done,
                "of": rounds,
            }
        return {**made, **journal.shown(user, called)}


class _RoundsSoFar:
    """The rounds of a journal that grows, and that is cut back when a round is done again."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._file = path, 0, 0
        self._arms: dict[str, list[RoundRecord]] = {}  # thinned out
        self._every: dict[str, int] = {}  # arm -> one round in so many is kept
        self._metric = ""  # of the curves
        self._seconds: list[float] = []  # of the last rounds
        self._last: RoundRecord | None = None
        self._newest: dict[str, RoundRecord] = {}  # by arm
        self._news: dict[object, Event] = {}  # by pattern

    def read(self) -> None:
        """Take in the lines that were added."""
        try:
            with open_named(self._path) as file:
                number = os.fstat(file.fileno()).st_ino
                if file.seek(0, 2) < self._offset or number != self._file:
                    self.__init__(self._path)  # type: ignore[misc]  # cut back: from the start
                    self._file = number
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._offset += len(line)
                    self._add(line)
        except OSError:
            return

    def _add(self, line: bytes) -> None:
        try:
            values = without_checksum(json.loads(line))
            values.pop("format", None)
            record = _RECORD.validate_python(values)
        except (ValueError, RecursionError):
            return  # `erosion server --resume` says what is wrong with it
        kept = self._arms.setdefault(record.arm, [])
        if record.round % self._every.setdefault(record.arm, 1) == 0:
            kept.append(record)
        if len(kept) > MOST_POINTS:
            self._arms[record.arm] = kept[1::2]
            self._every[record.arm] *= 2
        if self._last is not None and self._last.arm != record.arm:
            self._seconds.clear()
        self._last = self._newest[record.arm] = record
        self._seconds = [*self._seconds, record.seconds][-LAST_ROUNDS:]
        for news in news_of(record):
            first, times, _ = self._news.pop(news.pattern, (news.round, 0, news))
            self._news[news.pattern] = first, times + 1, news  # the latest comes last
        for pattern in [*self._news][:-MOST_NEWS]:
            del self._news[pattern]

    def left(self, rounds: int) -> str:
        """Return about how long the arm takes from here on; "" where that is not known."""
        if self._last is None or not self._seconds:
            return ""
        seconds = max(0, rounds - self._last.round) * median(self._seconds)
        return f", about {seconds_text(seconds)} left"

    def shown(self, user: str, called: Mapping[str, str]) -> dict[str, Any]:
        """Return charts and tables."""
        if self._last is None:
            return {}
        together = [arm for arm in self._newest if len(self._newest[arm].hospitals) > 1]
        arm = self._last.arm if self._last.arm in together or not together else together[-1]
        records = [*self._arms[arm], self._newest[arm]]
        return {
            "charts": [self._curves(user, called), *_by_hospital(arm, records, user, called)],
            "tables": [
                {
                    "title": f"Hospitals in round {self._last.round} of {self._last.arm}",
                    "head": ["hospital", "outcome", "weight", "distance", "seconds", "reason"],
                    "rows": _hospitals(self._last, called),
                },
                {
                    "title": "Events, newest first",
                    "head": ["when", "hospital", "what"],
                    "rows": [*_events(self._news.values(), called)][::-1],
                },
            ],
        }

    def _choose_metric(self) -> str:
        """The metric of the study's verdict; the first one where the study cannot be read."""
        try:
            return load_study(self._path.with_name("study.toml")).task.verdict_metric
        except ErosionError:
            every = (record for records in self._arms.values() for record in records)
            found = (record.user_metrics for record in every if record.user_metrics is not None)
            return next((name for one in found for name in one.__pydantic_extra__), "")

    def _curves(self, user: str, called: Mapping[str, str]) -> dict[str, Any]:
        name = self._metric = self._metric or self._choose_metric()
        series = []
        for arm, records in self._arms.items():
            points = [
                (r.measured_after, r.user_metrics.get(name)) for r in records if r.user_metrics
            ]
            series += _series(arm, points)
        title = f"{name.replace('_', ' ')} on test patients of {called.get(user, user)}, by round"
        return {"title": title, "series": series[-MOST_CURVES:]}


def _events(found: Iterable[Event], called: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    for first, times, last in found:
        again = f" ({times} times since {first})" if times > 1 else ""
        hospital = called.get(last.hospital, last.hospital) or "all"
        yield f"{last.arm}, round {last.round}{again}", hospital, last.text


def _series(name: str, points: Sequence[tuple[int, float | None]]) -> list[dict[str, Any]]:
    known = [(number, value) for number, value in points if value is not None]
    return [{"name": name, "points": known}] if known else []


def _by_hospital(
    arm: str, records: list[RoundRecord], user: str, called: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    last = records[-1].hospitals
    order = sorted(last, key=lambda name: (name != user, -(last[name].weight_after or 0.0)))
    chosen = order[:MOST_CURVES]
    others = f" ({len(chosen)} of {len(order)} hospitals)" if len(order) > len(chosen) else ""
    charts = {"Weights": "weight_after", "Distances from the user's update": "distance"}
    for title, key in charts.items():
        series = []
        for name in chosen:
            points = [
                (record.round, getattr(record.hospitals.get(name), key, None)) for record in records
            ]
            series += _series(printable(called.get(name, name), at_most=60), points)
        yield {"title": f"{title}, {arm}{others}", "series": series, "zero": True}


def _hospitals(record: RoundRecord, called: Mapping[str, str]) -> list[tuple[str, ...]]:
    rows = [
        (
            printable(called.get(name, name), at_most=60),
            entry.outcome.replace("_", " "),
            "" if entry.weight_after is None else f"{entry.weight_after:.3f}",
            "" if entry.distance is None else f"{entry.distance:.3g}",
            "" if entry.site_seconds is None else f"{entry.site_seconds:.1f}",
            printable(entry.reason),
        )
        for name, entry in record.hospitals.items()
    ]
    more = len(rows) - MOST_HOSPITALS
    return [*rows[:MOST_HOSPITALS], *([(f"{more} more", *[""] * 5)] if more > 0 else [])]
