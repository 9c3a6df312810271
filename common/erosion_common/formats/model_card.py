"""A run's model, or an arm's: `model.safetensors`, and `model.json`, which says how to use it."""

import hashlib
from pathlib import Path
from typing import Final, Literal

from torch import Tensor, nn

from erosion_common.errors import CheckpointError
from erosion_common.formats.json_file import read_json, write_json
from erosion_common.learning.finished import Finished, Predictor, problem_with_layers_of
from erosion_common.learning.models import (
    ModelSettings,
    build_model,
    load_flat_parameters,
    parameter_layout,
    parameter_shapes,
)
from erosion_common.protocol.messages import Scaling
from erosion_common.protocol.scaling import CUT, Cut
from erosion_common.rounds.checkpoint import load_model, save_model
from erosion_common.settings.base import Settings
from erosion_common.support.files import open_named
from erosion_common.tasks import AnyTask
from erosion_common.tasks.inputs import TabularTask, stands_in

CARD, PARAMETERS, ARMS = "model.json", "model.safetensors", "models"
LAYERS = "finish.safetensors"  # the last layers of a finish, which the model is averaged over
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
    finish_sha256: str = ""  # of finish.safetensors, where the arm has a finish


def write_model(folder: Path, card: ModelCard, model: Predictor) -> None:
    """Write both files, and a third one for a finish."""
    folder.mkdir(parents=True, exist_ok=True)
    task = card.task
    shapes = parameter_shapes(card.model, tuple(task.input_shape), task.num_outputs)
    parameters = model.parameters if isinstance(model, Finished) else model
    save_model(folder / PARAMETERS, parameters, shapes)
    card = card.model_copy(update={"sha256": _sha256(folder / PARAMETERS)})
    if isinstance(model, Finished):
        save_model(folder / LAYERS, model.layers, {})
        card = card.model_copy(update={"finish_sha256": _sha256(folder / LAYERS)})
    write_json(folder / CARD, card)


def read_model(run_folder: Path, arm: str | None = None) -> tuple[ModelCard, Predictor]:
    """Return card and model of `arm`, or the delivered one. Raises CheckpointError."""
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
    parameters = _read(folder / PARAMETERS, card.sha256)
    if not card.finish_sha256:
        return card, parameters
    layers = _read(folder / LAYERS, card.finish_sha256)
    layout = parameter_layout(card.model, tuple(card.task.input_shape), card.task.num_outputs)
    if problem := problem_with_layers_of(layers, layout):
        raise CheckpointError(f"The last layers in {folder / LAYERS} {problem}", remedy=REMEDY)
    return card, Finished(parameters, layers)


def _read(path: Path, sha256: str) -> Tensor:
    if not path.exists():
        raise _missing(path)
    found = load_model(path)
    if sha256 != _sha256(path):
        raise CheckpointError(
            f"{path} is not the file that {CARD} was written with: it was changed, or is of"
            " another model",
            remedy=f"Bring both back from one backup, or: {REMEDY}",
        )
    return found


def saved_network(
    card: ModelCard, model: Predictor, run_folder: Path, weights: Path | None = None
) -> nn.Module:
    """Return the network that `read_model` found, with the parameters of its last member.

    `weights`: the folder with the file that the model started from. Raises CheckpointError where
    card and parameters do not fit together, and ModelError for the model's code or weights.
    """
    task = card.task
    if isinstance(task, TabularTask):
        _check_columns(card, task, run_folder)
    network = build_model(
        card.model, task.input_shape, task.num_outputs, card.seed, weights=weights
    )
    parameters = model.parameters if isinstance(model, Finished) else model
    try:
        for member in parameters.reshape(-1, parameters.shape[-1]):
            load_flat_parameters(network, member)
    except ValueError as problem:
        raise CheckpointError(
            f"{PARAMETERS} does not fit {CARD} ({problem})", remedy=REMEDY, where=run_folder
        ) from None
    return network


def _check_columns(card: ModelCard, task: TabularTask, run_folder: Path) -> None:
    columns, scaling = task.input_shape[0], card.scaling
    per_column = [card.missing_means] if card.missing_means is not None else []
    if scaling is not None:
        per_column += [scaling.mean, scaling.deviation]
    if any(len(values) != columns for values in per_column):
        raise CheckpointError(
            f"{run_folder}/{CARD} scales another number of columns than its {columns}",
            remedy=REMEDY,
        )
    if stands_in(task, scaled=scaling is not None) and card.missing_means is None:
        raise CheckpointError(
            f"{run_folder}/{CARD} imputes missing values and does not say by what (missing_means)",
            remedy=REMEDY,
        )


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
        raise CheckpointError(
            f"{folder} is a file", remedy="Give the folder of a run (runs/TIME-STUDY)."
        )
    try:
        return read_json(path, ModelCard, version=FORMAT, error=CheckpointError, remedy=REMEDY)
    except FileNotFoundError:
        raise _missing(path) from None


def _missing(path: Path) -> CheckpointError:
    return CheckpointError(
        f"There is no {path}", remedy="Give the folder of a run that finished (runs/TIME-STUDY)."
    )
