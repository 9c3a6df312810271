"""Cross-fitted evaluation: every patient is predicted by models that never saw it."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from erosion.simulation.simulator import InProcess, Simulation, simulate
from erosion_client.consent.approvals import leads_to
from erosion_client.dataset.split import split_patients
from erosion_client.training.hospital import Hospital
from erosion_common.errors import CheckpointError, Refusal, RunError, StudyError
from erosion_common.protocol.messages import (
    EvaluateRequest,
    Metrics,
    StepResult,
    TrainRequest,
    TrainResult,
)
from erosion_common.rounds.context import RunContext
from erosion_common.rounds.events import ignore
from erosion_common.rounds.presence import Presence
from erosion_common.rounds.records import HospitalRecord, RoundRecord, RunState
from erosion_common.rounds.selection import Curves, fold_studies, folds_of, mean_curves
from erosion_common.rounds.study import run_study
from erosion_common.settings.base import validate
from erosion_common.study.sections import Fold
from erosion_common.study.study import Study
from erosion_server.coordination.folder_store import FolderStore
from erosion_server.coordination.run_end import result_of
from erosion_server.run.run_folder import RunFolder
from tests.support.scripted import Kept
from tests.support.small_study import make_site, make_study, twenty_patients

FOLDS: dict[str, Any] = {"folds": 4, "repeats": 2, "bootstrap": 100}
ARMS: dict[str, Any] = {"personal_intercept": {}, "local": {}}


def study(**changes: Any) -> Study:
    return make_study(**{"arms": ARMS, "evaluation": FOLDS, **changes})


def hospitals(tmp_path: Path, older: int = 0) -> dict[str, Hospital]:
    return {
        name: Hospital(make_site(tmp_path, text, name=name, file=f"{name}.csv"))
        for name, text in (("a", twenty_patients(older)), ("b", twenty_patients(3)))
    }


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    """Of the study as it is."""
    return simulate(study(), hospitals(tmp_path_factory.mktemp("whole")))


def declaring(table: str, tested: list[int]) -> str:
    """The table with a column that says who is tested on."""
    head, *rows = table.splitlines()
    parts = ["test" if number in tested else "train" for number in range(len(rows))]
    lines = [f"{row},{part}" for row, part in zip(rows, parts, strict=True)]
    return "\n".join([f"{head},part", *lines, ""])


def run_with(study: Study, sites: Mapping[str, Hospital], kept: Any, **changes: Any) -> Any:
    transport = InProcess(study, sites)
    presence = Presence(study, transport, ignore)
    known = {"store": kept, "run": "one", "presence": presence, **changes}
    return run_study(RunContext(study=study, channel=transport, **known))


def end_in_the_third_fold(folder: RunFolder, sites: Mapping[str, Hospital]) -> None:
    """As if somebody had interrupted the run."""
    rounds = count(1)

    class Dying(FolderStore):
        def keep_round(self, study: Study, state: RunState, record: RoundRecord) -> None:
            super().keep_round(study, state, record)
            if next(rounds) == 16:
                raise KeyboardInterrupt

    folder.path.mkdir()
    with Dying(folder) as keeper, pytest.raises(KeyboardInterrupt):
        run_with(study(), sites, keeper)


def test_each_patient_is_held_out_once_in_every_cut() -> None:
    labels = np.arange(43) % 2
    rows = np.arange(43.0)[:, None]
    groups = np.arange(43) // 2  # pairs of rows are of one patient
    cuts = []
    for cut in (1, 2):
        held_out = []
        for number in range(4):
            fold = study().model_copy(update={"fold": Fold(number=number, of=4, cut=cut)})
            split = split_patients(fold, "a", rows, labels, groups)
            assert sorted([*split.training, *split.test]) == list(range(43))
            assert not set(groups[split.training]) & set(groups[split.test])
            counts = np.bincount(labels[split.test])
            assert abs(int(counts[0]) - int(counts[1])) <= 2
            held_out.append(split.test.tolist())
        assert sorted(row for part in held_out for row in part) == list(range(43))
        cuts.append(held_out)
    assert cuts[0] != cuts[1]


def test_the_final_models_are_trained_on_all_patients() -> None:
    split = split_patients(study(), "a", np.arange(10.0)[:, None], np.arange(10) % 2)
    assert split.training.tolist() == list(range(10))
    assert not len(split.test)
    peer = study().model_copy(update={"fold": folds_of(study())[0]})
    assert len(split_patients(peer, "b", np.arange(10.0)[:, None], np.arange(10) % 2).test) == 0


def test_the_figures_are_those_of_predictions_made_fold_by_fold(
    tmp_path: Path, outcome: Simulation
) -> None:
    """Worked out again with studies whose tables say who is tested on."""
    losses = []
    for fold in fold_studies(study()):
        tested = hospitals(tmp_path)["a"]._prepare(fold).split.test.tolist()
        declared = {"split_column": "part", "bootstrap": 100}
        ended = simulate(
            study(evaluation=declared),
            {
                "a": Hospital(make_site(tmp_path, declaring(twenty_patients(), tested))),
                "b": Hospital(
                    make_site(tmp_path, declaring(twenty_patients(3), []), name="b", file="b.csv")
                ),
            },
        )
        losses.append(
            {arm: (m["log_loss"], m.num_patients) for arm, m in ended.evaluation.arms.items()}
        )
    for arm in ARMS:
        total = sum(loss * count for loss, count in (part[arm] for part in losses))
        assert outcome.evaluation.arms[arm].num_patients == 20
        assert outcome.evaluation.arms[arm]["log_loss"] == pytest.approx(total / 40, rel=1e-9)
    comparison = outcome.evaluation.comparison
    assert comparison is not None
    assert (comparison.num_patients, comparison.smallest_class, comparison.level) == (20, 10, 0.005)
    arms = outcome.evaluation.arms
    assert comparison.mean_difference == pytest.approx(
        arms["personal_intercept"]["log_loss"] - arms["local"]["log_loss"]
    )


def test_the_base_rate_is_that_of_patients_outside_the_fold(outcome: Simulation) -> None:
    """Of 10 ill and 10 healthy patients, folds have 3 of the one and 2 of the other."""
    base_rate = outcome.evaluation.base_rate
    assert base_rate is not None
    # By 7 and 8 of the 15 others; by all 20 it would be log 2.
    expected = -(3 * np.log(7 / 15) + 2 * np.log(8 / 15)) / 5
    assert base_rate["log_loss"] == pytest.approx(expected)
    assert base_rate.num_patients == 20
    assert base_rate["log_loss"] > np.log(2)


def test_the_models_delivered_are_those_of_a_run_on_all_patients(outcome: Simulation) -> None:
    assert {len(records) for records in outcome.records.values()} == {3}
    for records in outcome.records.values():
        told = {record.hospitals["a"].num_samples for record in records}
        assert told <= {18, 21}  # 20, to a multiple of the smallest cell
        # The curve is that of the folds: each patient counts once, however many the cuts.
        assert [r.user_metrics and r.user_metrics.num_patients for r in records] == [20, 20, 20]
    assert set(outcome.personal) == {"personal_intercept"}


def test_who_was_missing_in_the_folds_is_told_with_the_figures(outcome: Simulation) -> None:
    assert len(outcome.in_folds) == 4 * 2 * 2 * 3
    assert result_of(outcome, "", 0.0).absent == ()
    accepted, away = HospitalRecord("accepted"), HospitalRecord("absent", "slow", left_out="slow")
    in_folds = [
        RoundRecord("personal_intercept", number, "done", "", {"a": accepted, "b": away})
        for number in (1, 2)
    ]
    (absent,) = result_of(replace(outcome, in_folds=in_folds), "", 0.0).absent
    assert (absent.hospital, absent.everywhere) == ("b", False)
    assert absent.rounds == {"personal_intercept": 2}
    assert absent.left_out == {"slow": 2}
    assert absent.wanted == {"personal_intercept": 5}  # and three of the final run


def test_a_run_that_is_interrupted_in_a_fold_ends_the_same(
    tmp_path: Path, outcome: Simulation
) -> None:
    folder, sites = RunFolder(tmp_path / "run"), hospitals(tmp_path)
    end_in_the_third_fold(folder, sites)
    with FolderStore(folder) as again:
        resumed = run_with(study(), sites, again)
    assert resumed.evaluation == outcome.evaluation
    for arm in ARMS:
        assert torch.equal(resumed.finals[arm].params, outcome.finals[arm].params)
        curves = [
            [record.user_metrics for record in found.records[arm]] for found in (resumed, outcome)
        ]
        assert curves[0] == curves[1]


def _cut_last_line(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[10] ^= 4
    path.write_bytes(content)


def _make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


HARMS: list[tuple[str, Callable[[Path], object], str]] = [
    ("folds/1.jsonl", Path.unlink, r"1.jsonl is missing"),
    ("folds/1.jsonl", _cut_last_line, "lacks rounds"),
    ("folds/1.jsonl", _flip, "Line 1 cannot be read"),
    ("folds/1.jsonl", _make_folder, "cannot be read"),
    ("folds/2/rounds.jsonl", Path.unlink, "lacks rounds"),
    ("beginning.json", Path.unlink, "beginning.json is missing"),
]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that ended in the middle of its third fold."""

    path = tmp_path_factory.mktemp("interrupted")
    folder = RunFolder(path / "run")
    end_in_the_third_fold(folder, hospitals(path))
    return folder.path


@pytest.mark.parametrize(("file", "harm", "said"), HARMS)
def test_a_run_whose_rounds_in_folds_are_lost_is_refused_before_anybody_is_waited_for(
    tmp_path: Path, interrupted: Path, file: str, harm: Callable[[Path], object], said: str
) -> None:
    """It ended with a message about writing, and only after all rounds."""
    folder = RunFolder(tmp_path / "run")
    shutil.copytree(interrupted, folder.path)
    with FolderStore(folder) as keeper:
        keeper.check(study())
    harm(folder.path / file)
    with FolderStore(folder) as keeper, pytest.raises(CheckpointError, match=said):
        keeper.check(study())


def test_each_moment_of_a_cross_fitted_run_is_one_to_go_on_from(tmp_path: Path) -> None:
    whole, folder, checked = study(), RunFolder(tmp_path / "run"), [0]

    def check() -> None:
        """As a coordinator would that is started now, where this one was killed."""
        with FolderStore(folder) as another:
            another.check(whole)
        checked[0] += 1

    class Checking(FolderStore):
        def keep_round(self, study: Study, state: RunState, record: RoundRecord) -> None:
            in_fold = check if study.fold is not None else lambda: None
            in_fold()
            super().keep_round(study, state, record)
            in_fold()

        def keep_fold(self, curves: Curves) -> None:
            check()
            super().keep_fold(curves)
            check()

    folder.path.mkdir()
    with Checking(folder) as keeper:
        run_with(whole, hospitals(tmp_path), keeper)
        check()
        assert len(keeper.rounds_in_folds()) == 8 * 2 * whole.rounds
    assert checked[0] == 2 * 8 * 2 * whole.rounds + 2 * 8 + 1
    folder.finished_fold(7).unlink()
    with FolderStore(folder) as again, pytest.raises(CheckpointError, match="7 of 8"):
        again.check(whole)


def test_a_fold_that_was_interrupted_asks_nobody_for_a_round_with_other_parameters(
    tmp_path: Path,
) -> None:
    """Sites answer a round of a run once; hospital b was away from one that is over."""
    whole, asked = study(rounds=4), dict[tuple[Any, ...], torch.Tensor]()

    class Once(Hospital):
        away = 2

        def answer(self, request: TrainRequest) -> TrainResult | StepResult:
            place = (self.name, request.study.digest, request.arm, request.round)
            assert request.parameters is not None
            assert torch.equal(asked.setdefault(place, request.parameters), request.parameters)
            if self.name == "b" and request.round == self.away:
                self.away = 0
                raise Refusal("It is away for now.")
            return super().answer(request)

    class Dying(FolderStore):
        def keep_round(self, study: Study, state: RunState, record: RoundRecord) -> None:
            super().keep_round(study, state, record)
            if record.round == 4:
                raise KeyboardInterrupt

    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    sites = {name: Once(hospital.site) for name, hospital in hospitals(tmp_path).items()}
    with Dying(folder) as keeper, pytest.raises(KeyboardInterrupt):
        run_with(whole, sites, keeper)
    with FolderStore(folder) as again:
        run_with(whole, sites, again)
    skipped = [r.round for r in again.rounds_in_folds() if r.outcome == "skipped"]
    assert skipped == [2]
    assert all(path.suffix == ".jsonl" for path in folder.folds.iterdir())


def test_a_fold_gives_no_figures_and_the_end_needs_all_of_them(tmp_path: Path) -> None:
    whole, sites = study(arms=["local"]), hospitals(tmp_path)
    parameters = {"local": torch.zeros(sites["a"]._prepare(whole).dim)}
    first, *others = fold_studies(whole)
    answer = sites["a"].evaluate(EvaluateRequest(first, parameters, None, "run"))
    assert not answer.header.arms
    assert answer.header.comparison is None
    assert not answer.personal
    with pytest.raises(Refusal, match="predictions of some folds are not here"):
        sites["a"].evaluate(EvaluateRequest(whole, parameters, None, "run"))
    for fold in others:
        sites["a"].evaluate(EvaluateRequest(fold, parameters, None, "run"))
    with pytest.raises(Refusal, match="predictions of some folds are not here"):
        sites["a"].evaluate(EvaluateRequest(whole, parameters, None, "another run"))
    found = sites["a"].evaluate(EvaluateRequest(whole, parameters, None, "run"))
    assert found.header.arms["local"].num_patients == 20
    assert found.header.arms["local"]["log_loss"] == pytest.approx(np.log(2))  # zeros: a half each


def test_a_cross_fitted_run_has_its_patients_to_its_end(tmp_path: Path) -> None:
    """What was trained and predicted in one fold is put beside the others': it is of the same."""
    whole, sites = study(arms=["local"]), hospitals(tmp_path)
    parameters = {"local": torch.zeros(sites["a"]._prepare(whole).dim)}
    *folds, last = fold_studies(whole)
    for fold in folds:
        sites["a"].evaluate(EvaluateRequest(fold, parameters, None, "run"))
    (tmp_path / "a.csv").write_text(f"{twenty_patients(1)}90,f,1\n")
    sites["a"].evaluate(EvaluateRequest(last, parameters, None, "run"))
    found = sites["a"].evaluate(EvaluateRequest(whole, parameters, None, "run"))
    assert found.header.arms["local"].num_patients == 20


def test_data_that_changed_before_a_restart_in_mid_run_are_noticed(tmp_path: Path) -> None:
    whole, (*folds, last) = study(arms=["local"]), fold_studies(study(arms=["local"]))
    state = {"state": tmp_path / "state"}
    site = make_site(tmp_path, twenty_patients(), compute=state)
    before, parameters = Hospital(site), {"local": torch.zeros(6)}
    for fold in folds:
        before.evaluate(EvaluateRequest(fold, parameters, None, "run"))
    (tmp_path / "a.csv").write_text(f"{twenty_patients()}90,f,1\n")
    after = Hospital(site)
    for asked in (last, last, whole):
        with pytest.raises(Refusal, match="have changed since the run began"):
            after.evaluate(EvaluateRequest(asked, parameters, None, "run"))
    (tmp_path / "a.csv").write_text(twenty_patients())
    for asked in (last, whole):
        found = after.evaluate(EvaluateRequest(asked, parameters, None, "run"))
    assert found.header.arms["local"].num_patients == 20


def test_an_approved_study_leads_to_its_folds_alone() -> None:
    whole = study()
    for fold in fold_studies(whole):
        assert leads_to(whole, fold)
    for strange in (
        Fold(number=0, of=40, cut=1),
        Fold(number=0, of=4, cut=3),
        Fold(number=0, of=4),
    ):
        assert not leads_to(whole, whole.model_copy(update={"fold": strange}))
    assert not leads_to(make_study(), fold_studies(whole)[0])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"evaluation": {"repeats": 2}}, "evaluation.repeats is of evaluation.folds"),
        ({"evaluation": {"folds": 1}}, "2 or more"),
        ({"evaluation": {"folds": 5, "split_column": "part"}}, "leave out split_column"),
        ({"evaluation": {"test_share": 0.2, "split_column": "part"}}, "keep one of them"),
        ({"evaluation": {"folds": 5}, "selection": {}}, "leave out [selection]"),
    ],
)
def test_a_study_that_cannot_be_cross_fitted_is_refused(
    changes: dict[str, Any], sentence: str
) -> None:
    raw = {**make_study().model_dump(mode="json"), **changes}
    with pytest.raises(StudyError) as refused:
        validate(Study, raw, "study.toml", StudyError)
    assert sentence in str(refused.value)


def test_a_fold_that_the_study_does_not_have_is_refused(tmp_path: Path) -> None:
    strange = study(arms=["local"]).model_copy(update={"fold": Fold(number=0, of=20, cut=1)})
    site = hospitals(tmp_path)["a"]
    parameters = {"local": torch.zeros(site._prepare(study(arms=["local"])).dim)}
    with pytest.raises(Refusal, match=r"evaluation\.folds"):
        site.evaluate(EvaluateRequest(strange, parameters, None, "run"))


def test_too_few_patients_for_the_folds_is_said_by_the_site(tmp_path: Path) -> None:
    four = "age,sex,ill\n40,f,0\n50,m,1\n60,f,0\n70,m,1\n"
    site = Hospital(make_site(tmp_path, four))
    fold = fold_studies(study(evaluation={"folds": 5, "repeats": 1}))[0]
    with pytest.raises(Refusal, match=r"fewer than 3 patients .* fewer evaluation\.folds than 5"):
        site._prepare(fold)


def test_a_fold_whose_user_is_away_ends_the_run_with_a_reason(tmp_path: Path) -> None:
    sites = hospitals(tmp_path)
    evaluate = sites["a"].evaluate
    asked: list[Study] = []

    def failing(request: EvaluateRequest) -> Any:
        asked.append(request.study)
        if len(asked) == 2:
            raise Refusal("the site was restarted")
        return evaluate(request)

    sites["a"].evaluate = failing  # type: ignore[method-assign]
    with pytest.raises(RunError, match="the site was restarted"):
        run_with(study(), sites, Kept())


def test_curves_are_means_over_patients_and_end_where_a_rule_stopped() -> None:
    def measured(*losses: float, patients: int) -> list[Metrics | None]:
        return [
            Metrics.model_validate({"num_patients": patients, "log_loss": loss}) for loss in losses
        ]

    curves = mean_curves(
        [{"x": measured(1.0, 0.4, patients=1)}, {"x": measured(0.5, 0.1, 0.0, patients=3)}],
        {"x": 3},
        repeats=1,
    )
    # (1 + 1.5) / 4; (.4 + .3) / 4; the first stays at .4: (.4 + 0) / 4
    assert [m["log_loss"] for m in curves["x"] if m] == pytest.approx([0.625, 0.175, 0.1])
    # The user was away in one fold's second round: the third round's mean stays the third.
    first, _, third = (
        mean["log_loss"] if mean else None
        for mean in mean_curves(
            [
                {"x": [*measured(0.9, patients=2), None, *measured(0.3, patients=2)]},
                {"x": measured(0.7, 0.5, 0.1, patients=2)},
            ],
            {"x": 3},
            repeats=1,
        )["x"]
    )
    assert (first, third) == pytest.approx((0.8, 0.2))
    away = mean_curves([{"x": [None]}, {"x": measured(0.5, patients=3)}], {"x": 1}, repeats=1)
    assert away == {"x": [None]}
