"""Compares every rule on the shipped studies, over many splits of the patients.

Every arm starts from the same model and takes as many local steps. The seed decides training, the
user's test patients, and (breast cancer) which patient is at which hospital. Splits of one study
share patients, so an interval is about splits of these patients, not about other hospitals.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from erosion.client.evaluation.verdict import sign_flip_p_value
from erosion.common.study.study import Study, load_study
from erosion.experiments.cells import Cell, CellPlan, Tick, Values
from erosion.experiments.experiment import Page, made_by
from erosion.experiments.papers.paired import LEVEL, paired_difference
from erosion.experiments.splits import one_split
from erosion.experiments.standard_error import in_words
from erosion.experiments.testbed import study_path

SEEDS = 50
REFERENCE = "local"
RECOMMENDED = "weight_erosion_slow_own_bias"
OTHERS = ("local", "fedavg", "fine_tuning", "weight_erosion", "evidence_erosion")

# What is not said here is a rule's default.
ARMS: Mapping[str, Mapping[str, Any]] = {
    "local": {},
    "fedavg": {},
    "fedavg_adam": {"algorithm": "fedavg", "server_optimizer": "adam"},
    "fedprox": {},
    "scaffold": {},
    "fedlin": {},
    "fine_tuning": {},
    "ditto": {},
    "apfl": {},
    "personal_intercept": {},
    "ensemble": {},
    "model_averaging": {},
    "fedfomo": {},
    "multi_krum": {},
    "coordinate_median": {},
    "geometric_median": {},
    "trimmed_mean": {},
    "centered_clipping": {},
    "weighted_gradient": {},
    "bias_correction": {},
    "weight_erosion": {},
    "weight_erosion_slow": {
        "algorithm": "weight_erosion",
        "distance_penalty": "auto",
        "erosion_share": 1.25,
        "size_penalty": 0.0,
    },
    "weight_erosion_slow_own_bias": {
        "algorithm": "weight_erosion",
        "distance_penalty": "auto",
        "erosion_share": 1.25,
        "size_penalty": 0.0,
        "weighting": "samples",
        "own_parameters": ["output_bias"],
    },
    "evidence_erosion": {},
    "evidence_erosion_decay": {"algorithm": "evidence_erosion", "decay": 2.4},
}

Setting = tuple[str, str]  # study, user


def settings() -> list[Setting]:
    """The studies, each with the users whom it is run for."""
    heart = load_study(study_path("heart-disease"))
    return [("breast-cancer", "home"), *(("heart-disease", user) for user in heart.hospitals)]


def plans() -> Sequence[CellPlan]:
    """A cell for each setting and seed; all arms of one are compared on the same patients."""
    return plans_of(settings(), SEEDS)


def plans_of(chosen: Sequence[Setting], seeds: int) -> Sequence[CellPlan]:
    """The cells of some settings, one seed after another."""
    return [
        CellPlan(
            f"{study}-{user}-{seed}",
            {"study": study, "user": user, "seed": seed, "arms": dict(ARMS), "version": 1},
            rounds=1,
        )
        for seed in range(seeds)
        for study, user in chosen
    ]


def run(config: Values, data_dir: Path | None, tick: Tick) -> Values:
    """Simulate one split."""
    study = load_study(study_path(config["study"]))
    raw = study.model_dump(mode="json") | {
        "user": config["user"],
        "arms": config["arms"],
        "seed": config["seed"],
        "evaluation": {"test_share": study.evaluation.test_share, "bootstrap": 100},
    }
    reply = one_split(Study.model_validate(raw), data_dir)
    tick()
    assert reply.base_rate is not None
    return {
        arm: {name: m.get(name) for name in ("log_loss", "accuracy", "auroc")}
        for arm, m in {**reply.arms, "base rate": reply.base_rate}.items()
    } | {"patients": reply.base_rate.num_samples}


def draw(cells: Mapping[str, Cell]) -> Page:
    """A summary over the settings, and a table for each."""
    heading = [
        "# Which rule wins?",
        "",
        "Every rule with its defaults, unless its name says more, on the shipped studies; nothing",
        "was tuned on the splits that are shown. `weight_erosion` is the paper's setting.",
        '`weight_erosion_slow` erodes slowly (`distance_penalty = "auto"`, `erosion_share = 1.25`,',
        "no size penalty), `..._own_bias` also counts samples and keeps the output bias at each",
        'hospital: `preset = "recommended"`. Log loss of the user\'s test patients; ± is one',
        "standard error over splits, which share patients.",
    ]
    return page_of(cells, settings(), heading)


def page_of(cells: Mapping[str, Cell], chosen: Sequence[Setting], heading: Sequence[str]) -> Page:
    """The heading, a summary over the settings, and a table for each that has two splits."""
    found = {
        setting: [cell.figures for cell in cells.values() if _setting_of(cell) == setting]
        for setting in chosen
    }
    measured = {setting: figures for setting, figures in found.items() if len(figures) > 1}
    lines = [*heading, "", *_summary(measured), *_against_others(measured)]
    for (study, user), figures in measured.items():
        lines += _table(f"{study}, for {user}", figures)
    return Page("\n".join([*lines, made_by(cells.values()), ""]))


def _setting_of(cell: Cell) -> Setting:
    return cell.plan.config["study"], cell.plan.config["user"]


def _losses(figures: Sequence[Values], arm: str) -> list[float]:
    return [float(split[arm]["log_loss"]) for split in figures]


def _summary(found: Mapping[Setting, Sequence[Values]]) -> list[str]:
    """Mean rank over the settings, and how much worse than the best arm in the worst one."""
    means = {arm: [fmean(_losses(figures, arm)) for figures in found.values()] for arm in ARMS}
    best = [min(means[arm][place] for arm in ARMS) for place in range(len(found))]
    ranks = {
        arm: fmean(
            1 + sum(means[other][place] < means[arm][place] for other in ARMS)
            for place in range(len(found))
        )
        for arm in ARMS
    }
    rows = [
        f"| {arm} | {ranks[arm]:.1f} |"
        f" {max(mean - least for mean, least in zip(means[arm], best, strict=True)):.3f} |"
        for arm in sorted(ARMS, key=lambda arm: ranks[arm])
    ]
    return [
        f"## Over {len(found)} settings",
        "",
        "| arm | mean rank by log loss | worst regret: log loss above the best arm's |",
        "| --- | --- | --- |",
        *rows,
        "",
    ]


def _against_others(found: Mapping[Setting, Sequence[Values]]) -> list[str]:
    """The recommended arm minus some others, with intervals that hold all together."""
    comparisons = len(found) * len(OTHERS)
    rows = []
    for (study, user), figures in found.items():
        ours = _losses(figures, RECOMMENDED)
        cells = [
            paired_difference(ours, _losses(figures, other), comparisons=comparisons).text()
            for other in OTHERS
        ]
        rows.append(f"| {study}, {user} | {' | '.join(cells)} |")
    return [
        f"## {RECOMMENDED} minus others",
        "",
        "Difference in log loss, below 0 where it is the better one. Intervals of paired",
        f"differences over splits, {100 * (1 - LEVEL):g} % for all {comparisons} together; \\*:"
        " leaves out 0.",
        "",
        f"| | {' | '.join(OTHERS)} |",
        f"| --- |{' --- |' * len(OTHERS)}",
        *rows,
        "",
    ]


def _table(title: str, figures: Sequence[Values]) -> list[str]:
    reference = np.array(_losses(figures, REFERENCE))
    apart = {arm: np.array(_losses(figures, arm)) - reference for arm in ARMS if arm != REFERENCE}
    p_values = {arm: sign_flip_p_value(values, seed=0) for arm, values in apart.items()}
    claimed = holm(p_values, LEVEL)
    rows = []
    for arm in sorted(ARMS, key=lambda arm: fmean(_losses(figures, arm))):
        errors = [(1 - split[arm]["accuracy"]) * split["patients"] for split in figures]
        aurocs = [split[arm]["auroc"] for split in figures if split[arm]["auroc"] is not None]
        beside = ""
        if arm in apart:
            beside = in_words(apart[arm].tolist(), "+.3f") + (" \\*" if arm in claimed else "")
        rows.append(
            f"| {arm} | {in_words(_losses(figures, arm))} | {beside} |"
            f" {in_words(errors, '.1f')} | {fmean(aurocs) if aurocs else float('nan'):.3f} |"
        )
    base = fmean(_losses(figures, "base rate"))
    majority = fmean((1 - split["base rate"]["accuracy"]) * split["patients"] for split in figures)
    return [
        f"## {title}",
        "",
        f"{len(figures)} splits, {figures[0]['patients']} test patients each. Base rate: log loss"
        f" {base:.3f}, {majority:.1f} errors. \\*: differs from local training (paired sign-flip"
        f" test over splits, Holm's correction, {100 * LEVEL:g} % for the table).",
        "",
        "| arm | log loss | minus local | errors | AUROC |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        "",
    ]


def holm(p_values: Mapping[str, float], level: float) -> set[str]:
    """The names that Holm's step-down procedure rejects at `level` for all of them together."""
    rejected: set[str] = set()
    for place, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        if p_values[name] > level / (len(p_values) - place):
            break
        rejected.add(name)
    return rejected
