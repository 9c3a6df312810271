"""The texts about the experiments say what the result pages and cells say."""

import json
import re
from pathlib import Path

from erosion.common.algorithms.weight_erosion import PRESETS

ROOT = Path(__file__).resolve().parents[1]
VERDICT = ROOT / "experiments" / "results" / "verdict" / "cells"


def flowing(path: str) -> str:
    """A text without its line breaks."""
    return re.sub(r"\s+", " ", (ROOT / path).read_text(encoding="utf-8"))


def claims(kind: str, patients: int, rule: str) -> float:
    """In percent of the simulated studies of one cell of the verdict's experiment."""
    cell = json.loads((VERDICT / f"simulated-{kind}-{patients}.json").read_text())
    found = cell["figures"][rule]
    count, studies = found["first"] + found["second"], cell["config"]["studies"]
    return float(100 * count / studies)


def test_the_evaluation_page_quotes_the_verdicts_error_rates() -> None:
    text = flowing("docs/evaluation.md")

    def of_sizes(kind: str) -> str:
        rates = [f"{claims(kind, patients, 'declared'):.0f}" for patients in (30, 104, 300)]
        return f"{rates[0]}, {rates[1]} and {rates[2]} %"

    assert f"claims a difference in {of_sizes('gross-errors-on-easy-patients')} of" in text
    assert f"not sure enough in {of_sizes('overconfident')} of studies" in text
    sizes = (16, 30, 50, 60, 100, 104, 200, 300)
    alike = [claims("alike", patients, "declared") for patients in sizes]
    assert f"a difference is claimed in {max(alike):.0f} % of studies" in text
    nulls = ("alike", "gross-errors", "gross-errors-on-easy-patients", "overconfident")
    strict = max(claims(kind, n, "one more patient") for kind in nulls for n in sizes)
    assert f"in at most {strict:.1f} % of studies" in text
    for patients in (100, 200, 300):
        ordinary, strict = (
            claims("gain-0.06", patients, rule) for rule in ("declared", "one more patient")
        )
        assert f"| {patients} | {ordinary:.1f} | {strict:.1f} |" in text


def test_of_all_rules_the_recommended_one_has_the_best_mean_rank_in_the_confirmation() -> None:
    assert "of all rules it has the best mean rank there" in flowing("experiments/README.md")
    page = (ROOT / "experiments" / "results" / "confirmation" / "README.md").read_text()
    ranks = re.findall(r"^\| (\w+) \| (\d+\.\d) \| \d\.\d+ \|$", page, flags=re.MULTILINE)
    assert len(ranks) > 20
    best = min(float(rank) for _, rank in ranks)
    assert [name for name, rank in ranks if float(rank) == best] == ["weight_erosion_recommended"]


def test_the_erosion_share_that_is_recommended_is_the_one_that_lost_least() -> None:
    page = (ROOT / "experiments" / "results" / "slow-erosion" / "README.md").read_text()
    lost = {
        int(share): float(mean)
        for share, mean in re.findall(
            r"^\| share-(\d+) \|.*\| (\d\.\d+) \| \d\.\d+ \|$", page, re.M
        )
    }
    best = min(lost, key=lambda share: lost[share])
    assert best == 100 * PRESETS["recommended"]["erosion_share"]
    assert f"`erosion_share = {best / 100:g}`" in flowing("experiments/README.md")


def test_every_experiment_page_that_the_texts_name_is_there() -> None:
    for page in ("README.md", "experiments/README.md"):
        folder = (ROOT / page).parent
        links = re.findall(r"\]\(((?:experiments/)?results/[^)]+)\)", (ROOT / page).read_text())
        assert links
        assert [link for link in links if not (folder / link).exists()] == []
