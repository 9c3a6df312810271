"""A coordinator gains nothing by subtraction, by asking again, or by a site's bad days.

A rogue coordinator over TLS against `erosion client` as a program; each test is a row of
docs/threat-model.md. They share one site.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from erosion_common.protocol import wire
from erosion_common.protocol.messages import EvaluateRequest, TrainRequest, TrainResult
from erosion_common.study.sections import Fold
from erosion_common.study.study import Study
from tests.support.federation import small_study
from tests.support.patience import PATIENCE, wait_until
from tests.support.rogue import NUM_PATIENTS, RealSite, Rogue, patients, rogue_coordinator

ALONE = 17  # whose weight nobody noted
FULL_BATCH = {"epochs": 2, "batch_size": 200, "learning_rate": 1e-7}
WITH_WEIGHT = ["age", "dose", {"name": "weight", "missing": "drop"}]


def write_with_weights(
    site: RealSite, rows: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"
) -> None:
    """A table with a further column that one patient lacks."""
    lines = ["age,dose,ill,weight"]
    for number, (age, dose, ill) in enumerate(rows):
        weight = "" if number == ALONE else "70"
        lines.append(f"{age:.4f},{dose:.4f},{'yes' if ill else 'no'},{weight}")
    (site.folder / "data.csv").write_text("\n".join(lines) + "\n")


def prepare(site: RealSite) -> None:
    write_with_weights(site, patients())
    site.file.write_text(site.file.read_text() + "[budget]\nruns_per_study = 3\nevaluations = 3\n")


@pytest.fixture(scope="module")
def rogue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rogue]:
    with rogue_coordinator(tmp_path_factory.mktemp("rogue"), prepare) as rogue:
        yield rogue
        assert not isinstance(rogue.describe(study("honest", scaling="federated")), str)
        assert rogue.site.lives


def study(name: str, **changes: object) -> Study:
    """A study in which bob only helps, asked for full batches."""
    values = {"name": name, "arms": {"fedavg": {}}, "scaling": "none", "training": FULL_BATCH}
    return small_study(**{**values, **changes})


def asks_for_weight(name: str) -> Study:
    task = {**small_study().task.model_dump(mode="json"), "features": WITH_WEIGHT}
    return study(name, task=task)


def request(of: Study, number: int = 1, value: float = 0.0, run: str = "r1") -> TrainRequest:
    dim = max(place.stop for place in of.build_context.layout().values())
    return TrainRequest(of, "fedavg", number, torch.full((dim,), value), None, run)


def sum_over_patients(rogue: Rogue, of: Study) -> Tensor:
    """By a full-batch update from zero parameters: the mean of (1/2 - y) (1, x), times the rate.

    The number of patients is not needed: two means of nearly the same patients are enough.
    """
    result = rogue.train(request(of))
    assert isinstance(result, TrainResult), result
    update = result.delta.double()
    columns = (len(update) - 2) // 2
    ill = torch.cat([update[columns : columns + 2], update[-1:]])
    return ill / -FULL_BATCH["learning_rate"] / FULL_BATCH["epochs"]


def records_between(one: Tensor, other: Tensor) -> list[tuple[float, float]]:
    """The record of the one patient of `one` who is not in `other`, for any number of patients."""
    found = []
    for num in range(2, 2 * NUM_PATIENTS):
        apart = num * one - (num - 1) * other
        found.append((float(apart[0] / apart[2]), float(apart[1] / apart[2])))
    return found


def is_among(
    record: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]", found: list[tuple[float, float]]
) -> bool:
    return any(abs(age - record[0]) < 0.02 and abs(dose - record[1]) < 0.02 for age, dose in found)


def test_two_studies_that_differ_in_one_exclusion_do_not_give_the_excluded_record(
    rogue: Rogue,
) -> None:
    whole = sum_over_patients(rogue, study("whole"))
    without = sum_over_patients(rogue, asks_for_weight("without"))
    assert not is_among(patients()[ALONE], records_between(whole, without))


def test_the_subtraction_is_right_where_nobody_is_left_out_beside() -> None:
    """What the attack above would have found, had the second study's patients been as it asks."""
    rows = patients()
    shares = (0.5 - rows[:, 2:]) * np.column_stack([rows[:, :2], np.ones(len(rows))])
    whole = torch.from_numpy(shares.mean(axis=0))
    without = torch.from_numpy(np.delete(shares, ALONE, axis=0).mean(axis=0))
    assert is_among(rows[ALONE], records_between(whole, without))


def test_runs_without_folds_of_few_patients_are_refused(rogue: Rogue) -> None:
    """Each differs from the whole by one fold: with 20 folds, by three patients."""
    folds = {"folds": 20, "repeats": 20, "bootstrap": 100}
    whole = study("folds", user="bob", evaluation=folds)
    assert "no folds of fewer than 10 patients" in str(rogue.describe(whole))
    for number in range(3):
        fold = whole.model_copy(update={"fold": Fold(number=number, of=20, cut=1)})
        assert "no folds of fewer than 10 patients" in str(rogue.train(request(fold)))


def test_an_update_before_and_after_one_patient_came_is_of_the_same_patients(rogue: Rogue) -> None:
    before = sum_over_patients(rogue, study("before"))
    newcomer = np.array([[3.1415, 2.7182, 1.0]])
    write_with_weights(rogue.site, np.vstack([patients(), newcomer]))
    after = sum_over_patients(rogue, study("after", seed=9))
    write_with_weights(rogue.site, patients())
    torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-6)
    assert not is_among(newcomer[0], records_between(after, before))


def test_a_round_is_answered_once_also_after_the_power_went(rogue: Rogue) -> None:
    asked = study("power")
    first = rogue.train(request(asked))
    assert isinstance(first, TrainResult)
    rogue.site.kill()
    rogue.site.start()
    again = rogue.train(request(asked))
    assert isinstance(again, TrainResult)
    assert torch.equal(first.delta, again.delta)
    assert "to other parameters" in str(rogue.train(request(asked, value=1.0)))


def test_an_old_book_of_answers_is_held_against_the_log(rogue: Rogue) -> None:
    """Restored from a backup, or removed: what was answered since is in the log."""
    asked = study("backup")
    assert isinstance(rogue.train(request(asked)), TrainResult)
    rogue.site.stop()
    book = rogue.site.state / "records.sqlite"
    shutil.copy(book, rogue.site.folder / "backup.sqlite")
    rogue.site.start()
    assert isinstance(rogue.train(request(asked, number=2)), TrainResult)
    assert isinstance(rogue.train(request(asked, run="r2")), TrainResult)
    rogue.site.stop()
    shutil.copy(rogue.site.folder / "backup.sqlite", book)
    rogue.site.start()
    assert "records were restored" in str(rogue.train(request(asked, number=2, value=1.0)))
    assert isinstance(rogue.train(request(asked)), TrainResult)  # which the old book has
    assert isinstance(rogue.train(request(asked, run="r3")), TrainResult)
    assert "budget.runs_per_study = 3" in str(rogue.train(request(asked, run="r4")))
    rogue.site.stop()
    book.unlink()
    rogue.site.start()
    assert "records were restored" in str(rogue.train(request(asked, value=1.0)))
    assert "restored or replaced" in rogue.site.output.read_text()


def test_on_a_full_disk_nothing_is_answered_and_nothing_is_forgotten(rogue: Rogue) -> None:
    asked = study("full-disk")
    assert isinstance(rogue.train(request(asked)), TrainResult)
    lines = len(rogue.site.log.read_bytes().splitlines())
    rogue.site.limit_files(512)
    node = rogue.node()
    rogue.send_and_forget(request(asked, number=2))
    wait_until(lambda: node not in rogue.grid.get_node_ids())
    assert len(rogue.site.log.read_bytes().splitlines()) == lines
    rogue.site.limit_files(-1)
    assert isinstance(rogue.train(request(asked, number=2)), TrainResult)
    assert "to other parameters" in str(rogue.train(request(asked, value=1.0)))


def test_models_are_measured_at_the_user_alone_once_and_as_often_as_the_budget_says(
    rogue: Rogue,
) -> None:
    peer = study("measured")
    zeros = {"fedavg": torch.zeros(6)}
    assert "no test part" in evaluate(rogue, EvaluateRequest(peer, zeros, None, "r1"))
    for number in range(2):
        own = study(f"own-{number}", user="bob", seed=number)
        assert evaluate(rogue, EvaluateRequest(own, zeros, None, "r1")) == ""
        ones = {"fedavg": torch.ones(6)}
        told = evaluate(rogue, EvaluateRequest(own, ones, None, "r1"))
        assert "final figures of this run once" in told
    more = study("own-2", user="bob", seed=2)  # the question to the peer counts, too
    assert "budget.evaluations = 3" in evaluate(rogue, EvaluateRequest(more, zeros, None, "r1"))


def evaluate(rogue: Rogue, asked: EvaluateRequest) -> str:
    return rogue.why_not(wire.Encoder().encode(asked, with_study=True), wire.EVALUATE)


def test_a_second_program_of_the_same_site_does_not_start(rogue: Rogue) -> None:
    """Two programs would each answer for themselves."""
    second = subprocess.run(
        [sys.executable, "-m", "erosion", "client", str(rogue.site.file)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert second.returncode == 3
    assert "this site runs already" in second.stderr
    assert rogue.site.lives


def test_run_after_run_of_one_study_ends_at_its_budget(rogue: Rogue) -> None:
    asked = study("runs")
    for number in range(3):
        assert isinstance(rogue.train(request(asked, run=f"r{number}")), TrainResult)
    assert "budget.runs_per_study = 3" in str(rogue.train(request(asked, run="another")))
