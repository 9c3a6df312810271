"""The texts quote the figures of the result files, and claim what these show."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, median

import pytest

from erosion.simulation.testbed import study_path
from erosion_common.algorithms.weight_erosion import PRESETS
from erosion_common.protocol.messages import CROSS_FITTED_SIGNIFICANCE
from erosion_common.study.study import Study, load_study
from experiments.cells import CellFile, read_cells
from experiments.experiment import RESULTS
from experiments.papers import personal_finish, references, robustness
from experiments.papers.robustness_page import summarise
from experiments.papers.rules import RECOMMENDED, by_setting
from experiments.papers.verdict import holding, plans, pooled
from experiments.splits import simulated_split

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "experiments" / "benchmarks" / "results"
PAGES = {page.parent.name: page.read_text() for page in (ROOT / RESULTS).glob("*/README.md")}
PAGES["leaderboard"] = (ROOT / "docs" / "leaderboard.md").read_text()
SPLITS = json.loads((ROOT / RESULTS / "splits.json").read_text())
# Of sections whose figures are a page's, but for those that another test of this file looks at.
COMPUTED = {"10.7910", "1.4", "1.7", "0.06", ".005", ".01"}
# Of intervals; TLS 1.2.
COMPUTED |= {"0.68", "0.80", "0.98", "1.00", "0.95", "0.96", "0.89", "0.88", "0.99", "1.2"}
OF_ONE = "docs/evaluation.md"  # whose sections name no experiment


def flowing(path: str) -> str:
    """A text without its line breaks and comment marks."""
    return re.sub(r"\s+(?:# )?", " ", (ROOT / path).read_text(encoding="utf-8"))


def errors(arm: str) -> str:
    mean, error = SPLITS["arms"][arm]["errors"]
    return f"{mean:.2f} ± {error:.2f}"


def test_the_readme_quotes_the_finish() -> None:
    plans = personal_finish.plans()
    found = by_setting(
        read_cells(ROOT / RESULTS / "personal-finish", plans),
        [*personal_finish.EXPLORED, *personal_finish.STRESS, *personal_finish.UNSEEN],
    )
    minus = {
        setting: fmean(s[personal_finish.FINISH]["log_loss"] - s["ridge"]["log_loss"] for s in of)
        for setting, of in found.items()
    }
    known = [minus[setting] for setting in personal_finish.EXPLORED]
    one, other = (f"{-minus[setting]:.3f}" for setting in personal_finish.UNSEEN)
    text = flowing("README.md")
    assert f"the log loss is {-fmean(known):.3f} below" in text
    assert max(known) < 0
    assert f"it is {one} and {other} below" in text


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
        systems = ("ours", "bare", "stock", "stock-torch", "copy")
        seconds = (median(measured[system]["seconds_per_round"]) for system in systems)
        assert f"| {words} | {' | '.join(map(two_digits, seconds))} |" in text
    ratio = {line["name"]: line["ratio"] for line in found["lines"]}
    small, large = (ratio[f"round_overhead.{size}.bare_vs_stock"] for size in ("tiny", "large"))
    assert f"Stock takes {small:.0f} times as long as ours for the small model" in text
    assert f"and {large:.0f} times for the large one" in text
    costs = []
    for size in ("tiny", "large"):
        parts = found["details"][size]["ours"]["seconds_by_part"]
        costs += [1000 * parts[f"processor, {which}"] for which in ("coordinator", "peer")]
    one, other, third, last = (f"{cost:.0f}" for cost in costs)
    assert f"costs the coordinator {one} ms and a site {other} ms" in text
    assert f"one of 11.2 million {third} and {last} ms" in text
    tiny = found["details"]["tiny"]
    app, stock = (two_digits(median(tiny[s]["seconds_per_round"])) for s in ("ours-app", "stock"))
    took = f"took {app} s over our link and {stock} s on stock Flower"
    assert took in flowing("docs/flower.md")


def two_digits(value: float) -> str:
    """Two significant digits, a trailing 0 included."""
    return f"{value:#.2g}".rstrip(".")


CROSS_FITTED = "5 folds, 5 times"


def test_the_texts_quote_the_coordinators_memory() -> None:
    found = json.loads((BENCHMARKS / "coordinator_memory.json").read_text())["details"]
    measured = [found[f"{number} hospitals"] for number in (4, 16, 64)]

    def listed(figures: Iterable[str]) -> str:
        return "{}, {} and {}".format(*figures)

    on_disk = listed(f"{each['disk, models']:.1f}" for each in measured)
    in_memory = listed(two_digits(each["memory, models"]) for each in measured)
    slower = listed(
        f"{each['disk, seconds a round'] / each['memory, seconds a round']:.1f}"
        for each in measured
    )
    assert f"| {on_disk} N with 4, 16 and 64" in flowing("docs/operations.md")
    assert f"updates in memory | {in_memory} N" in flowing("docs/operations.md")
    assert f"{on_disk} models of memory" in flowing("docs/link.md")
    assert f"and {slower} times the time" in flowing("docs/link.md")


def test_the_page_about_experiments_quotes_the_cost_of_the_simulator() -> None:
    found = json.loads((BENCHMARKS / "simulation.json").read_text())
    lines = {line["name"].removeprefix("simulation."): line for line in found["lines"]}
    loop, flower, limit = (lines[f"mnist.vs_{peer}"] for peer in ("loop", "flower", "limit"))
    gigabytes = found["details"]["ours"]["peak_memory_mb"] / 1000
    text = flowing("experiments/README.md").split("## What the simulator costs ")[1]
    assert f"trains {loop['ours']:,.0f} images a second, {loop['ratio']:.2f} times a plain" in text
    assert f"and {flower['ratio']:.2f} times Flower's simulation engine" in text
    assert f"and takes {gigabytes:.1f} GB" in text
    assert f"come to {limit['peer'] / flower['peer']:.2f} times Flower's" in text


def test_the_level_of_cross_fitted_verdicts_is_the_measured_choice() -> None:
    whole_studies = pooled(read_cells(ROOT / RESULTS / "verdict", plans()))
    assert holding(whole_studies)[0] == (CROSS_FITTED, CROSS_FITTED_SIGNIFICANCE)


def losses(experiment: str, heading: str, column: int = 1) -> dict[str, float]:
    """By arm, the figure that a column of the table below a heading begins with."""
    section = PAGES[experiment].split(f"{heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {
        cells[0].removeprefix("| "): float(cells[column].split()[0])
        for cells in rows
        if re.match(r"[-+]?\d", cells[column])
    }


@pytest.mark.parametrize(
    ("path", "about"),
    [
        ("experiments/README.md", {"which-rule", "confirmation"}),
        ("docs/choosing.md", {"which-rule", "confirmation", "leaderboard"}),
        ("docs/evaluation.md", {"verdict"}),
        ("docs/threat-model.md", {"protections", "inference"}),
        ("docs/papers.md", set()),
    ],
)
def test_every_figure_of_a_text_is_on_the_page_of_an_experiment(path: str, about: set[str]) -> None:
    """Of one that the section names, or of those that the text is about, where it names any."""
    everything = [*PAGES.values()]
    for section in re.split(r"\n(?=## )", (ROOT / path).read_text()):
        if section.startswith("## What the simulator costs"):
            continue  # it is held against its own file, above
        named = [name for name in PAGES if f"`{name}`" in section]
        pages = [PAGES[n] for n in {*named, *about}] if named or path == OF_ONE else everything
        figures = re.findall(r"(?<![\w.])\d*\.\d+(?![\w.]*\w)", section)
        unknown = {figure for figure in figures if not any(figure in page for page in pages)}
        assert unknown <= COMPUTED, section.splitlines()[0]


def test_every_experiment_page_that_the_texts_name_is_there() -> None:
    for page in ("README.md", "experiments/README.md"):
        links = re.findall(r"\]\(((?:experiments/)?results/[^)]+)\)", (ROOT / page).read_text())
        assert links
        assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


def test_the_rules_that_the_texts_recommend_are_the_best_ranked() -> None:
    tuned = {
        name: (float(rank), float(regret))
        for name, rank, regret in re.findall(
            r"^\| (\w+) \| (\d+\.\d) \| (\d\.\d+) \|$", PAGES["tuned-rules"], re.MULTILINE
        )
    }
    assert set(sorted(tuned, key=lambda arm: tuned[arm][0])[:2]) == {
        RECOMMENDED,
        "evidence_erosion",
    }
    least = sorted(tuned, key=lambda arm: tuned[arm][1])[:2]
    assert set(least) == {RECOMMENDED, "evidence_erosion"}
    explored = losses("which-rule", "## Over 5 settings")
    assert min(explored, key=lambda arm: explored[arm]) == "evidence_erosion"
    confirmed = losses("confirmation", "## Over 4 settings")
    ranked = sorted(confirmed, key=lambda arm: confirmed[arm])
    assert ranked[0] == RECOMMENDED
    assert set(ranked[1:3]) == {"evidence_erosion", "personal_intercept"}
    assert set(ranked[-2:]) == {"bias_correction", "weighted_gradient"}
    of_users = PAGES["confirmation"].split(
        "| fedavg | fine_tuning | weight_erosion | evidence_erosion |\n"
    )[1]
    users = [line.split(" | ")[1:5] for line in of_users.split("\n\n")[0].splitlines()[1:]]
    assert len(users) == 4
    assert all(re.match(r"-0\.\d{3} .*\*$", entry) for user in users for entry in user)


def test_where_the_rules_do_not_help_is_as_the_texts_say() -> None:
    errors = losses("odd-one-out", "## breast-cancer, for miscoded", 3)
    assert errors["local"] < errors["weight_erosion"] < errors["evidence_erosion"]
    assert errors["evidence_erosion"] < errors[RECOMMENDED] < errors["fedavg"]
    swiss = losses("which-rule", "## heart-disease, for switzerland")
    assert swiss["personal_intercept"] < swiss["local"] < swiss["fedavg"] / 10
    cells = read_cells(ROOT / RESULTS / "robustness", robustness.plans())
    found = [summarise(study, cells) for study in ("breast-cancer", "heart-disease")]
    rows = [row for summary in found for row in summary.rows.values()]
    bad = {row.method for row in rows if row.harmed or row.below_alone}
    assert set(found[1].methods) - bad == {
        *("local", "evidence_erosion", "fedfomo", "weighted_gradient"),
        *("model_averaging", "bias_correction"),
    }
    of_each = references.by_setting(
        read_cells(ROOT / RESULTS / "references", references.plans()), ROOT / RESULTS
    )
    ours = [one for one in references.minus_ridge(of_each) if one.ours == "ours"]
    behind = [one.setting for one in ours if one.difference and one.difference.mean > 0]
    assert behind == [("heart-disease", "cleveland")]


@pytest.mark.parametrize("name", ["which-rule", "confirmation", "tuned-rules"])
def test_a_picture_of_differences_says_over_how_many_splits_it_is(name: str) -> None:
    cells = CellFile.read(ROOT / RESULTS / name).cells.values()
    settings = Counter(
        cell.plan.name.rpartition("-")[0] for cell in cells if "part" not in cell.plan.config
    )
    told = re.findall(r"\((\d+) splits\)", (ROOT / RESULTS / name / "differences.svg").read_text())
    assert Counter(told) == Counter(str(splits) for splits in settings.values())


def test_the_erosion_share_that_is_recommended_is_the_one_that_lost_least() -> None:
    lost = {
        int(share): float(mean)
        for share, mean in re.findall(
            r"^\| share-(\d+) \|.*\| (\d\.\d+) \| \d\.\d+ \|$", PAGES["slow-erosion"], re.M
        )
    }
    best = min(lost, key=lambda share: lost[share])
    assert best == 100 * PRESETS["recommended"]["erosion_share"]
    assert f"`erosion_share = {best / 100:g}`" in flowing("experiments/README.md")


def last_weights(study: str, user: str) -> list[float | None]:
    """The other hospitals' weights after the last round, with the paper's setting."""
    found = load_study(study_path(study))
    raw = found.model_dump(mode="json") | {
        "user": user,
        "arms": {"weight_erosion": {}},
        "evaluation": {"test_share": found.evaluation.test_share, "bootstrap": 100},
    }
    data_dir = os.environ.get("EROSION_DATA")
    run = simulated_split(Study.model_validate(raw), Path(data_dir) if data_dir else None)
    last = run.records["weight_erosion"][-1].hospitals
    return [hospital.weight_after for name, hospital in last.items() if name != user]


def test_the_papers_setting_leaves_nobody_in_the_default_study() -> None:
    assert last_weights("breast-cancer", "home") == [0.0] * 4
    text = flowing("experiments/README.md")
    assert "With the paper's setting every other hospital's weight falls to zero there" in text


@pytest.mark.data
@pytest.mark.skipif("EROSION_DATA" not in os.environ, reason="needs the data sets: EROSION_DATA")
def test_the_papers_setting_hardly_erodes_in_the_study_of_readmission() -> None:
    assert all(weight and weight > 0.5 for weight in last_weights("diabetes-130", "medicaid"))
    loss = losses("confirmation", "## diabetes-130, for medicaid")
    assert loss["weight_erosion"] == pytest.approx(loss["fedavg"], abs=0.0011)
    assert "every hospital keeps more than half of its weight" in flowing("experiments/README.md")
