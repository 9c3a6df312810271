"""What hospitals tell of their columns is compared at the start of every run, and stays in it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from erosion.simulation.simulator import simulate
from erosion_client.training.hospital import Hospital
from erosion_common.errors import DataError, RunError
from erosion_common.protocol.messages import Summary
from erosion_common.rounds.context import Decisions
from erosion_common.rounds.data_check import DataCheck, data_check
from erosion_common.study.study import Study
from erosion_server.coordination.folder_store import FolderStore
from erosion_server.coordination.run_end import result_of
from erosion_server.output.words import beside_verdict
from erosion_server.run.result import Result
from erosion_server.run.run_folder import RunFolder
from tests.support.refusals import refused
from tests.support.small_study import make_site, make_study

USER, PEERS = "a", ("b", "c", "d")
Rows = dict[str, np.ndarray[Any, Any]]


def yes_no(is_yes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.where(is_yes, "yes", "no")


def patients(seed: int, share: float = 0.1, num: int = 160) -> Rows:
    draws = np.random.default_rng(seed)
    age, dose = draws.normal(60, 9, num), draws.normal(100, 20, num)
    risk = (age - 60) / 9 + (dose - 100) / 40 + draws.normal(0, 0.5, num)
    ill = risk > np.quantile(risk, 1 - share)
    grade = np.searchsorted([-0.5, 0.8, 1.4], risk)
    return {
        "age": age.round(2),
        "dose": dose.round(2),
        "kind": draws.choice(["x", "y", "z"], num, p=[0.4, 0.35, 0.25]),
        "ill": yes_no(ill),
        "grade": grade,
        "loss": (12 + 4 * risk).round(3),
        "days": (900 * np.exp(-risk / 3)).round(0),
    }


FEATURES = ["age", "dose", {"name": "kind", "categories": ["x", "y", "z"]}]
CLASSES = {"kind": "tabular", "target": "ill", "classes": ["no", "yes"], "features": FEATURES}
TASKS: dict[str, dict[str, Any]] = {
    "ill": CLASSES,
    "grade": {**CLASSES, "target": "grade", "classes": ["0", "1", "2", "3"]},
    "loss": {
        "kind": "tabular", "outcome": "regression", "target": "loss", "features": FEATURES,
        "centre": 0.0, "spread": 10.0,
    },
    "event": {
        "kind": "tabular", "outcome": "survival", "features": FEATURES, "cut_points": [500, 900],
        "target": {"time": "days", "event": "ill", "happened": ["yes"], "censored": ["no"]},
    },
}  # fmt: skip


def study_of(task: str, **changes: Any) -> Study:
    raw = {**TASKS[task], "missing": "impute"}
    return make_study(hospitals=[USER, *PEERS], task=raw, scaling="federated", **changes)


def hospitals_of(folder: Path, tables: Mapping[str, Rows], **keys: Any) -> dict[str, Hospital]:
    found = {}
    for name, rows in tables.items():
        lines = [
            ",".join(rows),
            *(",".join(map(str, row)) for row in zip(*rows.values(), strict=True)),
        ]
        limits = {"min_cell": 10, "min_local_steps": 1}
        site = make_site(
            folder, "\n".join(lines) + "\n", name=name, file=f"{name}.csv", limits=limits, **keys
        )
        found[name] = Hospital(site)
    return found


def compared(folder: Path, study: Study, tables: Mapping[str, Rows]) -> DataCheck:
    hospitals = hospitals_of(folder, tables)
    return data_check(study, {n: h.describe(study).summary for n, h in hospitals.items()})


def all_alike(**changes: Any) -> dict[str, Rows]:
    return {name: patients(seed, **changes) for seed, name in enumerate((USER, *PEERS))}


def turned_round(rows: Rows) -> Rows:
    return {**rows, "ill": yes_no(rows["ill"] == "no")}


@pytest.mark.parametrize("task", TASKS)
def test_hospitals_that_are_alike_fit(tmp_path: Path, task: str) -> None:
    assert compared(tmp_path, study_of(task), all_alike()).misfits == ()


@pytest.mark.parametrize("odd", [USER, "c"])
@pytest.mark.parametrize(
    ("task", "change", "column"),
    [
        ("ill", turned_round, "ill"),
        ("event", turned_round, "ill"),
        ("grade", lambda r: {**r, "grade": 3 - r["grade"]}, "grade"),
        ("loss", lambda r: {**r, "loss": -r["loss"]}, "loss"),
        ("ill", lambda r: {**r, "kind": np.where(r["kind"] == "y", "x", r["kind"])}, "kind"),
        ("ill", lambda r: {**r, "dose": (r["dose"] / 18).round(3)}, "dose"),
        ("ill", lambda r: {**r, "age": np.full(len(r["age"]), "")}, "age"),
    ],
)
def test_a_hospital_that_does_not_fit_is_found_and_nobody_else(
    tmp_path: Path, task: str, change: Callable[[Rows], Rows], column: str, odd: str
) -> None:
    tables = all_alike()
    study = study_of(task)
    found = compared(tmp_path, study, {**tables, odd: change(tables[odd])})
    assert {(misfit.hospital, misfit.column) for misfit in found.misfits} == {(odd, column)}


def test_times_in_another_unit_do_not_fit_and_the_users_are_refused(tmp_path: Path) -> None:
    tables, study = all_alike(), study_of("event")
    of_user, of_peer = (
        {**tables, odd: {**tables[odd], "days": (tables[odd]["days"] / 30.4).round(1) + 0.1}}
        for odd in (USER, "c")
    )
    found = compared(tmp_path, study, of_peer)
    assert [(misfit.hospital, misfit.column) for misfit in found.misfits] == [("c", "days")]
    with refused(DataError, "first cut point, 500", "[data.units]"):
        compared(tmp_path, study, of_user)


def run(folder: Path, study: Study, tables: Mapping[str, Rows]) -> tuple[Result, DataCheck]:
    """Its result, and what was compared before its first round."""
    shown: list[DataCheck] = []
    rounds: list[object] = []

    def on_check(found: DataCheck) -> None:
        assert not rounds
        shown.append(found)

    outcome = simulate(study, hospitals_of(folder, tables), rounds.append, on_check=on_check)
    return result_of(outcome, "2026-01-02T03:04:05+00:00", 1.0), shown[0]


def test_what_does_not_fit_is_shown_before_the_first_round_and_kept(tmp_path: Path) -> None:
    tables = all_alike()
    result, shown = run(tmp_path, study_of("ill"), {**tables, "c": turned_round(tables["c"])})
    assert [misfit.hospital for misfit in shown.misfits] == ["c"]
    assert Result.model_validate_json(result.model_dump_json()).data_check == result.data_check
    assert {misfit.hospital for misfit in result.data_check.misfits} == {"c"}
    notes = beside_verdict(result, named_in="result.json")
    assert "c" in notes[0]
    assert "ill" in notes[0]


@pytest.mark.parametrize("odd", [USER, "c"])
def test_an_outcome_turned_round_that_half_of_the_patients_have_shows_in_the_first_round(
    tmp_path: Path, odd: str
) -> None:
    tables = all_alike(share=0.5)
    study = study_of("ill", training={"epochs": 1, "batch_size": 8})
    (tmp_path / "alike").mkdir()
    assert run(tmp_path / "alike", study, tables)[0].data_check.misfits == ()
    result, shown = run(tmp_path, study, {**tables, odd: turned_round(tables[odd])})
    assert shown.misfits == ()
    assert {misfit.hospital for misfit in result.data_check.misfits} == {odd}


def test_nothing_is_learnt_of_directions_where_there_is_nothing_to_learn(tmp_path: Path) -> None:
    for seed in range(6):
        draws = np.random.default_rng(seed)
        tables = {
            name: {**rows, "ill": yes_no(draws.random(len(rows["age"])) > 0.5)}
            for name, rows in all_alike().items()
        }
        (folder := tmp_path / str(seed)).mkdir()
        assert run(folder, study_of("ill"), tables)[0].data_check.misfits == ()


def test_a_study_can_ask_to_end_where_a_hospital_does_not_fit(tmp_path: Path) -> None:
    tables = all_alike()
    study = study_of("ill", federation={"stop_on_misfit": True})
    (tmp_path / "alike").mkdir()
    assert run(tmp_path / "alike", study, tables)[0].arms
    with refused(RunError, "c, ill", "stop_on_misfit"):
        run(tmp_path, study, {**tables, "c": turned_round(tables["c"])})


def test_who_gives_no_figures_is_named_as_not_checked(tmp_path: Path) -> None:
    tables = all_alike()
    study = study_of("ill")
    hospitals = hospitals_of(tmp_path, tables)
    summaries = {name: hospital.describe(study).summary for name, hospital in hospitals.items()}
    found = data_check(study, {**summaries, "d": None})
    assert set(found.unchecked) == {"d"}
    private = make_study(
        hospitals=[USER, *PEERS],
        task={**TASKS["ill"], "missing": "drop", "features": [
            {"name": "age", "range": [0, 120]}, {"name": "dose", "range": [0, 300]}]},
        scaling="none",
        arms=["fedavg"],
        privacy={"epsilon": 3.0, "delta": 1e-5, "learning_rate": 0.1},
    )  # fmt: skip
    of_private: dict[str, Summary | None] = {}
    for name, hospital in hospitals.items():
        epsilon = None if name == USER else 5.0
        limits = hospital.site.limits.model_copy(update={"epsilon": epsilon})
        site = hospital.site.model_copy(update={"limits": limits})
        of_private[name] = Hospital(site).describe(private).summary
    assert set(data_check(private, of_private).unchecked) == set(PEERS)


def test_a_run_that_is_resumed_has_what_was_compared_before(tmp_path: Path) -> None:
    tables = all_alike()
    study = study_of("ill")
    found = compared(tmp_path, study, {**tables, "c": turned_round(tables["c"])})
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    with FolderStore(folder) as keeper:
        keeper.decide(study, Decisions(None, {}, None, found))
    with FolderStore(folder) as keeper:
        decided = keeper.decisions()
    assert decided is not None
    assert decided.data_check == found
