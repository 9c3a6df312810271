"""The delivered model at other hospitals: the summary, and the page's section."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from erosion.interface.run import Run as InterfaceRun
from erosion_common.protocol.messages import FinalMetrics
from erosion_common.protocol.performance import Estimate, EstimateName, ModelFigures
from erosion_common.rounds.validation import Validated
from erosion_common.tasks.metric import Z
from erosion_server.output.report import warnings_of, write_report
from erosion_server.output.report_patients import patient_values
from erosion_server.output.report_validation import (
    _expected,
    summaries,
    travel_sentence,
    turned_elsewhere,
    validation_values,
)
from erosion_server.output.run_data import RunData
from erosion_server.run.heterogeneity import pooled
from tests.support.html_page import EVIL, Page
from tests.support.synthetic_run import Run, make_run


def around(value: float, error: float) -> Estimate:
    return Estimate(value=value, low=value - Z * error, high=value + Z * error)


def test_the_summary_is_that_of_statsmodels() -> None:
    # statsmodels 0.15: combine_effects(eff, variance, method_re="dl", use_t=True)
    found = pooled(
        [around(0.9, 0.2), around(0.4, 0.3), around(1.3, 0.05**0.5), around(0.7, 0.02**0.5)],
        "plain",
    )
    assert found is not None
    assert found.predicted is not None
    assert found.tau**2 == pytest.approx(0.06189781021897815)
    assert found.i_squared == pytest.approx(0.596762843068262)
    assert found.mean.value == pytest.approx(0.8424927207957993)
    assert (found.mean.low, found.mean.high) == pytest.approx((0.28632411, 1.39866133))
    # t of 2 degrees of freedom, 4.302653, times sqrt(tau^2 + 0.17476134980968608^2)
    assert found.predicted[1] - found.mean.value == pytest.approx(
        4.302652729696 * (0.06189781021897815 + 0.17476134980968608**2) ** 0.5
    )


def test_two_hospitals_by_hand() -> None:
    # Variances 0.01 and 0.04, so fixed weights 100 and 25: their mean is 0.6, and
    # Q = 100 * 0.1^2 + 25 * 0.4^2 = 5. tau^2 = (5 - 1) / (125 - (100^2 + 25^2) / 125) = 0.1.
    found = pooled([around(0.5, 0.1), around(1.0, 0.2)], "plain")
    assert found is not None
    assert found.tau**2 == pytest.approx(0.1)
    assert found.i_squared == pytest.approx(0.8)
    weights = 1 / 0.11, 1 / 0.14
    assert found.mean.value == pytest.approx((weights[0] * 0.5 + weights[1]) / sum(weights))
    assert found.predicted is None
    assert pooled([around(0.5, 0.1)], "plain") is None


def test_equal_hospitals_have_no_variance_between_them() -> None:
    found = pooled([around(0.8, 0.05)] * 4, "plain")
    assert found is not None
    assert (found.tau, found.i_squared) == (0.0, 0.0)
    assert found.mean.high - 0.8 > Z * 0.05 / 2  # never narrower than without any
    near_zero = found.model_copy(update={"predicted": (-0.001, 0.2)})
    assert _expected(near_zero) == "0.00 to 0.20"


@pytest.mark.parametrize("scale", ["log", "logit", "plain"])
def test_perfect_and_degenerate_figures_are_pooled(scale: Any) -> None:
    one = Estimate(value=1.0, low=1.0, high=1.0)
    zero = Estimate(value=0.0, low=0.0, high=0.0)
    found = pooled([one, one, one, zero], scale)
    assert found is not None
    assert 0.0 <= found.mean.value <= 1.0


def validated(role: str = "external", auroc: float = 0.8, slope: float = 1.0) -> Validated:
    metrics = {
        "num_patients": 100,
        "auroc": auroc,
        "log_loss": 0.5,
        "intervals": {"auroc": {"low": auroc - 0.1, "high": min(1.0, auroc + 0.1)}},
    }
    estimates: dict[EstimateName, Estimate] = {
        "calibration_slope": around(slope, 0.2),
        "expected_over_observed": around(1, 0.1),
    }
    model = ModelFigures(model="fedavg", event="ill", num_patients=100, estimates=estimates)
    return Validated(
        role=role,  # type: ignore[arg-type]
        arm="fedavg",
        metrics=FinalMetrics.model_validate(metrics),
        models=(model,),
    )


def with_validation(every: dict[str, Validated]) -> Run:
    run = make_run()
    return replace(run, result=run.result.model_copy(update={"validation": every}))


def test_hospitals_where_the_model_ranks_the_wrong_way_round_are_named_first() -> None:
    every = {"north": validated("trained", 0.25), "south": validated(auroc=0.45)}
    run = with_validation(every)
    (said,) = turned_elsewhere(RunData(run.study, run.records, run.result))
    assert said in warnings_of(RunData(run.study, run.records, run.result))
    assert ("north" in said, "south" in said) == (True, False)


def test_only_hospitals_without_part_in_training_are_in_the_mean() -> None:
    every = {
        "a": validated(auroc=0.7),
        "b": validated(auroc=0.8),
        "c": validated("trained", 0.95),
        "d": Validated(role="external", arm="fedavg", why_not="declined"),
    }
    result = with_validation(every).result
    found = summaries(result)
    assert found["auroc"].hospitals == 2
    assert 0.7 < found["auroc"].mean.value < 0.8
    assert "2 hospitals" in travel_sentence(result)
    no_figure = FinalMetrics.model_validate({"num_patients": 100, "auroc": None, "intervals": {}})
    fewer = with_validation({**every, "e": every["a"].model_copy(update={"metrics": no_figure})})
    assert "3 hospitals" in travel_sentence(fewer.result)
    assert "the 2 that" in travel_sentence(fewer.result)
    trained = {name: each for name, each in every.items() if each.role == "trained"}
    alone = with_validation(trained).result
    assert not summaries(alone)
    assert "none of them is an external one" in travel_sentence(alone)
    assert not travel_sentence(with_validation({}).result)


def test_the_interval_of_a_single_hospital_is_drawn_whole() -> None:
    wide = Estimate(value=0.96, low=0.45, high=1.62)
    model = ModelFigures(
        model="fedavg", event="ill", num_patients=100, estimates={"calibration_slope": wide}
    )
    alone = validated("trained").model_copy(update={"models": (model,)})
    run = with_validation({"alike": alone})
    drawn = {
        each.name: each
        for each in validation_values(RunData(run.study, run.records, run.result))["travelled"]
    }
    svg = drawn["forest-calibration-slope"].svg
    line = re.search(r'class="line s1 d0" x1="([\d.]+)" x2="([\d.]+)"', svg)
    dot = re.search(r'class="dot s1 d0" cx="([\d.]+)"', svg)
    assert line is not None
    assert dot is not None
    low, high, middle = (float(each) for each in (line[1], line[2], dot[1]))
    assert (middle - low) / (high - low) == pytest.approx(0.51 / 1.17, abs=0.01)


def test_a_plot_of_calibration_says_when_where_hospitals_differ_in_that() -> None:
    measured = validated()
    (figures,) = measured.models
    every = {
        name: measured.model_copy(
            update={"models": (figures.model_copy(update={"horizon": time}),)}
        )
        for name, time in (("alike", 10.0), ("a name that is long enough to be cut", 5.0))
    }
    run = with_validation(every)
    drawn = validation_values(RunData(run.study, run.records, run.result))["travelled"]
    said = {each.name: [by in each.svg for by in (", by 10", ", by 5")] for each in drawn}
    assert said["forest-calibration-slope"] == [True, True]
    assert said["forest-auroc"] == [False, False]


def test_the_flow_of_patients_has_those_who_tested_the_model_elsewhere() -> None:
    away = Validated(role="external", arm="fedavg", why_not="declined")
    run = with_validation({"alike": validated("trained"), "elsewhere": validated(), "off": away})
    flow = patient_values(RunData(run.study, run.records, run.result))["flow"]
    tested = {row[0]: row[6] for row in flow}
    assert tested["alike"] == tested["elsewhere"] == "about 100"
    assert tested["off"] == tested["miscoded"] == "none"


def test_the_page_names_each_hospitals_part_and_files_hold_all(tmp_path: Path) -> None:
    every = {
        "a": validated(auroc=0.7, slope=0.6),
        "b": validated(auroc=0.8),
        "e": validated(auroc=0.75),
        "c": validated("trained", 0.95),
        "d": Validated(role="external", arm="fedavg", why_not=EVIL),
    }
    frame = InterfaceRun(make_run().study, with_validation(every).result, None).validation
    assert frame.loc["a", "auroc"] == 0.7
    assert frame.loc["d", "why_not"] == EVIL
    path = write_report(with_validation(every).write(tmp_path / "run"))
    page = Page(path.read_text("utf-8"))
    assert "took part in training" in page.text
    assert not {"script", "b-evil"} & {tag for tag, _ in page.tags}
    lines = (path.parent / "figures" / "validation.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["hospital", *every, "(mean)"]
    assert (path.parent / "figures" / "forest-auroc.svg").exists()
