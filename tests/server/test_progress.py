"""Progress on the terminal, and in a log file."""

import io
import re
from contextlib import closing
from types import SimpleNamespace

import pytest
from rich.console import Console

from erosion_common.rounds.events import (
    ArmStarted,
    HospitalDeclined,
    HospitalLeft,
    RoundFinished,
    StudyBegunWithout,
)
from erosion_common.rounds.records import RoundRecord
from erosion_common.tasks.classification import Classification
from erosion_server.output import terminal
from erosion_server.output.events import RunEvent, StudyStarted
from erosion_server.output.observers import Observers
from erosion_server.output.tables import WeightBars
from erosion_server.output.terminal import (
    ArmProgress,
    Terminal,
    draw_arm,
    plain_console,
    progress,
    weights_in_words,
)
from erosion_server.output.words import class_sizes, weight_text
from tests.support.stopped_run import NOTE, make_stopped_run
from tests.support.synthetic_run import FOLDER, HOSPITALS, Run, make_records, make_run, play

MANY = ("home", *(f"hospital-{number:02}" for number in range(1, 20)))


class Tty(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def plain_text(run: Run, monkeypatch: pytest.MonkeyPatch, columns: int = 100) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = io.StringIO()
    with closing(progress(stream)) as observer:
        play(observer, run)
    return stream.getvalue()


def live_console() -> Console:
    return Console(file=Tty(), force_terminal=True, width=100, height=40, color_system="truecolor")


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def without_codes(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_a_log_file_has_no_escape_codes_even_where_colour_is_forced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert "\x1b" not in plain_text(make_run(), monkeypatch)


def test_plain_lines_have_time_with_zone_level_and_component() -> None:
    stream = io.StringIO()
    with closing(progress(stream, label="titanic")) as observer:
        play(observer, make_run(skipped=(8,)))
    told = stream.getvalue().splitlines()
    heads = [HEAD.match(line) for line in told]
    last = max(number for number, head in enumerate(heads) if head is not None)
    assert all(heads[: last + 1])  # the tables follow
    assert all(line.startswith("titanic: ") for line in told[last + 1 :])
    assert {head[1] for head in heads if head} == {"INFO", "WARNING"}


HEAD = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d (INFO|WARNING) erosion\.run: titanic: \S"
)


def test_plain_lines_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    text = plain_text(make_run(arms=("fedavg",), rounds=1000), monkeypatch)
    lines = [line for line in text.splitlines() if " fedavg: round" in line]
    assert len(lines) == 10
    assert re.findall(r"1000|999", lines[-1]) == ["1000", "1000", "999"]  # figures of before


def test_slow_rounds_are_told_of_each() -> None:
    stream = io.StringIO()
    observer = Terminal(plain_console(stream), is_live=False)
    observer.notify(ArmStarted("fedavg", 1000))
    for number in range(1, 6):
        record = RoundRecord("fedavg", number, "done", "", {}, seconds=90.0)
        observer.notify(RoundFinished(record))
    observer.notify(HospitalLeft("alike"))
    assert stream.getvalue().count("\n") == 6
    assert re.search("5 .* 1000", stream.getvalue())


def test_the_time_left_includes_what_lies_between_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 130.0, 160.0, 190.0, 219.0])
    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    arm = ArmProgress("25 folds", 6, ("home",))
    assert not arm.time_left
    for number, left in ((3, "about 1 min 30 s left"), (4, "about 1 min 00 s left")):
        arm.take(RoundRecord("25 folds", number, "done", "", {}, seconds=0.05))
        assert arm.time_left == left  # of this start's rounds: two were done before
    arm.take(RoundRecord("25 folds", 6, "done", "", {}, seconds=0.05))
    assert not arm.time_left


def test_a_skipped_round_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    text = plain_text(make_run(skipped=(8, 9)), monkeypatch)
    assert "round 8:" in text
    assert text.count("skipped:") == 6  # in each of three arms
    (trouble,) = (line for line in text.splitlines() if "weight_erosion had" in line)
    assert "2 skipped" in trouble
    assert "large-tumours absent" in trouble


def test_an_arm_that_stopped_is_told_of_and_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    text = plain_text(make_stopped_run(), monkeypatch)
    assert " ".join(text.split()).count(NOTE) == 2  # in the round, and in the summary
    assert not any("weight_erosion had" in line for line in text.splitlines())


@pytest.mark.parametrize(
    ("event", "shown"),
    [
        (
            HospitalDeclined("kos\x1b[2J", "few\npatients \x1b]0;owned\x07 [red]x[/red] [/no]"),
            "few patients �]0;owned� [red]x[/red] [/no]",
        ),
        (
            StudyBegunWithout({"kos\x1b[2J": "declined: [red]no[/red]"}),
            "kos�[2J (declined: [red]no[/red])",
        ),
    ],
)
def test_who_does_not_take_part_is_shown_with_the_reason_on_one_safe_line(
    event: RunEvent, shown: str
) -> None:
    stream, console = io.StringIO(), live_console()
    with closing(Terminal(console, is_live=True)) as live:
        for observer in (Terminal(plain_console(stream), is_live=False), live):
            observer.notify(event)
    for text in (stream.getvalue(), without_codes(written(console))):
        assert "kos�[2J" in text
        assert shown in " ".join(text.split())
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_no_live_line_is_wider_than_the_terminal(width: int) -> None:
    figures = Classification.shown(Classification.in_progress)
    for hospitals in (HOSPITALS, MANY, ("a" * 48, "b" * 48)):
        arm = ArmProgress("an-arm-of-forty-eight-" + "x" * 26, 30, hospitals, figures)
        for record in make_records("weight_erosion", hospitals)[:14]:
            arm.take(record)
        console = Console(file=io.StringIO(), force_terminal=True, width=width, height=24)
        console.print(draw_arm(arm, width, 24))
        lines = without_codes(written(console)).splitlines()
        assert max(len(line) for line in lines) <= width


def test_the_cursor_comes_back_after_an_error() -> None:
    console = live_console()

    def interrupted_run() -> None:
        with closing(Terminal(console, is_live=True)) as observer:
            observer.notify(StudyStarted(make_run().study, "127.0.0.1:1", FOLDER))
            observer.notify(ArmStarted("fedavg", 30))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted_run()
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    assert hidden in written(console)
    assert written(console).rindex(shown) > written(console).rindex(hidden)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_summary_has_figures_weights_verdict_and_path(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = plain_text(make_run(), monkeypatch, columns)
    summary = text[text.index("91 test") :]
    words = " ".join(summary.split())
    assert class_sizes(make_run().result.class_counts) in words
    for figure in ("0.967", "(0.93–0.99)", "0.626", "0.992", "0.023", "0.111", "31 ms"):
        assert figure in words
    assert re.search(r"home +████████ 1\.00", summary)
    assert re.search(r"miscoded +out +0\.00", summary)
    assert make_run().result.verdict.text in words
    assert f"Report: {FOLDER}/report.html" in summary  # in one piece
    body = [line for line in summary.splitlines() if not line.startswith("Report:")]
    assert max(len(line) for line in body) <= columns


def test_an_encoding_without_blocks_does_not_end_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with closing(progress(stream)) as observer:
        play(observer, make_run())
    stream.flush()
    stream.seek(0)
    assert "home          ######## 1.00" in stream.read()


def test_who_reads_no_further_does_not_end_the_study(caplog: pytest.LogCaptureFixture) -> None:
    """As where the `tee` of `erosion server STUDY.toml | tee log` is gone."""

    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    with Observers({"terminal": progress(Closed())}) as observers:
        observers.notify(StudyStarted(make_run().study, "127.0.0.1:41237", FOLDER))
    assert "BrokenPipeError" in caplog.text


def test_a_small_weight_is_not_shown_as_none() -> None:
    assert [weight_text(w) for w in (0.0, 1e-9, 0.0049, 0.005, None)] == [
        "0.00", "<0.01", "<0.01", "0.01", "–",
    ]  # fmt: skip
    console = Console(file=io.StringIO(), width=80)
    console.print(WeightBars({"home": 1.0, "other": 0.002}))
    assert "other ▏        <.01" in written(console)
    assert re.findall(r"<?\d\.\d+", weights_in_words({"a": 0.002, "b": 0.0})) == ["<0.01", "0.00"]
    many = {f"h{number}": 0.002 for number in range(10)}
    assert re.findall(r"<?\d\.\d+", weights_in_words(many)) == ["<0.01"] * 3
