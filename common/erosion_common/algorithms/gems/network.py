"""GEMS for multilayer perceptrons (Guha and Smith, section 3.2): one exchange per hidden layer."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from erosion_common.algorithms.base import (
    Answers,
    Ask,
    ExpectedReply,
    Layout,
    Payload,
    RoundStart,
    SiteStep,
    TensorSpec,
)
from erosion_common.algorithms.gems.balls import (
    LARGEST_RADIUS,
    Layer,
    balls,
    directions,
    hidden_features,
    layer_of_neurons,
    neuron_radii,
    problem_with_radius,
    split_layers,
)
from erosion_common.algorithms.gems.meeting import merge_neurons
from erosion_common.algorithms.gems.retraining import Retraining, perceptron, retrain, training_of
from erosion_common.algorithms.gems.rounds import PublicTuning, module_widths, perceptron_widths
from erosion_common.learning.local_work import LocalAnswer, LocalOutcome, LocalWork, WorkSize
from erosion_common.learning.trainable import flat_parameters

NEURONS, OUTPUT = "neurons", "output"  # steps
_NEURONS, _RADII = "neurons", "radii"
_HIDDEN = "hidden_{}"  # (m, d + 1) the common hidden layers so far, from the input


class NetworkGems(PublicTuning):
    """GEMS for a network: similar hidden neurons of all hospitals are merged, the others kept.

    Each hospital trains its own smaller network; their hidden neurons together become the
    study's, layer by layer, then each hospital trains the output layer above them, and the output
    layer taken is good enough for all, or as near to that as possible. It takes one exchange for
    each hidden layer, one for the output layer and one for the hospitals' checks. Use it where
    hospitals can meet only once and the model is an 'mlp' wide enough for all: with hidden = [100]
    and five hospitals each trains 20 neurons, and what is merged leaves room unused. The study's
    [training] is that of the hospitals' own networks; above merged neurons 3 passes of SGD at 0.1
    are made, for "authors" 10 of Adam at 0.001.
    Source: Guha, Smith, Model Aggregation via Good-Enough Model Spaces, 2019.
    """

    algorithm: Literal["network_gems"] = "network_gems"
    clusters: int = Field(
        default=100,
        ge=1,
        description="Clusters of all neurons of a layer, in which similar ones are merged.",
    )
    neuron_epsilon: float = Field(
        default=1.0, gt=0, description="How much a neuron's output may change (eps_j in eq. 3)."
    )
    divide_by_count: bool = Field(
        default=True,
        description="Whether that change is divided by the number of patients; eq. 3 does not.",
    )
    retraining: Retraining = Field(
        default="zeros",
        description='"zeros": the output layer starts at 0, or "authors": at chance.',
    )

    def problem_with_model(self, layout: Callable[[], Layout]) -> str | None:
        widths = perceptron_widths(layout())
        if len(widths) > 2:
            return None
        if widths:
            return "network_gems needs a hidden layer, and the model has none; use gems"
        return "network_gems is for model.name = 'mlp'"

    def site_steps(self) -> Mapping[str, SiteStep]:
        return {**super().site_steps(), NEURONS: self.neurons, OUTPUT: self.train}

    def local_trainings(self, whole: WorkSize) -> tuple[WorkSize, ...]:
        """Return the optimum's training, and that above merged neurons."""
        known = super().local_trainings(whole)
        if self.only_tunes(whole):
            return known
        rest = whole.without_held_out(self.validation_share)
        above = training_of(self.retraining, whole.smallest_batch)
        remedy = "leaving it out"
        if self.retraining == "zeros":
            longer = training_of("authors")
            remedy = f'retraining = "authors" with epochs = {longer.epochs}, or {remedy}'
        return (*known, replace(rest, training=above, remedy=remedy))

    def times_asked(self, step: str, layout: Callable[[], Layout]) -> int:
        """Return how often: neurons once for each hidden layer."""
        return len(perceptron_widths(layout())) - 2 if step == NEURONS else 1

    def last_training(self) -> str:
        """Return a separate step: the enclosed tensors are not of the model's length."""
        return OUTPUT

    def before_training(
        self, begun: RoundStart, widths: Sequence[int]
    ) -> Generator[Ask, Answers, Mapping[str, Tensor]]:
        """Merges one hidden layer after another."""
        names = self.taking_part(begun)
        num_hospitals = len(begun.hospitals if names is None else names)
        own = own_widths(widths, num_hospitals)
        hidden: dict[str, Tensor] = {}
        width_in = widths[0]
        for depth, width in enumerate(own[1:-1]):
            terms = {
                _NEURONS: TensorSpec((width, width_in + 1), is_measured=True),
                _RADII: TensorSpec((width,)),
            }
            values = {"hospitals": num_hospitals}
            found = yield Ask(
                NEURONS,
                Payload(hidden, values),
                expects=ExpectedReply(tensors=terms),
                hospitals=names,
                sends_parameters=False,
            )
            sent = [answer.tensors for answer in found.replies.values()]
            merged = self._merged(sent, widths[depth + 1])
            hidden = {**hidden, _HIDDEN.format(depth): merged}
            width_in = len(merged)
        return hidden

    def neurons(self, work: LocalWork) -> LocalAnswer:
        """Return one hidden layer of the hospital's network above the common ones, with balls."""
        common, generator = common_layers(work), work.randomness()
        rest, held_out = self.parts(work)
        widths = own_widths(module_widths(work.model), int(work.values["hospitals"]))
        if not common:
            network = nn.Sequential(nn.Flatten(), *perceptron(widths, generator))
            start = flat_parameters(network)
            alone = self.optimum(replace(rest, model=network), start)
            layer = split_layers(start + alone.delta, widths)[0]
        else:
            features = hidden_features(common, rest.inputs.flatten(1))
            above = widths[len(common) + 1 : -1]
            layer = self._retrained(rest, features, above, widths[-1], generator)[0]
        inputs = held_out.of_patients(hidden_features(common, held_out.inputs.flatten(1)))
        radii = neuron_radii(
            layer,
            inputs,
            self.neuron_epsilon,
            directions(self.directions, inputs.shape[1] + 1, generator),
            divide_by_count=self.divide_by_count,
        )
        return LocalAnswer({_NEURONS: layer.neurons, _RADII: radii.float()}, keep=work.kept)

    def train(self, work: LocalWork) -> LocalOutcome:
        """Return the output layer above the common hidden ones, with its ball."""
        common, generator = common_layers(work), work.randomness()
        rest, _ = self.parts(work)
        features = hidden_features(common, rest.inputs.flatten(1))
        widths = module_widths(work.model)
        (output,) = self._retrained(rest, features, (), widths[-1], generator)
        layers = (*common, output)
        delta = padded(layers, widths) - work.received
        return self.with_ball(work, delta, len(rest.targets), layers, generator)

    def _retrained(
        self,
        rest: LocalWork,
        features: Tensor,
        hidden: Sequence[int],
        classes: int,
        generator: torch.Generator,
    ) -> tuple[Layer, ...]:
        """Return new layers above the features (n, d) of those who are not held out."""
        return retrain(
            features,
            rest.targets,
            hidden,
            classes,
            self.retraining,
            generator,
            loss=rest.task.training_loss(rest.targets),
            smallest_batch=rest.smallest_batch,
        )

    def _merged(self, sent: Sequence[Mapping[str, Tensor]], most: int) -> Tensor:
        """Return the common layer (m, d + 1) of `most` neurons at most.

        A neuron with an implausible radius is merged with none.
        """
        radii = torch.cat([tensors[_RADII] for tensors in sent])
        strange = [problem_with_radius(radius) is not None for radius in radii.tolist()]
        every = balls(
            torch.cat([tensors[_NEURONS] for tensors in sent]),
            radii.masked_fill(torch.tensor(strange), 0.0),
        )
        merged = merge_neurons(every, self.clusters)
        if len(merged.neurons) <= most:
            return merged.neurons
        # More hospitals than the study's layer has neurons: each cluster becomes one of them.
        boundless = torch.full((len(merged.neurons),), LARGEST_RADIUS)
        return merge_neurons(balls(merged.neurons, boundless), most).neurons


def own_widths(widths: Sequence[int], num_hospitals: int) -> tuple[int, ...]:
    """Return the widths of each hospital's own network: together they fit into the study's."""
    hidden = [max(1, width // num_hospitals) for width in widths[1:-1]]
    return (widths[0], *hidden, widths[-1])


def common_layers(work: LocalWork) -> tuple[Layer, ...]:
    """Return the hidden layers that all hospitals have in common so far."""
    names = (_HIDDEN.format(depth) for depth in range(len(work.enclosed)))
    return tuple(layer_of_neurons(work.enclosed[name]) for name in names)


def padded(layers: Sequence[Layer], widths: Sequence[int]) -> Tensor:
    """Return the parameters of a perceptron of `widths` that predicts what `layers` do: (dim,).

    The neurons that it has more than they do are 0, and so is what the layer above makes of them.
    """
    parts = []
    for layer, width_in, width_out in zip(layers, widths[:-1], widths[1:], strict=True):
        weight, bias = torch.zeros(width_out, width_in), torch.zeros(width_out)
        weight[: layer.weight.shape[0], : layer.weight.shape[1]] = layer.weight
        bias[: len(layer.bias)] = layer.bias
        parts.append(Layer(weight, bias).flat)
    return torch.cat(parts)
