"""One cell of the robustness table: one method, one attack, one seed. Cells are kept in a file."""

import json
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from erosion.client.training.hospital import Hospital
from erosion.common.algorithms import REGISTRY
from erosion.common.errors import StudyError
from erosion.common.rounds.records import HospitalRecord
from erosion.common.settings.base import validate
from erosion.common.study.study import Study, load_study
from erosion.experiments.attacks import (
    ATTACKS,
    CLAIM,
    Attack,
    Attacker,
    Overheard,
    Wire,
    flip_labels,
)
from erosion.experiments.every_user import site_of
from erosion.experiments.simulator import simulate, timeless
from erosion.experiments.sources import HospitalFiles, make_hospitals
from erosion.experiments.testbed import study_path
from erosion.server.run import provenance

ATTACKERS = {"breast-cancer": "miscoded", "heart-disease": "hungary"}
BORN_FLIPPED = {"miscoded"}  # whose labels the testbed writes the wrong way round
METHODS: Mapping[str, Mapping[str, str]] = {
    **{name: {"algorithm": name} for name in REGISTRY},
    "weight_erosion_recommended": {"algorithm": "weight_erosion", "preset": "recommended"},
}
CLAIM_ONLY = "evidence_erosion"  # the only method that asks for the noise


class Key(NamedTuple):
    """Which cell it is."""

    study: str
    method: str
    attack: str
    seed: int
    settings: str  # start of the digest of the study, with this method as its only arm


@dataclass(frozen=True, slots=True)
class Cell:
    """How well the user's model does, and what the attacker's update counted."""

    study: str
    method: str
    attack: str
    seed: int
    settings: str
    log_loss: float
    accuracy: float
    weight: float | None  # the attacker's at the end, relative to the user's; None: none known
    zero_rounds: Mapping[str, int | None]  # peer -> first round at weight 0; weight_erosion only
    commit: str  # of the program that trained it

    @property
    def key(self) -> Key:
        """Which cell it is."""
        return Key(self.study, self.method, self.attack, self.seed, self.settings)


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


def keys(
    name: str, seeds: Iterable[int], methods: Collection[str] = METHODS
) -> Iterator[tuple[Key, Study]]:
    """Every cell of a study and what it runs; methods that do not fit are left out."""
    for seed in seeds:
        for method in methods:
            try:
                study = one_arm_study(name, method, seed)
            except StudyError:
                continue
            for attack in ATTACKS:
                if attack != CLAIM or method == CLAIM_ONLY:
                    yield Key(name, method, attack, seed, study.digest[:12]), study


def run_cell(key: Key, study: Study, data_dir: Path | None, commit: str) -> Cell:
    """Train and measure."""
    with tempfile.TemporaryDirectory() as folder:
        files = make_hospitals(study, Path(folder), data_dir)
        attacker, attack = ATTACKERS[key.study], ATTACKS[key.attack]
        if attack.flips_labels != (attacker in BORN_FLIPPED):
            flip_labels(files[attacker].data, study)
        simulation = simulate(study, attacked(files, attacker, attack), clock=timeless)
    metrics = simulation.evaluation.arms[key.method]
    weight = simulation.finals[key.method].weights.get(attacker)
    zero_rounds: dict[str, int | None] = {}
    if key.method == "weight_erosion":
        for peer in sorted(set(study.hospitals) - {study.user}):
            records = simulation.records[key.method]
            eroded = (r.round for r in records if _weight(r.hospitals, peer) == 0)
            zero_rounds[peer] = next(eroded, None)
    return Cell(
        *key,
        log_loss=round(metrics["log_loss"], 6),
        accuracy=round(metrics["accuracy"], 6),
        weight=None if weight is None else float(f"{weight:.4g}"),
        zero_rounds=zero_rounds,
        commit=commit,
    )


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


def complete(
    path: Path,
    name: str,
    seeds: Iterable[int],
    data_dir: Path | None,
    methods: Collection[str] = METHODS,
) -> None:
    """Run the cells that the file does not have, and add each to it as it is done."""
    done = {cell.key for cell in read_cells(path)}
    commit = provenance.commit()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for key, study in keys(name, seeds, methods):
            if key not in done:
                cell = run_cell(key, study, data_dir, commit)
                file.write(json.dumps(asdict(cell)) + "\n")
                file.flush()


def read_cells(path: Path) -> list[Cell]:
    """All cells of a file; none where there is no file yet."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Cell(**json.loads(line)) for line in lines]


def _weight(hospitals: Mapping[str, HospitalRecord], peer: str) -> float | None:
    return hospitals[peer].weight_after if peer in hospitals else None
