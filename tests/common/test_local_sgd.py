"""Local training: mini-batches, and steps of SGD and Adam by hand."""

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from erosion_common.learning.local_sgd import (
    LinearModel,
    LocalResult,
    PlainSgd,
    Pull,
    Samples,
    mini_batches,
    objective,
    optimizer_for,
    outputs_of,
    predictions_of,
    round_generator,
    train_locally,
)
from erosion_common.learning.models import Logistic, Mlp, MnistCnn, build_model, flat_parameters
from erosion_common.learning.trainable import freeze
from erosion_common.learning.training import Training
from erosion_common.tasks.task import DerivedLoss, Loss, Task, as_tensor
from tests.support.close import assert_close
from tests.support.small_study import make_study
from tests.support.task_examples import example, patients
from tests.support.tasks import classes_of, read_task


def batches(num_samples: int, number: int = 1, **training: Any) -> list[list[int]]:
    drawn = mini_batches(num_samples, Training(**training), round_generator(0, "a", number), number)
    return [b.tolist() for b in drawn]


def joined(drawn: list[list[int]]) -> list[int]:
    return [index for batch in drawn for index in batch]


# -- Mini-batches ------------------------------------------------------------------------------


def test_epochs_are_whole_passes_whose_last_batch_may_be_short() -> None:
    drawn = batches(10, epochs=2, batch_size=4)
    assert [len(batch) for batch in drawn] == [4, 4, 2, 4, 4, 2]
    first, second = joined(drawn[:3]), joined(drawn[3:])
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second  # a new order for each pass


def test_a_sequential_order_goes_on_from_round_to_round_and_its_last_batch_is_short() -> None:
    rounds = [batches(10, r, steps=2, batch_size=4, order="sequential") for r in (1, 2, 3)]
    first, second, last = [0, 1, 2, 3], [4, 5, 6, 7], [8, 9]
    assert rounds == [[first, second], [last, first], [second, last]]
    for number in (1, 2):
        passes = batches(10, number, epochs=2, batch_size=4, order="sequential")
        assert passes == [first, second, last] * 2


def test_training_takes_the_mini_batch_of_its_round() -> None:
    # One patient a batch: by hand, the gradient of "class 1" at 0 is -x/2 in its weight.
    inputs, targets = torch.tensor([[1.0], [3.0]]), torch.tensor([1, 1])
    model = build_model(Logistic(), (1,), 2)
    training = Training(steps=1, batch_size=1, learning_rate=1.0, order="sequential")
    moved = [
        train_locally(
            model,
            torch.zeros(4),
            Samples(inputs, targets, cross_entropy),
            training,
            round_generator(0, "a", number),
            round_number=number,
        ).delta[1]
        for number in (1, 2, 3)
    ]
    assert torch.stack(moved).tolist() == pytest.approx([0.5, 1.5, 0.5])


@given(n=st.integers(1, 40), steps=st.integers(1, 20), batch_size=st.integers(1, 50))
def test_steps_use_every_patient_equally_often(n: int, steps: int, batch_size: int) -> None:
    drawn = batches(n, steps=steps, batch_size=batch_size)
    assert len(drawn) == steps
    assert all(len(batch) == min(batch_size, n) for batch in drawn)
    counts = np.bincount(joined(drawn), minlength=n)
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize(
    ("num", "batch_size", "smallest", "sizes"),
    [
        (33, 32, 1, [32, 1]),
        (33, 32, 2, [17, 16]),  # nobody is alone in the last one
        (34, 32, 2, [32, 2]),
        (100, 32, 8, [32, 32, 18, 18]),
        (64, 32, 8, [32, 32]),
        (7, 2, 2, [2, 2, 3]),  # too few for two
        (5, 4, 3, [5]),
        (1, 32, 2, [1]),
    ],
)
def test_a_last_batch_that_is_too_short_shares_with_the_one_before(
    num: int, batch_size: int, smallest: int, sizes: list[int]
) -> None:
    training = Training(epochs=2, batch_size=batch_size)
    assert training.sizes_of_a_pass(num, smallest) == sizes
    for order in ("random", "sequential"):
        same = training.model_copy(update={"order": order})
        drawn = mini_batches(num, same, round_generator(0, "a", 1), 1, smallest)
        assert [len(batch) for batch in drawn] == sizes * 2


@given(n=st.integers(1, 200), batch_size=st.integers(1, 50), smallest=st.integers(1, 50))
def test_no_batch_is_shorter_than_the_smallest(n: int, batch_size: int, smallest: int) -> None:
    smallest = min(smallest, batch_size)  # a site declines studies of smaller ones
    sizes = Training(epochs=1, batch_size=batch_size).sizes_of_a_pass(n, smallest)
    assert sum(sizes) == n
    assert min(sizes) >= min(smallest, n)
    assert max(sizes) < batch_size + smallest


# -- Randomness --------------------------------------------------------------------------------


def drawn_numbers(seed: int, agent: str, number: int, secret: bytes = b"") -> tuple[float, ...]:
    return tuple(torch.rand(4, generator=round_generator(seed, agent, number, secret)).tolist())


def test_every_seed_hospital_round_and_secret_has_its_own_randomness_that_repeats() -> None:
    keys: list[tuple[int, str, int, bytes]] = [
        *((1, "a", 2, secret) for secret in (b"", b"one", b"two")),
        *((2, "a", 2, b""), (1, "b", 2, b""), (1, "a", 3, b"")),
        *((12, "a", 1, b""), (1, "a", 12, b"")),
    ]
    drawn = [drawn_numbers(*key) for key in keys]
    assert drawn == [drawn_numbers(*key) for key in keys]
    assert len(set(drawn)) == len(keys)


def test_with_a_secret_the_whole_state_is_drawn_and_not_only_a_seed_that_can_be_tried() -> None:
    drawn = round_generator(1, "a", 2, b"secret")
    words = drawn.get_state().numpy()[24 : 24 + 8 * 624].view("<u8")
    twister = random.Random()  # the same Mersenne Twister
    twister.setstate((3, (*map(int, words), 624), None))
    expected = [twister.getrandbits(32) % 1000 for _ in range(2000)]
    assert torch.randint(1000, (2000,), generator=drawn).tolist() == expected
    seeded = torch.Generator().manual_seed(drawn.initial_seed())
    assert not np.array_equal(seeded.get_state().numpy()[24 : 24 + 8 * 624].view("<u8"), words)


# -- Steps -------------------------------------------------------------------------------------

INPUTS = torch.tensor([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5]])
LABELS = torch.tensor([1, 0, 1])


def train(inputs: Tensor, labels: Tensor, start: Tensor | None = None, **kw: Any) -> LocalResult:
    model = build_model(Logistic(), (2,), 2)
    begin = torch.zeros(6) if start is None else start
    generator = round_generator(0, "a", 1)
    samples = Samples(inputs, labels, cross_entropy)
    return train_locally(model, begin, samples, Training(**kw), generator)


def test_one_step_of_logistic_regression_by_hand() -> None:
    result = train(torch.tensor([[1.0, 2.0]]), torch.tensor([1]), steps=1, learning_rate=0.1)
    # From zero p = (0.5, 0.5), so the gradient of the logits is p - y = (0.5, -0.5):
    # weights -0.1 (0.5 (1, 2), -0.5 (1, 2)), biases -0.1 (0.5, -0.5)
    expected = [-0.05, -0.1, 0.05, 0.1, -0.05, 0.05]
    assert result.delta.tolist() == pytest.approx(expected)
    assert result.samples_seen == 1


def test_the_first_step_of_adam_is_the_learning_rate_in_each_direction() -> None:
    result = train(
        torch.tensor([[1.0, -2.0]]),
        torch.tensor([1]),
        steps=1,
        optimizer="adam",
        learning_rate=0.01,
    )
    # m / sqrt(v) = g / |g| after one step; g = (0.5 (1, -2), -0.5 (1, -2), 0.5, -0.5)
    assert result.delta.tolist() == pytest.approx([-0.01, 0.01, 0.01, -0.01, -0.01, 0.01], rel=1e-5)


def test_momentum_and_weight_decay_follow_the_textbook() -> None:
    rate, momentum, decay, steps = 0.1, 0.9, 0.05, 4
    start = torch.tensor([0.1, -0.2, 0.3, 0.4, -0.5, 0.6])
    result = train(
        INPUTS,
        LABELS,
        start,
        steps=steps,
        batch_size=3,  # the whole data set, so that the order does not matter
        learning_rate=rate,
        momentum=momentum,
        weight_decay=decay,
    )
    x, y = INPUTS.double().numpy(), np.eye(2)[LABELS.numpy()]
    theta, velocity = start.double().numpy(), np.zeros(6)
    for _ in range(steps):
        exponents = np.exp(x @ theta[:4].reshape(2, 2).T + theta[4:])
        error = (exponents / exponents.sum(axis=1, keepdims=True) - y) / len(x)
        gradient = np.concatenate([(error.T @ x).ravel(), error.sum(axis=0)]) + decay * theta
        velocity = momentum * velocity + gradient
        theta = theta - rate * velocity
    np.testing.assert_allclose(result.delta.numpy(), theta - start.numpy(), atol=1e-6)
    assert result.samples_seen == 12  # 4 steps of 3


def test_training_repeats_exactly_whatever_else_drew_random_numbers() -> None:
    torch.manual_seed(1)
    first = train(INPUTS, LABELS, epochs=3, batch_size=1, momentum=0.9)
    torch.manual_seed(2)
    again = train(INPUTS, LABELS, epochs=3, batch_size=1, momentum=0.9)
    assert torch.equal(first.delta, again.delta)


# -- Prediction --------------------------------------------------------------------------------


def test_probabilities_do_not_depend_on_the_batch_size() -> None:
    model = build_model(Mlp(), (2,), 3, seed=1)
    outputs = outputs_of(model, INPUTS)
    assert_close(outputs, outputs_of(model, INPUTS, batch_size=2))
    whole = predictions_of(classes_of(3), model, flat_parameters(model), INPUTS)
    assert_close(whole, outputs.softmax(dim=1))
    assert whole.dtype == torch.float64
    assert whole.shape == (3, 3)
    assert_close(whole.sum(dim=1), torch.ones(3, dtype=torch.float64))


# -- The program's own SGD against torch's -------------------------------------------------------

SETTINGS: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.03},
    {"momentum": 0.9},
    {"momentum": 0.7, "weight_decay": 0.01, "learning_rate": 0.37},
]


def after_steps(model: nn.Module, optimizer: Any, shape: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(6):
        inputs = torch.randn(5, *shape, generator=generator)
        labels = torch.randint(10, (5,), generator=generator)
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(inputs), labels))
        with torch.no_grad():
            optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("shape", [(3,), (1, 12, 12)])
def test_it_ends_where_torch_s_own_ends_to_the_last_bit(
    settings: dict[str, Any], shape: tuple[int, ...]
) -> None:
    training = Training(steps=1, **settings)
    ours, theirs = (
        build_model(Mlp() if len(shape) == 1 else MnistCnn(), shape, 10, seed=3) for _ in range(2)
    )
    optimizer = optimizer_for(list(ours.parameters()), training)
    assert isinstance(optimizer, PlainSgd)
    torchs = torch.optim.SGD(
        theirs.parameters(),
        lr=training.learning_rate,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
    )
    for one, other in zip(
        after_steps(ours, optimizer, shape), after_steps(theirs, torchs, shape), strict=True
    ):
        assert torch.equal(one, other)


# -- The linear model's gradient by hand, and against autograd to the last bit ---------------------

# Inputs, outputs, patients: more of each than the other, one of each, a last batch of one patient.
SHAPES = [(13, 2, 40), (3, 7, 33), (1, 2, 20), (1, 1, 1), (200, 10, 161), (4, 3, 17)]


def test_a_parameter_without_a_gradient_stays_where_it_is() -> None:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = PlainSgd([used, unused], Training(steps=1, weight_decay=0.5, momentum=0.5))
    used.grad = torch.ones(2)
    with torch.no_grad():
        optimizer.step()
    assert used.tolist() != [1.0, 1.0]
    assert unused.tolist() == [1.0, 1.0]


def by_autograd(model: LinearModel) -> nn.Sequential:
    """The same model, of which the program knows nothing in particular."""
    return nn.Sequential(*copy.deepcopy(list(model)))


def linear_model(num_inputs: int, num_outputs: int) -> LinearModel:
    built = build_model(Logistic(start_deviation=1), (num_inputs,), num_outputs, seed=3)
    assert isinstance(built, LinearModel)
    return built


def drawn(num_inputs: int, num_outputs: int, patients: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return (
        torch.randn(patients, num_inputs, generator=generator),
        torch.randint(num_outputs, (patients,), generator=generator),
    )


def trained(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    loss: Loss,
    pull: Pull | None = None,
    **training: Any,
) -> Tensor:
    settings = Training(**({"epochs": 3, "batch_size": 16, "learning_rate": 0.3} | training))
    start = flat_parameters(model)
    generator = round_generator(0, "a", 1)
    return train_locally(
        model, start, Samples(inputs, targets, loss), settings, generator, pull
    ).delta


@pytest.mark.parametrize("training", [{}, {"momentum": 0.9}, {"optimizer": "adam"}])
@pytest.mark.parametrize(("num_inputs", "num_outputs", "patients"), SHAPES)
def test_it_trains_as_autograd_does_to_the_last_bit(
    num_inputs: int, num_outputs: int, patients: int, training: dict[str, Any]
) -> None:
    ours = linear_model(num_inputs, num_outputs)
    theirs = by_autograd(ours)
    data = drawn(num_inputs, num_outputs, patients)
    found = trained(ours, *data, cross_entropy, **training)
    assert torch.equal(found, trained(theirs, *data, cross_entropy, **training))
    assert found.any() or num_outputs == 1  # a single class is certain from the start


@pytest.mark.parametrize("frozen", ["1.weight", "1.bias"])
def test_what_is_frozen_has_no_gradient(frozen: str) -> None:
    ours = linear_model(5, 3)
    freeze(ours, (frozen,))
    theirs = by_autograd(ours)
    data = drawn(5, 3, 40)
    assert torch.equal(trained(ours, *data, cross_entropy), trained(theirs, *data, cross_entropy))
    with torch.no_grad():
        ours.gradient_of(cross_entropy)(*data)
    with_gradient = {name for name, found in ours.named_parameters() if found.grad is not None}
    assert with_gradient == {"1.weight", "1.bias"} - {frozen}


@pytest.mark.parametrize("scale", [1, 60])  # of the inputs; logits beyond 20, too
@pytest.mark.parametrize("knows", [True, False])
def test_any_other_loss_says_its_gradient_or_is_differentiated_in_the_outputs(
    scale: float, knows: bool
) -> None:
    raw = {"target": {"time": "days", "event": "died"}, "cut_points": [1, 2, 4], "features": ["x"]}
    task = read_task({"kind": "tabular", "outcome": "survival", **raw})
    generator = torch.Generator().manual_seed(7)
    days = 5 * torch.rand(40, 1, generator=generator)
    targets = torch.cat([days, torch.randint(2, (40, 1), generator=generator)], dim=1)
    inputs = scale * torch.randn(40, 6, generator=generator)
    ours = linear_model(6, 3)
    theirs = by_autograd(ours)
    told = task.training_loss(targets)
    assert isinstance(told, DerivedLoss)
    loss = told if knows else told.__call__
    assert isinstance(loss, DerivedLoss) == knows
    assert torch.equal(trained(ours, inputs, targets, loss), trained(theirs, inputs, targets, loss))


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.4] * 5),
        ("step", [0.4, 0.4, 0.04, 0.004, 0.004]),  # beyond the last round as in it
        ("cosine", [0.4, 0.2 * (1 + 0.5**0.5), 0.2, 0.2 * (1 - 0.5**0.5), 0.2 * (1 - 0.5**0.5)]),
        ("inverse_sqrt", [0.4, 0.4 / 2**0.5, 0.4 / 3**0.5, 0.2, 0.2]),
    ],
)
def test_a_schedule_by_hand(schedule: Any, rates: list[float]) -> None:
    training = Training(steps=1, learning_rate=0.4, schedule=schedule)
    found = [training.at(number, 4).learning_rate for number in (1, 2, 3, 4, 5)]
    assert found == pytest.approx(rates)


def test_a_private_study_has_no_schedule_of_another_rate() -> None:
    private = {"epsilon": 3.0, "delta": 1e-3, "learning_rate": 0.1}
    with pytest.raises(ValueError, match="schedule"):
        make_study(training={"epochs": 1, "schedule": "cosine"}, privacy=private)


# -- An ensemble ---------------------------------------------------------------------------------


def ensemble_and_its_networks(task: Task) -> tuple[nn.Module, list[nn.Module]]:
    """Three networks in one, and the same three alone, by their parameters' names."""
    whole = build_model(Mlp(hidden=(4, 5), ensemble_of=3), (3,), task.num_outputs, seed=1)
    alone = []
    for number in range(3):
        network = build_model(Mlp(hidden=(4, 5)), (3,), task.num_outputs)
        prefix = f"bodies.{number}."
        own = {n.removeprefix(prefix): v for n, v in whole.state_dict().items() if prefix in n}
        weight = whole.state_dict()["output.weight"].chunk(3, dim=1)[number]
        last = {"5.weight": weight, "5.bias": whole.state_dict()["output.bias"]}
        network.load_state_dict(own | last)
        alone.append(network)
    return whole, alone


def train_in_place(model: nn.Module, task: Task, inputs: Tensor, **training: Any) -> None:
    targets = as_tensor(patients(task, seed=4, count=len(inputs)))
    samples = Samples(inputs, targets, objective(model, task.training_loss(targets)))
    whole = Training(steps=6, batch_size=5, learning_rate=0.1, **training)
    train_locally(model, flat_parameters(model), samples, whole, round_generator(0, "a", 1))


@pytest.mark.parametrize("task", [*map(example, ("classification", "regression", "survival"))])
@pytest.mark.parametrize("training", [{}, {"momentum": 0.9, "weight_decay": 0.1}])
def test_an_ensemble_s_networks_train_as_they_would_alone(task: Task, training: Any) -> None:
    inputs = torch.randn(17, 3, generator=torch.Generator().manual_seed(3))
    whole, alone = ensemble_and_its_networks(task)
    before = outputs_of(whole, inputs)
    freeze(whole, ["output.bias"])
    for network in alone:
        freeze(network, ["5.bias"])
        train_in_place(network, task, inputs, **training)
    train_in_place(whole, task, inputs, **training)
    mean = torch.stack([outputs_of(network, inputs) for network in alone]).mean(dim=0)
    assert torch.allclose(outputs_of(whole, inputs), mean, atol=1e-6)
    assert not torch.allclose(before, mean, atol=1e-2)
    assert len({str(outputs_of(network, inputs[:1])) for network in alone}) == 3


def test_an_ensemble_s_bias_moves_by_the_mean_of_its_networks_gradients() -> None:
    task, inputs, targets = classes_of(2), torch.randn(6, 3), torch.tensor([0, 1, 1, 0, 1, 1])
    whole, alone = ensemble_and_its_networks(task)
    whole.train()
    biases = [
        torch.autograd.grad(
            objective(model, cross_entropy)(model(inputs), targets), [*model.parameters()][-1]
        )[0]
        for model in (whole, *alone)
    ]
    assert torch.allclose(biases[0], torch.stack(biases[1:]).mean(dim=0), atol=1e-6)
