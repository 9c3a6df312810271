"""The texts about the experiments say what the result pages and cells say."""

import json
import os
import re
from collections import Counter
from math import ceil
from pathlib import Path
from statistics import fmean

import pytest

from erosion.simulation.testbed import study_path
from erosion_common.algorithms.weight_erosion import PRESETS
from erosion_common.study.study import Study, load_study
from experiments.cells import CellFile, read_cells
from experiments.papers import mnist, references, robustness, split_studies
from experiments.papers.gems_page import LOWER, PUBLISHED, SIZES
from experiments.papers.robustness_page import Summary, summarise
from experiments.papers.rules import RECOMMENDED
from experiments.splits import simulated_split
from experiments.tables import paired_difference

ROOT = Path(__file__).resolve().parents[1]
LOCAL_STEPS = list(
    read_cells(
        ROOT / "experiments" / "results" / "local-steps", split_studies.step_plans()
    ).values()
)
VERDICT = CellFile.read(ROOT / "experiments" / "results" / "verdict").cells


def flowing(path: str) -> str:
    """A text without its line breaks."""
    return re.sub(r"\s+", " ", (ROOT / path).read_text(encoding="utf-8"))


def claims(kind: str, patients: int, rule: str) -> float:
    """In percent of the simulated studies of one cell of the verdict's experiment."""
    cell = VERDICT[f"simulated-{kind}-{patients}"]
    found = cell.figures[rule]
    count, studies = found["first"] + found["second"], cell.plan.config["studies"]
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
    assert f"in at most {ceil(10 * strict) / 10:.1f} % of studies" in text  # a bound
    for patients in (100, 200, 300):
        ordinary, strict = (
            claims("gain-0.06", patients, rule) for rule in ("declared", "one more patient")
        )
        assert f"| {patients} | {ordinary:.1f} | {strict:.1f} |" in text


def test_the_mnist_grid_is_as_published() -> None:
    text = flowing("experiments/README.md")
    assert "the published accuracy lies in the interval of ours" in text
    assert "in all comparisons but two the schemes stand in the published order" in text
    page = flowing("experiments/results/mnist/README.md")
    counts = re.findall(
        r"(?:in the published order|lies in the interval of ours) in (\d+) of (\d+)", page
    )
    missing = [int(of) - int(found) for found, of in counts]
    assert len(missing) == 4
    assert missing[-1] == 0
    assert sum(missing[:3]) == 2
    assert "Where all have the same (distribution A), there is nobody to leave out, and" in text
    cells = read_cells(ROOT / "experiments/results/mnist", mnist.plans())
    bests = {name: max(cell.figures["accuracy"]) for name, cell in cells.items()}
    settings = {tuple(plan.name.split("-")[:2]) for plan in mnist.published_plans()}
    pairs = [
        (bests[f"A-{agents}-weight_erosion"], bests[f"A-{agents}-fedavg"])
        for agents in mnist.AGENTS
    ]
    assert all(erosion <= averaging for erosion, averaging in pairs)
    assert "By the best round, as the paper has it, Weight Erosion is ahead where" in text
    assert "but for F with 100 agents, where FedAvg is, by two images" in text
    lasts = {name: cell.figures["accuracy"][-1] for name, cell in cells.items()}
    above = {
        scheme: sum(
            lasts[f"{pattern}-{agents}-weight_erosion"] > lasts[f"{pattern}-{agents}-{scheme}"]
            for pattern, agents in settings
        )
        for scheme in ("fedavg", "local")
    }
    assert above["local"] == len(settings) == 28
    assert f"it is above FedAvg in {above['fedavg']} of the {len(settings)} settings" in text
    behind = {
        plan.name: best - bests[f"{pattern}-{agents}-weight_erosion"]
        for plan in mnist.published_plans()
        for best in [bests[plan.name]]
        for pattern, agents, scheme in [plan.name.split("-")]
        if pattern != "A" and best >= bests[f"{pattern}-{agents}-weight_erosion"]
        if scheme != "weight_erosion"
    }
    assert list(behind) == ["F-100-fedavg"]
    assert round(behind["F-100-fedavg"] * cells["F-100-fedavg"].figures["test_images"]) == 2


def test_with_settings_chosen_two_rules_of_ours_have_the_best_mean_rank() -> None:
    text = flowing("experiments/README.md")
    page = (ROOT / "experiments" / "results" / "tuned-rules" / "README.md").read_text()
    assert "planned cells have been run" not in page
    found = re.findall(r"^\| (\w+) \| (\d+\.\d) \| (\d\.\d+) \|$", page, flags=re.MULTILINE)
    assert len(found) > 20
    ranked = sorted((float(rank), name) for name, rank, _ in found)
    ours = {"evidence_erosion": "evidence erosion", RECOMMENDED: "the recommended Weight Erosion"}
    assert {name for _, name in ranked[:2]} == ours.keys()
    said = " and ".join(ours[name] for _, name in ranked[:2])
    assert f"{said} have the best mean ranks" in text
    assert ranked[1][0] < ranked[2][0]
    rule, _, regret = min(found, key=lambda row: float(row[2]))
    assert rule == RECOMMENDED
    which = "former" if ranked[0][1] == RECOMMENDED else "latter"
    assert f"the {which} has the least worst regret, {regret} (`tuned-rules`" in text
    beside_local = re.findall(r"^\| [a-z-]+, [a-z0-9-]+ \| ([^|]*) \|", page, flags=re.MULTILINE)
    clear = sum("*" in cell for cell in beside_local)
    numbers = {5: "five", 9: "nine"}
    assert f"for {numbers[clear]} of {numbers[len(beside_local)]} users" in text
    assert "the patients that splits share it does so for none" in text
    assert not any(cell.count("*") > 1 for cell in beside_local)
    with_chosen = page.split("## heart-disease, for va\n")[1].split("\n## ")[0]
    clearly_ahead = re.findall(r"^\| (\w+) \|[^|]*\| -(\S+) [^|]*\\\* \|", with_chosen, flags=re.M)
    assert clearly_ahead == [("bias_correction", "0.011")]
    assert "of all rules bias correction alone is clearly ahead of it, by 0.011" in text
    alone = [
        losses(name, "## heart-disease, for va")["local"] for name in ("tuned-rules", "which-rule")
    ]
    assert alone[0] < alone[1]


def test_on_data_not_looked_at_three_rules_are_ahead() -> None:
    page = (ROOT / "experiments" / "results" / "confirmation" / "README.md").read_text()
    assert "planned cells have been run" not in page
    ranks, regrets = (losses("confirmation", "## Over 4 settings", column) for column in (1, 2))
    three = {RECOMMENDED, "evidence_erosion", "personal_intercept"}
    assert {arm for arm, rank in ranks.items() if rank <= sorted(ranks.values())[2]} == three
    most = f"more than {max(regrets[arm] for arm in three):.3f} above the best"
    text, choosing = flowing("experiments/README.md"), flowing("docs/choosing.md")
    assert min(ranks, key=lambda arm: ranks[arm]) == RECOMMENDED
    assert "with the best mean ranks of all rules, over four users, so that" in text
    assert f"none of them is for any user {most} rule" in text
    assert f"the best mean ranks of all that were compared, and are for no user {most}" in choosing
    worse = re.findall(r"\| ([^|]*), (\w+) \|(?:[^|]*\|){4} (\+\S+) [^|]*\\\* \|", page)
    assert worse == [("tcga-brca-three-years", "northeast", f"+{max(regrets[RECOMMENDED], 0):.3f}")]
    assert "for the Northeast evidence erosion is clearly better, by that much" in text
    better = []
    for payer in ("medicaid", "hmo"):
        heading = f"## diabetes-130, for {payer}"
        loss = losses("confirmation", heading)
        (base,) = re.findall(rf"{heading}\n\n.*Base rate: log loss ([\d.]+),", page)
        assert min(loss["local"], loss["fedavg"]) > float(base)
        better.append(round(float(base) - loss[RECOMMENDED], 3))
    assert f"the preset {min(better):.3f} to {max(better):.3f} better" in text
    assert "(Nadeau and Bengio 2003) no interval leaves out 0" in text
    assert page.count("\\*\\*") == 1  # in the words that say what it means
    assert (
        "For each of the four users it is better than training alone, FedAvg, FedAvg with" in text
    )
    beside = page.split("| fedavg | fine_tuning | weight_erosion | evidence_erosion |\n")[1]
    users = [line.split(" | ")[1:5] for line in beside.split("\n\n")[0].splitlines()[1:]]
    assert len(users) == 4
    assert all(re.match(r"-0\.\d{3} .*\*$", entry) for user in users for entry in user)
    for heading in re.findall(r"^## .*, for .*$", page, flags=re.MULTILINE):
        loss = losses("confirmation", heading)
        gained = {arm: loss["fedavg"] - loss[arm] for arm in three}
        assert 0.7 < gained["personal_intercept"] / gained[RECOMMENDED] < 1.5


@pytest.mark.parametrize("name", ["which-rule", "confirmation", "tuned-rules"])
def test_a_picture_of_differences_says_over_how_many_splits_it_is(name: str) -> None:
    folder = ROOT / "experiments" / "results" / name
    settings = Counter(cell.rpartition("-")[0] for cell in CellFile.read(folder).cells)
    picture = (folder / "differences.svg").read_text()
    told = Counter(re.findall(r"\((\d+) splits\)", picture))
    assert told == Counter(str(splits) for splits in settings.values())
    if name == "confirmation":  # which the main README shows
        caption = flowing("README.md").split("that had not been looked at when", 1)[1][:200]
        assert ("so far" in caption) == (set(settings.values()) != {50})


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


def losses(experiment: str, heading: str, column: int = 1) -> dict[str, float]:
    """By arm, the figure that a column of the table below a heading begins with."""
    page = (ROOT / "experiments" / "results" / experiment / "README.md").read_text()
    section = page.split(f"{heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {
        cells[0].removeprefix("| "): float(cells[column].split()[0])
        for cells in rows
        if re.match(r"[-+]?\d", cells[column])
    }


def test_the_page_about_choosing_quotes_the_tables() -> None:
    text = flowing("docs/choosing.md")
    home, swiss, cleveland = (
        losses("which-rule", f"## {setting}")
        for setting in (
            "breast-cancer, for home",
            "heart-disease, for switzerland",
            "heart-disease, for cleveland",
        )
    )
    once = losses("one-round", "## Breast cancer, five hospitals, one of them miscoded", 2)
    regrets = losses("which-rule", "## Over 5 settings", 2)
    most = (
        f"the second has the best mean rank, and is at most {regrets['evidence_erosion']:.3f} above"
    )
    assert most in text
    assert (
        f"ill: {swiss['personal_intercept']:.3f}, which is also what the base rate gets; alone"
        f" {swiss['local']:.3f}, FedAvg {swiss['fedavg']:.3f}"
    ) in text
    which_rule = (ROOT / "experiments" / "results" / "which-rule" / "README.md").read_text()
    base_rate = re.findall(r"for switzerland\n\n.*Base rate: log loss ([\d.]+),", which_rule)
    assert base_rate == [f"{swiss['personal_intercept']:.3f}"]
    miscoded = f"it is {home['personal_intercept']:.3f} and alone {home['local']:.3f}"
    assert f"one miscoded hospital among five {miscoded}" in text
    robust = ("multi_krum", "coordinate_median", "geometric_median")
    for words, found in (("With the miscoded hospital", home), ("Switzerland", swiss)):
        first, second, third = (f"{found[arm]:.3f}" for arm in robust)
        alone = f"alone {found['local']:.3f}"
        assert f"{words} {first}, {second} and {third}; {alone}" in text
    assert f"With the miscoded hospital {once['personal_gems']:.3f} in one round" in text
    assert f"evidence erosion {once['evidence_erosion']:.3f}, of the paper's" in text
    assert f"Weight Erosion {once['weight_erosion']:.3f}, of FedAvg {once['fedavg']:.3f}" in text
    assert f"alone {cleveland['local']:.3f}, the best of {len(cleveland)} arms" in text
    assert f"arms {min(cleveland.values()):.3f}." in text
    payers = [losses("confirmation", f"## diabetes-130, for {one}") for one in ("medicaid", "hmo")]
    alone, recommended = (
        " and ".join(f"{payer[arm]:.3f}" for payer in payers) for arm in ("local", RECOMMENDED)
    )
    page = (ROOT / "experiments" / "results" / "confirmation" / "README.md").read_text()
    base = " and ".join(
        re.findall(r"for (?:medicaid|hmo)\n\n.*Base rate: log loss ([\d.]+),", page)
    )
    assert f"payers with 200 patients: alone {alone}, the base rate {base}" in text
    assert f"recommended Weight Erosion {recommended}." in text


def test_the_page_about_choosing_ranks_methods_as_the_tables_do() -> None:
    explored = losses("which-rule", "## Over 5 settings")
    assert min(explored, key=lambda arm: explored[arm]) == "evidence_erosion"
    confirmed = losses("confirmation", "## Over 4 settings")
    worst = sorted(confirmed, key=lambda arm: confirmed[arm])[-2:]
    assert set(worst) == {"bias_correction", "weighted_gradient"}
    assert "they have, with their defaults, the worst mean ranks" in flowing("docs/choosing.md")


def test_for_the_practice_unlike_the_others_the_rules_lie_as_the_text_says() -> None:
    cells = CellFile.read(ROOT / "experiments" / "results" / "image-sites").cells
    figures = [c.figures for name, c in cells.items() if name.startswith("ham10000-rosendahl-")]
    arms = ("majority", "local", "fedavg", "weight_erosion_recommended", "evidence_erosion")
    majority, local, fedavg, recommended, evidence = (
        fmean(split[arm]["log_loss"] for split in figures) for arm in arms
    )
    lost = fedavg - local
    assert majority - fedavg < 0.1 * lost
    assert local + 0.2 * lost < recommended < fedavg - 0.2 * lost
    assert abs(evidence - local) < 0.2 * lost
    text = flowing("experiments/README.md")
    assert "The recommended Weight Erosion lies between the two" in text
    assert "Evidence erosion leaves them little, and is nearly as good as training alone" in text


def test_on_pictures_intervals_say_what_the_text_says() -> None:
    page = (ROOT / "experiments" / "results" / "image-sites" / "README.md").read_text()
    _, auroc, *_ = page.split("| AUROC | rosendahl")
    of_practice = dict(re.findall(r"\| (\w+) \| (\d\.\d{3}) ±", "| AUROC | rosendahl" + auroc)[:12])
    text = flowing("experiments/README.md")
    told = f"{of_practice['evidence_erosion']} instead of {of_practice['local']}"
    assert f"by AUROC it is better there, {told}." in text
    clear = {
        (arm, word): " ".join(re.findall(rf"- `{arm}` is {word} than (.*)\.", page))
        for arm in ("weight_erosion_recommended", "evidence_erosion")
        for word in ("better", "worse")
    }
    assert "local for rosendahl (AUROC)" in clear["evidence_erosion", "better"]
    assert "both are better than FedAvg by accuracy and log loss" in text
    assert "no interval tells either from training alone" in text
    for user in ("mean of all", "hospital-0"):
        for arm in ("weight_erosion_recommended", "evidence_erosion"):
            for metric in ("accuracy", "log loss"):
                assert f"fedavg for {user} ({metric})" in clear[arm, "better"]
            both = clear[arm, "better"] + clear[arm, "worse"]
            assert f"local for {user}" not in both


def test_the_texts_quote_the_survival_table() -> None:
    page = (ROOT / "experiments" / "results" / "fed-tcga" / "README.md").read_text()
    c_index, brier = (
        {row[0]: row[1:] for row in rows}
        for part in page.split("## ")[1:3]
        for rows in [[line.strip("| ").split(" | ") for line in part.splitlines()]]
    )
    of_northeast = {arm: row[0] for arm, row in c_index.items() if row}
    quoted = (
        f"alone {of_northeast['local']}, recommended Weight Erosion"
        f" {of_northeast[RECOMMENDED]}, FedAvg {of_northeast['fedavg']}"
    )
    assert "the Northeast's 63 test patients" in flowing("docs/choosing.md")
    assert quoted in flowing("docs/choosing.md")
    said = " ".join(page.split())
    assert "northeast 63 (14, " in said
    assert "canada 11 (1, 3)." in said
    ahead = [
        float(alone) < float(curve)
        for alone, curve in zip(brier["local"][:6], brier["kaplan_meier"][:6], strict=True)
    ]
    text = flowing("experiments/README.md")
    assert sum(ahead) == 3
    assert "ahead of Kaplan and Meier's curve in three of the six" in text
    northeast, *elsewhere = (
        float(high) - float(low) for low, high in re.findall(r"(\d\.\d\d) to (\d\.\d\d)[,.]", said)
    )
    assert len(elsewhere) == 5
    assert round(northeast, 2) == 0.25
    assert min(elsewhere) > northeast
    assert "0.25 wide in the Northeast and wider elsewhere" in text
    assert "Canada's 11 test patients have 3 pairs to compare" in text
    assert "planned cells have been run" not in page  # there are all hundred splits
    assert "over a hundred further ones" in text
    (compared,) = re.findall(r"compare, for the C-index: .*canada 100 \((\d+)\)\.", said)
    assert f"in Canada, where {compared} splits have a pair to compare" in text
    rows = re.findall(rf"^\| (\w+) \| {RECOMMENDED} \| (.*) \|$", page, re.MULTILINE)
    by_brier = {region: cells.split(" | ")[4] for region, cells in rows}  # minus FedAvg's
    assert all(cell.endswith("*") for cell in by_brier.values())
    assert [region for region, cell in by_brier.items() if cell[0] == "+"] == ["canada"]
    assert "is ahead of FedAvg in five regions, and behind it in Canada" in flowing(
        "docs/choosing.md"
    )
    marked = {
        region: tuple(int(count) for count in counts.split(" | "))
        for region, counts in re.findall(
            r"^\| (\w+) \| (\d+(?: \| \d+){3}) \|$", page, re.MULTILINE
        )
    }
    nine = (0, 0, 9, 0)  # by C-index better, worse; by Brier score better, worse
    assert [r for r, counts in marked.items() if counts == nine] == [
        "northeast",
        "south",
        "midwest",
        "europe",
    ]
    assert (marked["west"], marked["canada"]) == ((2, 0, 7, 0), (3, 0, 0, 9))
    assert "An interval tells the C-index apart five times in 54" in text
    assert re.search(
        r"^\| west \| evidence_erosion_decay \|( \+[^|]*\\\* \|){2} \+[^*]*\)", page, re.M
    )
    assert "Of 108 differences 57 are marked, 0 of them twice" in said
    own_bias = (RECOMMENDED, "evidence_erosion", "evidence_erosion_decay")
    curve_ahead, adam_ahead = set[str](), set[str]()
    for region in marked:
        of = losses("fed-tcga", f"## {region}", 3)
        for arm in own_bias:
            assert abs(of["personal_intercept"] - of[arm]) < 0.0025
            assert abs(of["weight_erosion"] - of[arm]) > 0.0025
        if of["kaplan_meier"] < min(of[arm] for arm in own_bias):
            curve_ahead.add(region)
        if of["fedadam"] < min(of[arm] for arm in own_bias):
            adam_ahead.add(region)
    assert "comes everywhere to within 0.002 of all of ours" in text
    assert curve_ahead == {"midwest", "europe"}
    assert "In the Midwest and Europe the curve of Kaplan and Meier" in text
    assert adam_ahead == {"south", "west", "canada"}
    assert "in the South, the West and Canada FedAvg with Adam at the server is" in text


def test_for_an_odd_user_the_rules_do_as_the_texts_say() -> None:
    heading = "## breast-cancer, for miscoded"
    arms = (
        "local",
        "evidence_erosion_decay",
        "weight_erosion",
        "evidence_erosion",
        RECOMMENDED,
        "fedavg",
    )
    loss, errors = (losses("odd-one-out", heading, column) for column in (1, 3))
    alone, decay, paper, evidence, preset, averaged = (f"{loss[arm]:.3f}" for arm in arms)
    assert (
        f"alone {alone}, these {decay} and {paper}, evidence erosion without decay {evidence},"
        f" recommended Weight Erosion {preset}, FedAvg {averaged}." in flowing("docs/choosing.md")
    )
    alone, decay, paper, evidence, preset, averaged = (f"{errors[arm]:.1f}" for arm in arms)
    text = flowing("experiments/README.md")
    assert (
        f"makes {preset} errors on 88 patients, FedAvg {averaged} and training alone {alone}:"
        in text
    )
    assert (
        f"distance, makes {paper}, evidence erosion with `decay = 2.4` {decay} and without"
        f" {evidence}." in text
    )
    page = flowing("experiments/results/odd-one-out/README.md")
    assert "88 test patients each" in page
    assert "planned cells have been run" not in page


def test_what_one_harmful_hospital_does_is_as_the_text_says() -> None:
    cells = read_cells(ROOT / "experiments" / "results" / "robustness", robustness.plans()).values()
    found = [summarise(study, cells) for study in ("breast-cancer", "heart-disease")]
    home, cleveland = (summary for summary in found if summary is not None)
    text = flowing("experiments/README.md")
    assert (len(home.seeds), len(cleveland.seeds)) == (8, 5)
    assert "in the default study (eight splits), and on the heart patients (five)" in text

    def loss(summary: Summary, method: str, attack: str) -> str:
        row = summary.row(method, attack)
        assert row is not None
        return f"{row.log_loss.mean:.3f}"

    def most_lost(method: str, *summaries: Summary) -> float:
        """The most that an attack adds to what the method loses without the attacker."""
        every = [row for summary in summaries for row in summary.rows if row.method == method]
        return round(max(row.to_absent.mean for row in every), 3)

    swapped = loss(home, "fedavg", "absent"), loss(home, "fedavg", "label_flip")
    assert (
        f"take FedAvg's log loss from {swapped[0]}, without that hospital, to {swapped[1]}" in text
    )
    both = max(most_lost(method, home) for method in ("weight_erosion", RECOMMENDED))
    assert f"neither setting of Weight Erosion loses more than {both:.3f} by anything there" in text
    medians = ("coordinate_median", "geometric_median", "trimmed_mean", "centered_clipping")
    outliers = (*medians, "multi_krum")
    assert f"and Multi-Krum no more than {max(most_lost(m, home) for m in outliers):.3f}" in text
    turned = loss(cleveland, "fedavg", "absent"), loss(cleveland, "fedavg", "sign_flip")
    assert f"turned signs take FedAvg's from {turned[0]} to {turned[1]}" in text
    absent = {row.method for row in cleveland.rows if row.attack == "absent" and row.below_alone}
    assert absent >= set(outliers)
    swapped_labels = [
        cleveland.row(m, "label_flip") for m in ("weight_erosion", RECOMMENDED, "fedavg")
    ]
    harm = [f"{row.to_absent.mean:.3f}" for row in swapped_labels if row is not None and row.harmed]
    assert f"by {harm[0]} with the paper's setting and {harm[1]} with the recommended one" in text
    assert f"FedAvg's harm is {harm[2]}" in text
    bad = {r.method for s in (home, cleveland) for r in s.rows if r.harmed or r.below_alone}
    fine = {row.method for row in cleveland.rows} - bad
    least = {m: loss(home, m, "none") for m in fine}
    assert fine == {
        "local",
        "evidence_erosion",
        "fedfomo",
        "weighted_gradient",
        "model_averaging",
        "bias_correction",
    }
    assert min(least, key=lambda method: least[method]) == "evidence_erosion"
    assert (
        f"evidence erosion, which loses {most_lost('evidence_erosion', home, cleveland)} at" in text
    )
    most = max(most_lost(m, home, cleveland) for m in ("model_averaging", "bias_correction"))
    assert f"the last two lose up to {most}" in text


def test_with_several_local_steps_the_rules_lie_as_the_text_says() -> None:
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    for cell in LOCAL_STEPS:
        setting = cell.plan.config["study"], cell.plan.config["steps"]
        for arm in split_studies.STEP_ARMS:
            found.setdefault(setting, {}).setdefault(arm, []).append(cell.figures[arm]["log_loss"])
    others = [arm for arm in split_studies.STEP_ARMS if arm != "local"]

    def told_apart(study: str, arm: str) -> dict[int, bool]:
        """At how many steps an interval tells the arm from training alone: whether it is better."""
        apart = {
            steps: paired_difference(
                found[study, steps][arm],
                found[study, steps]["local"],
                comparisons=len(others) * len(split_studies.STEPS),
            )
            for steps in split_studies.STEPS
        }
        return {steps: d.mean < 0 for steps, d in apart.items() if d.leaves_out_zero}

    assert told_apart("breast-cancer", "weighted_gradient") == {1: True, 5: True, 20: True}
    assert told_apart("breast-cancer", "bias_correction") == {20: True}
    for steps in split_studies.STEPS:
        means = {arm: fmean(losses) for arm, losses in found["breast-cancer", steps].items()}
        assert means[RECOMMENDED] <= min(means.values()) + 0.01
    assert not any(told_apart("heart-disease", arm) for arm in others)
    text = flowing("experiments/README.md")
    assert "averaged gradients beat training alone at each of them" in text
    assert "bias correction at twenty only" in text


def test_the_evaluation_page_quotes_how_far_chance_moves_the_worst_cell() -> None:
    page = (ROOT / "experiments" / "results" / "verdict" / "README.md").read_text()
    found = re.search(
        r"Its worst cell, ([\d.]+) % of \d+ studies, has a 95 % binomial interval \(Wilson\) of"
        r" ([\d.]+) to ([\d.]+) %",
        page,
    )
    assert found is not None
    worst, low, high = found.groups()
    text = flowing("docs/evaluation.md")
    assert f"the 95 % interval of its {worst} % is {low} to {high} %" in text
    near = page.split("| | p ≤ | claims, mean % | claims, worst cell % |")[1]
    held_out, folds = (
        re.search(rf"^\| {scheme} \| \S+ \(claimed at\) \| \S+ \| (\S+) \|$", near, re.M)
        for scheme in ("hold-out", "5 folds, 5 times")
    )
    assert held_out is not None
    assert folds is not None
    quoted = f"{folds[1]} % (five folds, five times) and {held_out[1]} % (hold-out) of a setting's"
    assert quoted in flowing("experiments/README.md")


def test_beside_flamby_the_recommended_rule_does_as_the_text_says() -> None:
    page = (ROOT / "experiments" / "results" / "fed-heart" / "README.md").read_text()
    assert "planned cells have been run" not in page  # there are all hundred splits
    rows = re.findall(rf"^\| (\w+) \| {RECOMMENDED} \| (.*) \|$", page, flags=re.MULTILINE)
    assert len(rows) == 4
    apart = {
        (user, place): float(cell.split()[0])
        for user, cells in rows
        for place, cell in enumerate(cells.split(" | "))
        if cell.endswith("*")
    }
    fedavg, tuned = 1, 2  # by accuracy, after training alone; then the same three by AUROC
    assert all(difference > 0 for (_, place), difference in apart.items() if place <= tuned)
    assert sum(place == fedavg for _, place in apart) == 3
    for other in (fedavg, tuned):
        behind = [difference for (_, place), difference in apart.items() if place == 3 + other]
        assert len(behind) == 2
        assert all(-0.0055 < difference < 0 for difference in behind)
    text = flowing("experiments/README.md")
    assert page.count("\\*\\*") == 1  # in the words that say what it means
    assert "allows for the patients that splits share none holds" in text
    assert "at no hospital clearly less accurate than training alone, FedAvg or fine-tuning" in text
    assert "at three of four clearly more accurate than FedAvg" in text
    assert "FedAvg and fine-tuning are clearly ahead of it at two hospitals, by half a" in text
    swiss, va = (losses("fed-heart", f"## {user}") for user in ("switzerland", "va"))
    assert swiss[RECOMMENDED] == swiss["majority"]
    assert va[RECOMMENDED] < va["majority"]
    assert "in Switzerland it is as accurate as the commonest class, and for V.A. less" in text


def test_the_threat_model_quotes_what_the_protections_cost() -> None:
    page = (ROOT / "experiments" / "results" / "protections" / "README.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    errors, more = ({row[0].strip("| "): row[column] for row in rows} for column in (1, 2))
    text = flowing("docs/threat-model.md")
    assert f"in place of {errors['cells of 3, public order']} |" in text
    both = "cells of 10, secret order"
    for words, found in (
        ("secret order of the mini-batches", more["secret order"]),
        ("cells of 10 in place of 3", more["cells of 10"]),
        ("both", more[both]),
        (
            "both, and compressed as float16 or int8",
            f"{more[f'{both}, float16']}, {more[f'{both}, int8']}",
        ),
    ):
        assert f"| {words} | {found} |" in text


def test_flambys_training_comes_to_flambys_figures_as_far_as_the_text_says() -> None:
    page = (ROOT / "experiments" / "results" / "fed-heart" / "README.md").read_text()

    def row(name: str) -> list[float]:
        line = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
        return [float(value) for value in line.strip("| ").split(" | ")[1:5]]

    apart = [
        abs(ours - theirs)
        for arm in ("local", "FedAvg")
        for ours, theirs in zip(
            row(f"its training repeated, {arm}"), row(f"FLamby, {arm}"), strict=True
        )
    ]
    assert max(apart) <= 1.5
    pooled = zip(row("its training repeated, pooled"), row("FLamby, pooled"), strict=True)
    assert max(abs(ours - theirs) for ours, theirs in pooled) <= 5
    assert "and for the pooled model within 5" in flowing("experiments/README.md")
    text = flowing("experiments/README.md")
    assert "its figures for local training and FedAvg within 1.5 points" in text


def test_where_rules_help_on_the_shipped_studies_is_as_the_text_says() -> None:
    text = flowing("experiments/README.md")
    found = {
        user: losses("which-rule", f"## heart-disease, for {user}")
        for user in ("cleveland", "hungary", "switzerland", "va")
    }
    gained = {user: round(of["local"] - min(of.values()), 3) for user, of in found.items()}
    assert max(gained["cleveland"], gained["hungary"]) == 0.008
    assert "no rule has, with its defaults, a log loss more than 0.008 below" in text
    assert max(found["va"], key=lambda arm: found["va"][arm]) == "local"
    assert f"Only for V.A. has every rule the lower loss, by {gained['va']:.3f} at most" in text
    swiss = found["switzerland"]
    assert swiss["personal_intercept"] < swiss["local"] < swiss["fedavg"] / 10
    outliers = ("multi_krum", "coordinate_median", "geometric_median")
    home = losses("which-rule", "## breast-cancer, for home")
    assert set(sorted(home, key=lambda arm: home[arm])[:3]) == set(outliers)
    for arm in outliers:
        behind = {user for user, of in found.items() if of[arm] > of["local"]}
        assert behind == {"cleveland", "hungary", "switzerland"}
    assert (
        "had the lowest losses of all on the default study, behind training alone for three" in text
    )
    errors = losses("which-rule", "## breast-cancer, for home", 3)
    paper, alone, averaged = (f"{errors[arm]:.1f}" for arm in ("weight_erosion", "local", "fedavg"))
    assert f"the paper's setting {paper} of 104, where they make {alone} and {averaged}" in text
    assert home["personal_intercept"] > home["local"]


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


def test_the_text_about_the_simulator_quotes_its_benchmark() -> None:
    path = ROOT / "experiments" / "benchmarks" / "results" / "simulation.json"
    found = json.loads(path.read_text())
    lines = {line["name"].removeprefix("simulation."): line for line in found["lines"]}
    loop, flower, limit = (lines[f"mnist.vs_{peer}"] for peer in ("loop", "flower", "limit"))
    text = flowing("experiments/README.md")
    ours = f"Ours trains {flower['ours']:,.0f} images a second, {loop['ratio']:.2f} times a plain"
    assert f"{ours} loop and {flower['ratio']:.2f} times Flower's simulation engine" in text
    assert f"come to {limit['peer'] / flower['peer']:.2f} times Flower's" in text
    assert f"A round of the table takes {lines['table.vs_in_turn']['ours']:.2f} s" in text
    details = found["details"]["ours"]
    assert f"takes {details['peak_memory_mb'] / 1000:.1f} GB" in text
    assert len(details["seconds_per_round"]) == 3
    assert found["machine"]["processors"] == 2


def test_the_quadratic_and_good_enough_models_came_to_what_the_text_says() -> None:
    text, results = flowing("experiments/README.md"), ROOT / "experiments" / "results"
    quadratic = (results / "quadratic" / "README.md").read_text()
    gained = re.findall(r"^\| figure2-bc-zeta1 (?:\|[^|]*){2}\| (\S+) ", quadratic, re.MULTILINE)
    tuned = re.findall(r"training alone by (\S+) times with N = 10,", quadratic)
    (fixed,), (each,) = gained, tuned
    assert f"ends {fixed} times lower than training alone with one step size for both" in text
    assert f"where each has its own best constants, {each} times" in text
    page = (results / "gems" / "README.md").read_text()
    table = page.split("## MNIST, one hidden layer of 50\n")[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in table.splitlines() if re.match(r"\| [235] ", line)]
    headings = next(line for line in table.splitlines() if "nodes" in line).split(" | ")
    for words, heading in (("comes to", "GEMS, ours"), ("the average to", "averaged")):
        two, three, five = (row[headings.index(heading)].split()[0] for row in rows)
        assert f"{words} {two}, {three} and {five}" in text
    lower = [line for line in page.splitlines() if re.match(r"- .*, published \.", line)]
    of_average = sum("the average:" in line for line in lower)
    quoted = f"{len(lower)} of that paper's figures come out lower here by more than .02"
    assert f"{quoted}, {of_average} of them the average's" in text
    beside = [
        (float(ours), float(published))
        for ours, published in re.findall(r"(?<=\| )(\.\d{3})(?: \(\S+\))? \[(\.\d{3})\]", page)
    ]
    # The last table has one row again that is in the table of networks.
    assert len(beside) == 5 * len(PUBLISHED) + len(SIZES)
    assert sum(ours < published - LOWER for ours, published in beside) == len(lower)
    assert "in 3 of 6 settings the published one is above" in " ".join(page.split())


def test_mnists_further_cells_are_counted_and_come_to_what_the_text_says() -> None:
    text, results = flowing("experiments/README.md"), ROOT / "experiments" / "results" / "mnist"
    run = set(CellFile.read(results).cells)
    planned = [plan.name for plan in mnist.further_plans()]

    assert run.issuperset(planned)
    assert f"the paper's grid is complete, and so are {len(planned)} further cells: our own" in text
    page = (results / "README.md").read_text()
    last = [
        [float(cell.rsplit(", ", 1)[1]) for cell in row]
        for row in re.findall(
            r"^\| \d+ \| [A-G] \| (0[^|]*) \| (0[^|]*) \| [^|]+ \|$", page, re.MULTILINE
        )
    ]
    worse = sum(ours < published for published, ours in last)
    (ahead,) = re.findall(rf"default unit: .* above fedavg in (\d+) of {len(last)} settings", page)
    assert f"in {worse} of the {len(last)} settings, and above FedAvg in {ahead}" in text
    assert len(last) == 28
    told = next(line for line in page.splitlines() if line.startswith("- recommended:"))
    ((one, of_one), (other, of_other)) = re.findall(r"above \w+ in (\d+) of (\d+) settings", told)
    assert (one, of_one) == (other, of_other)
    assert one == of_one
    assert f"it is above FedAvg and above training alone in all {one} settings" in text
    lost = [
        100 * (float(theirs) - float(ours))
        for theirs, ours in re.findall(
            r"^\| (?:50|100) \| G \| local \| (\S+) \([^|]*\| (\S+) \(", page, re.MULTILINE
        )
    ]
    assert f"loses {lost[0]:.1f} and {lost[1]:.1f} points with G's 50 and 100 agents" in text
    apart: dict[tuple[str, str], dict[str, float]] = {}
    for agents, pattern, scheme, best in re.findall(
        r"^\| (\d+) \| ([CG]) \| (\w+) \| [^|]*\| (\S+) \(", page, re.MULTILINE
    ):
        apart.setdefault((agents, pattern), {})[scheme] = float(best)
    assert len(apart) == 5
    assert all(
        max(found, key=lambda one: found[one]) == "weight_erosion" for found in apart.values()
    )
    assert (
        "every image at one, Weight Erosion's best round stays ahead of the others' in all five"
        in text
    )


def test_rules_are_set_beside_a_tuned_ridge() -> None:
    results = ROOT / "experiments" / "results"
    cells = read_cells(results / "references", references.plans())
    found = references.by_setting(cells, results)
    apart = {
        name: references.against(name, "ridge", found)
        for name in (*references.COMPARED, "ours", "boosted_trees")
    }
    holding = [
        (name, *setting)
        for name, column in apart.items()
        for setting, each in column.items()
        if each.holds_for_others
    ]
    assert holding == [("fedavg", "heart-disease", "switzerland")]
    assert apart["fedavg"]["heart-disease", "switzerland"].mean > 0
    cleveland = "heart-disease", "cleveland"
    assert all(column[cleveland].mean > 0 for column in apart.values())
    ahead = [-each.mean for setting, each in apart["ours"].items() if setting != cleveland]
    assert min(ahead) > 0
    slower = sum(each.mean > 0 for each in apart["local"].values())
    text = flowing("experiments/README.md")
    assert f"better than training alone for {slower} of {len(found)} users" in text
    clear = sum(each.leaves_out_zero for each in apart["ours"].values())
    assert all(each.mean < 0 for each in apart["ours"].values() if each.leaves_out_zero)
    found_text = f"for {len(ahead)}, by {min(ahead):.3f} to {max(ahead):.3f}, and for {clear} of"
    assert found_text in text
    assert f"the ridge by {apart['ours'][cleveland].mean:.3f}, as is every rule there" in text
    trees = fmean(each.mean for each in apart["boosted_trees"].values())
    assert f"Boosted trees are {trees:.3f} behind the ridge in the mean" in text
    assert "for Cleveland such a ridge is ahead of every method" in flowing("docs/choosing.md")
