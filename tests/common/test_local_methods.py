"""Methods that change what a hospital does in a round, by hand (see `local_works`)."""

from dataclasses import replace
from math import exp, log, log1p, tanh

import pytest
import torch
from torch import nn

from erosion_common.aggregation.cohort import HospitalName, Update
from erosion_common.algorithms.apfl import Apfl
from erosion_common.algorithms.base import Ask, RoundStart, SiteAnswer
from erosion_common.algorithms.ditto import Ditto
from erosion_common.algorithms.ensemble import Ensemble
from erosion_common.algorithms.fedavg import FedAvg, FedProx, FineTuning, PersonalIntercept
from erosion_common.algorithms.fedfomo import FedFomo
from erosion_common.algorithms.fedlin import FedLin
from erosion_common.algorithms.local import Local
from erosion_common.algorithms.model_averaging import ModelAveraging
from erosion_common.algorithms.own_model import OwnModelState
from erosion_common.algorithms.personal_layers import personal_parameters, problem_with_own
from erosion_common.algorithms.scaffold import Scaffold
from erosion_common.learning.local_work import LocalOutcome, LocalWork, Tensors
from erosion_common.learning.training import Training
from erosion_common.rounds.records import Absence, Answer, RunState
from erosion_common.rounds.round import Round, first_state
from tests.support.close import assert_close
from tests.support.contexts import CONTEXT
from tests.support.hand_sized import cohort
from tests.support.local_works import DIM, U, along, layout, local_round, work
from tests.support.tasks import classes_of

TWO_STEPS = {"steps": 2}
STEP_AT_HALF = 1 / (1 + exp(2))  # s at t = 0.5: 0.1192


def update(agent: str, t: float, **attachments: torch.Tensor) -> Update:
    return Update(agent, 1, t * U, 10, 10, attachments)


# -- FedProx -------------------------------------------------------------------------------------


def test_fedprox_pulls_the_second_step_back() -> None:
    outcome = FedProx(proximal_weight=0.4).train(work(training=TWO_STEPS))
    # from t = 0: + 0.5, without a pull yet; then + 0.1192 - 0.4 * 0.5
    assert along(outcome.delta) == pytest.approx(0.5 + STEP_AT_HALF - 0.2)


def test_fedprox_with_mu_0_is_fedavg() -> None:
    task = work(0.1, (1, 0, 1, 1, 0), training={"steps": 7, "batch_size": 2})
    without = FedProx(proximal_weight=0.0).train(task)
    assert torch.equal(without.delta, FedAvg().train(task).delta)


# -- Fine-tuning ---------------------------------------------------------------------------------


def test_fine_tuning_predicts_after_a_round_of_local_training_more() -> None:
    task = work(0.5)
    assert along(FineTuning().personal(task)) == pytest.approx(0.5 + STEP_AT_HALF)
    twice = FineTuning(tuning_rounds=2).personal(task)
    after_one = 0.5 + STEP_AT_HALF
    assert along(twice) == pytest.approx(after_one + 1 / (1 + exp(4 * after_one)))


# -- Ditto ---------------------------------------------------------------------------------------


def test_dittos_personal_model_is_pulled_to_the_common_one() -> None:
    task = work(0.0, kept={"personal": 0.5 * U})
    ditto = Ditto(proximal_weight=0.4)
    outcome = ditto.train(task)
    assert along(ditto.personal(task)) == 0.5
    # v: 0.5 + 0.1192 - 0.4 (0.5 - 0); w: 0 + 0.5, as in FedAvg
    assert along(outcome.keep["personal"]) == pytest.approx(0.5 + STEP_AT_HALF - 0.2)
    assert along(outcome.delta) == pytest.approx(0.5)


def test_ditto_with_lambda_0_is_local_training() -> None:
    task = work(0.2, (1, 0, 1, 1, 0), training={"steps": 3, "batch_size": 2})
    local = task.received
    kept: Tensors = {}
    for round_number in (1, 2, 3):
        now = replace(task, round=round_number)
        local = local + Local().train(replace(now, received=local)).delta
        # Whatever the common model does meanwhile does not matter.
        kept = (
            Ditto(proximal_weight=0.0).train(replace(now, received=task.received, kept=kept)).keep
        )
    assert torch.equal(kept["personal"], local)


def test_only_the_user_trains_a_personal_model() -> None:
    for method in (Ditto(), Apfl(), ModelAveraging()):
        assert not method.train(work(is_user=False, labels=(1, 0, 1, 0))).keep


# -- APFL ----------------------------------------------------------------------------------------


def test_a_step_of_apfl() -> None:
    task = work(
        training={"learning_rate": 0.1}, kept={"local": 0.5 * U, "mixing": torch.tensor([0.5])}
    )
    apfl = Apfl()
    assert along(apfl.personal(task)) == 0.25  # 0.5 * 0.5 + 0.5 * 0
    outcome = apfl.train(task)
    # the mixture is at t = 0.25, where s = 1 / (1 + e) = 0.2689; w is at 0, where s = 0.5
    s = 1 / (1 + exp(1))
    assert along(outcome.delta) == pytest.approx(0.1 * 0.5)
    assert along(outcome.keep["local"]) == pytest.approx(0.5 + 0.1 * 0.5 * s)
    # the slope in a is <-s U, (0.5 - 0) U> = -2 s
    assert outcome.keep["mixing"].item() == pytest.approx(0.5 + 0.1 * 2 * s)


def test_apfl_keeps_the_mixture_within_0_and_1() -> None:
    kept = {"local": 0.5 * U, "mixing": torch.tensor([0.5])}
    assert Apfl().train(work(kept=kept)).keep["mixing"].item() == 1.0  # 0.5 + 0.54, cut


@pytest.mark.parametrize("mixing", [0.0, 1.0])
def test_apfl_with_a_fixed_mixture_is_fedavg_or_local_training(mixing: float) -> None:
    apfl = Apfl(mixing=mixing, adaptive=False)
    task = work(0.2, (1, 0, 1, 1, 0), training={"steps": 3, "batch_size": 2})
    outcome = apfl.train(task)
    assert_close(outcome.delta, FedAvg().train(task).delta)
    common = 0.7 * U  # the coordinator's, by the next round
    personal = apfl.personal(replace(task, received=common, kept=outcome.keep))
    expected = common if mixing == 0 else task.received + Local().train(task).delta
    assert_close(personal, expected)


def test_apfl_draws_anew_in_every_step() -> None:
    seen: list[torch.Tensor] = []
    model = nn.Sequential(nn.Dropout(), nn.Linear(20, 2))
    model[1].register_forward_pre_hook(lambda _m, given: seen.append(given[0] != 0))
    inputs, received = torch.ones(1, 20), torch.zeros(42)
    training = {"steps": 2, "learning_rate": 0.1}
    Apfl().train(work(model=model, inputs=inputs, received=received, training=training))
    of_common, of_mixture, in_step_two, _ = seen
    assert torch.equal(of_common, of_mixture)
    assert not torch.equal(of_common, in_step_two)


# -- SCAFFOLD ------------------------------------------------------------------------------------


def test_a_step_of_scaffold_and_its_control_variate() -> None:
    task = work(
        training={"learning_rate": 0.5},
        kept={"control": 0.2 * U},
        enclosed={"mean_control": 0.3 * U},
    )
    outcome = Scaffold().train(task)
    # g = -0.5 U, so the step is -0.5 (-0.5 - 0.2 + 0.3) U
    assert along(outcome.delta) == pytest.approx(0.2)
    # c_i+ = 0.2 - 0.3 + (0 - 0.2) / (1 * 0.5), which is g, as it should be with one step
    assert along(outcome.keep["control"]) == pytest.approx(-0.5)
    assert torch.equal(outcome.attachments["control"], outcome.keep["control"])


def test_scaffolds_coordinator_encloses_the_mean_of_the_last_control_variates() -> None:
    algorithm = Scaffold().build(CONTEXT)
    state = algorithm.init(DIM)
    assert not algorithm.broadcast(state)
    first = algorithm.update(
        state, cohort(update("a", 1.0, control=1.0 * U), update("b", 3.0, control=3.0 * U))
    )
    assert along(first.delta) == 2.0
    # of the study's four hospitals two were never heard of: (1 + 3 + 0 + 0) / 4
    assert along(algorithm.broadcast(first.state)["mean_control"]) == 1.0
    # b is away: its last control variate still counts
    second = algorithm.update(first.state, cohort(update("a", 1.0, control=5.0 * U)))
    assert along(algorithm.broadcast(second.state)["mean_control"]) == 2.0
    assert not algorithm.broadcast_to_user(second.state)
    # b is not asked any more: (5 + 0 + 0 + 0) / 4
    without = algorithm.forget(second.state, "b")
    assert along(algorithm.broadcast(without)["mean_control"]) == 1.25


@pytest.mark.parametrize("settings", [{"optimizer": "adam"}, {"momentum": 0.9}])
@pytest.mark.parametrize("method", [Scaffold(), Apfl(), FedLin()])
def test_methods_of_plain_sgd_refuse_other_steps(
    method: Scaffold | Apfl | FedLin, settings: dict[str, object]
) -> None:
    training = Training.model_validate({"steps": 2, **settings})
    problem = method.problem_with_training(training)
    assert problem is not None
    assert "write optimizer = 'sgd'" in problem
    assert method.problem_with_training(Training(steps=2)) is None


@pytest.mark.parametrize("method", [Ditto, FedProx])
@pytest.mark.parametrize(
    ("weight", "settings", "diverges"),
    [
        (19, {}, False),  # with a learning rate of 0.1 every step leaves 1 - 1.9 of the way
        (20, {}, True),  # and here -1: it goes as far beyond
        (19, {"weight_decay": 1.0}, True),
        (37, {"momentum": 0.9}, False),  # below 2 (1 + 0.9)
        (38, {"momentum": 0.9}, True),
        (1000, {"optimizer": "adam"}, False),  # whose steps have a length of their own
    ],
)
def test_a_pull_that_steps_would_overshoot_is_refused(
    method: type[Ditto | FedProx], weight: float, settings: dict[str, object], diverges: bool
) -> None:
    training = Training.model_validate({"steps": 2, "learning_rate": 0.1, **settings})
    problem = method(proximal_weight=weight).problem_with_training(training)
    assert ("lower one of them" in (problem or "")) == diverges


# -- Model averaging of two ----------------------------------------------------------------------


@pytest.mark.parametrize(("local", "common"), [(-1.0, 1.0), (0.0, -1.0), (2.0, 0.0), (-0.5, 2.0)])
def test_the_average_that_predicts_the_held_out_patients_best_is_chosen(
    local: float, common: float
) -> None:
    # As many patients of each class and no feature to tell them apart: t = 0 is best.
    task = work(common, (0, 1) * 4, kept={"local": local * U})
    assert along(ModelAveraging().personal(task)) == pytest.approx(0.0, abs=1e-6)


def test_the_local_model_is_trained_alone_and_without_the_held_out_patients() -> None:
    task = work(0.0, (1,) * 8, kept={"local": 0.5 * U}, training={"batch_size": 8})
    outcome = ModelAveraging(validation_share=0.25).train(task)
    assert along(outcome.keep["local"]) == pytest.approx(0.5 + STEP_AT_HALF)
    assert along(outcome.delta) == pytest.approx(0.5)
    assert outcome.samples_seen == 6  # of 8


def test_a_patient_with_several_rows_is_held_out_with_all_of_them_or_not_at_all() -> None:
    patients = torch.arange(8).repeat_interleave(3)
    task = replace(work(0.0, (0, 0, 0, 1, 1, 1) * 4), patients=patients)
    rest, held_out = task.hold_out(0.25)
    assert rest.patients is not None
    assert held_out.patients is not None
    assert not set(rest.patients.tolist()) & set(held_out.patients.tolist())
    # Two of the four patients of each class: of eight, parts are of three patients more or fewer.
    assert held_out.targets.sort().values.tolist() == [0] * 6 + [1] * 6
    alone = replace(task, inputs=torch.arange(24.0)[:, None], patients=torch.arange(24) + 7)
    unnamed = replace(alone, patients=None)
    for part, same in zip(alone.hold_out(0.25), unnamed.hold_out(0.25), strict=True):
        assert part.inputs.equal(same.inputs)


# -- FedFomo -------------------------------------------------------------------------------------


def test_fedfomo_moves_towards_those_who_predict_better() -> None:
    task = work(
        0.5,
        (1,) * 4,
        round=2,
        kept={"base": 0.0 * U},
        enclosed={"others": torch.stack([0.5 * U, -1.5 * U])},  # they are at 1 and at -1
    )
    # Losses at 0, 0.5, 1 and -1 are log(1 + exp(-4 t)); the distances from 0 are 1, 2 and 2.
    own, better = (log1p(1) - log1p(exp(-2))) / 1, (log1p(1) - log1p(exp(-4))) / 2
    w_own, w_better = own / (own + better), better / (own + better)  # 0.6265, 0.3735
    moved = w_own * 0.5 + w_better * 1.0
    assert along(FedFomo().personal(task)) == pytest.approx(moved, abs=1e-6)
    outcome = FedFomo().train(task)
    assert outcome.attachments["shares"].tolist() == pytest.approx([w_own, w_better, 0.0])
    assert along(outcome.keep["base"]) == pytest.approx(moved, abs=1e-6)
    # one step of local training from there
    assert along(outcome.delta) == pytest.approx(moved + 1 / (1 + exp(4 * moved)) - 0.5, abs=1e-6)


def test_fedfomo_goes_back_where_nothing_was_better() -> None:
    task = work(-0.5, (1,) * 4, round=2, kept={"base": 0.0 * U})
    assert along(FedFomo().personal(task)) == 0.0


def test_fedfomos_weights_are_those_that_the_user_found() -> None:
    algorithm = FedFomo().build(CONTEXT)
    state = OwnModelState({"b": U, "c": U})
    shares = torch.tensor([0.5, 0.25, 0.25])
    step = algorithm.update(
        state, cohort(update("a", 1.0, shares=shares), update("b", 1.0), update("d", 1.0))
    )
    assert step.weights == {"a": 1.0, "b": 0.5, "c": 0.5, "d": 0.0}  # c is away
    only_c = torch.tensor([0.0, 0.0, 1.0])
    step = algorithm.update(state, cohort(update("a", 1.0, shares=only_c), update("b", 1.0)))
    assert step.weights == {"a": 0.0, "b": 0.0, "c": 1.0}


@pytest.mark.parametrize("found", [[], [0.0, 0.0, 0.0], [0.5, 0.5], [2.0, -1.0, 0.0]])
def test_fedfomo_keeps_to_the_user_where_no_weights_came(found: list[float]) -> None:
    state = OwnModelState({"b": U, "c": U})
    own = update("a", 1.0, shares=torch.tensor(found))
    step = FedFomo().build(CONTEXT).update(state, cohort(own, update("b", 1.0)))
    assert step.weights == {"a": 1.0, "b": 0.0, "c": 0.0}


# -- Ensembles -----------------------------------------------------------------------------------


def test_the_others_models_are_enclosed_as_seen_from_the_users() -> None:
    algorithm = Ensemble().build(CONTEXT)
    first = algorithm.update(
        algorithm.init(DIM), cohort(update("a", 1.0), update("b", 3.0), update("c", 4.0))
    )
    # The user is at 1 now, b at 3, c at 4.
    assert [along(row) for row in algorithm.broadcast_to_user(first.state)["others"]] == [2.0, 3.0]
    # b moves on to 3.5, that is 2.5 from where the user was; c is away and stays at 4.
    second = algorithm.update(first.state, cohort(update("a", 0.5), update("b", 2.5)))
    assert along(second.delta) == 0.5
    assert [along(row) for row in algorithm.broadcast_to_user(second.state)["others"]] == [2.0, 2.5]
    assert not algorithm.broadcast(second.state)


def test_a_member_of_an_ensemble_trains_its_own_model() -> None:
    outcome = Ensemble().train(work(9.0, kept={"local": 0.5 * U}))
    assert along(outcome.keep["local"]) == pytest.approx(0.5 + STEP_AT_HALF)
    assert along(outcome.delta) == pytest.approx(0.5 + STEP_AT_HALF - 9.0)


def test_an_ensemble_predicts_with_all_its_members() -> None:
    personal = Ensemble().personal(work(0.5, enclosed={"others": torch.stack([0.5 * U, -1.5 * U])}))
    assert [along(row) for row in personal] == [0.5, 1.0, -1.0]


# -- Parameters that a hospital keeps ------------------------------------------------------------

BIAS = PersonalIntercept()


def test_the_bias_starts_at_the_base_rates_of_the_hospital() -> None:
    # (1 + 1) / (4 + 2) and (3 + 1) / (4 + 2) as logits, centred
    half = log(2) / 2
    found = classes_of(2).base_rate_outputs(torch.tensor([0, 1, 1, 1]))
    assert found.tolist() == pytest.approx([-half, half])
    personal = personal_parameters(BIAS, work(0.3, (0, 1, 1, 1)), layout)
    assert personal.tolist() == pytest.approx([-0.3, 0.3, -half, half])


def test_the_bias_is_trained_and_kept_and_its_update_is_zero() -> None:
    kept = {"own_parameters": torch.tensor([-0.5, 0.5])}
    outcome = local_round(BIAS, work(0.5, kept=kept), layout)
    # weights and bias together are at t = 0.5, so every parameter moves by 0.1192
    step = 1 / (1 + exp(2))
    assert outcome.delta.tolist() == pytest.approx([-step, step, 0.0, 0.0])
    assert outcome.keep["own_parameters"].tolist() == pytest.approx([-0.5 - step, 0.5 + step])


def test_whole_layers_can_be_kept_by_pattern() -> None:
    arm = FedAvg(own_parameters=("*.weight",))
    first = local_round(arm, work(0.0), layout)
    assert first.delta.tolist() == pytest.approx([0.0, 0.0, -0.5, 0.5])
    assert first.keep["own_parameters"].tolist() == pytest.approx([-0.5, 0.5])


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ((), None),
        (("output_bias",), None),
        (("1.w*",), None),
        (("fc.weight",), "names 'fc.weight'; the model has 1.weight, 1.bias"),
        (("output_layer",), "names every parameter of the model"),
        (("1.weight", "output_bias"), "names every parameter of the model"),
    ],
)
def test_what_the_model_has_not_cannot_be_kept(names: tuple[str, ...], problem: str | None) -> None:
    found = problem_with_own(names, layout)
    assert found is None if problem is None else problem in (found or "")


# -- FedLin by hand (see `local_works`): two hospitals, two exchanges, two steps -------------------


def asked(in_progress: Round) -> Ask:
    assert in_progress.request is not None
    return in_progress.request


def begun(arm: FedLin) -> tuple[Round, RunState]:
    algorithm = arm.build(CONTEXT)
    state = first_state(algorithm, torch.zeros(DIM))
    round_start = RoundStart(1, "a", ("a", "b"), state.params)
    names = ["a", "b"]
    return Round(state, algorithm, round_start, arm="x", wanted=names, spare=1), state


def gradient_of(arm: FedLin, of: LocalWork) -> SiteAnswer:
    answer = arm.gradient(of)
    return SiteAnswer(answer.tensors, _Counted(len(of.targets)))


class _Counted:
    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples


def trained_update(arm: FedLin, of: LocalWork) -> Update:
    outcome = arm.train(of)
    return Update(of.agent, of.round, outcome.delta, len(of.targets), outcome.samples_seen)


def test_a_round_of_two_exchanges_by_hand() -> None:
    arm = FedLin()
    works = {
        "a": work(0.0, (1,), training={**TWO_STEPS, "batch_size": 1}),
        "b": work(0.0, (0, 1), agent="b", training={**TWO_STEPS, "batch_size": 2}),
    }
    in_progress, _ = begun(arm)
    assert asked(in_progress).step == "gradient"
    found: dict[HospitalName, Answer] = {n: gradient_of(arm, w) for n, w in works.items()}
    in_progress.answer(found)
    # grad f_a = -1/2 U, grad f_b = 0, so g = -1/4 U
    assert asked(in_progress).step == "train"
    mean = asked(in_progress).to_all.tensors["mean_gradient"]
    assert along(mean) == pytest.approx(-0.25)
    enclosed = {"mean_gradient": mean}
    updates = {n: trained_update(arm, replace(w, enclosed=enclosed)) for n, w in works.items()}
    # a: t = 0.25, then grad f_a = -1/(1+e) U: 0.25 - (-1/(1+e) + 1/2 - 1/4) = 1/(1+e)
    assert along(updates["a"].delta) == pytest.approx(1 / (1 + exp(1)))
    # b: t = 0.25, then grad f_b = tanh(1/2)/2 U: 0.25 - (tanh(1/2)/2 - 0 - 1/4)
    assert along(updates["b"].delta) == pytest.approx(0.5 - tanh(0.5) / 2)
    in_progress.answer(dict(updates))
    after, record = in_progress.outcome
    both = (1 / (1 + exp(1)) + 0.5 - tanh(0.5) / 2) / 2
    assert along(after.params) == pytest.approx(both)
    assert (record.outcome, after.weights) == ("done", {"a": 1.0, "b": 1.0})


def test_a_peers_gradient_counts_for_no_more_than_all_others_together() -> None:
    arm = FedLin(weighting="samples")
    in_progress, _ = begun(arm)
    of_b = arm.gradient(work(0.0, (0,), agent="b"))  # 1/2 U
    in_progress.answer(
        {
            "a": gradient_of(arm, work(0.0, (1,))),  # -1/2 U
            "b": SiteAnswer(of_b.tensors, _Counted(2**53)),
        }
    )
    assert along(asked(in_progress).to_all.tensors["mean_gradient"]) == pytest.approx(0.0)


def test_alone_a_hospital_trains_as_without_correction() -> None:
    of = work(0.2, (1, 0, 1, 1, 0), training={"steps": 3, "batch_size": 5})
    gradient = FedLin().gradient(of).tensors["gradient"]
    alone = FedLin().train(replace(of, enclosed={"mean_gradient": gradient}))
    assert torch.equal(alone.delta, FedAvg().train(of).delta)


def test_a_site_that_has_lost_what_it_kept_trains_alike() -> None:
    of = work(0.2, (1, 0, 0), enclosed={"mean_gradient": 0.3 * U}, training=TWO_STEPS)
    kept = FedLin().gradient(of).keep
    kept_and_lost = FedLin().train(replace(of, kept=kept)), FedLin().train(of)
    assert torch.equal(kept_and_lost[0].delta, kept_and_lost[1].delta)
    assert isinstance(kept_and_lost[0], LocalOutcome)
    assert not kept_and_lost[0].keep  # nothing is remembered from round to round


def test_a_user_that_is_absent_in_the_second_exchange_costs_the_round() -> None:
    in_progress, before = begun(FedLin())
    in_progress.answer(
        {"a": gradient_of(FedLin(), work()), "b": gradient_of(FedLin(), work(agent="b"))}
    )
    in_progress.answer(
        {"a": Absence("did not answer within 2 s"), "b": trained_update(FedLin(), work(agent="b"))}
    )
    after, record = in_progress.outcome
    assert (record.outcome, record.note) == (
        "skipped",
        "the user's own site is absent: did not answer within 2 s",
    )
    assert torch.equal(after.params, before.params)
