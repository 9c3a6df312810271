"""Each hospital of one of FLamby's benchmarks (du Terrail et al. 2022) as the user.

What Fed-Heart-Disease and Fed-TCGA-BRCA have in common: all arms and pooled training on one split,
and over the other splits a table of our rules against others and one of every arm for each user.
"""

import csv
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from erosion.simulation.simulator import Simulation
from erosion.simulation.testbed import study_path
from erosion.simulation.testbed_sites import site_of
from erosion.sources import Data
from erosion.sources.source import write_table
from erosion_client.training.hospital import Hospital
from erosion_common.protocol.messages import EvaluateRequest, FinalMetrics
from erosion_common.study.study import Study, load_study
from experiments.cells import Cell, Values
from experiments.page import grid, named, table, where
from experiments.papers.rules import RECOMMENDED, RECOMMENDED_ARM, Arms
from experiments.splits import simulated_on
from experiments.tables import (
    about,
    comparison_table,
    comparisons,
    figures_of,
    in_words,
    one_or_range,
)

SPLIT = "split"  # the column of both sources: "train" or "test"
FOLDS = 3  # parts of the user's training patients, on one of which the number of rounds is chosen
POOLED = "pooled"
_DEFAULTS = (
    *("local", "fedavg", "fine_tuning", "ditto", "apfl", "personal_intercept", "model_averaging"),
    *("fedfomo", "bias_correction", "weighted_gradient", "weight_erosion"),
)
ARMS: Arms = {
    **{name: {} for name in _DEFAULTS},
    RECOMMENDED: RECOMMENDED_ARM,
    "evidence_erosion": {},
    "evidence_erosion_decay": {"algorithm": "evidence_erosion", "decay": 2.4},
}
OURS = (RECOMMENDED, "evidence_erosion", "evidence_erosion_decay")
OTHERS = ("local", "fedavg", "fine_tuning")


def study_for(name: str, config: Values, *, split_seed: int | None, bootstrap: int) -> Study:
    """Return the shipped study for a cell's user and arms, on one split that rounds are chosen in.

    `split_seed` goes to the source of the patients; None: the split that FLamby's file states.
    """
    raw = load_study(study_path(name)).model_dump(mode="json") | {
        "user": config["user"],
        "seed": config["split"],
        "arms": config["arms"],
        "evaluation": {"split_column": SPLIT, "bootstrap": bootstrap},
        "selection": {"method": "validation", "folds": config["folds"]},
    }
    raw["testbed"]["options"]["split_seed"] = split_seed
    return Study.model_validate(raw)


def arms_and_pooled(
    study: Study, files: Mapping[str, Data], base_rate: str
) -> dict[str, FinalMetrics]:
    """Return the figures of every arm, of pooled training and of the base rate, by name."""
    apart = _simulated(study, files).evaluation
    assert apart.base_rate is not None
    return {**apart.arms, POOLED: _pooled(study, files), base_rate: apart.base_rate}


def _simulated(study: Study, files: Mapping[str, Data]) -> Simulation:
    return simulated_on(study, {name: site_of(name, file) for name, file in files.items()})


def _pooled(study: Study, files: Mapping[str, Data]) -> FinalMetrics:
    """Return a model that one hospital trains on everybody's patients, in the steps of all.

    The user's site measures it, as it does the arms: the figures of survival depend on the
    training part of who measures.
    """
    raw, user = study.model_dump(mode="json"), study.user
    header: list[str] = []
    rows: list[list[str]] = []
    for hospital, file in files.items():
        header, patients = read_table(file)
        place = header.index(SPLIT)
        rows += [cells for cells in patients if hospital == user or cells[place] == "train"]
    one_place = raw | {
        "hospitals": [user],
        "arms": {"local": {}},
        "training": {**raw["training"], "steps": raw["training"]["steps"] * len(files)},
        "federation": {**raw["federation"], "quorum": 1},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pooled.csv"
        write_table(path, header, rows)
        trained = _simulated(Study.model_validate(one_place), {user: {"path": path}})
    # An arm that takes the scaling that it is sent: what the training was scaled by.
    arms = {POOLED: {"algorithm": "fedavg"}}
    measured = Study.model_validate(raw | {"arms": arms, "scaling": "federated", "selection": None})
    request = EvaluateRequest(
        measured,
        {POOLED: trained.personal.get("local", trained.finals["local"].params)},
        trained.evaluation.own_scaling or trained.evaluation.scaling,
    )
    return Hospital(site_of(user, files[user])).evaluate(request).header.arms[POOLED]


def read_table(file: Data) -> tuple[list[str], list[list[str]]]:
    """Return the header and the patients' cells of what a source wrote."""
    with Path(file["path"]).open(newline="", encoding="utf-8") as text:
        header, *patients = list(csv.reader(text))
    return header, patients


def by_user(cells: Mapping[str, Cell], users: Sequence[str]) -> dict[str, dict[int, Values]]:
    """For each user the figures of the splits that were run, by the split's number."""
    return {
        user: {cell.plan.config["split"]: cell.figures for cell in where(cells, user=user)}
        for user in users
    }


def by_arm(users: Sequence[str], rows: Mapping[str, Sequence[float | None]], form: str) -> str:
    """Return a table with a column for each user, and a mean where every user has a value."""
    lines = []
    for name, values in rows.items():
        known = [value for value in values if value is not None]
        cells = ["" if value is None else f"{value:{form}}" for value in values]
        mean = f"{fmean(known):{form}}" if len(known) == len(values) else ""
        lines.append([name, *cells, mean])
    return table(["", *users, "mean"], lines)


def of_arms(
    found: Mapping[str, Values], users: Sequence[str], arms: Sequence[str], metric: str
) -> dict[str, Sequence[float | None]]:
    """Return a metric of each arm for every user, None where there is none."""
    return {arm: [found[u][arm][metric] if u in found else None for u in users] for arm in arms}


@dataclass(frozen=True, slots=True)
class OtherSplits:
    """The tables over the splits that are not FLamby's."""

    rows: Sequence[str]  # of each user's table: what is no arm of ours, then the arms
    columns: Mapping[str, str]  # of each user's table: heading -> metric
    compared: Mapping[str, str]  # metric -> heading, in the table of ours against others
    lower_is_better: Collection[str]  # of these metrics
    test_share: float

    def draw(self, found: Mapping[str, Sequence[Values]]) -> dict[str, Any]:
        """Ours against others for all users with two splits, and every arm for each of them."""
        measured = {user: splits for user, splits in found.items() if len(splits) > 1}
        return {
            **self._ours_against_others(measured),
            "each": [
                {
                    "name": user,
                    "splits": len(splits),
                    "patients": one_or_range(split["patients"] for split in splits),
                    "arms": arms,
                }
                for user, splits in measured.items()
                if (arms := self._arms_of_user(splits))
            ],
        }

    def _ours_against_others(self, found: Mapping[str, Sequence[Values]]) -> dict[str, Any]:
        every = comparisons(
            found, OURS, OTHERS, list(self.compared), test_share=lambda _user: self.test_share
        )
        marked: Counter[tuple[str, str, str]] = Counter()  # by user, metric and direction
        for one in every:
            if one.difference and one.is_clear:
                better = (one.difference.mean > 0) != (one.metric in self.lower_is_better)
                marked[one.setting, one.metric, "better" if better else "worse"] += 1
        splits = ", ".join(f"{user} {len(of)}{self._fewer(of)}" for user, of in found.items())
        ways = {
            f"{heading}: {word}": (metric, word)
            for metric, heading in self.compared.items()
            for word in ("better", "worse")
        }
        return {
            "about": about(every),
            "splits": splits,
            "against": comparison_table(
                every,
                lambda one: [one.setting, one.ours],
                lambda one: f"{self.compared[one.metric]}: {one.other}",
            ),
            "comparisons": len(OURS) * len(OTHERS),
            "marked": grid("", named(found), ways, lambda user, way: str(marked[user, *way])),
        }

    def _fewer(self, splits: Sequence[Values]) -> str:
        """Return in brackets the metrics that some splits lack, and how many splits have each."""
        having = {of: len(figures_of(splits, "local", of)) for of in self.compared}
        fewer = [f"{self.compared[of]} {n}" for of, n in having.items() if n < len(splits)]
        return f" ({', '.join(fewer)})" if fewer else ""

    def _arms_of_user(self, splits: Sequence[Values]) -> str:
        """Return every arm's mean over the splits that have a metric."""

        def entry(arm: str, metric: str) -> str:
            values = figures_of(splits, arm, metric)
            return in_words(values) if len(values) > 1 else ""

        having = {of: len(figures_of(splits, "local", of)) for of in self.columns.values()}
        columns = {
            heading if having[of] == len(splits) else f"{heading} ({having[of]} splits)": of
            for heading, of in self.columns.items()
        }
        return grid("", named(self.rows), columns, entry)
