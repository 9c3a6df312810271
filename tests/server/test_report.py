"""The page that a run leaves for people."""

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from markupsafe import escape
from rich.console import Console

from erosion.interface.run import Run as InterfaceRun
from erosion_common.errors import CheckpointError
from erosion_common.protocol.messages import Comparison, FinalMetrics, Metrics, Summary
from erosion_common.protocol.performance import Estimate, Performance
from erosion_common.rounds.records import HospitalRecord, RoundRecord
from erosion_common.study.study import Study
from erosion_common.tasks import REGISTRY
from erosion_server.output import report_patients, report_performance, words
from erosion_server.output.charts import Plot, standalone, weight_figure
from erosion_server.output.figures import estimate_cell
from erosion_server.output.pages import Cell, render_page
from erosion_server.output.report import (
    few_patients,
    report_values,
    warnings_of,
    write_report,
)
from erosion_server.output.run_data import RunData, read_run
from erosion_server.output.tables import print_summary
from erosion_server.output.terminal import ArmProgress
from erosion_server.output.words import absences as absence_sentences
from erosion_server.output.words import class_sizes, figure_text, interval_text, what_may_be_unseen
from erosion_server.output.words import recounts as recount_sentences
from erosion_server.run.findings import Leak, Recount, absences, privacy_spent, recounts
from erosion_server.run.result import CrossFitting, verdict
from erosion_server.run.run_folder import RunFolder
from tests.support.html_page import EVIL, Page
from tests.support.refusals import refused
from tests.support.said import says
from tests.support.synthetic_run import (
    ARMS,
    HOSPITALS,
    Run,
    estimated,
    final_metrics,
    make_run,
    make_study,
    performance,
    with_performance,
)
from tests.support.tasks import read_task

MANY = ("home", *(f"hospital-{number:02}" for number in range(1, 20)))


def written(run: Run, folder: Path) -> str:
    path = write_report(run.write(folder))
    assert path == folder / "report.html"
    return path.read_text("utf-8")


def data_of(run: Run) -> RunData:
    return RunData(run.study, run.records, run.result)


def values_of(run: Run) -> dict[str, Any]:
    """What the page shows."""
    return report_values(data_of(run), "", {})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "20260504T092107-breast-cancer"


def test_the_verdict_comes_first_and_in_plain_words(folder: Path) -> None:
    page = Page(written(make_run(), folder))
    first = next(tag for tag, _ in page.tags if tag in ("h1", "h2", "table", "svg"))
    assert first == "h1"
    head = page.text[: page.text.index("0.61 %")]
    assert all(word in head for word in ("91", "weight_erosion", "local"))
    assert "1 in 30" in page.text  # 91 / 3


def test_the_page_says_of_each_column_what_became_of_missing_values(folder: Path) -> None:
    run = make_run()
    task = run.study.task.model_dump(mode="json")
    columns = [{"name": "age", "missing": "impute"}, {"name": "ward", "categories": ["a", "b"]}]
    values = {**run.study.model_dump(mode="json"), "task": {**task, "features": columns}}
    page = Page(written(replace(run, study=Study.model_validate(values)), folder))
    section = page.text[page.text.index("Missing values") : page.text.index("Scaling")]
    assert all(word in section for word in ("age: filled", "mean", "ward: none"))
    assert words.missing_values(run.study.task) == words.MISSING["refuse"]


def test_the_page_says_near_the_line_wherever_the_verdict_does(folder: Path) -> None:
    run = make_run()
    result = run.result.model_copy(update={"p_by_round": (0.0061, 0.034)})
    assert "Near the line" in Page(written(replace(run, result=result), folder)).text
    result = run.result.model_copy(update={"p_by_round": (1e-6, 1e-5)})
    assert values_of(replace(run, result=result))["p_by_round"] == "< 0.001"


def test_a_run_for_every_hospital_is_reported_by_hospital(folder: Path) -> None:
    make_run(rounds=2).write(folder)
    (folder / "users").mkdir()
    with refused(CheckpointError, "users/HOSPITAL"):
        write_report(folder)


def test_the_page_needs_no_other_file_and_runs_no_script(folder: Path) -> None:
    html = written(make_run(), folder)
    page = Page(html)
    assert not {"script", "link", "img", "iframe", "image"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert not {"src", "href", "xlink:href", "data"} & set(attributes) or all(
            (attributes.get(name) or "#").startswith("#") for name in ("href", "xlink:href")
        )
        assert not any(name.startswith("on") for name in attributes)
    without_namespaces = re.sub(r'xmlns(:\w+)?="[^"]+"', "", html)
    assert not re.search(r"https?://|@import|url\((?!#)", without_namespaces)
    assert "default-src 'none'" in html
    path = folder / "study.toml"
    path.write_text("# </pre><script>alert(1)</script>\n" + path.read_text())
    changed = write_report(folder).read_text()
    assert "<script" not in changed
    assert "&lt;/pre&gt;&lt;script&gt;" in changed
    path.write_text(path.read_text().partition("\n")[2])
    assert write_report(folder).read_text("utf-8") == html  # the same run, the same page


def test_figures_have_their_intervals_and_the_majority_beside_them() -> None:
    values = values_of(make_run())
    name, accuracy, majority, auroc, *_ = values["metric_rows"][0]
    assert (name.value, accuracy, majority) == (
        "weight_erosion",
        Cell("0.967", "0.93–0.99"),
        Cell("0.626"),
    )
    assert auroc.value == "0.992"
    assert "class 0.626" in values["curves"][0][1]  # in the figure, too
    assert values_of(make_run(auroc=False))["metric_rows"][0][3].value == "–"


@pytest.mark.parametrize(
    ("best", "arm"), [(None, "weight_erosion"), ("local", "local"), ("fedavg", "fedavg")]
)
def test_the_better_arms_model_is_delivered_or_else_the_firsts(best: str | None, arm: str) -> None:
    result = make_run(rounds=1).result
    found = result.verdict.model_copy(update={"best_arm": best})
    assert result.model_copy(update={"verdict": found}).delivered_arm == arm


def test_the_commonest_class_of_a_cross_fitted_study_is_that_of_all_patients(folder: Path) -> None:
    run = make_run()
    assert run.result.base_rate is not None
    figures = {**run.result.base_rate.model_dump(), "accuracy": 0.456, "majority_accuracy": 0.511}
    base_rate = FinalMetrics.model_validate(figures)
    finals = {arm: found.metrics for arm, found in run.result.arms.items()}
    said = verdict(run.result.task, run.result.comparison, finals, base_rate)
    assert "0.511" in said.text
    cross = {"cross_fitting": CrossFitting(folds=8, repeats=1), "base_rate": base_rate}
    result = run.result.model_copy(update={**cross, "verdict": said})
    text = Page(written(replace(run, result=result), folder)).text
    assert "class 0.511" in text  # in the figure
    assert text.count("0.456") == 1  # of the base rate's row in the table


def in_target_unit(run: Run, scale: float) -> Run:
    """The same of a regression, with an RMSE of .178 `scale` (.141 to .212)."""
    task = REGISTRY["regression"]
    raw: dict[str, Any] = dict.fromkeys(("r2", "calibration_slope", "squared_error"), 0.25)
    raw |= {"num_patients": 91, "mae": 0.14 * scale}
    ends = {"rmse": {"low": 0.141 * scale, "high": 0.212 * scale}}
    figures = {
        name: FinalMetrics.model_validate({**raw, "rmse": rmse * scale, "intervals": ends})
        for name, rmse in zip((*ARMS, "base rate"), (0.178, 0.2, 0.25, 0.35), strict=True)
    }
    base_rate = figures.pop("base rate")
    said = verdict(task, run.result.comparison, figures, base_rate)
    arms = {
        name: arm.model_copy(update={"metrics": figures[name]})
        for name, arm in run.result.arms.items()
    }
    update = {"arms": arms, "outcome": "regression", "class_counts": {}, "base_rate": base_rate}
    result = run.result.model_copy(update={**update, "verdict": said})
    metrics = Metrics.model_validate({**raw, "rmse": 0.178 * scale})
    records = [replace(record, user_metrics=metrics) for record in run.records]
    return replace(run, result=result, records=records)


@pytest.mark.parametrize(
    ("scale", "first", "interval", "second", "base_rate"),
    [
        (1e-6, "1.780e-07", "1.410e-07–2.120e-07", "2.500e-07", "3.500e-07"),
        (10, "1.780", "1.410–2.120", "2.500", "3.500"),
        (1e12, "1.780e+11", "1.410e+11–2.120e+11", "2.500e+11", "3.500e+11"),
    ],
)
def test_a_figure_in_the_targets_unit_has_four_digits_whatever_its_size(
    folder: Path, scale: float, first: str, interval: str, second: str, base_rate: str
) -> None:
    run = in_target_unit(make_run(rounds=3), scale)
    figures = re.findall(r"\d\S*\d", run.result.verdict.text.partition("RMSE")[2])
    assert figures[:3] == [first, second, base_rate]
    text = Page(written(run, folder)).text
    assert f"{ARMS[0]} {first} {interval} " in text  # in the table
    assert text.count(f"{ARMS[0]} {first} ") >= 2  # and in the figure
    stream = io.StringIO()
    print_summary(Console(file=stream, width=80), run.result, folder / "report.html")
    assert f"RMSE {first}" in " ".join(stream.getvalue().split())
    assert f"({interval})" in stream.getvalue()
    shown = ArmProgress(ARMS[0], 3, HOSPITALS, run.result.task.shown(["rmse", "r2"]))
    shown.take(run.records[0])
    assert shown.figures == [f"RMSE {first}", "R² 0.250"]
    assert not re.search(r"\b0\.000(?!\d)", text + stream.getvalue())


def test_figures_in_the_targets_unit_name_it() -> None:
    run = in_target_unit(with_performance(of_a_number()), 10)
    days = {"outcome": "regression", "target": "y", "centre": 1, "spread": 1, "unit": "days"}
    task = read_task({"kind": "tabular", "features": ["mean radius"], **days})
    run = replace(run, study=run.study.model_copy(update={"task": task}))
    page = Page(render_page("report.html", **values_of(run))).text
    for said in (
        "RMSE, days",
        "predicted, days",
        "observed minus predicted 0.01 (−0.19 to 0.21) days",
        "Observed minus predicted, days, by predicted value",
        "Difference, days",
        "RMSE 1.780 days",
        "a number in days",
    ):
        assert said in page
    assert "R², days" not in page
    # The verdict is written again from the rounded figures, with what the study says.
    assert "RMSE 1.780 against 2.500 days" in data_of(run).rounded().result.verdict.text


def of_a_number() -> Performance:
    groups = [{"num_patients": 18, "predicted": 3.1, "observed": estimated(3.0)}]
    errors = {"errors": [None, -1.0, 0.0, 1.0, None]}
    ends = {"calibration_slope": estimated(0.9), "calibration_in_the_large": estimated(0.01, 0.2)}
    model = {"model": ARMS[0], "num_patients": 91, "estimates": ends}
    return performance(models=[{**model, "groups": [{**groups[0], **errors}]}])


@pytest.mark.parametrize(
    ("value", "width", "said"),
    [
        (0.5, 0.1, Cell("0.50", "0.40 to 0.60")),
        (2e-5, 3e-4, Cell("0.00002", "−0.00028 to 0.00032")),
        (0.99956, 4e-4, Cell("0.9996", "0.9992 to 1.0000")),
        (0.0, 0.0, Cell("0.00", "0.00 to 0.00")),
        (5.18e21, 1e21, Cell("5.2e+21", "4.2e+21 to 6.2e+21")),
    ],
)
def test_the_ends_of_an_interval_are_told_apart(value: float, width: float, said: Cell) -> None:
    assert estimate_cell(Estimate.model_validate(estimated(value, width))) == said


def test_what_rounds_to_nothing_has_no_sign() -> None:
    assert (figure_text(-1e-9), figure_text(-0.001)) == ("0.000", "-0.001")
    for metric, low, value, high, text, interval in (
        ("r2", -0.12, -1e-9, -1e-9, "0.000", "-0.12 to 0.00"),
        ("rmse", 0, 0.0, 0.0212, "0", "0.00000–0.02120"),
    ):
        shown = REGISTRY["regression"].metric(metric)
        ends = {metric: {"low": low, "high": high}}
        raw = {"num_patients": 9, metric: value, "intervals": ends}
        assert shown.text(value) == text
        assert interval_text(FinalMetrics.model_validate(raw), shown) == interval


def test_a_hospitals_words_cannot_become_part_of_the_page(folder: Path) -> None:
    run = make_run(reasons={"miscoded": EVIL})
    conclusion = Comparison.model_validate(
        {**(run.result.comparison or Comparison.model_construct()).model_dump(), "arm": EVIL}
    )
    result = run.result.model_copy(
        update={
            "class_counts": {EVIL: 57, "malignant": 34},
            "comparison": conclusion,
            "command": EVIL,
            "commit": EVIL,
            "started": EVIL,
            "contributions": {EVIL: run.result.contributions["home"]},
        }
    )
    strange = HospitalRecord("accepted", weight_after=0.5, distance=1.0, num_samples=3)
    records = [
        replace(record, note=EVIL, hospitals={**record.hospitals, EVIL + "$x^2$": strange})
        for record in run.records
    ]
    html = written(Run(run.study, records, result), folder)
    calm = make_run(reasons={"miscoded": "no"})
    calm = replace(calm, records=[replace(record, note="no") for record in calm.records])
    harmless = Page(written(calm, folder.with_name("harmless")))
    assert {tag for tag, _ in Page(html).tags} == {tag for tag, _ in harmless.tags}
    assert "\x1b" not in html
    assert "<script>alert(1)</script>" in Page(html).text  # shown as it is, as text


def test_skipped_rounds_are_shaded_counted_and_told_with_their_reason() -> None:
    values = values_of(make_run(skipped=(8, 9)))
    assert values["has_skipped"]
    assert values["has_gaps"]
    assert values["metric_rows"][0][-2].remark == "2 skipped"
    arm, rounds, who, what = values["events"][0]
    assert (arm, rounds, who, what.partition(":")[0]) == ("weight_erosion", "8–9", "all", "skipped")
    whole = values_of(make_run(rounds=1))
    assert not whole["has_skipped"]
    assert not whole["has_gaps"]


def test_who_was_missing_stands_beside_the_verdict(folder: Path) -> None:
    run = make_run()
    missing = absences(HOSPITALS, "home", {"fedavg": [r for r in run.records if r.arm == "fedavg"]})
    told = replace(run, result=run.result.model_copy(update={"absent": missing}))
    (sentence,) = values_of(told)["cautions"]
    text = Page(written(told, folder)).text
    assert text.index(sentence) < text.index("It rests")
    assert values_of(run)["cautions"] == []


def test_arms_are_said_to_differ_only_where_they_do() -> None:
    accepted, away = HospitalRecord("accepted"), HospitalRecord("absent", "did not answer")
    not_asked = HospitalRecord("not_asked")

    def differ(**arms: list[HospitalRecord | None]) -> bool:
        records = {
            arm: [
                RoundRecord(arm, number, "done", "", {} if entry is None else {"b": entry})
                for number, entry in enumerate(entries, start=1)
            ]
            for arm, entries in arms.items()
        }
        (found,) = absences(["a", "b"], "a", records)
        assert (len(absence_sentences([found])) == 2) == found.arms_differ
        return found.arms_differ

    assert differ(x=[accepted, away, accepted], y=[accepted, accepted, away])
    assert differ(x=[accepted, away], y=[accepted, accepted])
    assert not differ(x=[accepted, away])
    assert not differ(x=[accepted, away], local=[None, None])
    assert not differ(x=[accepted, away], y=[accepted, away])
    assert not differ(x=[away, accepted, not_asked], y=[away, accepted, accepted])
    # In the first fold y was stopped a round earlier; both miss the hospital as the second begins.
    rounds = {
        arm: [
            RoundRecord(arm, number, "done", "", {"b": accepted}) for number in range(1, last + 1)
        ]
        + [RoundRecord(arm, 1, "done", "", {"b": away})]
        for arm, last in (("x", 3), ("y", 2))
    }
    assert not absences(["a", "b"], "a", rounds)[0].arms_differ


def test_a_hospital_whose_number_of_patients_changed_is_told_of(folder: Path) -> None:
    run = make_run(arms=("fedavg", "local"), hospitals=("home", "alike"), rounds=4)
    told = {("fedavg", 1): 120, ("fedavg", 3): 140, ("fedavg", 4): 140}  # away in round 2
    records = [
        replace(
            record,
            hospitals={
                **record.hospitals,
                "alike": replace(
                    record.hospitals["alike"],
                    described_samples=told.get((record.arm, record.round)),
                ),
            },
        )
        for record in run.records
        if "alike" in record.hospitals
    ]
    found = recounts(records)
    assert found == (Recount(hospital="alike", arm="fedavg", round=3, before=120, after=140),)
    result = run.result.model_copy(update={"recounts": found})
    (said,) = recount_sentences(found)
    assert re.findall(r"alike|fedavg|\d+", said) == ["alike", "120", "3", "fedavg", "140"]
    assert said in Page(written(replace(run, result=result), folder)).text
    assert said in InterfaceRun(run.study, result, None).notes
    assert recount_sentences(found * 8)[-1].startswith("2 more ")
    assert recounts(run.records) == ()


def test_a_study_of_one_arm_without_peers_has_no_weights_and_no_comparison(folder: Path) -> None:
    run = make_run(arms=("local",))
    values = values_of(run)
    assert (values["weights"], values["distances"], "share" in values) == ("", "", False)
    assert "[arms.local]" in run.result.verdict.figures
    assert written(run, folder).count("<svg") == 2


def test_thousands_of_rounds_make_no_heavy_page(folder: Path) -> None:
    assert len(written(make_run(rounds=1500, arms=("fedavg", "local")), folder)) < 500_000


def test_an_event_of_many_rounds_is_told_once() -> None:
    run = make_run(reasons={"miscoded": "ROUND, not 99"})
    found = [row for row in values_of(run)["events"] if "not 99" in row[-1]]
    assert [row[1] for row in found] == ["1–30", "1–30"]  # weight_erosion and fedavg


def test_a_flood_of_events_is_cut_with_a_pointer_to_the_journal(folder: Path) -> None:
    run = make_run(arms=("fedavg", "local"), hospitals=MANY)
    flood = {
        f"h{letter}{other}": HospitalRecord("rejected", f"{letter}{other}")
        for letter in "abcdefghijklmnopqrst"
        for other in "abcdefghijklmnopqrst"
    }
    records = [replace(run.records[0], hospitals=flood), *run.records[1:]]
    html = written(replace(run, records=records), folder)
    assert html.count("rejected: ") == 200
    assert re.search(r"200 more.* rounds\.jsonl", html)


def test_of_the_journal_a_rounds_last_line_counts_and_no_half_of_one(folder: Path) -> None:
    run = make_run(arms=("fedavg",), rounds=2)
    last = replace(run.records[-1], seconds=9.0)
    cut = replace(run, records=(*run.records, last), extra_lines=('{"arm": "fed',))
    path = cut.write(folder)
    assert [r.seconds for r in read_run(RunFolder(path)).records][1:] == [9.0]


def test_how_it_was_made_can_be_repeated_from_the_page(folder: Path) -> None:
    run = make_run(rounds=1)
    html = written(run, folder)
    facts = dict(re.findall("<dt>([^<]*)</dt><dd>([^<]*)</dd>", html))
    assert facts["Command"] == escape(run.result.command)
    assert run.result.commit in facts["Program"]
    assert (facts["Seed"], facts["Scaling"]) == ("0", "None.")
    assert {"Model", "Training", "Arm weight_erosion", "Evaluation", "Federation"} <= set(facts)
    assert "mean radius" in Page(html).text  # of the study file


def test_too_few_patients_is_said_without_a_winner() -> None:
    run = make_run(rounds=1)
    assert run.result.comparison is not None
    comparison = run.result.comparison.model_copy(
        update={"conclusion": "too few patients", "smallest_class": 3, "num_patients": 12}
    )
    finals = {arm: result.metrics for arm, result in run.result.arms.items()}
    said = verdict(run.result.task, comparison, finals)
    assert said.best_arm is None
    assert said.finding.startswith("12 ")
    result = run.result.model_copy(update={"comparison": comparison, "verdict": said})
    assert values_of(replace(run, result=result))["best"] is None


@pytest.mark.parametrize(
    ("p_value", "told"),
    [
        (1 / 20_001, "< 0.001."),
        (401 / 20_001, "= 0.02005 (a difference is claimed up to 0.02)."),
        (0.020000001, "= 0.020000001 (a difference is claimed up to 0.02)."),
        (0.06, "= 0.06."),  # nobody would claim one
        (0.02, "= 0.02."),
    ],
)
def test_a_p_value_is_told_on_its_side_of_a_level_and_never_as_zero(
    p_value: float, told: str
) -> None:
    result = make_run().result
    assert result.comparison is not None
    comparison = result.comparison.model_copy(update={"p_value": p_value})
    finals = {arm: found.metrics for arm, found in result.arms.items()}
    assert told in verdict(result.task, comparison, finals).text


@pytest.mark.parametrize(("loss", "named_in"), [(0.05, 2), (0.2, 1), (0.3, 0)])
def test_a_model_alone_that_is_as_good_as_the_arm_is_named(loss: float, named_in: int) -> None:
    result = make_run().result
    assert result.comparison is not None
    comparison = result.comparison.model_copy(
        update={"conclusion": "better", "chosen": {result.comparison.reference: 1, "ridge": 0}}
    )
    finals = {
        arm: ended.metrics.model_copy(
            update={"log_loss": 0.4 if arm == comparison.reference else 0.1}
        )
        for arm, ended in result.arms.items()
    }
    ridge = finals[comparison.arm].model_copy(update={"log_loss": loss})
    said = verdict(result.task, comparison, finals, references={"ridge": ridge})
    assert (f"{loss:.3f}" in said.figures) == (named_in > 0)
    assert ("ridge" in said.finding) == (named_in > 1)  # no worse than the arm
    assert said.best_arm == comparison.arm


@pytest.mark.parametrize("column", [None, "size"])
def test_too_good_figures_are_the_finding_only_where_a_column_explains_them(
    column: str | None,
) -> None:
    result = make_run().result
    finals = {arm: found.metrics for arm, found in result.arms.items()}
    leak = Leak(metric="auroc", arm="local", figure=0.999, column=column, alone=0.99)
    said = verdict(result.task, result.comparison, finals, leak=leak)
    sentence = leak.sentence(result.task)
    assert (said.finding == sentence, sentence in said.text) == (column is not None, True)


def test_every_arm_that_is_worse_than_the_base_rate_is_named() -> None:
    result = make_run(arms=("weight_erosion", "fedavg", "local")).result
    finals = {arm: found.metrics for arm, found in result.arms.items()}
    assert result.base_rate is not None

    def said(*worse: str, log_loss: float = 0.7, low: float = 0.67, **keys: Any) -> str:
        figures = {"log_loss": log_loss, "intervals": {"log_loss": {"low": low, "high": 0.73}}}
        bad = {arm: figures if arm in worse else {} for arm in finals}
        arms = {
            arm: FinalMetrics.model_validate({**found.model_dump(), **bad[arm]})
            for arm, found in finals.items()
        }
        return verdict(result.task, result.comparison, arms, result.base_rate, **keys).text

    def named(text: str) -> list[str]:
        """The arms in the sentence that warns."""
        (sentence,) = (each for each in text.split(". ") if "WORSE" in each)
        return re.findall(r"\b(weight_erosion|fedavg|local)\b", sentence)

    assert "WORSE" not in said()
    assert named(said("weight_erosion", "local")) == ["weight_erosion", "local"]
    assert named(said(*finals)) == list(finals)
    # The warning comes first where it is about the arm that is delivered, and last otherwise.
    assert "WORSE" in said("weight_erosion").split(". ")[0]
    assert named(of_another := said("fedavg")) == ["fedavg"]
    assert "WORSE" in of_another.split(". ")[-1]
    assert "class weights" in said("weight_erosion", shifted_by="class weights")
    # Where the interval holds the base rate's .661, nothing is claimed.
    unsure = said("local", log_loss=0.666, low=0.601, shifted_by="class weights")
    assert "WORSE" not in unsure
    assert "class weights" in unsure
    assert re.search(r"local.* 0\.666 .*0\.601–0\.730", unsure)


def test_a_model_that_ranks_the_wrong_way_round_asks_how_the_outcome_is_coded() -> None:
    result = make_run(arms=("weight_erosion", "fedavg", "local")).result

    def said(far: Mapping[str, float], log_loss: float = 2.4) -> str:
        arms = {}
        for arm, ended in result.arms.items():
            raw = ended.metrics.model_dump()
            if arm in far:
                raw |= {"log_loss": log_loss, "auroc": 0.1}
                raw["intervals"] = {
                    "log_loss": {"low": log_loss - 0.1, "high": log_loss + 0.1},
                    "auroc": {"low": 0.0, "high": far[arm]},
                }
            arms[arm] = FinalMetrics.model_validate(raw)
        return verdict(result.task, result.comparison, arms, result.base_rate).text

    assert re.search(r"\. fedavg ranks .*\?$", said({"fedavg": 0.2}))
    both = said({"weight_erosion": 0.49, "fedavg": 0.2})
    assert re.search(r"\. weight_erosion and fedavg rank .*\?$", both)
    assert "wrong way" not in said({"fedavg": 0.5})  # chance ranks no better
    assert "wrong way" not in said({"fedavg": 0.2}, log_loss=0.3)  # of use all the same


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("share", 0.0204, "2.04 %"),
        ("share", 401 / 20_001, "2.005 %"),
        ("share", 0.3, "30 %"),
        ("difference", -0.159, "−0.159"),
        ("difference", -0.0004, "−0.0004"),
        ("difference", -3e-6, "−0.000003"),
        ("difference", -1e-9, "0.000"),
    ],
)
def test_a_share_is_not_rounded_to_the_level_and_a_small_difference_keeps_its_sign(
    key: str, value: float, shown: str
) -> None:
    run = make_run(rounds=1)
    assert run.result.comparison is not None
    changes: dict[str, Any] = {"mean_difference": value}
    if key == "share":
        changes = {"p_value": value, "conclusion": "no clear difference"}
    changed = run.result.comparison.model_copy(update=changes)
    result = run.result.model_copy(update={"comparison": changed})
    assert values_of(replace(run, result=result))[key] == shown


def test_a_class_of_few_test_patients_is_named_beside_the_verdict() -> None:
    task = REGISTRY["classification"]
    counts = {"naevus": 60, "melanoma": 28, "vascular": 3, "wart": 0}
    said = what_may_be_unseen(91, counts, task)
    assert re.findall("naevus|melanoma|vascular|wart", said) == ["vascular", "wart"]
    for enough in ({"benign": 57, "malignant": 34}, {}):
        assert what_may_be_unseen(91, enough, task).endswith("91.")


def test_a_count_that_is_not_told_is_not_called_small() -> None:
    task, survival = REGISTRY["classification"], REGISTRY["survival"]
    hidden = {"a": None, "b": 27, "c": None}
    assert re.findall(r"\d+", class_sizes(hidden)) == ["27"]
    assert class_sizes({"0": 14, "1": None}).startswith("14 of class 0")  # no number by itself
    assert class_sizes({"no": 14, "yes": 26}) == "14 no, 26 yes"

    def said(num_patients: int, counts: dict[str, int | None], of: Any) -> str:
        """What is said after the number of all."""
        return what_may_be_unseen(num_patients, counts, of).partition(f" {num_patients}. ")[2]

    assert "class a or c" in said(47, hidden, task)
    assert "class c" in said(47, {"a": 20, "b": 27, "c": None}, task)
    both = said(40, {"with the event": None, "censored": None}, survival)
    few = said(40, {"with the event": 37, "censored": 3}, survival)
    assert ("event" in both, "censored" in both) == (True, True)
    assert ("event" in few, "censored" in few) == (False, True)
    assert not re.search(r"\d", both + few)


@pytest.mark.parametrize("ends", [(0.0, 0.0), (3.0, 3.0), (float("nan"), 1.0), (-1e100, 1e100)])
def test_a_chart_of_odd_values_is_drawn(ends: tuple[float, float]) -> None:
    plot = Plot(ends, ends, "x", "y")
    plot.line("a", [(ends[0], ends[1])] if ends[0] == ends[0] else [], 40)
    ElementTree.fromstring(standalone(plot.svg("t")))


def test_of_many_hospitals_the_heaviest_are_drawn_and_all_are_counted(folder: Path) -> None:
    svg = weight_figure(data_of(make_run(hospitals=MANY)))
    assert len(re.findall(r'class="name">hospital-\d\d', svg)) == 14
    assert "And 5 more hospitals" in Page(written(make_run(hospitals=MANY), folder)).text


def test_the_report_says_what_the_run_has_cost_the_others_patients() -> None:
    run = make_run()
    terms = {"epsilon": 3.0, "learning_rate": 1.0}
    raw = {**run.study.model_dump(mode="json"), "privacy": terms, "scaling": "user"}
    study = Study.model_validate(raw)
    found = privacy_spent(study, {arm: data_of(run).of(arm) for arm in ARMS})
    assert found is not None
    assert set(found.spent) == set(HOSPITALS) - {"home"}
    assert max(found.spent.values()) <= 3.0
    assert found.spent["miscoded"] < found.spent["alike"]  # who is eroded is asked no more
    told = replace(run, result=run.result.model_copy(update={"privacy": found}))
    assert f"alike {found.spent['alike']:.3g}" in " ".join(values_of(told)["below_metrics"])
    assert privacy_spent(run.study, {}) is None


def test_predictions_are_drawn_and_each_figure_has_its_files(folder: Path) -> None:
    run = with_performance(performance())
    page = Page(written(run, folder))
    named = {attributes.get("id") for _, attributes in page.tags}
    assert {"apart", "calibration", "decisions", "groups", "effects", "tripod"} <= named
    files = {path.name for path in (folder / "figures").iterdir()}
    for name in (
        "roc-weight-erosion",
        "calibration-local",
        "net-benefit",
        "dependence-mean-radius",
    ):
        assert {f"{name}.svg", f"{name}.csv"} <= files
        ElementTree.fromstring((folder / "figures" / f"{name}.svg").read_text())
    assert {"thresholds.csv", "subgroups.csv", "importance.csv", "coefficients.csv"} <= files
    rows = [*csv.DictReader((folder / "figures" / "roc-local.csv").read_text().splitlines())]
    assert [float(row["found"]) for row in rows] == [0.0, 0.6, 0.9, 1.0]
    values = values_of(run)
    assert values["thresholds"][0][1] == report_performance.FEW
    assert values["thresholds"][1][1] == "53"
    assert values["thresholds"][1][2] == Cell("80 %", "70–90")
    assert values["groups"][1][1] == "too few"
    ((name, own, alone, _),) = values["effects"]
    assert (name, own, alone.value) == ("mean radius", Cell("2.00", "1.81 to 2.21"), "2.72")
    assert any("0.70 (0.50 to 0.90)" in sentence for sentence in values["cautions"])


def test_risks_of_an_event_say_by_when_they_count_it(folder: Path) -> None:
    found = performance()
    timed = [each.model_copy(update={"horizon": 365.0}) for each in found.models]
    run = with_performance(found.model_copy(update={"models": tuple(timed)}))
    assert values_of(run)["horizon"] == "365"
    page = written(run, folder)
    sections = re.findall(r'<section id="(\w+)".*?</section>', page, re.S)
    said = re.findall(r'<section id="(\w+)"(?:(?!</section>).)*?the event by 365;', page, re.S)
    assert {"apart", "calibration", "decisions", "groups"} == {*said} < {*sections}
    target = {"time": "t", "event": "e", "unit": "days"}
    task = {"kind": "tabular", "outcome": "survival", "target": target, "cut_points": [365, 730]}
    times = read_task({**task, "features": ["mean radius"]})
    values = values_of(replace(run, study=run.study.model_copy(update={"task": times})))
    assert all("by 730 days" in each.svg for each in values["dependent"])
    assert values["dependent"]


def test_of_many_classes_each_has_its_own_decisions(folder: Path) -> None:
    model = performance().models[0]
    shares = {"mild": 0.2, "severe": 0.5}
    models = [model.model_copy(update={"event": e, "prevalence": p}) for e, p in shares.items()]
    run = with_performance(performance(models=[each.model_dump() for each in models]))
    values = values_of(run)
    assert [row[0] for row in values["thresholds"]] == [
        f"{event}: {threshold} %" for event in shares for threshold in (10, 20)
    ]
    assert [name for name, _ in values["useful"]] == [
        f"weight_erosion’s risk of {e}" for e in shares
    ]
    written(run, folder)
    lines = csv.DictReader((folder / "figures" / "net-benefit.csv").read_text().splitlines())
    at_none = {
        line["model"]: float(line["net_benefit"]) for line in lines if line["threshold"] == "0.0"
    }
    assert {
        f"everybody: {event}": share for event, share in shares.items()
    }.items() <= at_none.items()


def test_effects_say_of_how_much_and_leave_out_what_says_nothing() -> None:
    """A curve has no one ratio, and an indicator that no patient has no effect."""
    found = [
        {"column": "mean radius", "value": 0.5},
        {"column": "mean radius", "category": "missing", "value": 1e-9},
        {"column": "mean texture", "value": 0.7},
        {"column": "mean texture", "category": "curve 1", "value": 0.1},
    ]
    run = with_performance(performance(coefficients=found))
    raw = run.study.model_dump(mode="json")
    radius, texture = raw["task"]["features"]
    raw["task"]["features"] = [{**radius, "unit": "mm"}, {**texture, "knots": [1, 2, 3]}]
    raw["task"]["missing"] = "impute"
    column = {"name": "mean radius", "kind": "number", "count": 30, "missing": 10}
    described = {"min_cell": 10, "num_samples": 40, "num_patients": 40}
    summary = Summary.model_validate(
        {**described, "columns": [{**column, "mean": 14.0, "deviation": 3.5}]}
    )
    result = run.result.model_copy(update={"patients": {"home": summary}})
    values = values_of(replace(run, study=Study.model_validate(raw), result=result))
    assert [row[0] for row in values["effects"]] == [Cell("mean radius", "per 3.5 mm")]
    assert values["curved"] == ["mean texture"]
    assert [row[0] for row in values["table1"]] == ["mean radius, mm", "mean radius: not known"]
    assert re.findall(r"\d+", values["table1"][1][1]) == ["25"]


def test_a_thousand_hospitals_and_many_columns_fit_on_a_page(folder: Path) -> None:
    names = ("home", *(f"hospital-{number:03}" for number in range(1, 1000)))
    run = make_run(arms=("weight_erosion", "local"), hospitals=names, rounds=3)
    raw = run.study.model_dump(mode="json")
    columns = [f"column {number}" for number in range(500)]
    raw["task"]["features"] = columns
    raw["names"] = {name: f"The hospital of {name}" for name in names}
    described = {"min_cell": 10, "num_samples": 100, "num_patients": 100}
    one = {"kind": "number", "count": 100, "missing": 10, "mean": 1.0, "deviation": 2.0}
    shares = {f"c{number}": 10 for number in range(12)}
    coded = {"name": "column 0", "kind": "category", "count": 120, "missing": 0, "shares": shares}
    summary = Summary.model_validate(
        {**described, "columns": [coded, *({"name": name, **one} for name in columns[1:80])]}
    )
    effects = [{"column": name, "value": 0.1, "alone": estimated(0.1)} for name in columns[:100]]
    important = [{"column": name, "loss": estimated(0.1)} for name in columns[:100]]
    found = performance(coefficients=effects, subgroups=[], importance=important, dependence=[])
    told = {"patients": dict.fromkeys(names[:12], summary), "performance": found}
    values = values_of(
        replace(run, study=Study.model_validate(raw), result=run.result.model_copy(update=told))
    )
    assert len(values["table1_headings"]) == 1 + 12
    assert [row[0] for row in values["table1"][9:11]] == ["column 0: c9", "column 0: 2 more"]
    assert any("988 hospitals" in note for note in values["flow_notes"])
    assert len(values["flow"]) == report_patients.MOST_FLOWS
    assert len(render_page("report.html", **values)) < 2_000_000


def test_hospitals_that_gave_nothing_are_not_said_to_have_taught_it() -> None:
    run = make_run(rounds=3, reasons={"alike": "wrong"})
    assert data_of(run).trained_with("fedavg") == len(HOSPITALS) - 2
    assert data_of(run).trained_with("local") == 0
    one, two, *_ = (record for record in run.records if record.arm == "fedavg")
    undone = [one, replace(two, outcome="skipped", undoes=1)]
    assert replace(data_of(run), records=undone).trained_with("fedavg") == 0
    names = {name: f"The {name} hospital" for name in HOSPITALS}
    study = run.study.model_copy(update={"names": names})
    missing = absences(HOSPITALS, "home", {arm: data_of(run).of(arm) for arm in ARMS})
    result = run.result.model_copy(update={"absent": missing})
    said = warnings_of(RunData(study, run.records, result))
    assert any("The alike hospital" in sentence for sentence in said)


def test_an_exact_regression_is_shown_with_its_own_interval() -> None:
    effect = {"column": "mean radius", "value": 0.693147, "pooled": estimated(0.693147, 0.2)}
    values = values_of(with_performance(performance(coefficients=[effect])))
    assert values["effects"][0][1] == Cell("2.00", "1.64 to 2.44")
    task = {"kind": "tabular", "outcome": "count", "target": "y", "centre": 2, "spread": 1}
    counts = read_task({**task, "features": ["mean radius"]})
    run = with_performance(performance(coefficients=[effect]))
    values = values_of(replace(run, study=run.study.model_copy(update={"task": counts})))
    assert values["effects"][0][1] == Cell("2.00", "1.64 to 2.44")
    assert "Rate ratio" in values["effect_headings"]


def test_an_effect_in_a_small_unit_has_its_digits() -> None:
    task = {"kind": "tabular", "outcome": "regression", "target": "y", "centre": 0, "spread": 1}
    numbers = read_task({**task, "features": ["mean radius"]})
    effect = {"column": "mean radius", "value": -0.00123456}
    run = with_performance(performance(coefficients=[effect]))
    values = values_of(replace(run, study=run.study.model_copy(update={"task": numbers})))
    assert values["effects"][0][1] == Cell("−0.00123")


@pytest.mark.parametrize(("ratio", "says"), [(1.5, "too high"), (0.6, "too low"), (1.0, "")])
def test_a_group_whose_risks_are_off_is_named_at_the_top(ratio: float, says: str) -> None:
    group = {"column": "sex", "group": "female", "num_patients": 40}
    found = performance(subgroups=[{**group, "calibration": estimated(ratio)}])
    off = [line for line in values_of(with_performance(found))["cautions"] if "female" in line]
    assert len(off) == bool(says)
    assert all(says in line for line in off)


def test_the_more_groups_the_further_off_is_one_that_is_named() -> None:
    ratio = estimated(1.3, 0.25)
    for num, named in ((1, 1), (2, 2), (12, 0)):
        groups = [
            {"column": "ward", "group": f"ward {n}", "num_patients": 40, "calibration": ratio}
            for n in range(num)
        ]
        cautions = values_of(with_performance(performance(subgroups=groups)))["cautions"]
        assert sum("where ward" in line for line in cautions) == named


def test_a_page_without_predictions_says_why(folder: Path) -> None:
    run = with_performance(Performance(why_not="Fewer than 10 had it."))
    assert "Fewer than 10 had it." in Page(written(run, folder)).text
    assert not [*folder.glob("figures/roc*"), *folder.glob("figures/calibration*")]


def test_names_of_others_do_not_become_markup_in_figures(folder: Path) -> None:
    html = written(with_performance(performance()), folder)
    assert "<script" not in html
    assert "<script" not in (folder / "figures" / "dependence-mean-texture.svg").read_text()


def test_the_rounded_report_has_none_of_the_users_exact_figures(folder: Path) -> None:
    run = with_performance(performance())
    written(run, folder)
    path = write_report(folder, is_rounded=True)
    assert path.name == "report-rounded.html"
    text = Page(path.read_text()).text
    exact = Page((folder / "report.html").read_text()).text
    for figure in ("91 test patients", "57 benign", "0.813"):
        assert figure in exact
        assert figure not in text
    assert "90 test patients" in text
    assert "60 benign" in text
    assert (folder / "figures-rounded" / "roc-local.csv").exists()
    whole = data_of(run).rounded().result
    assert whole.comparison is not None
    assert whole.comparison.p_value == 0.0061
    assert whole.verdict.best_arm == run.result.verdict.best_arm
    # What a verdict says of the study, the rounded one says, too.
    folds, task = {"folds": 5}, run.study.task.model_copy(update={"class_weights": "balanced"})
    study = run.study.model_copy(
        update={"task": task, "evaluation": run.study.evaluation.model_copy(update=folds)}
    )
    arms = {
        name: arm.model_copy(
            update={"metrics": arm.metrics.model_copy(update={"log_loss": 2.0, "intervals": {}})}
        )
        for name, arm in run.result.arms.items()
    }
    worse = replace(data_of(run), study=study, result=run.result.model_copy(update={"arms": arms}))
    assert says(worse.rounded().result.verdict.text, "class weights", "never saw them")


def test_rounding_hides_no_warning() -> None:
    run = make_run()
    worse = {"log_loss": 0.664, "intervals": {"log_loss": {"low": 0.662, "high": 0.7}}}
    metrics = FinalMetrics.model_validate({**final_metrics("local", 30).model_dump(), **worse})
    arms = {a: e.model_copy(update={"metrics": metrics}) for a, e in run.result.arms.items()}
    assert run.result.comparison is not None  # 5 may stand for "at least 5"
    few = run.result.comparison.model_copy(update={"smallest_class": 5, "p_value": 0.015})
    leak = Leak(metric="auroc", arm="local", figure=0.9964)
    slope = Estimate.model_validate(estimated(0.93, 0.0678))  # up to 0.998
    group = {
        "column": "sex",
        "group": "f",
        "num_patients": 40,
        "calibration": estimated(0.93, 0.067),
    }
    made = performance(subgroups=[group])
    models = [m.model_copy(update={"estimates": {"calibration_slope": slope}}) for m in made.models]
    update = {"arms": arms, "comparison": few, "leak": leak}
    update["performance"] = made.model_copy(update={"models": tuple(models)})
    exact = replace(data_of(run), result=run.result.model_copy(update=update))
    rounded = exact.rounded()
    said, published = (
        [re.sub(r"[0-9.]+", "", line) for line in warnings_of(each)] for each in (exact, rounded)
    )
    assert len(said) == 4
    assert published == said
    assert says(rounded.result.verdict.text, "WORSE", "Near the line")
    assert not {"0.996", "1.000"} & {*rounded.result.verdict.text.split()}


def test_table_1_and_the_flow_are_of_what_hospitals_disclosed(folder: Path) -> None:
    column = {
        "name": "mean radius",
        "kind": "number",
        "count": 120,
        "missing": 0,
        "mean": 1425.0,
        "deviation": 1400.0,
    }
    classes = {
        "name": "diagnosis",
        "kind": "outcome",
        "count": 120,
        "missing": 0,
        "shares": {"benign": 80, "malignant": 40},
    }
    summary = Summary.model_validate(
        {
            "min_cell": 10,
            "num_samples": 130,
            "num_patients": 120,
            "num_unreadable": 20,
            "num_recorded": 210,
            "num_incomplete": 50,
            "num_repeated": 0,
            "columns": [column, classes],
        }
    )
    run = with_performance(Performance(), patients={"home": summary})
    values = values_of(run)
    assert values["table1_headings"] == ("Column", "home")
    assert values["table1"][0] == ("mean radius", Cell("1420 (1400)", "±180"))
    assert values["table1"][1] == ("diagnosis: benign", Cell("67 %", "59–74 %"))
    home, alike, *_ = values["flow"]
    assert home[:-1] == (
        "home",
        Cell("about 210", "201–219"),
        Cell("about 50", "41–59"),
        Cell("few or none", "0–9"),
        Cell("about 130", "121–139"),
        Cell("about 120", "111–129"),
        "about 90",
    )
    assert "20" in home[-1]
    assert alike[1:-1] == ("", "", "", "110", "", "none")  # rows are what it states
    assert "Table 1" in Page(written(run, folder)).text


def test_every_section_and_table_can_be_found_by_a_screen_reader(folder: Path) -> None:
    page = Page(written(with_performance(performance()), folder))
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    links = [a["href"] for tag, a in page.tags if tag == "a"]
    assert all(link and link.startswith("#") and link[1:] in ids for link in links)
    assert all(a.get("scope") for tag, a in page.tags if tag == "th")
    assert all(a.get("aria-hidden") or a.get("aria-label") for tag, a in page.tags if tag == "svg")
    labelled = [a["aria-labelledby"] for tag, a in page.tags if tag == "section"]
    assert len(labelled) == len(set(labelled)) > 5
    assert set(labelled) <= ids


@pytest.mark.parametrize("value", [0.0, 1e100, -1e100, 5e-324])
def test_a_site_cannot_make_a_page_that_is_not_drawn(folder: Path, value: float) -> None:
    def changed(found: Any, key: str = "") -> Any:
        if isinstance(found, Mapping):
            return {name: changed(each, name) for name, each in found.items()}
        if isinstance(found, list | tuple):
            return [changed(each, key) for each in found]
        is_share = key in ("prevalence", "threshold", "alerts")
        return value if isinstance(found, float) and not is_share else found

    found = Performance.model_validate(changed(performance().model_dump()))
    empty: dict[str, list[float]] = {"x": [], "y": [], "low": [], "high": []}
    (first, *rest) = found.model_dump()["models"]
    nothing = {**first, "curves": dict.fromkeys(first["curves"], empty), "groups": []}
    for models in (found.models, [nothing, *rest]):
        shown = Performance.model_validate({**found.model_dump(), "models": models})
        ElementTree.fromstring(standalone(values_of(with_performance(shown))["weights"]))


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"benign": 20, "malignant": 10}, "About 10 "),
        ({"benign": 20, "malignant": 0}, "Fewer than 10 "),  # 0: fewer than a cell
        ({"benign": 500, "malignant": 300}, ""),
    ],
)
def test_few_patients_are_counted_as_they_are_described(
    shares: Mapping[str, int], said: str
) -> None:
    outcome = {"name": "diagnosis", "kind": "outcome", "count": 20, "missing": 0, "shares": shares}
    num = sum(shares.values())
    raw = {"min_cell": 10, "num_samples": num, "num_patients": num, "columns": [outcome]}
    found = "".join(few_patients(make_study(), Summary.model_validate(raw)))
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_a_model_that_goes_elsewhere_takes_the_finding_s_warning_along() -> None:
    run = with_performance(performance())
    slope = next(each for each in warnings_of(data_of(run)) if "calibration slope" in each)
    said = run.result.verdict.model_copy(update={"finding": f"{slope} And so on."})
    run = replace(run, result=run.result.model_copy(update={"verdict": said}))
    assert slope in warnings_of(data_of(run))
    assert slope not in values_of(run)["cautions"]  # it heads the page


@pytest.mark.parametrize(("high", "is_warned"), [(0.97, True), (1.02, False)])
def test_a_slope_is_judged_by_the_interval_that_is_shown(high: float, is_warned: bool) -> None:
    run = in_target_unit(with_performance(of_a_number()), 10)
    arm = run.result.arms[ARMS[0]]
    slope = arm.metrics.intervals["rmse"].model_copy(update={"low": 0.1, "high": high})
    metrics = arm.metrics.model_copy(update={"intervals": {"calibration_slope": slope}})
    arms = {**run.result.arms, ARMS[0]: arm.model_copy(update={"metrics": metrics})}
    said = warnings_of(data_of(replace(run, result=run.result.model_copy(update={"arms": arms}))))
    assert [f"0.10 to {high}" in each for each in said if "slope" in each] == [True] * is_warned


def test_no_figure_takes_the_place_of_another(folder: Path) -> None:
    names = ("ضغط", "血圧", *(f"{'x' * 80} {end}" for end in "ab"))
    found = performance(
        dependence=[{"column": name, "x": [0, 1], "y": [0.2, 0.3]} for name in names]
    )
    written(with_performance(found), folder)
    heads = {path.read_text().splitlines()[0] for path in folder.glob("figures/dependence*.csv")}
    assert heads == {f"{name},mean" for name in names}


def test_whole_intervals_are_on_the_axis_of_a_calibration_chart() -> None:
    models = [each.model_dump() for each in performance().models[:1]]
    models[0]["curves"].pop("calibration")
    models[0]["groups"] = [
        {"num_patients": 18, "predicted": 0.1, "observed": estimated(0.2, 0.15)},
    ]
    (drawn,) = values_of(with_performance(performance(models=models)))["calibrated"]
    tops = re.findall(r'<line class="line s0 d0" [^>]*y1="([\d.]+)" y2="([\d.]+)"', drawn.svg)
    heights = re.findall(r'class="grid" [^>]*y1="([\d.]+)"', drawn.svg)
    assert (
        min(map(float, heights)) < float(tops[0][1]) < float(tops[0][0]) < max(map(float, heights))
    )


def test_errors_that_are_not_disclosed_are_no_table() -> None:
    number = {"num_patients": 18, "predicted": 3.0, "observed": estimated(3)}
    model = {"model": "fedavg", "num_patients": 91}
    for errors, rows in (
        ([None] * 5, []),
        ([None, -1.0, 0.0, 1.0, None], [["3", "–", "-1", "0", "1", "–", "18"]]),
    ):
        models = [{**model, "groups": [{**number, "errors": errors}]}]
        assert values_of(with_performance(performance(models=models)))["errors"] == rows


def test_every_chart_of_the_page_has_its_files(folder: Path) -> None:
    run = with_performance(performance())
    page = written(run, folder)
    charts = re.findall(r"<svg viewBox.*?</svg>", page, re.DOTALL)
    kept = "".join(path.read_text("utf-8") for path in folder.glob("figures/*.svg"))
    assert len(charts) > 5
    assert all(chart.partition(">")[2] in kept for chart in charts)
    assert all(path.with_suffix(".csv").exists() for path in folder.glob("figures/*.svg"))
    text = (folder / "figures" / "weights.csv").read_text("utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    last = data_of(run).of(data_of(run).first_arm)[-1].hospitals
    told = {
        row["hospital"]: float(row["weight"]) for row in rows if row["round"] == rows[-1]["round"]
    }
    assert told == {name: last[name].weight_after for name in told}
