"""Fed-Heart-Disease (du Terrail et al., FLamby, 2022): each of four hospitals as the user.

FLamby's split of the patients and others drawn in the same way. The number of rounds of every arm
is chosen on a third of the user's training patients; everything else is as the shipped study has
it. `pooled` is what nobody may do: one model trained on all hospitals' patients in one place.
"""

import csv
import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from erosion.client.training.hospital import Hospital
from erosion.common.protocol.messages import EvaluateReply
from erosion.common.study.study import Study, load_study
from erosion.experiments.cells import Cell, CellPlan, Tick, Values
from erosion.experiments.every_user import site_of
from erosion.experiments.experiment import Page
from erosion.experiments.papers.paired import INTERVALS, LEVEL, paired_difference
from erosion.experiments.papers.rule_page import RECOMMENDED, RECOMMENDED_ARM, Arms
from erosion.experiments.simulator import simulate, timeless
from erosion.experiments.sources import HospitalFiles, make_hospitals
from erosion.experiments.sources.heart_disease import FLAMBY_SEED, SPLIT
from erosion.experiments.sources.source import write_table
from erosion.experiments.standard_error import in_words, wilson
from erosion.experiments.testbed import study_path

SPLITS = (FLAMBY_SEED, *(split for split in range(101) if split != FLAMBY_SEED))
METRICS = ("accuracy", "auroc", "brier")
ARMS: Arms = {
    "local": {},
    "fedavg": {},
    "fine_tuning": {},
    "ditto": {},
    "apfl": {},
    "personal_intercept": {},
    "model_averaging": {},
    "fedfomo": {},
    "bias_correction": {},
    "weighted_gradient": {},
    "weight_erosion": {},
    RECOMMENDED: RECOMMENDED_ARM,
    "evidence_erosion": {},
    "evidence_erosion_decay": {"algorithm": "evidence_erosion", "decay": 2.4},
}
OURS = (RECOMMENDED, "evidence_erosion", "evidence_erosion_decay")
OTHERS = ("local", "fedavg", "fine_tuning")
# Accuracy in percent, FLamby's table for the four hospitals, mean over its seeds 42 to 46.
PUBLISHED: Mapping[str, tuple[float, ...]] = {
    "FLamby, pooled": (78.3, 76.4, 75.0, 64.4),
    "FLamby, local": (74.6, 74.6, 72.5, 70.2),
    "FLamby, FedAvg": (73.1, 71.9, 65.0, 64.0),
}


def plans() -> Sequence[CellPlan]:
    """A cell for each split and user, FLamby's split first."""
    return [
        CellPlan(
            f"{user}-split{split}",
            {"user": user, "split": split, "arms": dict(ARMS), "folds": 3, "version": 1},
            rounds=1,
        )
        for split in SPLITS
        for user in _users()
    ]


def run(config: Values, data_dir: Path | None, tick: Tick) -> Values:
    """All arms of one user on one split."""
    raw = load_study(study_path("heart-disease")).model_dump(mode="json") | {
        "user": config["user"],
        "seed": config["split"],
        "arms": config["arms"],
        "evaluation": {"split_column": SPLIT, "bootstrap": 100},
        "selection": {"method": "validation", "folds": config["folds"]},
    }
    raw["testbed"]["options"]["split_seed"] = config["split"]
    study = Study.model_validate(raw)
    with tempfile.TemporaryDirectory() as folder:
        files = make_hospitals(study, Path(folder), data_dir)
        apart = _measured(study, files)
        pooled = _measured(*_in_one_place(raw, files, Path(folder) / "pooled.csv"))
    tick()
    assert apart.base_rate is not None
    found = {**apart.arms, "pooled": pooled.arms["local"], "majority": apart.base_rate}
    return {
        arm: {name: metrics.get(name) for name in METRICS} for arm, metrics in found.items()
    } | {"patients": apart.base_rate.num_samples}


def _measured(study: Study, files: Mapping[str, HospitalFiles]) -> EvaluateReply:
    hospitals = {name: Hospital(site_of(name, file)) for name, file in files.items()}
    return simulate(study, hospitals, clock=timeless).evaluation


def _in_one_place(
    raw: Mapping[str, Any], files: Mapping[str, HospitalFiles], path: Path
) -> tuple[Study, dict[str, HospitalFiles]]:
    """One hospital with everybody's training patients, which takes as many steps as all take."""
    user = raw["user"]
    header, rows = [], []
    for hospital, file in files.items():
        with file.data.open(newline="", encoding="utf-8") as text:
            header, *patients = list(csv.reader(text))
        place = header.index(SPLIT)
        rows += [cells for cells in patients if hospital == user or cells[place] == "train"]
    write_table(path, header, rows)
    training = {**raw["training"], "steps": raw["training"]["steps"] * len(files)}
    study = Study.model_validate(
        {
            **raw,
            "hospitals": [user],
            "arms": {"local": {}},
            "training": training,
            "federation": {**raw["federation"], "quorum": 1},
        }
    )
    return study, {user: HospitalFiles(path)}


def draw(cells: Mapping[str, Cell]) -> Page:
    """FLamby's split beside its table; the other splits for each hospital; ours against others."""
    found = {
        user: {
            cell.plan.config["split"]: cell.figures
            for cell in cells.values()
            if cell.plan.config["user"] == user
        }
        for user in _users()
    }
    others = {
        user: [figures for split, figures in by_split.items() if split != FLAMBY_SEED]
        for user, by_split in found.items()
    }
    measured = {user: figures for user, figures in others.items() if len(figures) > 1}
    lines = [
        "# Fed-Heart-Disease: each hospital as the user",
        "",
        "The patients and columns of FLamby's benchmark. Each arm's number of rounds is chosen",
        "on a third of the user's training patients. *majority* says the commonest class of the",
        "user's training patients to everybody; *pooled* is trained on all hospitals' patients in",
        "one place.",
        "",
        *_on_flambys_split({u: f[FLAMBY_SEED] for u, f in found.items() if FLAMBY_SEED in f}),
        *(_ours_against_others(measured) if measured else []),
    ]
    for user, figures in measured.items():
        lines += _of_user(user, figures)
    return Page("\n".join(lines))


def _on_flambys_split(found: Mapping[str, Values]) -> list[str]:
    users = _users()
    rows = [
        f"| {name} | {' | '.join(f'{value:.1f}' for value in row)} | {fmean(row):.1f} |"
        for name, row in PUBLISHED.items()
    ]
    for arm in ("majority", "pooled", *ARMS):
        accuracies = [100 * found[u][arm]["accuracy"] if u in found else None for u in users]
        rows.append(_row(arm, accuracies, ".1f"))
    patients = ", ".join(f"{user} {figures['patients']}" for user, figures in found.items())
    intervals = ", ".join(
        f"{user} {100 * low:.0f} to {100 * high:.0f}"
        for user, figures in found.items()
        for low, high in [wilson(figures["local"]["accuracy"], figures["patients"])]
    )
    return [
        "## Accuracy in percent on FLamby's split",
        "",
        f"Test patients: {patients}. FLamby's figures are means over five seeds of its training,",
        "ours are of one training. The 95 % binomial interval (Wilson) of the accuracy of",
        f"training alone: {intervals}. A gap that is small beside it is noise.",
        "",
        f"| | {' | '.join(users)} | mean |",
        f"| --- |{' --- |' * (len(users) + 1)}",
        *rows,
        "",
        "## AUROC on FLamby's split",
        "",
        f"| | {' | '.join(users)} | mean |",
        f"| --- |{' --- |' * (len(users) + 1)}",
        *(
            _row(arm, [found[u][arm]["auroc"] if u in found else None for u in users], ".3f")
            for arm in ("pooled", *ARMS)
        ),
        "",
    ]


def _row(name: str, values: Sequence[float | None], form: str) -> str:
    """A line of a table; a mean at its end where every user has a value."""
    known = [value for value in values if value is not None]
    cells = ["" if value is None else f"{value:{form}}" for value in values]
    mean = f"{fmean(known):{form}}" if len(known) == len(values) else ""
    return f"| {name} | {' | '.join([*cells, mean])} |"


def _ours_against_others(found: Mapping[str, Sequence[Values]]) -> list[str]:
    names = ("accuracy", "auroc")
    comparisons = len(found) * len(OURS) * len(OTHERS) * len(names)
    rows: list[str] = []
    told: dict[str, list[str]] = {"better": [], "worse": []}
    for user, figures in found.items():
        for arm in OURS:
            cells = []
            for name, other in product(names, OTHERS):
                both = _both(figures, name, arm, other)
                if len(both[0]) < 2:
                    cells.append("")
                    continue
                apart = paired_difference(*both, comparisons=comparisons)
                cells.append(apart.text())
                if apart.leaves_out_zero:
                    which = told["better" if apart.mean > 0 else "worse"]
                    which.append(f"{arm} than {other} at {user} ({name})")
            rows.append(f"| {user} | {arm} | {' | '.join(cells)} |")
    splits = ", ".join(
        f"{user} {len(figures)} ({len(_both(figures, 'auroc', 'local', 'fedavg')[0])})"
        for user, figures in found.items()
    )
    heading = " | ".join(f"{name}: {other}" for name in names for other in OTHERS)
    return [
        "## Ours minus others, over the other splits",
        "",
        f"Above 0 ours is better. {INTERVALS},",
        f"{100 * (1 - LEVEL):g} % for all {comparisons} together; \\*: leaves out 0.",
        "Splits, which share patients, and in brackets those whose test part has both classes, for",
        f"AUROC: {splits}.",
        "",
        f"| | | {heading} |",
        f"| --- | --- |{' --- |' * (len(names) * len(OTHERS))}",
        *rows,
        "",
        *(f"- Clearly {word}: {', '.join(which) or 'none'}." for word, which in told.items()),
        "",
    ]


def _both(
    figures: Sequence[Values], metric: str, arm: str, other: str
) -> tuple[list[float], list[float]]:
    """A metric of two arms over the splits where both have it (AUROC needs both classes)."""
    pairs = [(split[arm][metric], split[other][metric]) for split in figures]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    return [a for a, _ in known], [b for _, b in known]


def _of_user(user: str, figures: Sequence[Values]) -> list[str]:
    rows = []
    for arm in ("majority", "pooled", *ARMS):
        cells = []
        for name in METRICS:
            values = [split[arm][name] for split in figures if split[arm][name] is not None]
            cells.append(in_words(values) if len(values) > 1 else "")
        rows.append(f"| {arm} | {' | '.join(cells)} |")
    return [
        f"## {user}",
        "",
        f"{len(figures)} splits, {figures[0]['patients']} test patients each; ± is one standard",
        "error over splits. The Brier score is the sum over both classes: from 0 to 2, less is",
        "better.",
        "",
        "| | accuracy | AUROC | Brier score |",
        "| --- | --- | --- | --- |",
        *rows,
        "",
    ]


def _users() -> Sequence[str]:
    return load_study(study_path("heart-disease")).hospitals
