"""Another hospital's model, measured here: figures, what they must not tell, and who is asked."""

import csv
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from erosion.simulation.simulator import Simulation, simulate, timeless
from erosion_client.consent.approvals import leads_to
from erosion_client.consent.review import asked, leaving
from erosion_client.records.records import Records
from erosion_client.site_file import Site
from erosion_client.training.hospital import Hospital
from erosion_client.training.limits import needs_of
from erosion_client.training.request import MOST_MODELS, checked_payload
from erosion_common.algorithms.base import TRAIN
from erosion_common.errors import Refusal, StudyError
from erosion_common.protocol import wire
from erosion_common.protocol.messages import (
    EvaluateReply,
    EvaluateRequest,
    EvaluateResult,
    FinalMetrics,
    TrainRequest,
)
from erosion_common.rounds.presence import Member
from erosion_common.rounds.validation import problem_with_validation
from erosion_common.study.study import Study
from tests.support.federation import small_study
from tests.support.small_study import make_site, sixty_patients

PEERS = ("alice", "bob", "carol")


def study(**changes: Any) -> Study:
    values = {"validation": {"hospitals": ["dave"]}, "rounds": 3, "arms": {"fedavg": {}}}
    return small_study(**{**values, **changes})


def site(folder: Path, name: str, text: str = "", **limits: Any) -> Site:
    text = text or sixty_patients(name)
    return make_site(folder, text, name=name, file=f"{name}.csv", limits={"min_cell": 10, **limits})


def simulated(folder: Path, of: Study, **sites: Site) -> Simulation:
    every = {name: sites.get(name) or site(folder, name) for name in of.everyone}
    hospitals = {name: Hospital(each) for name, each in every.items()}
    return simulate(of, hospitals, clock=timeless)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Simulation]:
    folder = tmp_path_factory.mktemp("external")
    return folder, simulated(folder, study())


def test_the_figures_are_those_of_the_delivered_model_on_all_patients(
    found: tuple[Path, Simulation],
) -> None:
    folder, run = found
    with (folder / "dave.csv").open() as file:
        table = [*csv.DictReader(file)]
    scaling = run.evaluation.scaling
    assert scaling is not None
    x = np.array([[float(row["age"]), float(row["dose"])] for row in table])
    x = (x - np.array(scaling.mean)) / np.array(scaling.deviation)
    flat = run.finals["fedavg"].params.double().numpy()
    outputs = x @ flat[:4].reshape(2, 2).T + flat[4:]
    logit = outputs[:, 1] - outputs[:, 0]
    ill = np.array([row["ill"] == "yes" for row in table])
    dave = run.validation["dave"]
    assert dave.metrics is not None
    assert dave.metrics["auroc"] == pytest.approx(roc_auc_score(ill, logit), abs=5e-4)
    chances = 1 / (1 + np.exp(-logit))
    assert dave.metrics["log_loss"] == pytest.approx(log_loss(ill, chances), rel=5e-3)
    (model,) = dave.models
    expected = chances.sum() / ill.sum()
    assert model.estimates["expected_over_observed"].value == pytest.approx(expected, rel=5e-3)
    fitted = LogisticRegression(C=np.inf, tol=1e-10).fit(logit[:, None], ill)
    slope = model.estimates["calibration_slope"]
    assert slope.value == pytest.approx(float(fitted.coef_[0, 0]), rel=5e-3)
    assert slope.low < slope.value < slope.high


def test_figures_are_rounded_and_about_a_cell_of_each_class(found: tuple[Path, Simulation]) -> None:
    dave = found[1].validation["dave"]
    assert dave.metrics is not None
    assert dave.metrics.num_patients % 10 == 0
    assert all(count and count % 10 == 0 for count in dave.class_counts.values())
    assert dave.metrics.get("majority_accuracy") is None  # it would count a class
    assert "majority_accuracy" not in dave.metrics.intervals
    (model,) = dave.models
    assert (model.curves, model.groups, model.thresholds, model.prevalence) == ({}, (), (), None)
    numbers = [v for v in dave.metrics.model_dump(exclude={"intervals"}).values() if v is not None]
    numbers += [e.value for e in model.estimates.values()]
    assert all(float(f"{number:.3g}") == number for number in numbers)


def test_a_model_made_for_it_reads_seven_patients_outcomes(tmp_path: Path) -> None:
    """The documentation says that this attack works: everybody else's age is 0."""
    risk_by_age = torch.tensor([0.0, 0.0, 0.13, 0.0, 0.0, 0.0])
    ages, ill = 2.0 ** np.arange(7), np.array([1, 0, 1, 1, 0, 0, 1])
    rows = [f"{age},{n},{['no', 'yes'][n]}" for age, n in zip(ages, ill, strict=True)]
    rows += [f"0,{number},{['no', 'yes'][number % 2]}" for number in range(2, 55)]
    here = Hospital(site(tmp_path, "dave", "\n".join(["age,dose,ill", *rows, ""])), secret=b"own")
    asked = EvaluateRequest(study(scaling="none"), {"fedavg": risk_by_age}, scaling=None, run="r")
    told = here.evaluate(asked).header.arms["fedavg"]["log_loss"]

    def loss(outcomes: Sequence[int]) -> float:
        of_seven = np.log1p(np.exp(np.where(outcomes, -0.13, 0.13) * ages)).sum()
        return float(f"{(of_seven + 53 * np.log(2)) / 60:.3g}")

    fitting = [each for each in itertools.product([0, 1], repeat=7) if loss(each) == told]
    assert fitting == [tuple(ill)]


def test_who_trained_it_is_no_external_one(found: tuple[Path, Simulation], tmp_path: Path) -> None:
    roles = {name: each.role for name, each in found[1].validation.items()}
    assert roles == {"bob": "trained", "carol": "trained", "dave": "external"}
    alone = simulated(tmp_path, study(arms={"local": {}}))
    assert {each.role for each in alone.validation.values()} == {"external"}


def test_training_is_the_same_with_hospitals_that_only_measure(
    found: tuple[Path, Simulation], tmp_path: Path
) -> None:
    without = simulated(tmp_path, study(validation=None))
    assert without.finals["fedavg"].params.equal(found[1].finals["fedavg"].params)
    assert without.evaluation.arms == found[1].evaluation.arms
    assert not without.validation
    assert all("dave" not in record.hospitals for record in found[1].records["fedavg"])


def test_a_hospital_may_refuse_and_ends_nothing(tmp_path: Path) -> None:
    heading, *rows = sixty_patients("dave").splitlines()
    ill = [row for row in rows if row.endswith(",yes")]
    few = [heading, *(row for row in rows if row not in ill[9:])]
    run = simulated(
        tmp_path,
        study(),
        bob=site(tmp_path, "bob", validation=False),
        dave=site(tmp_path, "dave", "\n".join(few) + "\n"),
    )
    bob, carol, dave = (run.validation[name] for name in ("bob", "carol", "dave"))
    assert (bob.metrics, dave.metrics, carol.why_not) == (None, None, "")
    assert "limits.validation" in bob.why_not
    assert "limits.min_cell = 10" in dave.why_not
    assert carol.metrics is not None


def test_a_hospital_that_is_away_is_named(tmp_path: Path) -> None:
    of = study()
    hospitals = {name: Hospital(site(tmp_path, name)) for name in of.hospitals}
    run = simulate(of, hospitals, clock=timeless)
    assert run.validation["dave"].why_not == "was not connected"
    assert run.validation["bob"].metrics is not None


NUMBER = {
    "kind": "tabular",
    "outcome": "regression",
    "target": "dose",
    "centre": 10.0,
    "spread": 4.0,
    "features": ["age"],
}


def test_numbers_have_their_calibration(tmp_path: Path) -> None:
    dave = simulated(tmp_path, study(task=NUMBER)).validation["dave"]
    assert dave.metrics is not None
    assert dave.metrics.get("r2") is not None
    assert {"calibration_slope", "calibration_in_the_large"} <= dave.models[0].estimates.keys()
    assert not dave.class_counts


def test_only_a_study_that_says_so_has_its_model_measured(tmp_path: Path) -> None:
    hospital = Hospital(site(tmp_path, "dave"))
    of = study(hospitals=[*PEERS, "dave"], validation=None)
    with pytest.raises(Refusal, match=r"\[validation\]"):
        hospital.evaluate(EvaluateRequest(of, {}, None))


def test_who_only_measures_is_asked_for_no_training(tmp_path: Path) -> None:
    of, dave = study(), site(tmp_path, "dave")
    needs = needs_of(dave, of)
    assert (needs.rounds, needs.evaluations) == (0, 1)
    assert (needs_of(site(tmp_path, "bob"), of).rounds) == 3
    request = TrainRequest(of, "fedavg", 1, None, None, step=TRAIN)
    with pytest.raises(Refusal, match="dave"):
        Hospital(dave).train(request)
    lines = [*asked(dave, of, Records.of(dave)), *leaving(dave, of)]
    assert any("final model" in line for line in lines)
    assert not any("model update" in line for line in lines)
    refusing = site(tmp_path, "dave", validation=False)
    with pytest.raises(Refusal, match=r"limits\.validation"):
        Hospital(refusing).describe(of)
    assert not any("ranks" in line for line in leaving(refusing, of))
    assert leads_to(study(user="all"), of)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"validation": {"hospitals": ["bob"]}}, "bob"),
        ({"validation": {"hospitals": ["dave", "dave"]}}, "dave"),
        ({"privacy": {"epsilon": 3.0, "learning_rate": 0.1}, "scaling": "none"}, "[validation]"),
    ],
)
def test_studies_that_cannot_be(changes: Mapping[str, Any], said: str) -> None:
    with pytest.raises((StudyError, ValueError)) as problem:
        study(**changes)
    assert said in str(problem.value)


def test_requests_that_fit_no_model_are_refused(
    found: tuple[Path, Simulation], tmp_path: Path
) -> None:
    run, of, hospital = found[1], study(), Hospital(site(tmp_path, "dave"))
    params, scaling = run.finals["fedavg"].params, run.evaluation.scaling
    wrong: list[tuple[dict[str, Any], Any]] = [
        ({"fedavg": params[:-1]}, scaling),
        ({"fedavg": params * np.nan}, scaling),
        ({"fedavg": params.repeat(MOST_MODELS + 1, 1)}, scaling),
        ({"fedavg": params, "local": params}, scaling),
        ({"other": params}, scaling),
        ({"fedavg": params}, None),
        ({"fedavg": params}, scaling and scaling.model_copy(update={"mean": (0.0,)})),
    ]
    for parameters, scaled in wrong:
        with pytest.raises(Refusal):
            hospital.evaluate(EvaluateRequest(of, parameters, scaled))
    assert hospital.evaluate(EvaluateRequest(of, {"fedavg": params}, scaling)).header.arms
    with pytest.raises(Refusal):  # as a method's step would train or measure each
        checked_payload("models", params.repeat(MOST_MODELS + 1, 1), len(params))


def result_of(run: Simulation, name: str, **changes: Any) -> EvaluateResult:
    """Its answer as it came, with other values."""
    found = run.validation[name]
    assert found.metrics is not None
    header = EvaluateReply(
        hospital=name,
        arms={"fedavg": found.metrics},
        comparison=None,
        scaling=None,
        class_counts=found.class_counts,
        performance={"models": found.models, "shown": "fedavg"},  # type: ignore[arg-type]
    )
    values = {key: getattr(header, key) for key in EvaluateReply.model_fields}
    return EvaluateResult(EvaluateReply.model_construct(**{**values, **changes}))


def test_a_site_that_lies_is_not_believed(found: tuple[Path, Simulation], tmp_path: Path) -> None:
    run, of = found[1], study()
    described = Hospital(site(tmp_path, "dave")).describe(of)
    member = Member(1, 60, None, "", described.summary)

    def problem(**changes: Any) -> str | None:
        return problem_with_validation(
            result_of(run, "dave", **changes), of, "dave", member, "fedavg"
        )

    def metrics(**changes: Any) -> dict[str, FinalMetrics]:
        known = run.validation["dave"].metrics
        assert known is not None
        return {"fedavg": FinalMetrics.model_construct(**{**known.model_dump(), **changes})}

    def slope(**ends: float) -> Any:
        (model,) = run.validation["dave"].models
        kept = model.estimates["calibration_slope"]
        changed = {**model.estimates, "calibration_slope": kept.model_copy(update=ends)}
        performance = result_of(run, "dave").header.performance
        return performance.model_copy(
            update={"models": (model.model_copy(update={"estimates": changed}),)}
        )

    assert problem() is None
    known = run.validation["dave"].metrics
    intervals = known.intervals if known is not None else {}
    for lie in (
        {"hospital": "bob"},
        {"arms": metrics(auroc=float("nan"), intervals=intervals)},
        {"arms": metrics(auroc=1.2, intervals=intervals)},
        {"arms": metrics(num_patients=1_000_000, intervals=intervals)},
        {"arms": {**metrics(intervals=intervals), "local": metrics(intervals=intervals)["fedavg"]}},
        {"class_counts": {"no": 50, "yes": 3}},
        {"class_counts": {"other": 50}},
        {"performance": slope(value=1e308, high=1e308)},
        {"performance": slope(value=float("nan"))},
        {"performance": slope(low=5.0, high=4.0)},
    ):
        assert problem(**lie) is not None, lie


@pytest.mark.parametrize("number", ["NaN", "1e308", "-Infinity"])
def test_no_such_number_is_read_from_the_line(found: tuple[Path, Simulation], number: str) -> None:
    record = wire.encode_result(result_of(found[1], "dave"))
    text = wire.header_text(record)
    slope = '"calibration_slope":{"value":'
    before, _, after = text.partition(slope)
    assert after
    changed = f"{before}{slope}{number},{after.partition(',')[2]}"
    record["header"] = ConfigRecord({"json": changed})
    with pytest.raises(wire.WireError):
        wire.decode_evaluate_result(record)


FINISHED: dict[str, Any] = {"fedavg": {"finish": "evidence"}}


def test_a_finished_model_is_measured_as_a_whole(tmp_path: Path) -> None:
    run = simulated(tmp_path, study(arms=FINISHED))
    with (tmp_path / "dave.csv").open() as file:
        table = [*csv.DictReader(file)]
    scaling, layers = run.evaluation.scaling, run.personal["fedavg (finish)"].double().numpy()
    assert scaling is not None
    assert len(layers) > 1
    x = np.array([[float(row["age"]), float(row["dose"])] for row in table])
    x = (x - np.array(scaling.mean)) / np.array(scaling.deviation)
    risk = np.zeros(len(x))
    for share, *layer in layers:
        outputs = x @ np.reshape(layer[:4], (2, 2)).T + layer[4:]
        risk += share / layers[:, 0].sum() / (1 + np.exp(outputs[:, 0] - outputs[:, 1]))
    ill = np.array([row["ill"] == "yes" for row in table])
    dave = run.validation["dave"]
    assert dave.metrics is not None
    assert dave.metrics["log_loss"] == pytest.approx(log_loss(ill, risk), rel=5e-3)
    plain = simulated(tmp_path, study()).validation["dave"].metrics
    assert plain is not None
    assert plain["log_loss"] != dave.metrics["log_loss"]


@pytest.mark.parametrize("wrong", ["nan", "short", "none", "negative", "whole"])
def test_last_layers_that_are_none_are_refused(
    found: tuple[Path, Simulation], tmp_path: Path, wrong: str
) -> None:
    layers = torch.ones(3, 7)
    changed = {
        "nan": layers * torch.nan,
        "short": layers[:, :-1],
        "none": layers[:0],
        "negative": -layers,
        "whole": layers.long(),
    }[wrong]
    run, of = found[1], study(arms=FINISHED)
    params, hospital = {"fedavg": run.finals["fedavg"].params}, Hospital(site(tmp_path, "dave"))
    scaling = run.evaluation.scaling
    for enclosed, is_refused in ((layers, False), (changed, True)):
        request = EvaluateRequest(of, params, scaling, "", {"fedavg": {"layers": enclosed}})
        sent = wire.decode_evaluate(wire.Encoder().encode(request), wire.KnownStudies())
        if not is_refused:
            assert hospital.evaluate(sent).header.arms
            continue
        with pytest.raises(Refusal):
            hospital.evaluate(sent)
