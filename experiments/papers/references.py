"""What collaborating has to beat: tuned models of the user's patients alone, on the same splits.

No round is run. On each split of which-rule and confirmation the user's site fits its local
references, and their losses are compared with those that the cells of these experiments keep of
every rule. Where the shares of classes vary, the base rate's loss shows that a split is the same.

Cells `pooled-...` fit the same references to the training patients of all hospitals together: the
best that a federated ridge or federated boosting could be if they gave what pooling gives.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from erosion.simulation.testbed_sites import sites_of_testbed
from erosion_client.dataset.local_dataset import LocalDataset, Rows
from erosion_client.evaluation.references import fit_reference, folds_of_patients
from erosion_client.training.hospital import Hospital
from erosion_common.protocol.messages import EvaluateRequest
from erosion_common.protocol.scaling import pool
from erosion_common.study.sections import REFERENCES
from erosion_common.study.study import Study
from experiments.cells import Cell, CellPlan, Values, read_cells
from experiments.experiment import RESULTS, Experiment, experiment
from experiments.page import Page, grid, named, page, table
from experiments.papers import rules
from experiments.papers.rules import CONFIRMATION, WHICH_RULE, Setting, plans_of, test_share
from experiments.splits import figures_of_split, shipped_study
from experiments.tables import (
    Comparison,
    about,
    comparison_table,
    comparisons,
    figures_of,
    in_words,
    one_or_range,
)

OURS = {WHICH_RULE: rules.SLOW, CONFIRMATION: rules.RECOMMENDED}
COMPARED = ("local", "fedavg", "personal_intercept", "evidence_erosion")  # and ours
RIDGE, TREES = "ridge", "boosted_trees"
POOLED = "pooled"
NAMES = (*REFERENCES, *COMPARED, "ours")
TOLERANCE = 1e-9

Losses = Mapping[Setting, Sequence[Values]]  # of every split


def settings() -> dict[Setting, Experiment]:
    """Return every study and user, and the experiment that has its rules' losses."""
    explored = dict.fromkeys(rules.shipped_settings(), WHICH_RULE)
    return explored | dict.fromkeys(rules.NEW_SETTINGS, CONFIRMATION)


def plans() -> list[CellPlan]:
    """Return two cells for each setting and seed: of the user's patients, and of everybody's.

    The leaderboard alone reads those of `rules.ODD_SETTINGS`.
    """
    seeds = range(rules.SEEDS)
    alone = plans_of([*settings(), *rules.ODD_SETTINGS], seeds, references=list(REFERENCES))
    pooled = plans_of(settings(), seeds, pooled=list(REFERENCES))
    return [*alone, *(replace(plan, name=f"{POOLED}-{plan.name}") for plan in pooled)]


def study_of(config: Values) -> Study:
    """Return the study that the user's site fits local references for; no arm is run."""
    study = shipped_study(
        config["study"], user=config["user"], seed=config["seed"], arms=["fedavg", "local"]
    )
    if POOLED in config:  # each column in its unit, so that hospitals' rows can be stacked
        return study.model_copy(update={"scaling": "none"})
    evaluation = study.evaluation.model_copy(update={"references": tuple(config["references"])})
    return study.model_copy(update={"evaluation": evaluation})


def run(config: Values, data_dir: Path | None) -> Values:
    """Fit the references on one split, and measure them."""
    if POOLED in config:
        return _run_pooled(config, data_dir)
    study = study_of(config)
    with tempfile.TemporaryDirectory() as made:
        site = sites_of_testbed(study, Path(), Path(made), data_dir, None)[study.user]
        hospital = Hospital(site)
        sums = hospital.describe(study).sums
        layout = study.build_context.layout()
        untrained = torch.zeros(max(place.stop for place in layout.values()))
        request = EvaluateRequest(
            study,
            dict.fromkeys(study.arms, untrained),
            None if sums is None else pool([sums], study.task),
        )
        reply = hospital.evaluate(request).header
    return figures_of_split(reply.references, reply.base_rate)


def _run_pooled(config: Values, data_dir: Path | None) -> Values:
    """Fit the references to all hospitals' training patients, and measure them at the user's."""
    study = study_of(config)
    with tempfile.TemporaryDirectory() as made:
        sites = sites_of_testbed(study, Path(), Path(made), data_dir, None)
        data = {name: LocalDataset(site, study) for name, site in sites.items()}
    user, parts = data[study.user], [of.rows_alone()[0] for of in data.values()]
    firsts = np.cumsum([0, *(part.patients.max(initial=-1) + 1 for part in parts)])
    training = Rows(
        np.concatenate([part.inputs for part in parts]),
        np.concatenate([part.targets for part in parts]),
        np.concatenate([part.patients + first for part, first in zip(parts, firsts, strict=False)]),
    )
    folds = folds_of_patients(training, study.task, user.seed("references"))
    figures: dict[str, Any] = {"patients": len(np.unique(training.patients))}
    for name in config[POOLED]:
        found = fit_reference(name, study.task, training, user.rows_alone()[1], folds)
        predicted = study.task.predictions_of_patients(found.predictions, user.test_patients)
        losses = study.task.patient_losses(predicted, user.tested_outcomes)
        figures[name] = {"log_loss": float(losses.mean())}
    return figures


def with_rules(cell: Cell, other: Cell | None, ours: str) -> Values | None:
    """Return the figures of the references, and of the rules by another cell of the same split.

    None where there is no such cell, or the base rate's loss shows that it is of another split.
    """
    base = "base rate"
    if other is None or abs(other.figures[base]["log_loss"] - cell.figures[base]["log_loss"]) > (
        TOLERANCE
    ):
        return None
    return {**other.figures, "ours": other.figures[ours], **cell.figures}


def by_setting(cells: Mapping[str, Cell], results: Path = RESULTS) -> Losses:
    """Return the figures of every split that both have, for the settings that have two."""
    rules_of = {one: read_cells(results / one.name, one.plans()) for one in OURS}
    experiments = settings()
    found: dict[Setting, list[Values]] = {setting: [] for setting in experiments}
    for cell in (each for each in cells.values() if POOLED not in each.plan.config):
        setting = cell.plan.config["study"], cell.plan.config["user"]
        if (experiment := experiments.get(setting)) is None:
            continue
        other = rules_of[experiment].get(cell.plan.name)
        if (split := with_rules(cell, other, OURS[experiment])) is not None:
            found[setting].append(split)
    return {setting: splits for setting, splits in found.items() if len(splits) > 1}


def _pooled(cells: Mapping[str, Cell]) -> str:
    found: dict[Setting, list[Values]] = {}
    for cell in (each for each in cells.values() if POOLED in each.plan.config):
        setting = cell.plan.config["study"], cell.plan.config["user"]
        found.setdefault(setting, []).append(cell.figures)
    found = {setting: splits for setting, splits in found.items() if len(splits) > 1}
    every = comparisons(found, [TREES], [RIDGE], test_share=test_share)
    apart = {one.setting: one.difference.text() if one.difference else "" for one in every}
    return table(
        ["setting, pooled patients", RIDGE, TREES, "trees minus ridge"],
        [
            [
                f"{', '.join(setting)}, {one_or_range(split['patients'] for split in splits)}",
                *(in_words(figures_of(splits, name, "log_loss")) for name in (RIDGE, TREES)),
                apart[setting],
            ]
            for setting, splits in found.items()
        ],
    )


def minus_ridge(found: Losses) -> list[Comparison[Setting]]:
    """Return everything else against the ridge; the intervals hold for a column together."""
    names = [name for name in NAMES if name != RIDGE]
    return comparisons(found, names, [RIDGE], test_share=test_share, together=len(found) or 1)


def draw(cells: Mapping[str, Cell]) -> Page:
    """Draw the losses, and those of the rules minus the ridge's."""
    found = by_setting(cells)
    every = minus_ridge(found)
    columns = dict.fromkeys(one.ours for one in every)
    means = [
        fmean(one.difference.mean for one in every if one.ours == name and one.difference)
        for name in columns
    ]
    return page(
        "references",
        left_out="; ".join(", ".join(setting) for setting in settings() if setting not in found),
        losses=grid(
            "setting, splits",
            {f"{', '.join(setting)}, {len(splits)}": splits for setting, splits in found.items()},
            named(NAMES),
            lambda splits, name: in_words(figures_of(splits, name, "log_loss")),
        ),
        pooled=_pooled(cells),
        about=about(every, "a column"),
        minus_ridge=comparison_table(
            every,
            lambda one: [", ".join(one.setting)],
            lambda one: one.ours,
            last=["mean", *(f"{mean:+.3f}" for mean in means)],
        ),
    )


EXPERIMENT = experiment(
    "references",
    plans,
    run,
    draw,
    study_of,
)
