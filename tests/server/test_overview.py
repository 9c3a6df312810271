"""Every hospital's result side by side: its claims, and how they are shown."""

import io
import re
from pathlib import Path

import pytest
from pydantic import ValidationError
from rich.console import Console

from erosion_common.protocol.messages import (
    LARGEST_FIGURE,
    Comparison,
    Conclusion,
    FinalMetrics,
    Interval,
)
from erosion_server.output.pages import render_page
from erosion_server.output.report import overview_values, write_overview
from erosion_server.output.tables import print_overview
from erosion_server.run.findings import Contribution
from erosion_server.run.overview import (
    TOO_FEW,
    UNCLEAR,
    EarlyStop,
    Overview,
    UserResult,
    adjusted,
    line_of,
    overview,
    verdict,
)
from erosion_server.run.result import NOTHING_COMPARED
from tests.support.html_page import EVIL, Page
from tests.support.refusals import refused
from tests.support.synthetic_run import HOSPITALS, make_run, make_study

USERS = ("a", "b", "c", "d")


def line(
    p_value: float, conclusion: Conclusion | None = None, *, log_loss: float = 0.2
) -> UserResult:
    """A hospital's, with `conclusion` None for what its p-value alone would claim."""
    figures = {
        arm: FinalMetrics.model_validate(
            {
                "num_patients": 40,
                "accuracy": 0.9,
                "majority_accuracy": 0.6,
                "auroc": None,
                "brier": 0.1,
                "log_loss": value,
                "intervals": {},
            }
        )
        for arm, value in (("weight_erosion", log_loss), ("local", 0.4))
    }
    alone: Conclusion = "better" if p_value <= 0.02 else UNCLEAR
    comparison = Comparison(
        arm="weight_erosion",
        reference="local",
        num_patients=40,
        smallest_class=10,
        mean_difference=log_loss - 0.4,
        p_value=p_value,
        conclusion=conclusion or alone,
    )
    return UserResult(
        arms=figures,
        class_counts={"benign": 24, "malignant": 16},
        comparison=comparison,
        weights={"a": 1.0, "b": 0.25},
    )


def of(lines: dict[str, UserResult], without: dict[str, str] | None = None) -> Overview:
    return overview(
        make_study(), lines, without or {}, started="2026-01-02T03:04:05+00:00", seconds=9.0
    )


def shown(found: Overview) -> str:
    """On its page."""
    return render_page("overview.html", **overview_values(found, {}))


def printed(found: Overview) -> str:
    """On a terminal of eighty columns."""
    stream = io.StringIO()
    console = Console(file=stream, width=80, color_system=None, force_terminal=False)
    print_overview(console, found, Path("runs/x/report.html"))
    return stream.getvalue()


def test_huge_figures_of_two_hospitals_leave_the_others_their_page() -> None:
    huge = line(0.5, log_loss=LARGEST_FIGURE)
    found = of({"a": huge, "b": huge, "c": line(0.001)})
    with refused(ValidationError, "metric"):
        line(0.5, log_loss=1.01 * LARGEST_FIGURE)
    assert "better" in Page(shown(found)).text
    assert "c" in printed(found)


def test_holms_method_by_hand() -> None:
    # Of four p-values .01, .04, .03, .005 Holm's are: .005 x 4 = .02; .01 x 3 = .03; .03 x 2 = .06;
    # .04 x 1 = .04, but never less than the one before: .06.
    lines = adjusted(dict(zip(USERS, map(line, (0.01, 0.04, 0.03, 0.005)), strict=True)))
    found = [lines[user].adjusted_p_value for user in USERS]
    assert found == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert [lines[user].conclusion for user in USERS] == [UNCLEAR, UNCLEAR, UNCLEAR, "better"]


def test_adjusted_p_values_are_held_against_the_level_of_the_comparison() -> None:
    def cross_fitted(p_value: float) -> UserResult:
        alone = line(p_value)
        assert alone.comparison is not None
        comparison = alone.comparison.model_copy(update={"level": 0.01})
        return alone.model_copy(update={"comparison": comparison})

    lines = adjusted({"a": cross_fitted(0.008), "b": cross_fitted(0.004), "c": cross_fitted(0.003)})
    assert [lines[user].adjusted_p_value for user in "abc"] == pytest.approx([0.009, 0.009, 0.009])
    assert [lines[user].conclusion for user in "abc"] == ["better"] * 3
    lines = adjusted({"a": cross_fitted(0.008), "b": cross_fitted(0.007)})
    assert [lines[user].conclusion for user in "ab"] == [UNCLEAR, UNCLEAR]  # .014 of .01
    assert overview_values(of(lines), {})["level"] == 0.01


def test_an_adjusted_p_value_above_the_level_is_not_rounded_onto_it() -> None:
    found = of({"a": line(401 / 40_002), "b": line(0.5)})  # adjusted, 0.02005 of 0.02
    assert found.users["a"].conclusion == UNCLEAR
    assert "0.02005" in printed(found)
    assert " 0.02005 " in Page(shown(found)).text


def test_a_p_value_is_never_above_one_and_hospitals_with_too_few_patients_do_not_count() -> None:
    lines = adjusted({"a": line(0.9), "b": line(0.01), "c": line(0.001, TOO_FEW)})
    assert lines["a"].adjusted_p_value == 0.9
    assert lines["b"].adjusted_p_value == pytest.approx(0.02)
    assert (lines["c"].adjusted_p_value, lines["c"].conclusion) == (None, TOO_FEW)


def test_the_verdict_names_those_whom_it_helps_and_those_whom_it_harms() -> None:
    lines = {"a": line(0.001), "b": line(0.001, "worse", log_loss=0.8), "c": line(0.5)}
    said = of(lines).verdict
    assert re.search(r"better .*1 \(a\) of 3.* worse .*1 \(b\)", said)
    assert re.findall(r"0\.\d{3}", said)[:2] == ["0.400", "0.400"]  # mean log losses
    unclear = of({"a": line(0.3), "b": line(0.1, TOO_FEW)}).verdict
    assert re.search(r"1 of 2.* too few .*1 \(b\)", unclear)
    assert of({"b": line(0.1, TOO_FEW)}).verdict.startswith("Too few")


def test_an_arm_that_stopped_is_named_with_the_users_it_stopped_for() -> None:
    cone = {
        "weight_erosion": EarlyStop(round=4, reason="the updates fit into no cone of 84 degrees")
    }
    still = {"local": EarlyStop(round=2, reason="the user's update is zero")}
    lines = {
        "a": line(0.5).model_copy(update={"stopped": cone}),
        "b": line(0.5).model_copy(update={"stopped": {"weight_erosion": EarlyStop(
            round=7, reason="the updates fit into no cone of 85 degrees")}}),
        "c": line(0.5),
        EVIL: line(0.5).model_copy(update={"stopped": still}),
    }  # fmt: skip
    found = of(lines)
    said, other = overview_values(found, {})["stopped"]
    assert cone["weight_erosion"].reason in said
    assert re.findall(r"\b([ab]) in round (\d)", said) == [("a", "4"), ("b", "7")]
    assert still["local"].reason in other
    assert "script" not in [tag for tag, _ in Page(shown(found)).tags]
    assert said in " ".join(printed(found).split())
    assert overview_values(of({"a": line(0.5)}), {})["stopped"] == []


def test_without_a_comparison_nothing_is_claimed() -> None:
    alone = line(0.5).model_copy(update={"comparison": None})
    found = of({"a": alone})
    assert found.finding == NOTHING_COMPARED[0]
    assert found.users["a"].adjusted_p_value is None
    assert "Holm" not in Page(shown(found)).text


def test_each_arm_that_is_worse_than_the_base_rate_is_named_with_its_hospitals() -> None:
    base_rate = line(0.4).arms["local"].model_copy(update={"num_patients": 40})  # 0.4
    good = line(0.3).model_copy(update={"base_rate": base_rate})
    bad = line(0.5, log_loss=0.9).model_copy(update={"base_rate": base_rate})
    worse = re.compile(r"[^.]*\bweight_erosion\b[^.]*WORSE[^.]* 1 \(b\) of 2")
    assert worse.match(of({"a": good, "b": bad}).verdict)
    alone = {name: each.model_copy(update={"comparison": None}) for name, each in
             {"a": good, "b": bad}.items()}  # fmt: skip
    assert worse.match(of(alone).verdict)  # also where nothing was compared
    swapped = {"weight_erosion": good.arms["local"], "local": bad.arms["weight_erosion"]}
    other = good.model_copy(update={"arms": swapped})
    said = of({"a": other, "b": good}).verdict
    assert re.search(r"\blocal\b[^.]*WORSE[^.]* 1 \(a\) of 2[^.]*\.$", said)
    assert "WORSE" not in said.split(". ")[0]
    turned = {
        arm: FinalMetrics.model_validate(
            {
                **found.model_dump(),
                "auroc": 0.0,
                "intervals": {
                    "log_loss": {"low": 0.8, "high": 1.0},
                    "auroc": {"low": 0, "high": 0.1},
                },
            }
        )
        for arm, found in bad.arms.items()
    }
    both = of({"a": good, "b": bad.model_copy(update={"arms": turned})}).verdict
    assert re.search(r" 1 \(b\) of 2[^.]* wrong way[^.]*\?$", both)
    wide = Interval(low=0.35, high=1.4)
    arms = {
        arm: found.model_copy(update={"intervals": {"log_loss": wide}})
        for arm, found in bad.arms.items()
    }
    unsure = of({"a": good, "b": bad.model_copy(update={"arms": arms})}).verdict
    assert "WORSE" not in unsure
    assert re.search(r"\bweight_erosion\b[^.]* not better [^.]* 1 \(b\) of 2[^.]*\.$", unsure)
    task = make_study().task.model_copy(update={"class_weights": "balanced"})
    study = make_study().model_copy(update={"task": task})
    weighted = overview(study, {"b": bad}, {}, started="2026-01-02T03:04:05+00:00", seconds=9.0)
    assert "class weights" in weighted.verdict


def test_means_are_over_the_hospitals_where_every_arm_has_the_metric() -> None:
    lines = {}
    for user, own, reference in (("a", 0.9, 0.8), ("b", None, 0.5), ("c", 0.7, 0.6)):
        alone = line(0.5)
        arms = {
            arm: alone.arms[arm].model_copy(update={"auroc": value})
            for arm, value in (("weight_erosion", own), ("local", reference))
        }
        base_rate = alone.arms["local"].model_copy(update={"auroc": 0.5})
        lines[user] = alone.model_copy(update={"arms": arms, "base_rate": base_rate})
    found = of(lines)
    assert found.with_all("auroc") == ["a", "c"]
    assert found.mean("weight_erosion", "auroc") == pytest.approx(0.8)
    assert found.mean("local", "auroc") == pytest.approx(0.7)
    assert found.mean_base_rate("auroc") == pytest.approx(0.5)
    (said,) = overview_values(found, {})["fewer"]
    assert re.search("AUROC.* 2 of 3", said)
    assert said not in " ".join(printed(found).split())  # which shows no AUROC
    without = lines["b"].model_copy(update={"base_rate": None})
    assert of({**lines, "b": without}).mean_base_rate("log_loss") is None


def test_the_verdict_says_of_how_many_hospitals_its_means_are() -> None:
    def of_survival(harrell_c: float | None) -> UserResult:
        figures = {"num_patients": 40, "log_loss": 0.5, "intervals": {}}
        arms = {
            arm: FinalMetrics.model_validate({**figures, "harrell_c": value})
            for arm, value in (("weight_erosion", harrell_c), ("local", 0.6))
        }
        return line(0.5).model_copy(update={"arms": arms})

    found = of({"a": of_survival(0.8), "b": of_survival(None)})
    found = found.model_copy(update={"outcome": "survival"})
    figures = verdict(found)[1]
    assert re.findall(r"\d\.\d{3}", figures) == ["0.500", "0.500", "0.800", "0.600"]
    assert re.search(r"1 of 2\b", figures)
    assert re.search(r"Harrell's C .*1 of 2\b", " ".join(printed(found).split()))


def test_weights_are_means_over_the_rounds_that_made_the_model() -> None:
    run = make_run(rounds=1)
    arm, ended = next(iter(run.result.arms.items()))
    twice = ended.model_copy(update={"rounds": 2, "stopped": "one round is all it needs"})
    once = {name: Contribution(rounds=1, weight_sum=1.0, samples_seen=9) for name in HOSPITALS}
    changed = {"arms": {**run.result.arms, arm: twice}, "contributions": once}
    assert line_of(run.result.model_copy(update=changed)).weights == dict.fromkeys(HOSPITALS, 1.0)
    skipped = {name: Contribution(rounds=0, weight_sum=0.0, samples_seen=0) for name in HOSPITALS}
    changed["contributions"] = skipped
    assert line_of(run.result.model_copy(update=changed)).weights == dict.fromkeys(HOSPITALS, 0.0)


def test_the_page_shows_all_and_no_name_becomes_part_of_it(tmp_path: Path) -> None:
    found = of({"a": line(0.001), EVIL: line(0.5)}, {"z": EVIL})
    (tmp_path / "users" / "a").mkdir(parents=True)
    (tmp_path / "users" / "a" / "report.html").touch()
    write_overview(tmp_path / "report.html", found)
    page = Page((tmp_path / "report.html").read_text())
    tags = [tag for tag, _ in page.tags]
    assert not {"script", "img"} & set(tags)
    assert [values["href"] for tag, values in page.tags if tag == "a"] == ["users/a/report.html"]
    assert "alert(1)" in page.text  # shown, as text


def test_the_terminal_fits_into_eighty_columns() -> None:
    text = printed(of({"a": line(0.001), "b": line(0.5)}, {"z": "its site did not connect"}))
    assert max(map(len, text.splitlines())) <= 80
    row = next(row for row in text.splitlines() if row.startswith("a "))
    figures = ["40", "0.600", "0.900", "/", "0.900", "0.200", "/", "0.400", "0.002"]
    assert row.split() == ["a", *figures, "better"]
    assert "runs/x/report.html" in text
