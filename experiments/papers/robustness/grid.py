"""The cells: one method of one study, with one split and one seed, under every attack."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from erosion.client.training.hospital import Hospital
from erosion.common.algorithms import REGISTRY
from erosion.common.errors import StudyError
from erosion.common.rounds.records import HospitalRecord
from erosion.common.settings.base import validate
from erosion.common.study.study import Study, load_study
from erosion.experiments.cells import CellPlan, Tick, Values
from erosion.experiments.every_user import site_of
from erosion.experiments.papers.robustness.attacks import (
    ATTACKS,
    CLAIM,
    Attack,
    Attacker,
    Overheard,
    Wire,
    flip_labels,
)
from erosion.experiments.simulator import simulate, timeless
from erosion.experiments.sources import HospitalFiles, make_hospitals
from erosion.experiments.testbed import study_path

ATTACKERS = {"breast-cancer": "miscoded", "heart-disease": "hungary"}
SEEDS = {"breast-cancer": 8, "heart-disease": 5}
BORN_FLIPPED = {"miscoded"}  # whose labels the testbed writes the wrong way round
ERODING, RECOMMENDED = "weight_erosion", "weight_erosion_recommended"
METHODS: Mapping[str, Values] = {
    **{name: {"algorithm": name} for name in REGISTRY},
    RECOMMENDED: {"algorithm": "weight_erosion", "preset": "recommended"},
}
# Whose cells' configuration says that they are of a second program: in the first, three held out
# fewer patients, and with fedlin an absent attacker and a free rider sent honest gradients.
REMADE = ("fedfomo", "gems", "model_averaging", "fedlin")
CLAIM_ONLY = "evidence_erosion"  # the only method that asks for the noise


def plans() -> Sequence[CellPlan]:
    """A cell for each study, seed and method; methods that do not fit a study are left out."""
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
                found.append(CellPlan(f"{study}-{seed}-{method}", config, rounds=len(attacks)))
    return found


def study_of(config: Values) -> Study:
    """The shipped study with the cell's one arm and seed."""
    (method,) = config["arm"]
    return one_arm_study(config["study"], method, config["seed"])


def run(config: Values, data_dir: Path | None, tick: Tick) -> Values:
    """What each attack makes of the user's model."""
    study, found = study_of(config), {}
    for attack in config["attacks"]:
        found[attack] = run_attack(study, attack, data_dir)
        tick()
    return found


def run_attack(study: Study, attack: str, data_dir: Path | None) -> Values:
    """The user's log loss and accuracy, the attacker's last weight, and when weights ended.

    `weight` is relative to the user's, None where none is known. `zero_rounds` has, for Weight
    Erosion, the first round at weight 0 by peer.
    """
    (method,), attacker = study.arms, ATTACKERS[study.name]
    with tempfile.TemporaryDirectory() as folder:
        files = make_hospitals(study, Path(folder), data_dir)
        if ATTACKS[attack].flips_labels != (attacker in BORN_FLIPPED):
            flip_labels(files[attacker].data, study)
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
    """The study with one arm, which has the method's defaults.

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


def attacked(
    files: Mapping[str, HospitalFiles], attacker: str, attack: Attack
) -> dict[str, Hospital]:
    """The hospitals of one simulation, one of them harmful."""
    wire = Wire()
    return {
        name: Attacker(site_of(name, f), wire, attack)
        if name == attacker
        else Overheard(site_of(name, f), wire)
        for name, f in files.items()
    }


def _fits(study: str, method: str) -> bool:
    try:
        one_arm_study(study, method, 0)
    except StudyError:
        return False
    return True


def _weight(hospitals: Mapping[str, HospitalRecord], peer: str) -> float | None:
    return hospitals[peer].weight_after if peer in hospitals else None
