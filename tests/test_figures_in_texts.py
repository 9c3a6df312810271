"""Figures that the texts quote are those of the result files."""

import json
import re
from pathlib import Path
from statistics import median

import pytest

from erosion_common.protocol.messages import CROSS_FITTED_SIGNIFICANCE, SIGNIFICANCE
from experiments.cells import read_cells
from experiments.experiment import RESULTS
from experiments.papers.verdict import plans
from experiments.papers.verdict_page import (
    ALIKE,
    HARDLY,
    Pooled,
    between_alike,
    between_near_equals,
    declared_level,
    holding,
    holding_between_near_equals,
    pooled,
    worst_and_mean,
)
from experiments.papers.verdict_refits import HOLD_OUT

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "experiments" / "benchmarks" / "results"
SPLITS = json.loads((ROOT / "experiments" / "results" / "splits.json").read_text())


def flowing(path: str) -> str:
    """A text without its line breaks and comment marks."""
    return re.sub(r"\s+(?:# )?", " ", (ROOT / path).read_text(encoding="utf-8"))


def errors(arm: str) -> str:
    mean, error = SPLITS["arms"][arm]["errors"]
    return f"{mean:.2f} ± {error:.2f}"


def test_the_readme_quotes_the_splits() -> None:
    text = flowing("README.md")
    assert f"--seeds {SPLITS['seeds']}`" in text
    others = [errors(arm) for arm in ("local", "fedavg", "ridge")]
    assert f"({errors('weight_erosion')} against {', '.join(others[:2])} and {others[2]} of" in text
    assert set(SPLITS["verdicts"]) == {"better", "no clear difference"}
    assert f'"better" in {SPLITS["verdicts"]["better"]} of the {SPLITS["seeds"]}' in text
    counts = {
        name: f"{found['better']} of {sum(found.values())}"
        for name, found in SPLITS["verdicts_by_reference"].items()
    }
    assert f"in {counts['local']} against training alone, in {counts['ridge']} against" in text
    assert f"in {counts['boosted_trees']} against boosted trees" in text


def test_the_readme_says_of_its_picture_what_is_in_it() -> None:
    picture = (ROOT / "docs" / "weights.svg").read_text()
    out = re.findall(r">(\S+) out in round (\d+)<", picture)
    assert [name for name, _ in out] == ["miscoded"]
    assert f"the miscoded one is out after {out[0][1]} rounds" in flowing("README.md")


def test_the_default_study_quotes_the_splits() -> None:
    text = flowing("erosion/studies/breast-cancer.toml")
    found = SPLITS["verdicts"]
    assert f'the verdict was "better" in {found["better"]} of the {SPLITS["seeds"]}' in text


def test_the_page_about_the_link_quotes_the_cost_of_a_round() -> None:
    text = flowing("docs/link.md")
    found = json.loads((BENCHMARKS / "round_overhead.json").read_text())
    for size, words in (("tiny", "62 parameters"), ("large", "11.2 million parameters")):
        measured = found["details"][size]
        systems = ("ours", "stock", "stock-torch", "copy")
        seconds = (median(measured[system]["seconds_per_round"]) for system in systems)
        assert f"| {words} | {' | '.join(map(two_digits, seconds))} |" in text
    ratio = {line["name"]: line["ratio"] for line in found["lines"]}
    small, large = (ratio[f"round_overhead.{size}.vs_stock"] for size in ("tiny", "large"))
    assert f"Stock takes {small:.0f} times as long as ours for the small model" in text
    assert f"and {large:.0f} times for the large one" in text
    parts = found["details"]["large"]["ours"]["seconds_by_part"]
    assert f"{parts['waiting for transfer and sites']:.2f} s go into the transfer" in text
    assert f"{parts['screening, aggregating, recording']:.2f} s into screening" in text


def two_digits(value: float) -> str:
    """Two significant digits, a trailing 0 included."""
    return f"{value:#.2g}".rstrip(".")


def test_the_page_about_the_link_quotes_the_benchmark_of_many_sites() -> None:
    results = ROOT / "experiments" / "benchmarks" / "results" / "many_sites.json"
    found = json.loads(results.read_text())["details"]["256 sites"]
    text = flowing("docs/link.md")
    assert f"costs the coordinator {found['coordinator_processor_seconds']:.2f} s of a" in text
    assert f"and took {found['median_seconds']:.2f} s on two cores" in text


def test_the_page_about_flower_quotes_the_benchmark_of_an_app_over_our_link() -> None:
    results = ROOT / "experiments" / "benchmarks" / "results" / "app_overhead.json"
    found = json.loads(results.read_text())["details"]["tiny"]
    ours, stock = (found[name]["seconds_per_round"] for name in ("ours-app", "stock"))
    text = flowing("docs/flower.md")
    assert f"took {median(ours):.3f} s over our link and {median(stock):.1f} s on stock" in text


CROSS_FITTED = "5 folds, 5 times"


@pytest.fixture(scope="module")
def whole_studies() -> list[Pooled]:
    cells = read_cells(ROOT / RESULTS / "verdict", plans())
    return pooled(cell for cell in cells.values() if "data" in cell.plan.config)


def test_the_level_of_cross_fitted_verdicts_is_the_measured_choice(
    whole_studies: list[Pooled],
) -> None:
    assert holding(whole_studies)[0] == (CROSS_FITTED, CROSS_FITTED_SIGNIFICANCE)


def test_the_page_about_evaluation_quotes_the_whole_studies(whole_studies: list[Pooled]) -> None:
    text = flowing("docs/evaluation.md")
    for name, scheme, level in (
        ("a test part", HOLD_OUT, SIGNIFICANCE),
        ("five folds, cut once", "5 folds", CROSS_FITTED_SIGNIFICANCE),
        ("five folds, cut five times", CROSS_FITTED, CROSS_FITTED_SIGNIFICANCE),
        ("ten folds, cut five times", "10 folds, 5 times", CROSS_FITTED_SIGNIFICANCE),
    ):
        worst, right = worst_and_mean(whole_studies, scheme, level)
        row = f"| {name} | p ≤ {level:g} | {100 * right:.1f} % | {100 * worst:.1f} % |"
        assert row in text
    means, worsts = zip(
        *(between_near_equals(whole_studies, scheme) for scheme in (HOLD_OUT, CROSS_FITTED)),
        strict=True,
    )
    assert f"(in whole studies, by {HARDLY:g} of log loss or less)" in text
    assert f"in {100 * means[0]:.1f} % on a test part and in {100 * means[1]:.1f} % cross" in text
    assert f"in {100 * worsts[0]:.1f} % and {100 * worsts[1]:.1f} % in the worst cell" in text
    luck, false = zip(
        *(
            (
                between_alike(whole_studies, scheme)[0],
                worst_and_mean(whole_studies, scheme, declared_level(scheme), ALIKE)[0],
            )
            for scheme in (HOLD_OUT, CROSS_FITTED)
        ),
        strict=True,
    )
    for shares in (
        f"in {100 * luck[0]:.1f} % on a test part and in {100 * luck[1]:.1f} % cross-fitted, and",
        f"one of the wrong sign in {100 * false[0]:.1f} % and {100 * false[1]:.1f} % in the worst",
    ):
        assert shares in text
    scheme, level = holding_between_near_equals(whole_studies)[0]
    assert scheme == "5 folds"
    _, right = worst_and_mean(whole_studies, scheme, level)
    assert f"five folds at p ≤ {level:g} find most true differences, {100 * right:.1f} %" in text
    worst, _ = worst_and_mean(whole_studies, CROSS_FITTED, 0.01)
    assert f"wrong in {100 * worst:.1f} % of one cell's studies" in text
    counts = {study.studies for study in whole_studies}
    assert f"{len(whole_studies)} cells of {counts.pop()} studies" in text
    assert not counts
