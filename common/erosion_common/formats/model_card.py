"""A model: `model.safetensors`, and `model.json`, which says how to use it.

A run's folder holds both for the arm that it ended with, and `models/ARM/` for every arm.
"""

import hashlib
from pathlib import Path
from typing import Final, Literal

from torch import Tensor

from erosion_common.errors import CheckpointError
from erosion_common.formats.json_file import read_json, write_json
from erosion_common.learning.models import ModelSettings, parameter_shapes
from erosion_common.protocol.messages import Scaling
from erosion_common.protocol.scaling import CUT, Cut
from erosion_common.rounds.checkpoint import load_model, save_model
from erosion_common.settings.base import Settings
from erosion_common.support.files import open_named
from erosion_common.tasks import AnyTask

CARD, PARAMETERS, ARMS = "model.json", "model.safetensors", "models"
FORMAT: Final = 1  # raised when a key changes its meaning
REMEDY = "Run the study again."


class ModelCard(Settings):
    """`model.json`: what a run's parameters mean."""

    format: Literal[1] = FORMAT
    study: str
    arm: str
    user: str
    run: str = ""  # what the user's site knows the run by
    task: AnyTask
    model: ModelSettings
    seed: int = 0  # the study's, by which frozen parameters are drawn that no file gives
    scaling: Scaling | None
    cut: Cut = CUT  # of what is scaled
    missing_means: tuple[float, ...] | None = None
    # per encoded column, what stands for a missing number where the study imputes without scaling
    versions: dict[str, str]  # of the packages that made it
    sha256: str = ""  # of model.safetensors; `write_model` fills it in


def write_model(folder: Path, card: ModelCard, parameters: Tensor) -> None:
    """Write both files; parameters: (dim,), or (m, dim) for the mean of m models."""
    folder.mkdir(parents=True, exist_ok=True)
    task = card.task
    shapes = parameter_shapes(card.model, tuple(task.input_shape), task.num_outputs)
    save_model(folder / PARAMETERS, parameters, shapes)
    card = card.model_copy(update={"sha256": _sha256(folder / PARAMETERS)})
    write_json(folder / CARD, card)


def read_model(run_folder: Path, arm: str | None = None) -> tuple[ModelCard, Tensor]:
    """Return the card and the parameters of `arm`, or of the arm that the run ended with.

    Raises CheckpointError.
    """
    if (run_folder / "users").is_dir():
        raise CheckpointError(
            f"{run_folder} holds a model for each hospital: give {run_folder}/users/HOSPITAL."
        )
    folder = run_folder if arm is None else run_folder / ARMS / arm
    if not folder.is_dir() and arm is not None:
        there = sorted(path.name for path in run_folder.glob(f"{ARMS}/*"))
        raise CheckpointError(
            f"{run_folder} has no model of an arm {arm!r}; it has {', '.join(there) or 'none'}."
        )
    card = read_card(folder)
    if not (folder / PARAMETERS).exists():
        raise _missing(folder / PARAMETERS)
    parameters = load_model(folder / PARAMETERS)
    if card.sha256 != _sha256(folder / PARAMETERS):
        raise CheckpointError(
            f"{folder / PARAMETERS} is not the file that {CARD} was written with: it was changed,"
            f" or is of another model. Bring both back from one backup, or: {REMEDY}"
        )
    return card, parameters


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open_named(path) as file:
        while part := file.read(2**22):
            digest.update(part)
    return digest.hexdigest()


def read_card(folder: Path) -> ModelCard:
    """Return the card in a run's folder. Raises CheckpointError."""
    path = folder / CARD
    if folder.is_file():
        raise CheckpointError(f"{folder} is a file. Give the folder of a run (runs/TIME-STUDY).")
    try:
        return read_json(path, ModelCard, version=FORMAT, error=CheckpointError, remedy=REMEDY)
    except FileNotFoundError:
        raise _missing(path) from None


def _missing(path: Path) -> CheckpointError:
    return CheckpointError(
        f"There is no {path}. Give the folder of a run that finished (runs/TIME-STUDY)."
    )
