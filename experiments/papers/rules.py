"""Every rule on the same splits of the same patients: four experiments and their tables.

Every arm starts from the same model and takes as many local steps. The seed decides training, the
user's test patients, and (breast cancer) which patient is at which hospital.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from erosion.simulation.testbed import study_path
from erosion_client.evaluation.final_figures import sign_flip_p_value
from erosion_common.algorithms import REGISTRY
from erosion_common.algorithms.weight_erosion import PRESETS
from erosion_common.study.study import Study, load_study
from erosion_server.run.overview import adjusted_p_values
from experiments.cells import Cell, CellPlan, Values, planned
from experiments.experiment import experiment
from experiments.page import COLOURS, Page, joined, page, picture, table
from experiments.splits import figures_of_split, one_split, shipped_study
from experiments.tables import (
    LEVEL,
    Comparison,
    about,
    comparison_table,
    comparisons,
    errors_of,
    figures_of,
    in_words,
    one_or_range,
)

Setting = tuple[str, str]  # study, user
Arms = Mapping[str, Mapping[str, Any]]
Found = Mapping[Setting, Sequence[Values]]  # the splits of each setting

SEEDS = 50
REFERENCE = "local"
OTHERS = ("local", "fedavg", "fine_tuning", "weight_erosion", "evidence_erosion")
DRAWN = ("local", "fedavg", "weight_erosion")
PICTURE = "differences.svg"
RECOMMENDED, SLOW = "weight_erosion_recommended", "weight_erosion_slow_own_bias"
RECOMMENDED_ARM: Mapping[str, Any] = {"algorithm": "weight_erosion", **PRESETS["recommended"]}
SLOWLY: Mapping[str, Any] = {
    "algorithm": "weight_erosion",
    "distance_penalty": "auto",
    "erosion_share": 1.25,
    "size_penalty": 0.0,
}
NAMES = (
    *("local", "fedavg", "fedavg_adam", "fedprox", "scaffold", "fedlin", "fine_tuning", "ditto"),
    *("apfl", "personal_intercept", "ensemble", "model_averaging", "fedfomo", "multi_krum"),
    *("coordinate_median", "geometric_median", "trimmed_mean", "centered_clipping"),
    *("weighted_gradient", "bias_correction", "weight_erosion", "weight_erosion_slow", SLOW),
    *("evidence_erosion", "evidence_erosion_decay"),
)
EXPLORED: Arms = {
    **{name: {} for name in NAMES},  # with its defaults
    "fedavg_adam": {"algorithm": "fedavg", "server_optimizer": "adam"},
    "weight_erosion_slow": SLOWLY,
    SLOW: {**SLOWLY, "weighting": "samples", "own_parameters": ["output_bias"]},
    "evidence_erosion_decay": {"algorithm": "evidence_erosion", "decay": 2.4},
}
CONFIRMED: Arms = {**EXPLORED, RECOMMENDED: RECOMMENDED_ARM}
FINISH: Mapping[str, Any] = {"finish": "evidence"}
# What came later has cells of its own, on the same splits.
PERSONAL = ("pfedme", "per_fedavg", "fedala", "fedamp", "ifca", "waffle")
SPLIT_MODELS = ("fedper", "fedrep", "lg_fedavg", "fedbn")  # compared with a network trained locally
LATER: Arms = {
    **{name: {} for name in PERSONAL},
    RECOMMENDED: RECOMMENDED_ARM,
    f"{RECOMMENDED}_finish": {**RECOMMENDED_ARM, **FINISH},
    **{
        f"{name}_finish": {"algorithm": name, **FINISH}
        for name in ("evidence_erosion", "fedavg", "personal_intercept")
    },
}
_MLP: Mapping[str, Any] = {"name": "mlp", "hidden": [32]}
NETWORKS: Mapping[str, tuple[Mapping[str, Any], Arms]] = {
    "mlp": (
        _MLP,
        {
            **{name: {} for name in ("local", "fedavg", "fedper", "fedrep", "lg_fedavg")},
            RECOMMENDED: RECOMMENDED_ARM,
            f"{RECOMMENDED}_finish": {**RECOMMENDED_ARM, **FINISH},
        },
    ),
    "mlp_bn": ({**_MLP, "normalisation": "site"}, {"local": {}, "fedbn": {}}),
}
# Several such networks in one, each from a start of its own.
ENSEMBLES: Mapping[str, tuple[Mapping[str, Any], Arms]] = {
    "mlp_of_3": (
        {**_MLP, "ensemble_of": 3},
        {
            **{name: {} for name in ("local", "fedavg")},
            RECOMMENDED: RECOMMENDED_ARM,
            f"{RECOMMENDED}_finish": {**RECOMMENDED_ARM, **FINISH},
        },
    )
}
NEW_SETTINGS: Sequence[Setting] = (
    ("diabetes-130", "medicaid"),
    ("diabetes-130", "hmo"),
    ("tcga-brca-three-years", "northeast"),
    ("tcga-brca-three-years", "south"),
)
ODD_SETTINGS: Sequence[Setting] = (("breast-cancer", "miscoded"),)
SHARES: Arms = {
    f"share-{100 * share:.0f}": {**RECOMMENDED_ARM, "erosion_share": share}
    for share in (1.25, 2.0, 3.0, 5.0, 8.0)
}


def shipped_settings() -> list[Setting]:
    """Return the default study, and each heart hospital as the user."""
    heart = load_study(study_path("heart-disease"))
    return [("breast-cancer", "home"), *(("heart-disease", user) for user in heart.hospitals)]


def plans_of(settings: Iterable[Setting], seeds: Iterable[int], **same: Any) -> list[CellPlan]:
    """Return a cell for each setting and seed, where all arms have the same patients."""
    settings = list(settings)
    points = ({"study": s, "user": user, "seed": seed} for seed in seeds for s, user in settings)
    return planned("{study}-{user}-{seed}", points, **same)


def with_later(settings: Iterable[Setting], arms: Arms) -> list[CellPlan]:
    """Return the cells of some arms, and on the same splits what came later, and networks."""
    settings, seeds = list(settings), range(SEEDS)
    networks = {
        part: {name: {"model": model, "arms": own} for name, (model, own) in of.items()}
        for part, of in (("networks", NETWORKS), ("ensembles", ENSEMBLES))
    }
    later = [
        *plans_of(settings, seeds, part="later", arms=LATER, version=1),
        *(
            plan
            for part, of in networks.items()
            for plan in plans_of(settings, seeds, part=part, networks=of, version=1)
        ),
    ]
    return [
        *plans_of(settings, seeds, arms=arms, version=2),
        *(replace(plan, name=f"{plan.config['part']}-{plan.name}") for plan in later),
    ]


def studies_of(config: Values) -> list[Study]:
    """Return the shipped study with the cell's user, seed and arms, or with each network."""
    same = {key: config[key] for key in ("user", "seed")}
    every = config.get("networks", {"": {"arms": config.get("arms")}})
    return [shipped_study(config["study"], **same, **each) for each in every.values()]


def run(config: Values, data_dir: Path | None) -> Values:
    """Simulate one split."""
    replies = [one_split(study, data_dir) for study in studies_of(config)]
    names = [f"{name}_" for name in config.get("networks", ())] or [""]
    found = {
        name + arm: metrics
        for name, reply in zip(names, replies, strict=True)
        for arm, metrics in reply.arms.items()
    }
    return figures_of_split(found, replies[0].base_rate)


def by_setting(cells: Mapping[str, Cell], settings: Iterable[Setting]) -> Found:
    """Return the figures of every setting with two splits or more, of the first cells."""
    found: dict[Setting, list[Values]] = {setting: [] for setting in settings}
    for cell in cells.values():
        if "part" not in cell.plan.config:
            found[cell.plan.config["study"], cell.plan.config["user"]].append(cell.figures)
    return {setting: figures for setting, figures in found.items() if len(figures) > 1}


def test_share(setting: Setting) -> float:
    """Return the share of the user's patients that a split tests."""
    return load_study(study_path(setting[0])).evaluation.test_share


def draw_rules(
    template: str,
    arms: Arms,
    ours: str,
    settings: Sequence[Setting],
    cells: Mapping[str, Cell],
    **values: Any,
) -> Page:
    """Draw a summary over the settings, and a table for each that has two splits."""
    found = by_setting(cells, settings)
    here = {options.get("algorithm", arm) for arm, options in arms.items()}
    every = comparisons(found, [ours], OTHERS, test_share=test_share)
    return page(
        template,
        {PICTURE: _picture(found, every)} if found else None,
        left_out=", ".join(sorted(REGISTRY.keys() - here)),
        num_settings=len(found),
        summary=_summary(found, arms) if len(settings) > 1 else "",
        ours=ours,
        about=about(every),
        against=comparison_table(
            every, lambda one: [", ".join(one.setting)], lambda one: one.other
        ),
        settings=[
            (study, user, joined(_of_setting(figures, arms)))
            for (study, user), figures in found.items()
        ],
        **values,
    )


def _summary(found: Found, arms: Arms) -> str:
    """Mean rank over the settings, and how much worse than the best arm in the worst one."""
    means = np.array([[fmean(_losses(f, arm)) for f in found.values()] for arm in arms])
    ranks = (1 + (means[None] < means[:, None]).sum(axis=1)).mean(axis=1) if found else []
    regrets = (means - means.min(axis=0)).max(axis=1) if found else []
    names = list(arms)
    rows = [
        [names[place], f"{ranks[place]:.1f}", f"{regrets[place]:.3f}"]
        for place in np.argsort(ranks, kind="stable")
    ]
    head = ["arm", "mean rank by log loss", "worst regret: log loss above the best arm's"]
    return table(head, rows)


def _of_setting(figures: Sequence[Values], arms: Arms) -> list[str]:
    """Return every arm, by its mean loss."""
    reference = np.array(_losses(figures, REFERENCE))
    apart = {arm: np.array(_losses(figures, arm)) - reference for arm in arms if arm != REFERENCE}
    p_values = {arm: sign_flip_p_value(values, seed=0) for arm, values in apart.items()}
    claimed = {arm for arm, p in adjusted_p_values(p_values).items() if p <= LEVEL}
    rows = []
    for arm in sorted(arms, key=lambda arm: fmean(_losses(figures, arm))):
        minus = in_words(apart[arm].tolist(), "+.3f") if arm in apart else ""
        auroc = figures_of(figures, arm, "auroc")
        some = f" ({len(auroc)} splits)" if 0 < len(auroc) < len(figures) else ""
        rows.append(
            [
                arm,
                in_words(_losses(figures, arm)),
                minus + (" \\*" if arm in claimed else ""),
                in_words(errors_of(figures, arm), ".1f"),
                (in_words(auroc) or "–") + some,
            ]
        )
    base = fmean(_losses(figures, "base rate"))
    too_few = ""
    if 2.0 ** (1 - len(figures)) * len(apart) > LEVEL:  # the least p-value, at Holm's first step
        too_few = f" With {len(figures)} splits and {len(apart)} comparisons nothing can be marked."
    patients = one_or_range(split["patients"] for split in figures)
    return [
        f"{len(figures)} splits, {patients} test patients each. Base rate: log loss {base:.3f},"
        f" {fmean(errors_of(figures, 'base rate')):.1f} errors. \\*: differs from local training"
        f" (paired sign-flip test over splits, Holm's correction, {100 * LEVEL:g} % for the table)."
        f"{too_few}",
        table(["arm", "log loss", "minus local", "errors", "AUROC"], rows),
    ]


def _picture(found: Found, every: Iterable[Comparison[Setting]]) -> bytes:
    """Return the differences from some others, a row for each setting."""
    # The picture may stand without its page: how few splits there are is in it.
    places = {setting: place for place, setting in enumerate(found)}
    with picture(columns=len(DRAWN), height=0.8 + 0.32 * len(found)) as (figure, content):
        panels = figure.subplots(1, len(DRAWN), sharey=True)
        for other, axes, colour in zip(DRAWN, panels, COLOURS, strict=False):
            for one in every:
                if one.other == other and (apart := one.difference):
                    place = places[one.setting]
                    axes.plot([apart.low, apart.high], [place, place], color=colour)
                    axes.plot([apart.mean], [place], marker="o", markersize=4, color=colour)
            axes.axvline(0, color="#999999", linewidth=0.8, linestyle="--")
            axes.locator_params(axis="x", nbins=4)
            axes.set(title=f"minus {other}", xlabel="log loss (below 0: better)")
        panels[0].set_yticks(range(len(found)), _names(found))
        panels[0].invert_yaxis()
    return content.getvalue()


def _names(found: Found) -> list[str]:
    return [f"{study}, {user} ({len(of)} splits)" for (study, user), of in found.items()]


def _losses(figures: Sequence[Values], arm: str) -> list[float]:
    return figures_of(figures, arm, "log_loss")


def draw_shares(cells: Mapping[str, Cell]) -> Page:
    """Mean log losses by setting, and the mean over settings of what is lost to the best share."""
    found = by_setting(cells, shipped_settings())
    means = np.array([[fmean(_losses(f, arm)) for f in found.values()] for arm in SHARES])
    lost = means - means.min(axis=0) if found else means
    rows = [
        [
            arm,
            *(in_words(_losses(f, arm)) for f in found.values()),
            f"{of.mean():.4f}",
            f"{max(of):.4f}",
        ]
        for arm, of in zip(SHARES, lost, strict=True)
        if found
    ]
    return page("slow-erosion", losses=table(["", *_names(found), "mean", "most"], rows))


WHICH_RULE = experiment(
    "which-rule",
    lambda: with_later(shipped_settings(), EXPLORED),
    run,
    lambda cells: draw_rules("which-rule", EXPLORED, SLOW, shipped_settings(), cells),
    studies_of,
)
ODD_ONE_OUT = experiment(
    "odd-one-out",
    lambda: with_later(ODD_SETTINGS, CONFIRMED),
    run,
    partial(draw_rules, "odd-one-out", CONFIRMED, RECOMMENDED, ODD_SETTINGS),
    studies_of,
)
# Its settings were written down before any arm had been trained on its studies.
CONFIRMATION = experiment(
    "confirmation",
    lambda: with_later(NEW_SETTINGS, CONFIRMED),
    run,
    partial(draw_rules, "confirmation", CONFIRMED, RECOMMENDED, NEW_SETTINGS),
    studies_of,
)
# `distance_penalty = "auto"` takes the first rounds' distances for those of all rounds. But the
# user's own update shrinks while the model comes to rest, so that weights end earlier.
SLOW_EROSION = experiment(
    "slow-erosion",
    lambda: plans_of(shipped_settings(), range(100, 110), arms=SHARES, version=2),
    run,
    draw_shares,
    studies_of,
)
