"""Progress as plain lines: for log files, pipes and CI."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TextIO

from rich.console import Console

from erosion.common.rounds.events import (
    ArmFinished,
    ArmStarted,
    HospitalDeclined,
    HospitalJoined,
    HospitalLeft,
    HospitalsCompared,
    RoundFinished,
    StudyBegunWithout,
    WaitsFor,
)
from erosion.common.rounds.records import RoundRecord
from erosion.common.support.logs import never_fail_to_encode
from erosion.common.tasks.metric import Metric
from erosion.server.output.events import (
    EveryUserFinished,
    RunEvent,
    RunFinished,
    StudyStarted,
    UserFailed,
)
from erosion.server.output.plain_text import printable, weight_text
from erosion.server.output.result_words import data_check
from erosion.server.output.terminal import words
from erosion.server.output.terminal.arm_progress import ArmProgress
from erosion.server.output.terminal.overview_table import print_overview
from erosion.server.output.terminal.summary import print_summary
from erosion.server.run.run_folder import RunFolder

LINES_PER_ARM = 10
SILENCE_SECONDS = 60.0  # slow rounds are reported at least this often
MOST_WEIGHTS = 8  # listed by name; more are summed up


class PlainProgress:
    """Writes whole lines without escape codes, each flushed at once."""

    def __init__(self, stream: TextIO) -> None:
        """Lines go to `stream`."""
        never_fail_to_encode(stream)
        self._stream = stream
        self._hospitals: tuple[str, ...] = ()
        self._shown: Sequence[Metric] = ()
        self._user = ""
        self._arm = ArmProgress("", 0, ())
        self._silent_seconds = 0.0

    def notify(self, event: RunEvent) -> None:
        """Say what a person wants to know of it."""
        match event:
            case StudyStarted(study, address, run_folder):
                self._user, self._hospitals = study.user, study.user_first
                self._shown = study.task.shown(study.task.in_progress)
                for line in words.opening(study, address, run_folder):
                    self._say(line)
            case HospitalJoined(hospital, num_samples, missing, software):
                waiting = words.waiting(missing)
                joined = words.joined(hospital, num_samples, software)
                self._say(joined + (f"; {waiting}" if waiting else ""))
            case HospitalDeclined(hospital, reason):
                self._say(words.declined(hospital, reason))
            case HospitalLeft(hospital):
                self._say(words.left(hospital))
            case WaitsFor(hospitals, since):
                self._say(words.stands_still(hospitals, since))
            case StudyBegunWithout(absent):
                self._say(words.begun_without(absent))
            case HospitalsCompared(found):
                for sentence in data_check(found):
                    self._say(sentence)
            case ArmStarted():
                self._arm = ArmProgress(event.title, event.rounds, self._hospitals, self._shown)
                self._silent_seconds = 0.0
            case RoundFinished(record):
                self._round_finished(record)
            case ArmFinished(arm):
                self._say(f"{arm} finished: {self._arm.closing}")
                if self._arm.trouble:
                    self._say(f"{arm} had trouble: {self._arm.trouble}")
            case RunFinished(result, run_folder):
                print_summary(self._console(), result, RunFolder(run_folder).report)
                self._stream.flush()
            case UserFailed(user, reason):
                self._say(words.user_failed(user, reason))
            case EveryUserFinished(overview, run_folder):
                print_overview(self._console(), overview, RunFolder(run_folder).report)
                self._stream.flush()

    def close(self) -> None:
        """Nothing to put back."""

    def _round_finished(self, record: RoundRecord) -> None:
        """Say what is news, and now and then how far the arm is."""
        for news in self._arm.take(record):
            self._say(f"{self._arm.arm}, {words.news(news)}")
        self._silent_seconds += record.seconds
        if self._is_milestone(record.round) or self._silent_seconds >= SILENCE_SECONDS:
            self._silent_seconds = 0.0
            self._say(self._line())

    def _console(self) -> Console:
        return Console(
            file=self._stream,
            force_terminal=False,
            color_system=None,
            highlight=False,
            legacy_windows=False,
        )

    def _is_milestone(self, number: int) -> bool:
        rounds = max(1, self._arm.rounds)
        return number * LINES_PER_ARM // rounds > (number - 1) * LINES_PER_ARM // rounds

    def _line(self) -> str:
        arm = self._arm
        parts = [
            f"{arm.arm}: round {arm.round} of {arm.rounds}",
            # They were measured when the round began, of the model that the one before left.
            f"{arm.figures.replace('  ', ', ')} after {arm.metrics_after}" if arm.figures else "",
            arm.pace,
            weights_in_words({h: w for h, w in arm.weights.items() if h != self._user}),
        ]
        return "; ".join(part for part in parts if part)

    def _say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def weights_in_words(weights: Mapping[str, float | None]) -> str:
    """The peers' weights: each one where they are few, their range where they are many."""
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
