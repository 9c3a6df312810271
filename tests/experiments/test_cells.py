"""Grids of cells: resumed after an interruption, and run again where they would differ today."""

import errno
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from errno import ENOSPC
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from erosion.simulation.testbed import study_path
from erosion_common.program import command_line
from erosion_common.program.ending import ENDING, INTERRUPTED
from erosion_common.study.study import Study, load_study
from erosion_common.support.files import write_atomically
from erosion_server.run import provenance
from experiments import basis as basis_module
from experiments import cells as cells_module
from experiments import experiment as experiment_module
from experiments.basis import NUMERICS, Basis, Change, Resolved
from experiments.cells import (
    FILE_NAME,
    Cell,
    CellPlan,
    ExperimentError,
    Values,
    read_cells,
    run_cells,
)
from experiments.experiment import Experiment, carry_out, chosen_plans
from experiments.page import Page
from experiments.papers import EXPERIMENTS
from tests.support.patience import wait_until
from tests.support.predictable_cells import (
    double,
    ended,
    plans,
    resting_with_notes,
    slow_but_for_the_first,
    waits,
)
from tests.support.processes import FORKED, from_our_server, start


@pytest.fixture(autouse=True)
def forked_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Processes that start in milliseconds; the run that is killed starts its own."""
    monkeypatch.setattr(cells_module, "get_context", lambda _: FORKED)
    with from_our_server():
        yield


def values(cells: dict[str, Cell]) -> dict[str, int]:
    return {name: cell.figures["value"] for name, cell in cells.items()}


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_cell_is_run_and_kept_and_what_hospitals_note_is_said_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], jobs: int
) -> None:
    cells = run_cells(tmp_path, plans(), resting_with_notes, title="t", data_dir=None, jobs=jobs)
    assert values(cells) == {"seed-0": 0, "seed-1": 2, "seed-2": 4}
    assert values(read_cells(tmp_path, plans())) == values(cells)
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("hungary")]
    assert sorted(said) == [
        "hungary: 33 of 294 rows dropped",
        *(f"hungary: the row of seed {seed}" for seed in range(3)),
    ]
    if jobs > 1:  # in this process, what other tests left behind would count
        for cell in cells.values():
            assert cell.seconds < cell.figures["clock"]  # a processor's, by as much as it slept


def test_an_interrupted_run_loses_the_cell_under_way_and_no_other(tmp_path: Path) -> None:
    asked = []

    def interrupted(config: Values, data_dir: Path | None) -> Values:
        asked.append(config["seed"])
        if config["seed"] == 1 and len(asked) == 2:
            raise KeyboardInterrupt
        return double(config, data_dir)

    with pytest.raises(KeyboardInterrupt):
        run_cells(tmp_path, plans(), interrupted, title="t", data_dir=None)
    cells = run_cells(tmp_path, plans(), interrupted, title="t", data_dir=None)
    assert asked == [0, 1, 1, 2]
    assert values(cells) == {"seed-0": 0, "seed-1": 2, "seed-2": 4}


def test_cells_of_another_configuration_are_run_again_and_not_shown(tmp_path: Path) -> None:
    run_cells(tmp_path, plans(), double, title="t", data_dir=None)
    assert read_cells(tmp_path, plans(offset=1)) == {}
    cells = run_cells(tmp_path, plans(offset=1), double, title="t", data_dir=None)
    assert values(cells) == {"seed-0": 1, "seed-1": 3, "seed-2": 5}


def edit(folder: Path, old: str, new: str) -> None:
    """In the file of the cells."""
    path = folder / FILE_NAME
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_file_of_the_cells_is_sorted_and_the_same_in_whatever_order_they_end(
    tmp_path: Path,
) -> None:
    texts = []
    for number, some in enumerate((plans(), plans()[::-1])):
        folder = tmp_path / str(number)
        run_cells(folder, some, double, title="t", data_dir=None)
        lines = [json.loads(line) for line in (folder / FILE_NAME).read_text().splitlines()]
        assert [line.get("cell") for line in lines] == [None, "seed-0", "seed-1", "seed-2"]
        texts.append([line | {"seconds": 0} for line in lines])
        for line in lines[1:]:
            assert {"key", "config", "commit", "command", "machine"} <= line.keys()
    assert texts[0] == texts[1]


@pytest.mark.parametrize("figures", ['{"other":1}', '{"value":"x"}', '{"value":null}'])
def test_a_cell_whose_figures_were_edited_is_told_in_a_sentence(
    tmp_path: Path, figures: str
) -> None:
    def draw(cells: Mapping[str, Cell]) -> Page:
        return Page(f"# {sum(cell.figures['value'].__int__() for cell in cells.values())}")

    drawn = replace(experiment(), draw=draw)
    assert carry_out(drawn, folder=tmp_path).read_text().startswith("# 6\n")
    edit(tmp_path, '{"value":0}', figures)
    with pytest.raises(ExperimentError, match=r"cannot be drawn from .*Delete a cell"):
        carry_out(drawn, folder=tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        '{"cell": "seed-0"}',
        "\x00",
        '{"cell": "seed-0", "config": {"offset": 0',
        '{"basis":"","settings":[1],"data":{},"numerics":1}',
        "[" * 100_000,
    ],
)
def test_a_damaged_line_is_named_with_its_remedy(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    with pytest.raises(ExperimentError, match=rf"{FILE_NAME}, line 1: .*Delete that line"):
        run_cells(tmp_path, plans(), double, title="t", data_dir=None)


@pytest.mark.parametrize(
    ("kept", "edited"),
    [
        ('{"value":0}', '{"value":NaN}'),
        ('{"value":0}', '{"value":-Infinity}'),
        ('{"value":0}', '{"value":1e999}'),
        ('{"value":0}', "[1]"),
        ('{"value":0}', "{}"),
        ('"offset":0', '"offset":1'),
        ('"seconds":', '"seconds":"x'),
    ],
)
def test_a_cell_that_was_edited_or_has_a_figure_that_is_no_number_is_refused(
    tmp_path: Path, kept: str, edited: str
) -> None:
    run_cells(tmp_path, plans(), double, title="t", data_dir=None)
    edit(tmp_path, kept, edited)
    with pytest.raises(ExperimentError, match=r"line 2: it cannot be read .*Delete"):
        read_cells(tmp_path, plans())


def astray(config: Values, data_dir: Path | None) -> Values:
    """A training whose loss has no bound."""
    return {"value": float("inf") if config["seed"] else 0}


def test_a_cell_that_went_astray_is_named_and_not_kept(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"cell seed-1 ended with .*not a finite.*--cells"):
        run_cells(tmp_path, plans(), astray, title="t", data_dir=None)
    assert set(read_cells(tmp_path, plans())) == {"seed-0"}


def test_two_runs_do_not_write_to_one_folder(tmp_path: Path) -> None:
    def another(config: Values, data_dir: Path | None) -> Values:
        with pytest.raises(ExperimentError, match=r"Another run writes to .*--jobs.*--results"):
            run_cells(tmp_path, plans(), double, title="t", data_dir=None)
        return double(config, data_dir)

    run_cells(tmp_path, plans(), another, title="t", data_dir=None)
    assert values(run_cells(tmp_path, plans(), double, title="t", data_dir=None))["seed-2"] == 4


def test_a_file_system_without_locks_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(_folder: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("erosion_common.support.files.fcntl.flock", no_locks)
    assert len(run_cells(tmp_path, plans(), double, title="t", data_dir=None)) == len(plans())


def test_a_folder_of_another_experiment_is_left_alone(tmp_path: Path) -> None:
    carry_out(experiment(), folder=tmp_path)
    other = replace(experiment(), name="o", plans=lambda: [CellPlan("other", {})])
    for draw_only in (False, True):
        with pytest.raises(
            ExperimentError, match=r"holds seed-0, seed-1, seed-2, not planned by o"
        ):
            carry_out(other, folder=tmp_path, draw_only=draw_only)
    assert (tmp_path / "README.md").read_text().startswith("# T\n")


def test_a_folder_that_cannot_be_written_to_is_found_before_anything_is_computed(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "folder"
    folder.write_text("a file where the folder should be")

    def never(config: Values, data_dir: Path | None) -> Values:
        raise AssertionError("this cell was computed in vain")

    with pytest.raises(ExperimentError, match=r"cannot be written to .*another folder"):
        run_cells(folder, plans(), never, title="t", data_dir=None)


def test_a_disk_that_is_full_says_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: str | bytes) -> None:
        if b"seed-1" in (content if isinstance(content, bytes) else content.encode()):
            raise OSError(ENOSPC, "No space left on device")
        write_atomically(path, content)

    monkeypatch.setattr(cells_module, "write_atomically", full)
    with pytest.raises(ExperimentError, match=r"No space left on device.*that ended are kept"):
        run_cells(tmp_path, plans(), double, title="t", data_dir=None)
    assert set(read_cells(tmp_path, plans())) == {"seed-0"}


def test_a_page_that_finds_no_space_is_told_from_its_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: str | bytes) -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(experiment_module, "write_atomically", full)
    with pytest.raises(ExperimentError, match=r"All cells are kept.*--draw-only"):
        carry_out(experiment(), folder=tmp_path)
    assert len(read_cells(tmp_path, plans())) == 3


def test_a_process_that_is_ended_from_outside_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"ended from outside.*fewer --jobs"):
        run_cells(tmp_path, plans(), ended, title="t", data_dir=None, jobs=2)


def run_for_ever(folder: Path) -> None:
    run_cells(folder / "t", plans(), waits, title="t", data_dir=folder, jobs=2)


def test_no_process_outlives_a_run_that_is_killed(tmp_path: Path) -> None:
    run = start(run_for_ever, tmp_path, daemon=False)
    try:
        wait_until(lambda: (tmp_path / "0.pid").exists())
    finally:
        run.kill()
        run.join()
    worker = Path("/proc") / (tmp_path / "0.pid").read_text()
    wait_until(lambda: not worker.exists() or is_dead(worker))


def is_dead(process: Path) -> bool:
    """Ended, and perhaps not yet waited for by whoever adopted it."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return process.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def test_an_interrupted_run_waits_for_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path, content: str | bytes) -> None:
        write_atomically(path, content)
        raise KeyboardInterrupt

    monkeypatch.setattr(cells_module, "write_atomically", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_cells(
            tmp_path / "t", plans(), slow_but_for_the_first, title="t", data_dir=tmp_path, jobs=2
        )
    for process in active_children():  # ended or on the way to it
        process.join()
    assert set(read_cells(tmp_path / "t", plans())) == {"seed-0"}
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_a_second_ctrl_c_ends_what_is_left_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object, **_options: object) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment_module, "carry_out", interrupted)
    before = {number: signal.getsignal(number) for number in ENDING}
    mask = os.umask(0o077)
    try:
        assert command_line.main(["experiment", "mean-estimation"]) == INTERRUPTED
        assert {signal.getsignal(number) for number in before} == {signal.SIG_DFL}
    finally:
        os.umask(mask)
        for number, handler in before.items():
            signal.signal(number, handler)


def experiment() -> Experiment:
    def draw(cells: dict[str, Cell]) -> Page:
        return Page("# T\n\n" + " ".join(sorted(cells)), {"picture.svg": b"<svg/>"})

    def some() -> Sequence[CellPlan]:
        return plans()

    return Experiment("t", "T", "about", some, double, draw)  # type: ignore[arg-type]


def test_the_page_is_drawn_from_the_cells_there_are(tmp_path: Path) -> None:
    page = carry_out(experiment(), pattern="seed-[01]", folder=tmp_path)
    text = page.read_text()
    assert text.startswith("# T\n\n**2 of 3 planned cells have been run.**\n\nseed-0 seed-1\n\n")
    assert "2 cells," in text
    whole = carry_out(experiment(), folder=tmp_path).read_text()
    assert whole.startswith("# T\n\nseed-0 seed-1 seed-2\n\nMade by ")
    assert (tmp_path / "picture.svg").read_bytes() == b"<svg/>"


def resting_on(study: Study, **more: Any) -> Experiment:
    """The same, on a study of that kind."""

    def some() -> Sequence[CellPlan]:
        return [CellPlan(f"{kind}-0", {"kind": kind, "seed": 0, "offset": 0}) for kind in "ab"]

    return replace(
        experiment(),
        plans=some,
        settings=lambda config: (study.model_copy(update={"name": config["kind"]}),),
        **more,
    )


def stale_in(page: Path) -> str:
    """What a page says below its title of cells that would come out otherwise."""
    lines = [line for line in page.read_text().splitlines() if "otherwise today" in line]
    return "".join(lines)


def test_a_changed_study_makes_cells_stale_which_the_page_names_and_a_run_computes_again(
    tmp_path: Path,
) -> None:
    study = load_study(study_path("breast-cancer"))
    assert stale_in(carry_out(resting_on(study), folder=tmp_path)) == ""
    assert stale_in(carry_out(resting_on(study), folder=tmp_path, draw_only=True)) == ""
    training = study.training.model_copy(update={"learning_rate": 5.0})
    faster = resting_on(study.model_copy(update={"training": training}))
    said = stale_in(carry_out(faster, folder=tmp_path, draw_only=True))
    assert "2 of 2 cells" in said
    assert "a-0, b-0" in said
    assert "training.learning_rate" in said
    assert "(today 5.0)" in said
    said = stale_in(carry_out(faster, folder=tmp_path, pattern="a-*"))
    assert "1 of 2 cells" in said
    assert "(b-0)" in said
    assert stale_in(carry_out(faster, folder=tmp_path)) == ""
    assert "2 of 2 cells" in stale_in(carry_out(resting_on(study), folder=tmp_path, draw_only=True))


def test_what_a_cell_rests_on_has_every_default() -> None:
    which_rule = EXPERIMENTS["which-rule"]
    (found,) = which_rule.basis_of(None)(which_rule.plans()[0].config).settings
    assert found.full["arms"]["fedprox"]["proximal_weight"] > 0  # of a method
    assert found.full["source"]["alike"] == 110  # of a source
    assert found.full["limits"]["min_cell"] == 10  # of a site
    assert found.full["training"]["momentum"] == 0


def test_a_key_that_a_later_program_adds_makes_no_cell_stale_unless_it_is_given_a_value() -> None:
    then = Resolved({"rounds": 3, "model": {"name": "a"}}, {"rounds": 3})
    later = {"rounds": 3, "model": {"name": "a", "width": 1}, "extra": {"on": False}}
    left = Resolved(later, {"rounds": 3})
    given = Resolved({**later, "extra": {"on": True}}, {"rounds": 3, "extra": {"on": True}})
    assert Basis([then]).stale(Basis([left]), {}) == ""
    assert Basis([left]).stale(Basis([then]), {}) == ""
    assert "extra" in Basis([then]).stale(Basis([given]), {})
    arm = Resolved({"arms": {"a": {"share": 1}}}, {"arms": {"a": {}}})
    more = Resolved({"arms": {"a": {"share": 1}, "b": {"share": 1}}}, {"arms": {"a": {}, "b": {}}})
    assert "arms.b" in Basis([arm]).stale(Basis([more]), {})


def test_other_data_make_cells_stale_and_absent_data_do_not(tmp_path: Path) -> None:
    on_data = replace(experiment(), data_sets=lambda _config: ("titanic",))
    table = tmp_path / "data" / "titanic" / "titanic3.csv"
    table.parent.mkdir(parents=True)
    table.write_text("1\n")
    folder, data = tmp_path / "cells", tmp_path / "data"
    assert stale_in(carry_out(on_data, folder=folder, data_dir=data)) == ""
    assert stale_in(carry_out(on_data, folder=folder, draw_only=True)) == ""
    table.write_text("2\n")
    said = stale_in(carry_out(on_data, folder=folder, data_dir=data, draw_only=True))
    assert "3 of 3 cells" in said
    assert "titanic3.csv" in said


def test_a_change_of_the_numerics_makes_the_cells_that_it_concerns_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry_out(experiment(), folder=tmp_path)
    change = Change("sums are taken in double precision", lambda config: config["seed"] == 1)
    monkeypatch.setattr(basis_module, "NUMERICS", (*NUMERICS, change))
    said = stale_in(carry_out(experiment(), folder=tmp_path, draw_only=True))
    assert "1 of 3 cells" in said
    assert "made before sums are taken in double precision (seed-1)" in said


def test_a_checkout_with_changes_computes_nothing_and_draws_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry_out(experiment(), pattern="seed-0", folder=tmp_path)
    monkeypatch.setenv(provenance.COMMIT_VARIABLE, f"{'c0ffee' * 7}{provenance.CHANGES}")
    with pytest.raises(ExperimentError, match=r"changes that no commit has.*git stash"):
        carry_out(experiment(), folder=tmp_path)
    assert set(read_cells(tmp_path, plans())) == {"seed-0"}
    assert carry_out(experiment(), folder=tmp_path, draw_only=True).exists()


def test_nothing_to_draw_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="erosion experiment t"):
        carry_out(experiment(), folder=tmp_path, draw_only=True)


def test_an_unknown_cell_names_those_there_are() -> None:
    with pytest.raises(ExperimentError, match="seed-0, seed-1, seed-2"):
        chosen_plans(experiment(), "nothing")


def test_a_page_is_drawn_from_all_cells_or_not_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["experiment", "titanic", "--draw-only", "--cells", "reference-*"]
    assert command_line.main(arguments) == 2
    assert "leave --cells out" in capsys.readouterr().err
