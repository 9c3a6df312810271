"""Three attacks by which a coordinator works patients' records out of updates.

Each cell is one hospital of made-up patients with two values each, which answers as the program
does, and a coordinator that works out records from nothing but the updates. With a *public order*
it knows which patients are in which mini-batch, as in a testbed; with a *secret order*, as every
other site has it, it takes the public one for the true one.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from erosion_client.site_file import Site
from erosion_client.training.hospital import Hospital
from erosion_common.protocol.messages import TrainRequest
from erosion_common.study.study import Study
from experiments.cells import Cell, CellPlan, Values, planned
from experiments.experiment import experiment
from experiments.page import Page, grid, joined, named, page, picture, where
from experiments.reconstruction import cut_at, fitted, num_among, num_found, solved, swept

SEEDS = 2
FIGURE = "found.svg"
USUAL = {"rounds": 200, "patients": 60, "steps": 3}
FACTORS: Mapping[str, Sequence[int]] = {
    "rounds": (20, 50, 90, 200, 300),
    "patients": (30, 60, 120),
    "steps": (2, 3, 5),
}
TRAINING: Mapping[str, Mapping[str, float]] = {
    "zero": {"batch_size": 16, "learning_rate": 1e-4},
    "ordinary": {"batch_size": 8, "learning_rate": 0.1},
    "cuts": {"batch_size": 16, "learning_rate": 1.0},
    "cuts-whole": {"learning_rate": 1.0},  # `steps` passes over all patients
}
SERIES: Mapping[tuple[str, str], str] = {  # attack and order
    ("zero", "public"): "zero parameters, public order",
    ("ordinary", "public"): "ordinary study, public order",
    ("zero", "secret"): "zero parameters, secret order",
    ("ordinary", "secret"): "ordinary study, secret order",
    ("cuts", "secret"): "chosen cuts, part of the patients a round, secret order",
    ("cuts-whole", "secret"): "chosen cuts, all patients a round, secret order",
}
LOWEST, HIGHEST = -3.0, 5.0  # of the cuts; the values are drawn around 1 with deviation 1


def plans() -> list[CellPlan]:
    """Return every attack with one thing varied at a time."""
    found: dict[str, CellPlan] = {}  # the usual setting is one of each factor's
    for attack, order in SERIES:
        for setting in ({**USUAL, factor: n} for factor, values in FACTORS.items() for n in values):
            points = (
                {"attack": attack, "order": order, **setting, "seed": seed} for seed in range(SEEDS)
            )
            name = "{attack}-{order}-rounds{rounds}-patients{patients}-steps{steps}-seed{seed}"
            for plan in planned(name, points):
                found.setdefault(plan.name, plan)
    return list(found.values())


def run(config: Values, data_dir: Path | None) -> Values:
    """Return how many of the patients' records are found."""
    del data_dir
    patients = _patients(config["patients"], config["seed"])
    study = study_of(config)
    with tempfile.TemporaryDirectory() as folder:
        hospital = _hospital(Path(folder), patients, config)
        starts: list[Tensor] = []
        deltas: list[Tensor] = []
        for number, start in enumerate(_starts(config, deltas), start=1):
            request = TrainRequest(study, "fedavg", number, start, None, "r1")
            starts.append(start)
            deltas.append(hospital.train(request).delta)
    return {"found": _found(study, starts, deltas, patients, config["attack"])}


def _patients(num: int, seed: int) -> NDArray[np.float64]:
    """Return two values and the class of each: (num, 3)."""
    draws = np.random.default_rng(seed)
    values = np.round(draws.normal(size=(num, 2)) + 1, 4)
    ill = values @ [1.0, -0.5] + draws.normal(size=num) * 0.5 > 0.5
    return np.column_stack([values, ill])


def study_of(config: Values) -> Study:
    """Return the made-up hospital's study."""
    training = dict(TRAINING[config["attack"]])
    if config["attack"] == "cuts-whole":
        training |= {"epochs": config["steps"], "batch_size": config["patients"]}
    else:
        training |= {"steps": config["steps"]}
    return Study.model_validate(
        {
            "name": "inference",
            "user": "alice",
            "hospitals": ["alice", "bob"],
            "rounds": config["rounds"],
            "seed": config["seed"],
            "task": {
                "kind": "tabular",
                "target": "ill",
                "classes": ["no", "yes"],
                "features": ["age", "dose"],
            },
            "scaling": "none",
            "model": {"name": "logistic"},
            "training": training,
            "arms": ["fedavg"],
        }
    )


def _hospital(folder: Path, patients: NDArray[np.float64], config: Values) -> Hospital:
    lines = [f"{age:.4f},{dose:.4f},{'yes' if ill else 'no'}" for age, dose, ill in patients]
    path = folder / "patients.csv"
    path.write_text("\n".join(["age,dose,ill", *lines]) + "\n")
    values = {"name": "bob", "data": {"path": path}, "coordinator": {"address": "127.0.0.1:1"}}
    secret = f"secret {config['seed']}".encode() if config["order"] == "secret" else b""
    return Hospital(Site.model_validate(values), secret)


def _starts(config: Values, deltas: Sequence[Tensor]) -> Iterator[Tensor]:
    """The parameters that the coordinator sends in each round."""
    position = torch.zeros(6)
    for number in range(config["rounds"]):
        if config["attack"].startswith("cuts"):
            yield cut_at(LOWEST + (HIGHEST - LOWEST) * number / max(1, config["rounds"] - 1))
        else:
            yield position
        if config["attack"] == "ordinary":
            position = position + deltas[-1]


def _found(
    study: Study,
    starts: list[Tensor],
    deltas: list[Tensor],
    patients: NDArray[np.float64],
    attack: str,
) -> int:
    if attack.startswith("cuts"):
        return num_among(swept(study, deltas, len(patients)), patients)
    if attack == "zero":
        return num_found(solved(study, "bob", deltas, len(patients)), patients)
    return num_found(fitted(study, "bob", starts, deltas, len(patients)), patients)


def draw(cells: Mapping[str, Cell]) -> Page:
    """Draw the share of patients found, over each of the three things."""
    series = {words: key for key, words in SERIES.items()}

    def table_of(factor: str, values: Sequence[int]) -> str:
        def entry(one: tuple[str, str], value: int) -> str:
            found = _of(cells, *one, factor, value)
            if not found:
                return ""
            return f"{fmean(number for number, _ in found):.1f} of {found[0][1]}"

        return grid(f"records found, by {factor}", series, named(values), entry)

    return page(
        "inference",
        {FIGURE: _figure(cells)},
        usual=USUAL,
        seeds=SEEDS,
        tables=joined(table_of(factor, values) for factor, values in FACTORS.items()),
    )


def _of(
    cells: Mapping[str, Cell], attack: str, order: str, factor: str, value: int
) -> list[tuple[int, int]]:
    """Records found, and patients, of every seed."""
    chosen = where(cells, attack=attack, order=order, **{**USUAL, factor: value})
    return [(cell.figures["found"], cell.plan.config["patients"]) for cell in chosen]


def _figure(cells: Mapping[str, Cell]) -> bytes:
    with picture(columns=len(FACTORS), height=3.8) as (figure, content):
        for place, (factor, values) in enumerate(FACTORS.items(), start=1):
            axes = figure.add_subplot(1, len(FACTORS), place)
            for (attack, order), words in SERIES.items():
                points = {
                    value: fmean(number / patients for number, patients in found)
                    for value in values
                    if (found := _of(cells, attack, order, factor, value))
                }
                style = "-" if order == "secret" else "--"
                axes.plot(list(points), list(points.values()), style, marker=".", label=words)
            axes.set_xlabel(factor if factor != "steps" else "local steps or passes")
            axes.set_xticks(values)
            axes.set_ylim(-0.03, 1.03)
            if place == 1:
                axes.set_ylabel("share of records found")
            if place == 2:  # where no curve is in the way
                axes.legend(fontsize=7, loc="upper right", bbox_to_anchor=(1.0, 0.97))
    return content.getvalue()


EXPERIMENT = experiment(
    "inference",
    plans,
    run,
    draw,
    study_of,
)
