"""FLamby's own training on Fed-Heart-Disease, in plain PyTorch: why its figures differ from ours.

Logistic regression from the random starts of FLamby's seeds, mini-batches of 4. Pooled and local
training take 50 epochs of Adam with step 0.001 (flamby/datasets/fed_heart_disease/common.py);
FedAvg takes 15 rounds of 100 steps of SGD with step 0.001.
"""

import csv
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from erosion.simulation.testbed import study_path
from erosion.sources import make_hospitals
from erosion.sources.flamby import COLUMNS, FLAMBY_SEED, SPARSE, SPLIT
from erosion_common.study.study import Study, load_study
from experiments.cells import CellPlan, Values, planned

SEEDS = range(42, 47)
KIND = "as published"
RATE, BATCH, EPOCHS = 0.001, 4, 50
ROUNDS, STEPS = 15, 100
ARMS = ("pooled", "local", "FedAvg")
_ONE_HOT = {"cp": (2.0, 3.0, 4.0), "restecg": (1.0, 2.0)}  # the first category is left out

Part = tuple[Tensor, Tensor]  # (patients, 13) and (patients,), 1: ill


def plans() -> list[CellPlan]:
    """Return a cell for each of FLamby's five seeds, which draw starts and mini-batches."""
    return planned("published-seed{seed}", ({"seed": seed} for seed in SEEDS), kind=KIND)


def run(config: Values, data_dir: Path | None) -> Values:
    """Accuracy by arm and hospital on FLamby's split."""
    parts = _parts(data_dir)
    training = {hospital: train for hospital, (train, _) in parts.items()}
    generator = torch.Generator().manual_seed(config["seed"])
    rows, ill = (torch.cat(of) for of in zip(*training.values(), strict=True))
    pooled = _by_epochs((rows, ill), generator)
    averaged = _by_rounds(training, generator)
    found = {
        hospital: {
            "pooled": _accuracy(pooled, test),
            "local": _accuracy(_by_epochs(training[hospital], generator), test),
            "FedAvg": _accuracy(averaged, test),
        }
        for hospital, (_, test) in parts.items()
    }
    return {arm: {hospital: of[arm] for hospital, of in found.items()} for arm in ARMS}


def study() -> Study:
    """Return the shipped study with FLamby's split of the patients."""
    raw = load_study(study_path("heart-disease")).model_dump(mode="json")
    raw["testbed"]["options"]["split_seed"] = FLAMBY_SEED
    raw["evaluation"]["compare"] = ["weight_erosion", "local"]  # as its cells were made
    return Study.model_validate(raw)


def _parts(data_dir: Path | None) -> Mapping[str, tuple[Part, Part]]:
    """Training and test part of each hospital, scaled by its training part."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for hospital, file in make_hospitals(study(), Path(folder), data_dir).items():
            with Path(file["path"]).open(newline="", encoding="utf-8") as text:
                found[hospital] = _scaled(list(csv.DictReader(text)))
    return found


def _scaled(patients: list[dict[str, str]]) -> tuple[Part, Part]:
    used = [name for name in COLUMNS[:-1] if name not in SPARSE]
    complete = [patient for patient in patients if all(patient[name] for name in used)]
    plain = [name for name in used if name not in _ONE_HOT]
    rows = np.array(
        [
            [float(patient[name]) for name in plain]
            + [
                float(float(patient[name]) == category)
                for name, categories in _ONE_HOT.items()
                for category in categories
            ]
            for patient in complete
        ]
    )
    is_training = np.array([patient[SPLIT] == "train" for patient in complete])
    ill = torch.tensor([float(float(patient["num"]) > 0) for patient in complete])
    deviation = rows[is_training].std(axis=0, ddof=1)
    deviation[deviation == 0] = 1.0  # no cholesterol was measured in Switzerland
    scaled = torch.tensor((rows - rows[is_training].mean(axis=0)) / deviation).float()
    chosen = torch.tensor(is_training)
    return (scaled[chosen], ill[chosen]), (scaled[~chosen], ill[~chosen])


def _start(features: int, generator: torch.Generator) -> list[Tensor]:
    """Weights (features,) and bias (1,), those that FLamby's program draws with the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator.initial_seed())
        linear = nn.Linear(features, 1)
    return [nn.Parameter(linear.weight.detach()[0]), nn.Parameter(linear.bias.detach())]


def _loss(model: list[Tensor], rows: Tensor, ill: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(rows @ model[0] + model[1], ill)


def _by_epochs(part: Part, generator: torch.Generator) -> list[Tensor]:
    rows, ill = part
    model = _start(rows.shape[1], generator)
    optimiser = torch.optim.Adam(model, RATE)
    for _ in range(EPOCHS):
        for batch in torch.split(torch.randperm(len(rows), generator=generator), BATCH):
            optimiser.zero_grad()
            _loss(model, rows[batch], ill[batch]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return model


def _by_rounds(training: Mapping[str, Part], generator: torch.Generator) -> list[Tensor]:
    """FedAvg, weighted by patients."""
    everybody = sum(len(rows) for rows, _ in training.values())
    common = _start(next(iter(training.values()))[0].shape[1], generator)
    for _ in range(ROUNDS):
        total = [torch.zeros_like(parameter) for parameter in common]
        for rows, ill in training.values():
            model = [parameter.detach().clone().requires_grad_() for parameter in common]
            for _ in range(STEPS):
                batch = torch.randint(len(rows), (BATCH,), generator=generator)
                slopes = torch.autograd.grad(_loss(model, rows[batch], ill[batch]), model)
                with torch.no_grad():
                    for parameter, slope in zip(model, slopes, strict=True):
                        parameter -= RATE * slope
            for place, parameter in enumerate(model):
                total[place] += parameter.detach() * len(rows) / everybody
        common = total
    return common


def _accuracy(model: list[Tensor], part: Part) -> float:
    rows, ill = part
    with torch.no_grad():
        said = (rows @ model[0] + model[1] > 0).float()
    return float((said == ill).float().mean())
