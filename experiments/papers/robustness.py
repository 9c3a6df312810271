"""One harmful hospital: what each method makes of it, for simulations only.

The attacker is omniscient: it hears the updates of all others before it sends its own. A sound rule
must hold against that, and no honest program can do it."""

import csv
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from erosion.simulation.simulator import simulate, timeless
from erosion.simulation.testbed import study_path
from erosion.simulation.testbed_sites import site_of
from erosion.sources import Data, make_hospitals
from erosion_client.site_file import Site
from erosion_client.training.hospital import Hospital
from erosion_common.algorithms import REGISTRY
from erosion_common.errors import Refusal, StudyError
from erosion_common.learning.local_sgd import round_generator
from erosion_common.learning.local_work import Tensors
from erosion_common.protocol.messages import StepResult, TrainRequest, TrainResult
from erosion_common.rounds.records import HospitalRecord
from erosion_common.settings.base import validate
from erosion_common.settings.names import canonical
from erosion_common.study.study import Study, load_study
from erosion_common.tasks.classification import Classification
from experiments.cells import CellPlan, Values
from experiments.papers.rules import PERSONAL, SPLIT_MODELS

DEVIATIONS = 1.5  # z of "a little is enough"
TIMES = 10.0  # how much longer than honest ones scaled updates and Gaussian noise are
HARM = 0.5  # the harmful part of the mimic's update, in lengths of the user's
CLAIMED_NOISE = 1e6  # times the truth


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """What the attacker knows when it answers."""

    honest: Tensor  # (dim,) the update that its own patients give
    others: Sequence[Tensor]  # (dim,) each: this round's updates of the user and the peers
    users_last: Tensor | None  # (dim,) the user's update of the last round; None in the first
    randomness: torch.Generator


def honest(known: Knowledge) -> Tensor:
    """No lie."""
    return known.honest


def sign_flip(known: Knowledge) -> Tensor:
    """Minus the honest update."""
    return -known.honest


def gaussian_noise(known: Knowledge) -> Tensor:
    """No update but noise, `TIMES` as long as the honest one (in root mean square)."""
    deviation = TIMES * float(known.honest.norm()) / len(known.honest) ** 0.5
    return torch.randn(len(known.honest), generator=known.randomness).mul(deviation)


def scaled(known: Knowledge) -> Tensor:
    """`TIMES` the honest update."""
    return TIMES * known.honest


def little_is_enough(known: Knowledge) -> Tensor:
    """Mean minus z standard deviations of the others, by coordinate (Baruch et al. 2019)."""
    others = torch.stack(list(known.others))
    return others.mean(dim=0) - DEVIATIONS * others.std(dim=0, correction=0)


def free_ride(known: Knowledge) -> Tensor:
    """Zeros."""
    return torch.zeros_like(known.honest)


def mimic(known: Knowledge) -> Tensor:
    """Return the user's last update plus a step against the attacker's patients."""
    copied = known.honest if known.users_last is None else known.users_last
    length = float(known.honest.norm())
    against = known.honest / length if length > 0 else known.honest
    return copied - HARM * float(copied.norm()) * against


def as_they_are(attachments: Tensors) -> Tensors:
    """Honest attachments."""
    return attachments


def zeros(attachments: Tensors) -> Tensors:
    """Nothing in them either."""
    return {name: torch.zeros_like(tensor) for name, tensor in attachments.items()}


def huge_noise(attachments: Tensors) -> Tensors:
    """The stated noise is `CLAIMED_NOISE` times the truth."""
    return {
        name: tensor * CLAIMED_NOISE if name == "noise" else tensor
        for name, tensor in attachments.items()
    }


@dataclass(frozen=True, slots=True)
class Attack:
    """One kind of harm."""

    title: str
    explanation: str  # completes "The attacker ..."
    update: Callable[[Knowledge], Tensor] = honest
    attachments: Callable[[Tensors], Tensors] = as_they_are  # also what a step without update sends
    flips_labels: bool = False
    answers: bool = True


NO_ATTACK, ABSENT, CLAIM = "none", "absent", "claimed_noise"

ATTACKS: Mapping[str, Attack] = {
    NO_ATTACK: Attack("no attack", "is honest."),
    ABSENT: Attack(
        "absent", "never answers: what a perfect defence would leave of it.", answers=False
    ),
    "label_flip": Attack(
        "label flip", "trains honestly on patients with swapped labels.", flips_labels=True
    ),
    "sign_flip": Attack("sign flip", "sends minus its honest update.", sign_flip),
    "noise": Attack(
        "noise",
        f"sends Gaussian noise {TIMES:g} times as long as its honest update.",
        gaussian_noise,
    ),
    "scaled": Attack("scaled", f"sends {TIMES:g} times its honest update.", scaled),
    "little": Attack(
        "ALIE",
        f"sends, for every parameter, the mean of the others' updates minus {DEVIATIONS:g} of their"
        " standard deviations (a little is enough). The paper's own z is 0 or less with so few"
        " hospitals.",
        little_is_enough,
    ),
    "free_rider": Attack("free rider", "sends zeros.", free_ride, zeros),
    "mimic": Attack(
        "mimic",
        "sends the user's update of the round before, plus a step against its own honest update,"
        f" {HARM:g} times as long as the copied one.",
        mimic,
    ),
    CLAIM: Attack(
        "claimed noise",
        f"sends minus its honest update and states {CLAIMED_NOISE:g} times its noise; only"
        " evidence_erosion asks for it.",
        sign_flip,
        huge_noise,
    ),
}


@dataclass(frozen=True, slots=True)
class Wire:
    """The updates of one simulation, as the attacker hears them."""

    heard: dict[int, dict[str, Tensor]] = field(default_factory=dict)  # by round, by hospital


class Overheard(Hospital):
    """An honest hospital with updates that the attacker hears."""

    def __init__(self, site: Site, wire: Wire) -> None:
        """A hospital on the wire."""
        super().__init__(site)
        self._wire = wire

    def answer(self, request: TrainRequest) -> TrainResult | StepResult:
        """Return the honest answer."""
        result = super().answer(request)
        if isinstance(result, TrainResult):
            self._wire.heard.setdefault(request.round, {})[self.name] = result.delta
        return result


class Attacker(Hospital):
    """A harmful hospital. It must be asked last, for it needs the others' updates."""

    def __init__(self, site: Site, wire: Wire, attack: Attack) -> None:
        """A hospital that carries out `attack` in every round."""
        super().__init__(site)
        self._wire, self._attack = wire, attack

    def answer(self, request: TrainRequest) -> TrainResult | StepResult:
        """Return the harmful answer to any step; raises Refusal where the attacker is absent."""
        if not self._attack.answers:
            raise Refusal("takes no part.")
        result = super().answer(request)
        if not isinstance(result, TrainResult):
            return replace(result, tensors=self._attack.attachments(result.tensors))
        study, heard = request.study, self._wire.heard
        known = Knowledge(
            honest=result.delta,
            others=list(heard[request.round].values()),
            users_last=heard.get(request.round - 1, {}).get(study.user),
            randomness=round_generator(study.seed, f"{self.name}/attack", request.round),
        )
        return replace(
            result,
            sent=self._attack.update(known),
            attachments=self._attack.attachments(result.attachments),
        )


def flip_labels(table: Path, study: Study) -> None:
    """Swap the classes in a hospital's CSV, the first with the last and so on."""
    assert isinstance(study.task, Classification)
    classes, target = study.task.classes, study.task.target
    swapped = {
        value: other.values[0]
        for label, other in zip(classes, reversed(classes), strict=True)
        for value in label.values
    }
    with table.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        columns, rows = list(reader.fieldnames or ()), list(reader)
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, target: swapped[canonical(row[target])]} for row in rows)


ATTACKERS = {"breast-cancer": "miscoded", "heart-disease": "hungary"}
SEEDS = {"breast-cancer": 8, "heart-disease": 5}
BORN_FLIPPED = {"miscoded"}  # with labels that the testbed writes the wrong way round
ERODING, RECOMMENDED = "weight_erosion", "weight_erosion_recommended"
METHODS: Mapping[str, Values] = {
    **{name: {"algorithm": name} for name in REGISTRY if name not in (*SPLIT_MODELS, *PERSONAL)},
    RECOMMENDED: {"algorithm": "weight_erosion", "preset": "recommended"},
}
# Cells with a configuration of a second program: in the first, three held out
# fewer patients, and with fedlin an absent attacker and a free rider sent honest gradients.
REMADE = ("fedfomo", "gems", "model_averaging", "fedlin")
CLAIM_ONLY = "evidence_erosion"  # the only method that asks for the noise


def plans() -> Sequence[CellPlan]:
    """Return a cell for each study, seed and method; methods must fit the study."""
    found = []
    for study, seeds in SEEDS.items():
        fitting = [method for method in METHODS if _fits(study, method)]
        for seed in range(seeds):
            for method in fitting:
                attacks = [a for a in ATTACKS if a != CLAIM or method == CLAIM_ONLY]
                config = {
                    "study": study,
                    "seed": seed,
                    "arm": {method: METHODS[method]},
                    "attacks": attacks,
                }
                if method in REMADE:
                    config["version"] = 2
                found.append(CellPlan(f"{study}-{seed}-{method}", config))
    return found


def study_of(config: Values) -> Study:
    """Return the shipped study with the cell's one arm and seed."""
    (method,) = config["arm"]
    return one_arm_study(config["study"], method, config["seed"])


def run(config: Values, data_dir: Path | None) -> Values:
    """Return what each attack makes of the user's model."""
    study, found = study_of(config), {}
    for attack in config["attacks"]:
        found[attack] = run_attack(study, attack, data_dir)
    return found


def run_attack(study: Study, attack: str, data_dir: Path | None) -> Values:
    """Return the user's log loss and accuracy, the attacker's last weight, and when weights ended.

    `weight` is relative to the user's, None where none is known. `zero_rounds` has, for Weight
    Erosion, the first round at weight 0 by peer.
    """
    (method,), attacker = study.arms, ATTACKERS[study.name]
    with tempfile.TemporaryDirectory() as folder:
        files = make_hospitals(study, Path(folder), data_dir)
        if ATTACKS[attack].flips_labels != (attacker in BORN_FLIPPED):
            flip_labels(Path(files[attacker]["path"]), study)
        simulation = simulate(study, attacked(files, attacker, ATTACKS[attack]), clock=timeless)
    metrics = simulation.evaluation.arms[method]
    weight = simulation.finals[method].weights.get(attacker)
    zero_rounds: dict[str, int | None] = {}
    if method in (ERODING, RECOMMENDED):
        for peer in sorted(set(study.hospitals) - {study.user}):
            records = simulation.records[method]
            eroded = (r.round for r in records if _weight(r.hospitals, peer) == 0)
            zero_rounds[peer] = next(eroded, None)
    return {
        "log_loss": round(metrics["log_loss"], 6),
        "accuracy": round(metrics["accuracy"], 6),
        "weight": None if weight is None else float(f"{weight:.4g}"),
        "zero_rounds": zero_rounds,
    }


def one_arm_study(name: str, method: str, seed: int) -> Study:
    """Return the study with one arm, which has the method's defaults.

    The attacker is named last, so that it is asked last. Raises StudyError where the method does
    not fit the study.
    """
    study = load_study(study_path(name))
    attacker = ATTACKERS[name]
    raw = study.model_dump(mode="json") | {
        "arms": {method: METHODS[method]},
        "seed": seed,
        "hospitals": [*(h for h in study.hospitals if h != attacker), attacker],
        "evaluation": {"test_share": study.evaluation.test_share, "bootstrap": 100},
    }
    return validate(Study, raw, f"Study {name} with {method}", StudyError)


def attacked(files: Mapping[str, Data], attacker: str, attack: Attack) -> dict[str, Hospital]:
    """Return the hospitals of one simulation, one of them harmful."""
    wire = Wire()
    return {
        name: Attacker(site_of(name, f), wire, attack)
        if name == attacker
        else Overheard(site_of(name, f), wire)
        for name, f in files.items()
    }


def _fits(study: str, method: str) -> bool:
    if method == "newton":  # the user has too few patients for its coefficients, others too few ill
        return False
    try:
        one_arm_study(study, method, 0)
    except StudyError:
        return False
    return True


def _weight(hospitals: Mapping[str, HospitalRecord], peer: str) -> float | None:
    return hospitals[peer].weight_after if peer in hospitals else None
