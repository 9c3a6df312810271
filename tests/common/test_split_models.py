"""FedPer, FedRep, LG-FedAvg and FedBN: which parts of a model hospitals share."""

from collections.abc import Mapping
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from erosion.simulation.simulator import simulate
from erosion_common.algorithms.base import ArmBase, Layout
from erosion_common.algorithms.fedavg import FedProx
from erosion_common.algorithms.personal_layers import (
    FedBn,
    FedRep,
    own_places,
    personal_parameters,
    problem_with_own,
)
from erosion_common.learning.batch_statistics import SiteBatchNorm
from erosion_common.learning.models import Mlp, build_model, parameter_layout
from erosion_common.learning.networks import TorchvisionNetwork
from erosion_common.learning.trainable import flat_parameters, load_flat_parameters
from tests.support.close import assert_close
from tests.support.federation import small_study
from tests.support.five_hospitals import hospitals, study_with
from tests.support.local_works import layout, local_round, work
from tests.support.refusals import refused

SITE = Mlp(hidden=(3,), normalisation="site")
NET = parameter_layout(SITE, (2,), 2)  # 1 linear, 2 normalisation, 4 output


def net_work(**changes: Any) -> Any:
    """Twelve patients with two features, and the network with normalisation."""
    draws = torch.Generator().manual_seed(5)
    inputs = 3.0 + 2.0 * torch.randn(12, 2, generator=draws)
    model = build_model(SITE, (2,), 2, seed=1)
    given = {"inputs": inputs, "model": model, "received": flat_parameters(model)}
    training = {"steps": 5, "batch_size": 4, "learning_rate": 0.3, **changes.pop("training", {})}
    labels = tuple((inputs[:, 0] > inputs[:, 1]).long().tolist())
    return work(0.0, labels, training=training, **{**given, **changes})


def kept_names(arm: ArmBase, of: Layout) -> list[str]:
    own = own_places(arm.own_parameters, of)
    return [name for name in of if bool(own[of[name]].all())]


@pytest.mark.parametrize(
    ("algorithm", "kept"),
    [
        ("fedper", ["4.weight", "4.bias"]),
        ("fedrep", ["4.weight", "4.bias"]),
        ("lg_fedavg", [n for n in NET if not n.startswith("4.")]),
        ("fedbn", ["2.weight", "2.bias", "2.running_mean", "2.running_var"]),
    ],
)
def test_each_keeps_its_part(algorithm: str, kept: list[str]) -> None:
    arm = small_study(
        arms={algorithm: {}},
        model={"name": "mlp", "hidden": [3]}
        | ({"normalisation": "site"} if algorithm in ("fedbn", "lg_fedavg") else {}),
    ).arms[algorithm]
    assert kept_names(arm, NET) == kept
    if algorithm != "fedbn":
        head, rest = own_places(["output_layer"], NET), own_places(["representation"], NET)
        assert torch.equal(head, ~rest)


# -- FedRep by hand (see `local_works`): the bias is the head, the weight the rest ----------------

HEAD = FedRep(own_parameters=("output_bias",))


def test_fedrep_fits_the_head_and_then_the_rest() -> None:
    of = work(0.0, kept={"own_parameters": torch.zeros(2)})
    # The head goes from 0 by 1/2; the outputs are then at -+1/2, where s = 1 / (1 + e).
    s = 1 / (1 + exp(1))
    outcome = local_round(HEAD, of, layout)
    assert outcome.delta.tolist() == pytest.approx([-s, s, 0.0, 0.0])
    assert outcome.keep["own_parameters"].tolist() == pytest.approx([-0.5, 0.5])
    fitted = personal_parameters(HEAD, of, layout)
    assert fitted.tolist() == pytest.approx([0.0, 0.0, -0.5, 0.5])
    # and once more: by s
    twice = HEAD.model_copy(update={"head_trainings": 2})
    fitted = personal_parameters(twice, of, layout)
    assert fitted.tolist() == pytest.approx([0.0, 0.0, -0.5 - s, 0.5 + s])


def test_a_part_that_is_held_stays_as_it_is_with_any_optimiser() -> None:
    of = net_work(training={"optimizer": "adam", "weight_decay": 0.1})
    head = own_places(["output_layer"], NET)
    for part in (head, ~head):
        moved = of.sgd_of(of.received, part).delta != 0
        assert not moved[~part].any()
        assert moved[part].float().mean() > 0.8
    assert all(parameter.requires_grad for parameter in of.model.parameters())
    whole = torch.ones_like(head)
    assert torch.equal(of.sgd_of(of.received, whole).delta, of.sgd(of.received).delta)


# -- Normalisation with a site's statistics -------------------------------------------------------


def test_it_is_torchs_batch_normalisation() -> None:
    of = net_work()
    delta = of.sgd(of.received).delta
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2)
    )
    load_flat_parameters(of.model, of.received)
    model.load_state_dict(of.model.state_dict(), strict=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    order = torch.empty(0, dtype=torch.long)
    draws = of.randomness()
    for _ in range(5):
        if len(order) < 4:
            order = torch.cat([order, torch.randperm(12, generator=draws)])
        batch, order = order[:4], order[4:]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(of.inputs[batch]), of.targets[batch])
        torch.autograd.backward(loss)
        optimizer.step()
    load_flat_parameters(of.model, of.received + delta)
    ours = of.model.state_dict()
    for name, tensor in model.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert_close(ours[name], tensor, atol=1e-6, rtol=1e-5)
    assert_close(of.model.eval()(of.inputs), model.eval()(of.inputs))
    assert float(ours["2.running_mean"].abs().min()) > 0


def test_one_sample_is_normalised_by_the_running_statistics() -> None:
    layer = SiteBatchNorm(2)
    layer(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    # means 2 and 4, variances 2 and 8 (of n - 1), a tenth of them new
    assert layer.running_mean.tolist() == pytest.approx([0.2, 0.4])
    assert layer.running_var.tolist() == pytest.approx([0.9 + 0.2, 0.9 + 0.8])
    alone = layer(torch.tensor([[0.2, 0.4]])).detach()
    assert float(alone.abs().max()) < 1e-6
    assert layer.running_mean.tolist() == pytest.approx([0.2, 0.4])


def test_no_pull_and_no_decay_moves_statistics() -> None:
    of = net_work(training={"weight_decay": 0.5, "steps": 1})
    place = NET["2.running_mean"]
    plain = of.sgd(of.received).delta
    pulled = FedProx(proximal_weight=1.0).train(of).delta
    assert torch.equal(pulled[place], plain[place])
    pulled = of.sgd(of.received, lambda at: torch.ones_like(at)).delta
    assert torch.equal(pulled[place], plain[place])
    assert not torch.equal(pulled[NET["2.weight"]], plain[NET["2.weight"]])


def test_statistics_stay_at_the_site() -> None:
    arm = FedBn()
    of = net_work()
    first = local_round(arm, of, lambda: NET)
    own = own_places(arm.own_parameters, NET)
    assert not first.delta[own].any()
    assert first.delta[NET["4.weight"]].all()
    # What others would send of theirs does not count.
    elsewhere = replace(of, received=of.received + own * 7.0, kept=first.keep)
    personal = personal_parameters(arm, elsewhere, lambda: NET)
    assert torch.equal(personal[own], first.keep["own_parameters"])
    assert float((personal[NET["2.running_mean"]]).abs().min()) > 0


@pytest.mark.parametrize(
    ("arm", "settings", "problem"),
    [
        ("fedavg", {}, "normalisation"),
        ("fedper", {}, "normalisation"),
        ("fedrep", {"own_parameters": ["output_layer", "normalisation"]}, None),
        ("weight_erosion", {"own_parameters": ["normalisation"]}, None),
        ("weight_erosion", {"own_parameters": ["2.weight", "2.running*"]}, "normalisation"),
        ("apfl", {"own_parameters": ["normalisation"]}, "apfl"),
        ("network_gems", {"own_parameters": ["normalisation"]}, "network_gems"),
        ("fedavg", {"own_parameters": ["normalisation"], "finish": "evidence"}, "finish"),
        ("local", {}, None),
    ],
)
def test_nobodys_statistics_are_averaged(
    arm: str, settings: Mapping[str, Any], problem: str | None
) -> None:
    values = {"model": SITE.model_dump(mode="json"), "arms": {arm: settings}}
    if problem is None:
        small_study(**values)
    else:
        with refused(ValueError, arm, problem):
            small_study(**values)


def test_what_makes_no_sense_is_refused() -> None:
    with refused(ValueError, "fedbn", "normalisation"):
        small_study(model={"name": "mlp"}, arms={"fedbn": {}})
    with refused(ValueError, "fedper", "own_parameters"):
        small_study(model={"name": "logistic"}, arms={"fedper": {}})
    with refused(ValueError, "fedrep", "own_parameters"):
        small_study(model={"name": "mlp"}, arms={"fedrep": {"own_parameters": []}})
    private = {"epsilon": 5.0, "delta": 1e-3, "clip_norm": 1.0, "learning_rate": 0.1}
    fedbn = {"model": SITE.model_dump(mode="json"), "arms": {"fedbn": {}}, "scaling": "user"}
    with refused(ValueError, "SiteBatchNorm"):
        small_study(**fedbn, privacy=private)
    with refused(ValueError, "fedrep"):
        small_study(model={"name": "mlp"}, arms={"fedrep": {}}, scaling="user", privacy=private)
    assert problem_with_own(("representation",), layout) is not None


def test_a_network_of_images_is_trained_with_it_from_scratch() -> None:
    model = TorchvisionNetwork(architecture="resnet18", normalisation="site")
    built = build_model(model, (3, 32, 32), 2)
    assert not list(built.buffers())
    assert any(isinstance(module, SiteBatchNorm) for module in built.modules())


def test_every_split_runs(tmp_path: Path) -> None:
    arms: dict[str, Any] = {
        "fedbn": {},
        "fedrep": {"own_parameters": ["output_layer", "normalisation"], "head_trainings": 2},
        "lg_fedavg": {},
        "eroding": {"algorithm": "weight_erosion", "own_parameters": ["normalisation"]},
        "local": {},
    }
    study = study_with(model=SITE.model_dump(mode="json"), arms=arms, rounds=3)
    simulated = simulate(study, hospitals(tmp_path))
    place = study.build_context.layout()["2.running_mean"]
    moved = {arm: bool(final.params[place].any()) for arm, final in simulated.finals.items()}
    assert moved == {**dict.fromkeys(arms, False), "local": True}
