"""FedAMP, IFCA, FedALA, Per-FedAvg, pFedMe and WAFFLE, by hand (see `local_works`)."""

from dataclasses import replace
from math import exp
from typing import Any

import pytest
import torch
from torch import Tensor

from erosion_common.aggregation.cohort import Update
from erosion_common.algorithms import REGISTRY
from erosion_common.algorithms.apfl import FedAla
from erosion_common.algorithms.base import RoundStart
from erosion_common.algorithms.ditto import PFedMe
from erosion_common.algorithms.fedavg import PerFedAvg
from erosion_common.algorithms.ifca import Ifca
from erosion_common.algorithms.own_model import FedAmp, OwnModelState
from erosion_common.algorithms.waffle import Waffle, weights_of
from erosion_common.learning.training import Training
from tests.support.close import assert_close
from tests.support.contexts import CONTEXT, context
from tests.support.federation import small_study
from tests.support.hand_sized import cohort
from tests.support.local_works import DIM, U, along, work
from tests.support.refusals import refused

HALF = 1 / (1 + exp(2))  # s at t = 0.5
QUARTER = 1 / (1 + exp(1))  # and at t = 0.25
NEW = ["fedamp", "ifca", "fedala", "per_fedavg", "pfedme", "waffle"]


def update(agent: str, t: float, **attachments: Tensor) -> Update:
    return Update(agent, 1, t * U, 10, 10, attachments)


# -- FedAMP ----------------------------------------------------------------------------------------


def test_fedamps_averages_by_hand() -> None:
    arm = FedAmp(sigma=16.0)
    algorithm = arm.build(CONTEXT)
    state = OwnModelState({"b": 1.0 * U, "c": 3.0 * U})
    # |U|^2 = 4: squared distances of 4 (a, b), 36 (a, c) and 16 (b, c)
    ab, ac, bc = exp(-4 / 16) / 3, exp(-36 / 16) / 3, exp(-16 / 16) / 3
    of_user = along(algorithm.broadcast_to_user(state)["cloud"])
    assert of_user == pytest.approx(ab * 1 + ac * 3)
    assert algorithm.broadcast_to_peer is not None
    of_b = along(algorithm.broadcast_to_peer(state, "b")["cloud"])
    assert of_b == pytest.approx((1 - ab - bc) * 1 + bc * 3)
    assert not algorithm.broadcast_to_peer(state, "d")  # of which no model is known
    assert not algorithm.broadcast_to_user(algorithm.init(DIM))
    step = algorithm.update(state, cohort(update("a", 0.0), update("b", 1.0), update("c", 3.0)))
    own = 1 - ab - ac
    assert step.weights == pytest.approx({"a": 1.0, "b": ab / own, "c": ac / own})
    assert along(step.delta) == 0.0


def test_every_hospital_is_asked_with_its_own_average() -> None:
    algorithm = FedAmp().build(CONTEXT)
    state = OwnModelState({"b": 1.0 * U, "c": 3.0 * U})
    asked = next(algorithm.begin(state, RoundStart(2, "a", ("a", "b", "c", "d"), 0.0 * U)))
    clouds = {n: p.tensors["cloud"] for n, p in asked.to_each.items() if p.tensors}
    assert clouds.keys() == {"a", "b", "c"}
    assert 0 < along(clouds["a"]) < along(clouds["b"]) < along(clouds["c"]) < 3


def test_fedamp_trains_its_own_model_towards_its_average() -> None:
    arm = FedAmp(proximal_weight=0.5)
    of = work(0.1, is_user=False, kept={"local": 0.5 * U}, enclosed={"cloud": 0.2 * U})
    outcome = arm.train(of)
    # from 0.5: + s - 0.5 (0.5 - 0.3); the update is measured from 0.1
    ended = 0.5 + HALF - 0.1
    assert along(outcome.keep["local"]) == pytest.approx(ended)
    assert along(outcome.delta) == pytest.approx(ended - 0.1)
    assert not arm.train(replace(of, is_user=True)).keep  # the coordinator has the user's


@pytest.mark.parametrize("sigma", ["auto", 0.1, 100.0])
def test_attention_is_an_average_that_favours_the_near(sigma: Any) -> None:
    points = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    squared = torch.cdist(points, points).square()
    for attention in (0.3, 1.0):
        shares = FedAmp(sigma=sigma, attention=attention).shares(squared)
        assert torch.allclose(shares.sum(dim=1), torch.ones(6, dtype=torch.float64))
        assert bool((shares >= 0).all())
        assert bool((shares.diagonal() >= 1 - attention * 5 / 6 - 1e-12).all())
        others = shares[0, 1:]
        assert others.argsort().tolist() == (-squared[0, 1:]).argsort().tolist()
    assert torch.allclose(
        FedAmp(sigma=sigma).shares(0 * squared), torch.full((6, 6), 1 / 6).double()
    )


# -- IFCA ------------------------------------------------------------------------------------------


def test_the_first_round_makes_groups_of_updates() -> None:
    algorithm = Ifca().build(CONTEXT)
    sent = [update(n, t) for n, t in {"a": 1.0, "b": 1.2, "c": -3.0, "d": -2.8}.items()]
    step = algorithm.update(algorithm.init(DIM), cohort(*sent))
    assert along(step.delta) == pytest.approx(1.1)
    assert step.weights == {"a": 1.0, "b": 1.0, "c": 0.0, "d": 0.0}
    models = algorithm.broadcast(step.state)["models"]
    assert [along(row) for row in models] == pytest.approx([0.0, -2.9 - 1.1])
    # b now takes the other model, and d is away; all are measured from where the user was.
    ones = {n: {"cluster": torch.tensor([c])} for n, c in {"a": 0.0, "b": 1.0, "c": 1e6}.items()}
    sent = [update(n, t, **ones[n]) for n, t in {"a": 0.5, "b": -2.0, "c": -4.0}.items()]
    after = algorithm.update(step.state, cohort(*sent))
    assert along(after.delta) == pytest.approx(0.5)
    assert after.weights == {"a": 1.0, "b": 0.0, "c": 0.0}
    models = algorithm.broadcast(after.state)["models"]
    assert [along(row) for row in models] == pytest.approx([0.0, -3.0 - 0.5])
    # The user goes over to the other one, and nobody takes the first.
    alone = algorithm.update(after.state, cohort(update("a", -3.4, cluster=torch.ones(1))))
    models = algorithm.broadcast(alone.state)["models"]
    assert [along(row) for row in models] == pytest.approx([3.4, 0.0], abs=1e-5)
    assert not algorithm.broadcast(algorithm.forget(alone.state, "b"))


def test_a_hospital_takes_the_model_that_predicts_its_patients_best() -> None:
    models = {"models": torch.stack([0.0 * U, -4.0 * U])}  # at 1.1 and -2.9
    ill, well = work(1.1, (1,), enclosed=models), work(1.1, (0,), enclosed=models)
    assert along(Ifca().personal(ill)) == pytest.approx(1.1)
    assert along(Ifca().personal(well)) == pytest.approx(-2.9)
    outcome = Ifca().train(well)
    assert outcome.attachments["cluster"].tolist() == [1.0]
    assert along(outcome.delta) == pytest.approx(-4.0 - 1 / (1 + exp(4 * 2.9)))


def test_an_optimiser_would_move_the_other_groups_models() -> None:
    with refused(ValueError, "ifca", "server_optimizer"):
        small_study(arms={"ifca": {"server_optimizer": "momentum"}})


# -- FedALA ----------------------------------------------------------------------------------------


def test_fedala_mixes_by_the_gradient() -> None:
    arm = FedAla(mixed=("*",), mixing_rate=0.25)
    kept = {"local": 0.0 * U, "weights": torch.full((DIM,), 0.5)}
    of = work(1.0, (0,), kept=kept)
    # At t = 0.5 the gradient of a patient of class 0 is U / (1 + exp(-2)), times U is that.
    t = 0.5 - 0.25 * (1 - HALF)
    assert along(arm.personal(of)) == pytest.approx(t)
    outcome = arm.train(of)
    assert outcome.keep["weights"].tolist() == pytest.approx([t] * DIM)
    ended = t - 1 / (1 + exp(-4 * t))
    assert along(outcome.keep["local"]) == pytest.approx(ended)
    assert along(outcome.delta) == pytest.approx(ended - 1.0)
    part = FedAla(mixed=("1.weight",), mixing_rate=0.25).train(of).keep["weights"]
    assert part.tolist() == pytest.approx([t, t, 0.5, 0.5])


def test_fedala_starts_as_fedavg_and_stays_within_0_and_1() -> None:
    arm = FedAla(mixed=("*",))
    of = work(1.0, (0,))
    assert torch.equal(arm.personal(of), of.received)
    first = arm.train(of)
    later = replace(of, received=9.0 * U, kept=first.keep, round=2)
    weights = arm.train(later).keep["weights"]
    assert bool(((weights >= 0) & (weights < 1)).all())
    assert -1 < along(arm.personal(later)) < 9


# -- Per-FedAvg ------------------------------------------------------------------------------------


def test_a_step_of_per_fedavg() -> None:
    first_order = PerFedAvg(variant="first_order", inner_rate=0.5)
    outcome = first_order.train(work())
    # The gradient at 0 is -1/2 U, so the model is at 1/4, with the gradient -s U.
    assert along(outcome.delta) == pytest.approx(QUARTER)
    assert outcome.samples_seen == 2
    # (I - H / 2) of that: along U the Hessian at 0 is 4 s (1 - s) = 1.
    hessian_free = PerFedAvg(inner_rate=0.5)
    outcome = hessian_free.train(work())
    assert along(outcome.delta) == pytest.approx(QUARTER / 2, rel=1e-3)
    assert outcome.samples_seen == 3
    assert along(hessian_free.personal(work())) == pytest.approx(0.25)


def test_the_hessian_free_step_is_the_gradient_of_the_loss_after_a_step() -> None:
    labels = (1, 0, 1, 1, 0, 1)
    of = work(0.2, labels, training={"batch_size": 6, "learning_rate": 1.0})
    of = replace(of, inputs=torch.tensor([[1.0], [-2.0], [0.5], [3.0], [1.5], [-1.0]]))
    start = of.received.double().requires_grad_()

    def loss(at: Tensor) -> Tensor:
        outputs = of.inputs.double() @ at[:2].reshape(1, 2) + at[2:]
        return torch.nn.functional.cross_entropy(outputs, of.targets)

    (slope,) = torch.autograd.grad(loss(start), start, create_graph=True)
    (exact,) = torch.autograd.grad(loss(start - 0.5 * slope), start)
    found = PerFedAvg(inner_rate=0.5).train(of).delta.double()
    assert_close(found, -exact, rtol=2e-3, atol=1e-4)


# -- pFedMe ----------------------------------------------------------------------------------------


def test_a_step_of_pfedme() -> None:
    arm = PFedMe(proximal_weight=0.4, inner_steps=2)
    # theta: 0.5, then + s - 0.4 * 0.5; the centre goes a quarter of the way
    theta = 0.5 + HALF - 0.2
    assert along(arm.train(work()).delta) == pytest.approx(0.25 * theta)
    # and of the centre as received, by the study's two steps
    assert along(arm.personal(work(training={"steps": 2}))) == pytest.approx(theta)


def test_the_centre_goes_along_the_envelopes_gradient() -> None:
    """Dinh et al., section 3: the gradient of the envelope is lambda (w - theta(w))."""
    arm = PFedMe(proximal_weight=2.0, inner_steps=400, approach=1.0)
    of = work(0.3, (1, 0, 1, 1), training={"learning_rate": 0.1})
    theta = of.received + arm.train(of).delta  # so far it goes with approach = 1
    slope = next(of.gradients())[0](theta)
    assert_close(slope, 2.0 * (of.received - theta), rtol=1e-3, atol=1e-5)


# -- WAFFLE ----------------------------------------------------------------------------------------


def test_waffles_weights_by_hand() -> None:
    own = 1 - (1 - 1 / 9) * 0.5  # in place of the user's distance
    expected = {"b": 0.5 - (1 - own) / (9 - own), "c": 0.5 - (4 - own) / (9 - own), "d": 0.0}
    assert weights_of({"b": 1.0, "c": 4.0, "d": 9.0}, 0.5) == pytest.approx(expected)
    assert weights_of({"b": 2.0, "c": 2.0}, 1.0) == {"b": 1.0, "c": 1.0}
    assert weights_of({"b": 0.0, "c": 0.0}, 0.3) == {"b": 0.3, "c": 0.3}


def test_a_round_of_waffle() -> None:
    algorithm = Waffle().build(context(rounds=2))
    sent = {"a": 0.0, "b": 1.0, "c": 2.0}
    updates = [update(n, t, control=(10 + t) * U) for n, t in sent.items()]
    first = algorithm.update(algorithm.init(DIM), cohort(*updates))
    # of two rounds this is half-way: s = 1/2; squared distances 4 and 16, c has no weight
    b = 0.5 - (4 - 2.5) / (16 - 2.5)
    assert first.weights == pytest.approx({"a": 1.0, "b": b / 0.5, "c": 0.0})
    share = b / (0.5 + b)
    assert along(first.delta) == pytest.approx(share)
    assert along(algorithm.broadcast(first.state)["mean_control"]) == pytest.approx(10 + share)
    # In the second s = 1 / (1 + exp(3.2)): the user is alone. Over both rounds b has half.
    second = algorithm.update(first.state, cohort(*updates))
    assert along(second.delta) == pytest.approx(share / 2)
    # who is away keeps its distance, and counts again when it is back
    away = algorithm.update(first.state, cohort(updates[0], updates[2]))
    assert away.weights == {"a": 1.0, "c": 0.0}
    assert algorithm.forget(away.state, "b").distances == ({"c": 16.0}, {"c": 16.0})


def test_gradients_may_be_compared_in_place_of_updates() -> None:
    algorithm = Waffle(distance="gradients").build(context(rounds=2))
    alike = {"a": 1.0, "b": 3.0, "c": 1.5}
    updates = [update(n, 1.0, control=t * U) for n, t in alike.items()]
    weights = algorithm.update(algorithm.init(DIM), cohort(*updates)).weights
    assert weights["b"] == 0.0
    assert weights["c"] > 0.5


# -- What makes no sense ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", NEW)
def test_they_say_what_they_cannot(name: str) -> None:
    arm = REGISTRY[name](algorithm=name)
    assert (arm.problem_with_sealing() is None) == (name in ("per_fedavg", "pfedme"))
    assert (arm.problem_with_privacy() is None) == (name == "fedamp")
    with refused(ValueError, name, "finish"):
        small_study(arms={name: {"finish": "evidence"}})
    adam = arm.problem_with_training(Training(steps=1, optimizer="adam"))
    assert bool(adam) == (name in ("per_fedavg", "pfedme", "waffle"))


def test_values_that_cannot_be_are_refused() -> None:
    with refused(ValueError, "waffle", "3"):
        small_study(hospitals=["alice", "bob"], arms={"waffle": {}})
    with refused(ValueError, "fedala", "nowhere"):
        small_study(arms={"fedala": {"mixed": ["nowhere"]}})
    for name in ("fedamp", "pfedme"):
        with refused(ValueError, name, "proximal_weight"):
            small_study(arms={name: {"proximal_weight": 4.0}})
    site = {"name": "mlp", "normalisation": "site"}
    for name in ("pfedme", "per_fedavg"):
        with refused(ValueError, name, "normalisation"):
            small_study(model=site, arms={name: {"own_parameters": ["normalisation"]}})
