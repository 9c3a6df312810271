"""A run as a person at the terminal sees it: live lines there, plain lines elsewhere, or JSON."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from statistics import median, median_high
from typing import IO, TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from erosion_common.protocol.messages import Metrics
from erosion_common.rounds import events as driver
from erosion_common.rounds.records import RoundRecord
from erosion_common.rounds.selection import folds_of
from erosion_common.study.study import Study
from erosion_common.support.logs import LogFormat, never_fail_to_encode, stamp
from erosion_common.support.software import software_version
from erosion_common.tasks.metric import Metric
from erosion_server.output import events, words
from erosion_server.output.json_lines import JsonProgress
from erosion_server.output.observers import Observer
from erosion_server.output.round_facts import News, news_of
from erosion_server.output.tables import WeightBars, print_overview, print_summary
from erosion_server.output.words import metric_text, printable, shortened, weight_text
from erosion_server.run.run_folder import RunFolder

REDRAWS_PER_SECOND = 6
WIDE = 84  # columns from which the user's figures fit next to the progress bar
LONGEST_ARM = 20
LINES_PER_ARM = 10  # of plain progress
SILENCE_SECONDS = 60.0  # slow rounds are reported at least this often
WORTH_SAYING_SECONDS = 10.0  # that are left
MOST_WEIGHTS = 8  # listed by name; more are summed up
COMPONENT = "erosion.run"  # of a line in a log
REMARKS = ("absent", "rejected")  # outcomes of a hospital


class LabelledStream:
    """Writes whole lines, each with a label, so that studies can share a stream."""

    def __init__(self, stream: IO[str], label: str) -> None:
        self._stream, self._label, self._line = stream, label, ""

    def write(self, text: str) -> int:
        """Write what has become a whole line."""
        *lines, self._line = f"{self._line}{text}".split("\n")
        self._stream.write("".join(f"{self._label}{line}\n" for line in lines))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()


def progress(
    stream: TextIO | None = None, log_format: LogFormat = "text", *, label: str = ""
) -> Observer:
    """Return the observer for `stream` (standard output); `label` names a study that shares it."""
    stream = sys.stdout if stream is None else stream
    if log_format == "json":
        return JsonProgress(stream)
    # Asked of the stream and not of rich, which FORCE_COLOR makes take a log file for a terminal.
    if not label and stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
        return Terminal(_Console(file=stream, highlight=False), is_live=True)
    return Terminal(plain_console(stream), is_live=False, label=f"{label}: " if label else "")


class _Console(Console):
    """A console that raises an error when its reader is gone; rich would end the program."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError again: rich calls this while it handles one."""
        raise


def plain_console(stream: TextIO) -> Console:
    """Without escape codes: for log files, pipes and CI."""
    return _Console(
        file=stream, force_terminal=False, color_system=None, highlight=False, legacy_windows=False
    )


class Terminal:
    """News and finished arms are lines that stay. Live, the arm at work is redrawn below them.

    Elsewhere they are lines of a log: time with its offset, level, component.
    """

    def __init__(self, console: Console, *, is_live: bool, label: str = "") -> None:
        """Write to `console`; nothing is drawn before the study starts."""
        never_fail_to_encode(console.file)
        self._console, self._is_live, self._label = console, is_live, label
        labelled = cast(TextIO, LabelledStream(console.file, label))
        self._tables = plain_console(labelled) if label else console
        self._study: Study | None = None
        self._shown: Sequence[Metric] = ()
        self._finished_arms = 0
        self._waiting = ""
        self._arm: ArmProgress | None = None
        self._silent_seconds = 0.0
        self._has_unicode = console.encoding.startswith("utf")
        self._spinner = Spinner("dots" if self._has_unicode else "line")
        self._live = Live(
            console=console,
            refresh_per_second=REDRAWS_PER_SECOND,
            transient=True,
            get_renderable=self._draw,
        )

    def notify(self, event: events.RunEvent) -> None:
        """Draw it, or print a line that stays."""
        match event:
            case events.StudyStarted(study, address, run_folder):
                self._study, self._finished_arms = study, 0
                self._shown = study.task.shown(study.task.in_progress)
                self._say(_opening(study), "bold")
                self._say(f"Listening on {address}; the run is kept in {run_folder}", "dim")
                self._waiting = _waiting(study.hospitals)
                if self._is_live:
                    self._live.start()
            case driver.HospitalJoined(hospital, num_samples, missing, software):
                self._waiting = _waiting(missing)
                rest = f"; {self._waiting}" if self._waiting and not self._is_live else ""
                self._say(_joined(hospital, num_samples, software) + rest)
            case driver.HospitalDeclined(hospital, reason):
                self._say(f"{_name(hospital)} does not take part: {printable(reason)}", "yellow")
            case driver.HospitalLeft(hospital):
                self._say(f"{_name(hospital)} lost its connection", "yellow")
            case driver.WaitsFor((), _):
                self._say("the study continues", "yellow")
            case driver.WaitsFor(hospitals, since):
                self._say(f"{_waiting(hospitals)} since {since.astimezone():%H:%M}", "yellow")
            case driver.StudyBegunWithout(absent):
                named = [f"{_name(who)} ({printable(why)})" for who, why in absent.items()]
                self._say(f"Begins without {words.some(named)}", "yellow")
            case driver.HospitalsCompared(found):
                for sentence in words.data_check(found):
                    self._say(sentence, "bold yellow")
            case driver.ArmStarted():
                self._waiting, self._silent_seconds = "", 0.0
                order = () if self._study is None else self._study.user_first
                self._arm = ArmProgress(event.title, event.rounds, order, self._shown)
            case driver.RoundFinished(record):
                self._round_finished(record)
            case driver.ArmFinished(arm):
                self._arm_finished(arm)
            case events.RunFinished(result, run_folder):
                self._rest()
                print_summary(self._tables, result, RunFolder(run_folder).report)
            case events.UserFailed(user, reason):
                self._rest()
                self._say(f"No model for {_name(user)}: {printable(reason)}", "yellow")
            case events.EveryUserFinished(overview, run_folder):
                print_overview(self._tables, overview, RunFolder(run_folder).report)

    def close(self) -> None:
        """Take the live lines away and show the cursor again."""
        self._live.stop()

    def _rest(self) -> None:
        self._waiting, self._arm = "", None
        self._live.stop()

    def _round_finished(self, record: RoundRecord) -> None:
        """Print what is news; live, the next redraw shows the round, else a line now and then."""
        if (arm := self._arm) is None:
            return
        for news in arm.take(record):
            who = f"{news.hospital} " if news.hospital else ""
            style = "" if news.kind in ("out", "note") else "yellow"
            self._say(f"{arm.arm}, round {news.round}: {who}{news.text}", style)
        self._silent_seconds += record.seconds
        rounds, number = max(1, arm.rounds), record.round
        is_due = number * LINES_PER_ARM // rounds > (number - 1) * LINES_PER_ARM // rounds
        if not self._is_live and (is_due or self._silent_seconds >= SILENCE_SECONDS):
            self._silent_seconds = 0.0
            self._say(self._progress_line(arm))

    def _progress_line(self, arm: "ArmProgress") -> str:
        user = "" if self._study is None else self._study.user
        parts = [
            f"{arm.arm}: round {arm.round} of {arm.rounds}",
            # They were measured when the round began, of the model that the one before left.
            f"{', '.join(arm.figures)} after {arm.metrics_after}" if arm.figures else "",
            arm.pace,
            arm.time_left,
            weights_in_words({name: w for name, w in arm.weights.items() if name != user}),
        ]
        return "; ".join(part for part in parts if part)

    def _arm_finished(self, arm: str) -> None:
        finished, self._arm = self._arm, None
        self._finished_arms += 1
        if finished is not None:
            mark = "✓" if self._has_unicode else "*"
            done = f"{mark} {arm}" if self._is_live else f"{arm} finished"
            self._say(f"{done}: {finished.closing}", "green")
            if finished.trouble:
                said = " " if self._is_live else f"{arm} had trouble:"
                self._say(f"{said} {finished.trouble}", "yellow")
        if self._study is not None and self._finished_arms == len(self._study.arms):
            self._waiting = f"measuring the final models at {self._study.user}"

    def _say(self, line: str, style: str = "") -> None:
        if not self._is_live:
            level = "WARNING" if "yellow" in style else "INFO"
            line = f"{stamp(time.time())} {level} {COMPONENT}: {self._label}{line}"
        self._console.print(Text(line, style=style), soft_wrap=not self._is_live)

    def _draw(self) -> RenderableType:
        arm = self._arm  # once: the main thread may end the arm meanwhile
        if arm is not None:
            return draw_arm(arm, self._console.width, self._console.height)
        if self._waiting:
            self._spinner.update(text=Text(self._waiting, style="dim"))
            return self._spinner
        return Text("")


class ArmProgress:
    """Filled round by round. Mappings are replaced, never changed: another thread may draw them."""

    def __init__(
        self, arm: str, rounds: int, hospitals: Sequence[str], shown: Sequence[Metric] = ()
    ) -> None:
        """`hospitals` gives the order in which weights are shown, `shown` the user's figures."""
        self.arm = arm
        self.rounds = rounds
        self.round = 0  # finished, those of an earlier start included
        self.metrics: Metrics | None = None  # the user's latest
        self.metrics_after = 0  # rounds after which `metrics` was measured
        self.weights: dict[str, float | None] = {}
        self.remarks: dict[str, str] = {}
        self.skipped = 0  # rounds
        self.seconds = 0.0  # of the rounds of this start together
        self._hospitals = tuple(hospitals)
        self._shown = tuple(shown)
        self._seconds: list[float] = []
        self._started = time.monotonic()
        self._elapsed = 0.0  # until the latest round ended, with what lay between rounds
        self._seen: set[tuple[str, str, str, str]] = set()
        self._trouble: dict[tuple[str, str], int] = {}  # (hospital, kind) -> rounds

    def take(self, record: RoundRecord) -> list[News]:
        """Note a round; returns what is news. A hospital's trouble is news once, not each round."""
        self.round = record.round
        self.seconds += record.seconds
        self._seconds.append(record.seconds)
        self._elapsed = time.monotonic() - self._started
        if record.user_metrics is not None:
            self.metrics, self.metrics_after = record.user_metrics, record.measured_after
        ordered = dict.fromkeys([*self._hospitals, *record.hospitals])
        entries = {name: record.hospitals[name] for name in ordered if name in record.hospitals}
        now = {
            name: entry.weight_before if entry.weight_after is None else entry.weight_after
            for name, entry in entries.items()
        }
        self.weights = {**self.weights, **now}
        self.remarks = {n: e.outcome for n, e in entries.items() if e.outcome in REMARKS}
        return [event for event in news_of(record) if self._is_news(event)]

    def _is_news(self, event: News) -> bool:
        if event.kind == "stopped":
            return True
        if event.kind == "skipped":
            self.skipped += 1
            return True
        if event.kind in ("absent", "rejected"):
            key = event.hospital, event.kind
            self._trouble[key] = self._trouble.get(key, 0) + 1
        known = event.pattern in self._seen
        self._seen.add(event.pattern)
        return not known

    @property
    def figures(self) -> list[str]:
        """The user's metrics; none where there are none yet."""
        if (found := self.metrics) is None:
            return []
        return [f"{m.label} {metric_text(m, found.get(m.name))}" for m in self._shown]

    @property
    def pace(self) -> str:
        """The median round."""
        return f"{words.seconds_text(median_high(self._seconds))} a round" if self._seconds else ""

    @property
    def time_left(self) -> str:
        """How long the rounds to come take, with what lies between them; "" for a moment."""
        seconds = self._elapsed / max(1, len(self._seconds)) * (self.rounds - self.round)
        return (
            f"about {words.seconds_text(seconds)} left" if seconds >= WORTH_SAYING_SECONDS else ""
        )

    @property
    def closing(self) -> str:
        """One line about the finished arm, with the time of this start's rounds.

        Without figures: the last are of before the last round, and would contradict the table.
        """
        timed = len(self._seconds)
        if not timed:
            return "complete already"
        rounds = _rounds(timed) if timed == self.round else f"{self.round} rounds, the last {timed}"
        return f"{rounds} in {words.seconds_text(self.seconds)}"

    @property
    def trouble(self) -> str:
        """Who was missing how often, in words; "" where all went well. The report says when."""
        parts = [f"{self.skipped} skipped"] if self.skipped else []
        for (hospital, kind), rounds in self._trouble.items():
            parts.append(f"{hospital} {kind} in {_rounds(rounds)}")
        return "; ".join(parts)


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


def draw_arm(arm: ArmProgress, width: int, height: int) -> RenderableType:
    """Return the live lines of one arm in a terminal of `width` columns and `height` rows."""
    wide = width >= WIDE
    # They are of the round before: the latest is still at work.
    dated = f"after {arm.metrics_after}: {'  '.join(arm.figures)}" if arm.figures else ""
    line = Table.grid(padding=(0, 2, 0, 0), expand=True)
    line.add_column(no_wrap=True)
    line.add_column(ratio=1)
    for _ in range(3 if wide else 2):
        line.add_column(no_wrap=True)
    line.add_row(
        Text(shortened(arm.arm, LONGEST_ARM), style="bold"),
        ProgressBar(total=max(1, arm.rounds), completed=arm.round),
        Text(f"{arm.round}/{arm.rounds}"),
        *([Text(dated)] if wide else []),
        Text(arm.time_left or arm.pace, style="dim"),
    )
    parts: list[RenderableType] = [line]
    if not wide and arm.figures:
        parts.append(Text(f"  {dated}"))
    if len(arm.weights) > 1:
        rows_left = height - len(parts) - 2  # a line for "and 3 more", one for the cursor
        parts.append(WeightBars(arm.weights, arm.remarks, most_rows=max(1, rows_left)))
    return Group(*parts)


def weights_in_words(weights: Mapping[str, float | None]) -> str:
    """Return the peers' weights: each one where they are few, their range where they are many."""
    known = {name: weight for name, weight in weights.items() if weight is not None}
    if not known:
        return ""
    if len(known) <= MOST_WEIGHTS:
        return "weights " + ", ".join(f"{printable(n)} {weight_text(w)}" for n, w in known.items())
    values = list(known.values())
    out = f", {values.count(0.0)} of {len(values)} out" if 0.0 in values else ""
    return (
        f"weights {weight_text(min(values))} to {weight_text(max(values))},"
        f" median {weight_text(median(values))}{out}"
    )


def _opening(study: Study) -> str:
    hospitals = "1 hospital" if len(study.hospitals) == 1 else f"{len(study.hospitals)} hospitals"
    folds = len(folds_of(study))
    first = f"; before that {folds} folds, each a separate run" if folds else ""
    return (
        f"Study {study.name} for {study.user}: {hospitals}, {_rounds(study.rounds)} of each arm"
        f" ({', '.join(study.arms)}){first}"
    )


def _joined(hospital: str, num_samples: int, software: str) -> str:
    samples = "1 training sample" if num_samples == 1 else f"{num_samples} training samples"
    ours = software_version()
    differing = f" (erosion {software}, here {ours})" if software not in ("", ours) else ""
    return f"{_name(hospital)} joined with {samples}{differing}"


def _waiting(missing: Sequence[str]) -> str:
    """Return the hospitals still missing; "" where none is."""
    return f"waiting for {words.some([_name(hospital) for hospital in missing])}" if missing else ""


def _name(hospital: str) -> str:
    return printable(hospital, at_most=48)
