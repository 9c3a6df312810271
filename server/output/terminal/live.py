"""Progress as live lines on a terminal."""

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

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
from erosion.common.study.study import Study
from erosion.common.support.logs import never_fail_to_encode
from erosion.common.tasks.metric import Metric
from erosion.server.output.events import (
    EveryUserFinished,
    RunEvent,
    RunFinished,
    StudyStarted,
    UserFailed,
)
from erosion.server.output.plain_text import shortened
from erosion.server.output.result_words import data_check
from erosion.server.output.terminal import words
from erosion.server.output.terminal.arm_progress import ArmProgress
from erosion.server.output.terminal.overview_table import print_overview
from erosion.server.output.terminal.summary import print_summary
from erosion.server.output.terminal.weight_bars import WeightBars
from erosion.server.run.run_folder import RunFolder

REDRAWS_PER_SECOND = 6
WIDE = 84  # columns from which the user's figures fit beside the progress bar
LONGEST_ARM = 20


class LiveProgress:
    """The arm at work is redrawn in place; news and finished arms stay above it."""

    def __init__(self, console: Console) -> None:
        """Draw on `console`."""
        never_fail_to_encode(console.file)
        self._console = console
        self._study: Study | None = None
        self._hospitals: tuple[str, ...] = ()
        self._shown: Sequence[Metric] = ()
        self._finished_arms = 0
        self._waiting = ""
        self._arm: ArmProgress | None = None
        self._spinner = Spinner("dots" if console.encoding.startswith("utf") else "line")
        self._live = Live(
            console=console,
            refresh_per_second=REDRAWS_PER_SECOND,
            transient=True,
            get_renderable=self._draw,
        )

    def notify(self, event: RunEvent) -> None:
        """Draw it, or print a line that stays."""
        match event:
            case StudyStarted(study, address, run_folder):
                self._study, self._finished_arms = study, 0
                self._hospitals = study.user_first
                self._shown = study.task.shown(study.task.in_progress)
                for line in words.opening(study, address, run_folder):
                    self._say(line, style="dim" if line.startswith("Listening") else "bold")
                self._waiting = words.waiting(study.hospitals)
                self._live.start()
            case HospitalJoined(hospital, num_samples, missing, software):
                self._say(words.joined(hospital, num_samples, software))
                self._waiting = words.waiting(missing)
            case HospitalDeclined(hospital, reason):
                self._say(words.declined(hospital, reason), style="yellow")
            case HospitalLeft(hospital):
                self._say(words.left(hospital), style="yellow")
            case WaitsFor(hospitals, since):
                self._say(words.stands_still(hospitals, since), style="yellow")
            case StudyBegunWithout(absent):
                self._say(words.begun_without(absent), style="yellow")
            case HospitalsCompared(found):
                for sentence in data_check(found):
                    self._say(sentence, style="bold yellow")
            case ArmStarted():
                self._waiting = ""
                self._arm = ArmProgress(event.title, event.rounds, self._hospitals, self._shown)
            case RoundFinished(record):
                self._round_finished(record)
            case ArmFinished(arm):
                self._arm_finished(arm)
            case RunFinished(result, run_folder):
                self._waiting = ""
                self._live.stop()
                print_summary(self._console, result, RunFolder(run_folder).report)
            case UserFailed(user, reason):
                self._waiting, self._arm = "", None
                self._live.stop()
                self._say(words.user_failed(user, reason), style="yellow")
            case EveryUserFinished(overview, run_folder):
                print_overview(self._console, overview, RunFolder(run_folder).report)

    def close(self) -> None:
        """Take the live lines away and show the cursor again."""
        self._live.stop()

    def _round_finished(self, record: RoundRecord) -> None:
        """Note the round; the next redraw shows it. News is printed at once."""
        if self._arm is None:
            return
        for news in self._arm.take(record):
            style = "" if news.kind in ("out", "note") else "yellow"
            self._say(f"{self._arm.arm}, {words.news(news)}", style=style)

    def _arm_finished(self, arm: str) -> None:
        """Leave one line of the arm."""
        finished, self._arm = self._arm, None
        self._finished_arms += 1
        if finished is not None:
            mark = "✓" if self._console.encoding.startswith("utf") else "*"
            self._say(f"{mark} {arm}: {finished.closing}", style="green")
            if finished.trouble:
                self._say(f"  {finished.trouble}", style="yellow")
        if self._study is not None and self._finished_arms == len(self._study.arms):
            self._waiting = f"measuring the final models at {self._study.user}"

    def _say(self, line: str, style: str = "") -> None:
        self._console.print(Text(line, style=style))

    def _draw(self) -> RenderableType:
        arm = self._arm  # once: the main thread may end the arm meanwhile
        if arm is not None:
            return draw_arm(arm, self._console.width, self._console.height)
        if self._waiting:
            self._spinner.update(text=Text(self._waiting, style="dim"))
            return self._spinner
        return Text("")


def draw_arm(arm: ArmProgress, width: int, height: int) -> RenderableType:
    """The live lines of one arm in a terminal of `width` columns and `height` rows."""
    wide = width >= WIDE
    line = Table.grid(padding=(0, 2, 0, 0), expand=True)
    line.add_column(no_wrap=True)
    line.add_column(ratio=1)
    for _ in range(3 if wide else 2):
        line.add_column(no_wrap=True)
    line.add_row(
        Text(shortened(arm.arm, LONGEST_ARM), style="bold"),
        ProgressBar(total=max(1, arm.rounds), completed=arm.round),
        Text(f"{arm.round}/{arm.rounds}"),
        *([Text(arm.dated_figures)] if wide else []),
        Text(arm.pace, style="dim"),
    )
    parts: list[RenderableType] = [line]
    if not wide and arm.figures:
        parts.append(Text(f"  {arm.dated_figures}"))
    if len(arm.weights) > 1:
        rows_left = height - len(parts) - 2  # a line for "and 3 more", one for the cursor
        parts.append(WeightBars(arm.weights, arm.remarks, most_rows=max(1, rows_left)))
    return Group(*parts)
