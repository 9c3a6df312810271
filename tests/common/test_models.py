"""The models of the registry, and their parameters as one vector."""

import hashlib
import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from erosion_common.errors import ModelError
from erosion_common.learning.local_sgd import Samples, outputs_of, train_locally
from erosion_common.learning.models import (
    AnyModel,
    Logistic,
    Mlp,
    MnistCnn,
    Resnet18,
    build_model,
    check_model,
    first_parameters,
    flat_parameters,
    load_flat_parameters,
    parameter_layout,
    parameter_shapes,
)
from erosion_common.learning.networks import TorchvisionNetwork
from erosion_common.learning.pretrained import Pretrained, load_pretrained
from erosion_common.learning.trainable import draws_from, to_training
from erosion_common.learning.training import Training
from erosion_common.rounds.checkpoint import save_model
from tests.support.close import assert_close
from tests.support.refusals import refused
from tests.support.small_study import make_study


@pytest.mark.parametrize(
    ("settings", "input_shape", "num_classes", "num_parameters"),
    [
        (Logistic(), (13,), 2, 28),  # 13 2 + 2
        (Logistic(), (1, 28, 28), 10, 7_850),  # 784 10 + 10
        (Mlp(hidden=(8,)), (13,), 2, 130),  # 13 8 + 8 + 8 2 + 2
        (Mlp(hidden=(8, 4)), (13,), 3, 163),  # 112 + 8 4 + 4 + 4 3 + 3
        # 320 + 18,496 + 73,856 (convolutions) + 2048 128 + 128 + 1,290 (linear layers)
        (MnistCnn(), (1, 28, 28), 10, 356_234),
        # 448 + 4,640 + 18,496 (convolutions) + 1024 64 + 64 + 455 (linear layers)
        (MnistCnn(width=16), (3, 28, 28), 7, 89_639),
        # torchvision's 11,689,512 - 513,000 + 5,130 (classes) - 2 64 7 7 (grey images)
        (Resnet18(), (1, 28, 28), 10, 11_175_370),
    ],
)
def test_a_model_has_the_expected_size_and_output(
    settings: AnyModel, input_shape: tuple[int, ...], num_classes: int, num_parameters: int
) -> None:
    model = build_model(settings, input_shape, num_classes)
    assert len(flat_parameters(model)) == num_parameters
    with torch.no_grad():
        assert model(torch.zeros(2, *input_shape)).shape == (2, num_classes)
    # A running statistic would be neither trained nor averaged.
    assert list(model.buffers()) == []


def test_logistic_regression_can_start_from_a_cut_off_normal() -> None:
    start = flat_parameters(build_model(Logistic(start_deviation=0.5), (2000,), 2, seed=5))
    weights, biases = start[:-2], start[-2:]
    assert not biases.any()
    assert 0.9 < float(weights.abs().max()) <= 1.0  # two deviations
    # A normal cut off at two deviations spreads by .88 of what it did.
    assert float(weights.std()) == pytest.approx(0.44, abs=0.02)


def test_loading_what_was_flattened_gives_the_same_model_without_shared_memory() -> None:
    source, target = build_model(Mlp(), (4,), 3, seed=1), build_model(Mlp(), (4,), 3, seed=2)
    flat = flat_parameters(source)
    assert (flat.dtype, flat.requires_grad) == (torch.float32, False)
    load_flat_parameters(target, flat)
    flat.zero_()
    assert flat_parameters(source).any()
    assert torch.equal(flat_parameters(target), flat_parameters(source))
    inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(source(inputs), target(inputs))


def test_the_start_depends_on_the_seed_alone_and_moves_no_other_draws() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = flat_parameters(build_model(Mlp(), (4,), 2, seed=7))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert torch.equal(first, flat_parameters(build_model(Mlp(), (4,), 2, seed=7)))
    assert not torch.equal(first, flat_parameters(build_model(Mlp(), (4,), 2, seed=8)))


@pytest.mark.parametrize("settings", [MnistCnn(), Resnet18()])
def test_an_image_network_refuses_a_table(settings: MnistCnn | Resnet18) -> None:
    with refused(ValueError, repr(settings.name)):
        settings.check_task((13,))
    settings.check_task((1, 28, 28))


# -- The places of a model's named parameters ----------------------------------------------------


def test_names_point_to_the_parameters_in_the_flat_vector() -> None:
    settings = Mlp(hidden=(3,))
    layout = parameter_layout(settings, (2,), 2)
    assert dict(layout) == {
        "1.weight": slice(0, 6),
        "1.bias": slice(6, 9),
        "3.weight": slice(9, 15),
        "3.bias": slice(15, 17),
    }
    model = build_model(settings, (2,), 2, seed=4)
    flat = flat_parameters(model)
    for name, parameter in model.named_parameters():
        assert torch.equal(flat[layout[name]], parameter.detach().flatten())


# -- Draws of layers from a seed -----------------------------------------------------------------


def test_layers_draw_what_they_draw_after_torch_s_own_seeding() -> None:
    for seed in (0, 7, 2**63 - 1):
        torch.manual_seed(seed)
        expected = torch.rand(5), torch.nn.functional.dropout(torch.ones(20))
        with draws_from(seed):
            found = torch.rand(5), torch.nn.functional.dropout(torch.ones(20))
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])


def test_threads_that_draw_at_the_same_time_each_draw_from_their_own_seed() -> None:
    """As the studies of one coordinator do when they begin."""

    def draw(seed: int) -> list[float]:
        drawn = []
        with draws_from(seed):
            for _ in range(20):
                drawn.append(float(torch.rand(())))
                time.sleep(0.001)
        return drawn

    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(draw, (1, 2))] == [draw(1), draw(2)]


def raise_after_a_draw() -> None:
    torch.rand(100)
    raise ZeroDivisionError


def test_nobody_s_draws_change_even_after_a_fault() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with draws_from(5):
        torch.rand(100)
    with pytest.raises(ZeroDivisionError), draws_from(6):
        raise_after_a_draw()
    assert torch.equal(torch.rand(4), expected)


# -- Models that start from a file of weights, and parts of them that never travel -----------------

HEAD = ("3.*",)  # of an mlp with one hidden layer: modules 1 and 3 are linear


def of(path: Path, **more: Any) -> Pretrained:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Pretrained(file=path.name, sha256=digest, **more)


def source(outputs: int = 5) -> nn.Module:
    return build_model(Mlp(hidden=(8,)), (4,), outputs, seed=99)


def saved(folder: Path, state: Any, name: str = "net.pt") -> Path:
    path = folder / name
    if name.endswith("safetensors"):
        save_file(state, path)
    else:
        torch.save(state, path)
    return path


@pytest.mark.parametrize("name", ["net.pt", "net.pth", "net.safetensors"])
def test_all_weights_come_from_the_file(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path, source().state_dict(), name)
    settings = Mlp(hidden=(8,), pretrained=of(path))
    model = build_model(settings, (4,), 5, seed=1, weights=tmp_path)
    assert torch.equal(flat_parameters(model), flat_parameters(source()))
    assert torch.equal(first_parameters(settings, (4,), 5, 1, tmp_path), flat_parameters(source()))


def test_a_head_of_another_size_starts_afresh(tmp_path: Path) -> None:
    path = saved(tmp_path, {"state_dict": source(5).state_dict()})
    settings = Mlp(hidden=(8,), pretrained=of(path, new=HEAD))
    model = build_model(settings, (4,), 2, seed=1, weights=tmp_path)
    afresh = build_model(Mlp(hidden=(8,)), (4,), 2, seed=1)
    assert torch.equal(model[1].weight, source()[1].weight)  # type: ignore[index]
    assert torch.equal(model[3].weight, afresh[3].weight)  # type: ignore[index]


def test_the_model_of_a_run_is_a_file_of_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    shapes = parameter_shapes(Mlp(hidden=(8,)), (4,), 5)
    save_model(path, flat_parameters(source()), shapes)
    settings = Mlp(hidden=(8,), pretrained=of(path, new=HEAD))
    model = build_model(settings, (4,), 3, weights=tmp_path)
    assert torch.equal(model[1].bias, source()[1].bias)  # type: ignore[index]
    save_model(path, flat_parameters(source()).expand(2, -1), shapes)
    with refused(ModelError, "2 models"):
        build_model(Mlp(hidden=(8,), pretrained=of(path)), (4,), 5, weights=tmp_path)


def test_a_tied_parameter_is_in_a_file_by_one_of_its_names(tmp_path: Path) -> None:
    def tied() -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        return model

    there, here = tied(), tied()
    path = tmp_path / "model.safetensors"
    shapes = {name: tuple(p.shape) for name, p in there.named_parameters()}  # as a run saves it
    save_model(path, flat_parameters(there), shapes)
    load_pretrained(here, of(path), tmp_path)
    assert torch.equal(flat_parameters(here), flat_parameters(there))
    save_model(path, torch.zeros(6), {"0.bias": (3,), "1.bias": (3,)})
    with refused(ModelError, "0.weight"):
        load_pretrained(here, of(path), tmp_path)


class _RunsWhenRead:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch RAN",)


def changed(**values: Any) -> dict[str, Tensor]:
    return {**source().state_dict(), **values}


@pytest.mark.parametrize(
    ("state", "new", "message"),
    [
        (source(6).state_dict(), (), "3.weight is 6 x 8 there and 5 x 8 in the model; 3.bias is 6"),
        ({"1.weight": torch.zeros(8, 4)}, HEAD, "has no 1.bias, which the model has (it has 1.we"),
        (changed(), ("4.*",), "model.pretrained.new names 4.*; the model has 1.weight"),
        (changed(**{"1.bias": torch.full((8,), float("nan"))}), (), "1.bias has values that are n"),
        (
            changed(**{"1.bias": torch.zeros(8).double() + 1e300}),
            (),
            "1.bias has values that are n",
        ),
        (changed(**{"1.bias": torch.zeros(8).long()}), (), "1.bias is torch.int64 there and torch"),
        (
            changed(**{"1.bias": torch.zeros(8).to_sparse()}),
            (),
            "1.bias is sparse or has no values",
        ),
        (
            changed(**{"1.bias": torch.zeros(8, device="meta")}),
            (),
            "1.bias is sparse or has no values",
        ),
        ([torch.zeros(3)], (), "are no state dict"),
        ({"1.weight": "text"}, (), "are no state dict"),
        (source(), (), "cannot be read (Weights only load failed"),
        ({"x": _RunsWhenRead()}, (), "cannot be read (Weights only load failed"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Any, new: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Mlp(hidden=(8,), pretrained=of(saved(tmp_path, state), new=new))
    with pytest.raises(ModelError) as problem:
        build_model(settings, (4,), 5, weights=tmp_path)
    assert message in str(problem.value)
    assert not (tmp_path / "RAN").exists()


@pytest.mark.parametrize("name", ["net.pt", "net.safetensors"])
@pytest.mark.parametrize("content", [b"", b"\x80\x04nonsense", b"PK\x03\x04", b"x" * 300])
def test_a_damaged_file_is_refused_in_words(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with refused(ModelError, path.name):
        build_model(Mlp(pretrained=of(path)), (4,), 5, weights=tmp_path)


def test_weights_that_are_a_pipe_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "net.pt")
    settings = Mlp(pretrained=Pretrained(file="net.pt", sha256="0" * 64))
    with refused(ModelError, "net.pt"):
        build_model(settings, (4,), 5, weights=tmp_path)


def test_a_pickle_alone_is_not_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "net.pt"
    path.write_bytes(pickle.dumps(_RunsWhenRead()))
    with refused(ModelError, path.name):
        build_model(Mlp(pretrained=of(path)), (4,), 5, weights=tmp_path)
    assert not (tmp_path / "RAN").exists()


def test_another_hash_an_absent_file_and_a_path_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, source().state_dict())
    settings = Mlp(hidden=(8,), pretrained=of(path))
    with refused(ModelError, "compute.weights"):
        build_model(settings, (4,), 5, weights=tmp_path / "elsewhere")
    path.write_bytes(path.read_bytes() + b" ")
    with refused(ModelError, "SHA-256"):
        build_model(settings, (4,), 5, weights=tmp_path)
    for file in ("../net.pt", "/net.pt", ".net.pt", "net.pkl"):
        with refused(ValueError):
            Pretrained(file=file, sha256="0" * 64)


def test_a_file_that_is_replaced_once_it_was_hashed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, source().state_dict())
    settings, load = Mlp(hidden=(8,), pretrained=of(path)), torch.load

    def replaced(*arguments: Any, **keys: Any) -> Any:
        saved(tmp_path, changed(**{"1.bias": torch.ones(8)}))
        return load(*arguments, **keys)

    monkeypatch.setattr(torch, "load", replaced)
    with refused(ModelError, "net.pt", "changed while"):
        build_model(settings, (4,), 5, weights=tmp_path)


def test_what_is_frozen_is_in_no_flat_vector_and_never_changes() -> None:
    settings = Mlp(hidden=(8,), frozen=("1.*",))
    model = build_model(settings, (4,), 2, seed=3)
    start = flat_parameters(model)
    assert len(start) == 8 * 2 + 2  # the head alone
    assert list(parameter_layout(settings, (4,), 2)) == ["3.weight", "3.bias"]
    before = model[1].weight.clone()  # type: ignore[index]
    inputs, targets = torch.randn(6, 4), torch.tensor([0, 1, 0, 1, 0, 1])
    training = Training(steps=5, batch_size=3, learning_rate=0.5, weight_decay=0.1)
    loss = nn.functional.cross_entropy
    result = train_locally(
        model, start, Samples(inputs, targets, loss), training, torch.Generator()
    )
    assert result.delta.shape == start.shape
    assert bool(result.delta.any())
    assert torch.equal(model[1].weight, before)  # type: ignore[index]
    load_flat_parameters(model, start)
    with refused(ValueError, "(58,)", 18):
        load_flat_parameters(model, torch.zeros(58))


@pytest.mark.parametrize(
    ("frozen", "message"),
    [
        (("2.*",), "model.frozen names '2.*'; the model's parameters are 1.weight, 1.bias, 3.wei"),
        (("*",), "Every parameter of the model is frozen"),
    ],
)
def test_freezing_nothing_or_everything_is_refused(frozen: tuple[str, ...], message: str) -> None:
    with pytest.raises(ModelError) as problem:
        build_model(Mlp(frozen=frozen), (4,), 2)
    assert message in str(problem.value)


@pytest.mark.parametrize("arm", ["gems", "network_gems", "personal_gems"])
def test_a_method_that_takes_layers_apart_refuses_frozen_ones(arm: str) -> None:
    frozen = {"name": "mlp", "hidden": [8], "frozen": ["1.*"]}
    arms = {arm: {"balls": "user"} if arm == "personal_gems" else {}}
    with refused(ValueError, arm):
        make_study(model=frozen, arms=arms)
    if arm == "personal_gems":
        make_study(model=frozen, arms={arm: {"balls": "off"}})


def test_a_coordinator_needs_the_file_only_where_its_numbers_travel(tmp_path: Path) -> None:
    path = saved(tmp_path, source().state_dict())
    head_only = Mlp(hidden=(8,), pretrained=of(path, new=HEAD), frozen=("1.*",))
    start = first_parameters(head_only, (4,), 2, 1, tmp_path / "nowhere")
    there = build_model(head_only, (4,), 2, seed=1, weights=tmp_path)
    assert torch.equal(start, flat_parameters(there))
    with refused(ModelError, "weights"):
        first_parameters(
            Mlp(hidden=(8,), pretrained=of(path, new=HEAD)), (4,), 2, 1, tmp_path / "x"
        )


def test_a_backbone_keeps_the_statistics_of_its_file_in_training(tmp_path: Path) -> None:
    plain = TorchvisionNetwork(architecture="resnet18")
    check_model(plain.model_copy(update={"normalisation": "group"}), (3, 32, 32), 2)
    with refused(ModelError, "bn1", "BatchNorm2d"):
        build_model(plain, (3, 32, 32), 2)
    donor = plain.build((3, 32, 32), 1000)
    for module in donor.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
            nn.init.uniform_(module.running_mean, 0.1, 0.2)
    path = saved(tmp_path, donor.state_dict(), "resnet18.pth")
    frozen = ("conv1.*", "bn1.*", "layer*")
    pretrained = of(path, new=("fc.*",))
    settings = TorchvisionNetwork(architecture="resnet18", pretrained=pretrained, frozen=frozen)
    model = build_model(settings, (1, 32, 32), 2, weights=tmp_path)
    assert len(flat_parameters(model)) == 512 * 2 + 2
    statistics = {n: b.clone() for n, b in model.named_buffers()}
    to_training(model)
    inputs = torch.randn(4, 1, 32, 32)
    trained = model(inputs)
    assert all(torch.equal(statistics[n], b) for n, b in model.named_buffers())
    assert_close(trained.double(), outputs_of(model, inputs))
