"""What a model that is taken along needs: its network, its columns' constants, and its run."""

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import nn

from erosion_common.errors import CheckpointError
from erosion_common.formats.model_card import ModelCard, read_model, saved_network
from erosion_common.learning.finished import Finished, last_layer
from erosion_common.learning.models import load_flat_parameters
from erosion_common.learning.trainable import named_trained_parameters
from erosion_common.tasks.features import CategoryFeature, NumberFeature
from erosion_common.tasks.inputs import TabularTask
from erosion_common.tasks.preparations import ABSENT
from erosion_server.output.pages import Row, render_page
from erosion_server.output.report import card_rows, warnings_of
from erosion_server.output.report_validation import travel_sentence
from erosion_server.output.run_data import RunData, check_card, read_run
from erosion_server.run.run_folder import RunFolder

LARGEST_NUMBER = 1e30  # what `predict` takes without a range
NOT_A_DEVICE = (
    "This is the result of a study, not a medical device. Nobody has approved it for decisions"
    " about patients."
)
NOWHERE = "It was not measured at any other hospital."
FEW_PATIENTS = 100
MISSING = {  # policy -> what becomes of a patient without a value
    "refuse": "no result",
    "drop": "no result",
    "impute": "the mean stands for it",
    "mode": "the commonest category stands for it",
    "indicator": "taken as “not known”",
}


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A finished run's model."""

    run: RunData
    card: ModelCard
    body: nn.Module  # what the members read from: with a finish, all but the last layer
    members: tuple[nn.Module, ...]
    shares: tuple[float, ...]  # of each member in the mean of their predictions

    def warnings(self) -> list[str]:
        """Return what must be read before the model is used."""
        result = self.run.result
        few = "fewer than" if result.num_patients < FEW_PATIENTS else "only"
        number = max(FEW_PATIENTS, result.num_patients)
        is_delivered = self.card.arm == result.delivered_arm  # which others may have measured
        elsewhere = travel_sentence(result) if is_delivered else ""
        return [
            NOT_A_DEVICE,
            f"It was made for patients like those of {self.run.shown(self.card.user)}, and"
            f" measured on {few}"
            f" {number} of them. {elsewhere or NOWHERE}",
            *warnings_of(self.run),
        ]

    def card_rows(self) -> list[Row]:
        """Return the model card, with version and hash."""
        versions = ", ".join(f"{name} {version}" for name, version in self.card.versions.items())
        finish = self.card.finish_sha256
        of_finish: list[Row] = [("SHA-256 of the finish", finish)] if finish else []
        return [*card_rows(self.run, self.card), *of_finish, ("Made with", versions)]


def load_saved_run(run_folder: Path, arm: str | None, weights: Path) -> SavedRun:
    """Load the model of `arm`, or the delivered one. Raises CheckpointError and ModelError."""
    card, model = read_model(run_folder, arm)
    check_card(card, RunFolder(run_folder))
    network = saved_network(card, model, run_folder, weights).eval()
    body: nn.Module = nn.Identity()
    members: list[nn.Module] = []
    if isinstance(model, Finished):
        load_flat_parameters(network, model.parameters)
        body, members = network, _last_layers(network, model)
        shares = model.shares.tolist()
    else:
        for member in model.reshape(-1, model.shape[-1]):
            load_flat_parameters(network, member)
            members.append(deepcopy(network))
        shares = [1 / len(members)] * len(members)
    run = read_run(RunFolder(run_folder))
    # What is exported is passed on, so the user's own figures are those for publication.
    return SavedRun(run.rounded(), card, body, tuple(members), tuple(shares))


def _last_layers(network: nn.Module, model: Finished) -> list[nn.Module]:
    """Return the layers of a finish, and take the network's own out of it."""
    *_, name = (name for name, _ in named_trained_parameters(network))
    own, layers = last_layer(network), []
    assert own is not None
    for values in model.layers[:, 1:]:
        layer = nn.Linear(own.in_features, own.out_features)
        load_flat_parameters(layer, values)
        layers.append(layer.double())
    network.set_submodule(name.rpartition(".")[0], nn.Identity())
    return [*layers]


class InputColumn(NamedTuple):
    """How a model's input comes from a patient's prepared value; a missing one becomes `fill`.

    A number: (value - mean) / deviation, at most `farthest` from 0, after the cubes of a curve. A
    category: 1 where it is `code`, else 0.
    """

    feature: int
    code: int | None  # ABSENT: that it is missing; None: a number
    cubes: tuple[tuple[float, float], ...]
    mean: float
    deviation: float
    farthest: float
    fill: float


def input_columns(card: ModelCard, task: TabularTask) -> list[InputColumn]:
    """Return them in the model's order, as `predict` encodes them; interactions follow them."""
    found: list[InputColumn] = []
    for number, feature in enumerate(task.features):
        for term in task.terms(feature):
            place = len(found)
            fill = card.missing_means[place] if card.missing_means else 0.0
            mean, deviation, farthest = 0.0, 1.0, LARGEST_NUMBER
            if term.code is None and card.scaling is not None:
                mean, deviation = card.scaling.mean[place], card.scaling.deviation[place]
                farthest, fill = card.cut.of(deviation), 0.0
            elif term.code == ABSENT:
                fill = 1.0
            found.append(
                InputColumn(number, term.code, term.cubes, mean, deviation, farthest, fill)
            )
    return found


def farthest_product(card: ModelCard) -> float:
    """Return how far from 0 an interaction's input may lie."""
    return LARGEST_NUMBER if card.scaling is None else card.cut.deviations


def may_be_missing(task: TabularTask) -> list[bool]:
    """Return for each feature whether a patient without it is predicted."""
    return [task.policy(feature) not in ("refuse", "drop") for feature in task.features]


def output_names(card: ModelCard) -> list[str]:
    """Return the names of the numbers that `predict` writes. Raises CheckpointError."""
    task = card.task
    if task.predicts == "other":
        raise CheckpointError(
            f"The outcome {task.outcome!r} is a package's own, so what its predictions are is"
            " not known here",
            remedy="Use `erosion predict`.",
        )
    columns = task.prediction_columns()
    return columns[:-1] if task.predicts == "classes" else columns


def model_card_page(saved: SavedRun) -> str:
    """Return the model card as a page: what goes in, what comes out, what its users must know."""
    task = saved.card.task
    inputs: list[Row] = []
    if isinstance(task, TabularTask):
        inputs = [_input_row(task, feature) for feature in task.features]
    return render_page(
        "model_card.html",
        study=saved.card.study,
        warnings=saved.warnings(),
        rows=saved.card_rows(),
        inputs=inputs,
        outputs=output_names(saved.card),
    )


def _input_row(task: TabularTask, feature: NumberFeature | CategoryFeature) -> Row:
    if isinstance(feature, CategoryFeature):
        what, allowed = "category", ", ".join(feature.categories)
    else:
        what = f"number{f', in {feature.unit}' if feature.unit else ''}"
        allowed = "any" if feature.range is None else "{:g} to {:g}".format(*feature.range)
    return (feature.name, what, allowed, MISSING[task.policy(feature)])
