"""FedLin by hand (see `local_works`): two hospitals, two exchanges, two steps."""

from dataclasses import replace
from math import exp, tanh

import pytest
import torch

from erosion_common.aggregation.cohort import HospitalName, Update
from erosion_common.algorithms.base import Ask, RoundStart, SiteAnswer
from erosion_common.algorithms.fedavg import FedAvg
from erosion_common.algorithms.fedlin import FedLin
from erosion_common.learning.local_work import LocalOutcome, LocalWork
from erosion_common.rounds.records import Absence, Answer, RunState
from erosion_common.rounds.round import Round, first_state
from tests.support.contexts import CONTEXT
from tests.support.local_works import DIM, U, along, work

TWO_STEPS = {"steps": 2}


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


def trained(arm: FedLin, of: LocalWork) -> Update:
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
    updates = {n: trained(arm, replace(w, enclosed=enclosed)) for n, w in works.items()}
    # a: t = 0.25, then grad f_a = -1/(1+e) U: 0.25 - (-1/(1+e) + 1/2 - 1/4) = 1/(1+e)
    assert along(updates["a"].delta) == pytest.approx(1 / (1 + exp(1)))
    # b: t = 0.25, then grad f_b = tanh(1/2)/2 U: 0.25 - (tanh(1/2)/2 - 0 - 1/4)
    assert along(updates["b"].delta) == pytest.approx(0.5 - tanh(0.5) / 2)
    in_progress.answer(dict(updates))
    assert in_progress.outcome() is not None
    after, record = in_progress.outcome()
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


def test_who_is_absent_in_the_first_exchange_is_not_asked_in_the_second() -> None:
    in_progress, before = begun(FedLin())
    first: dict[HospitalName, Answer] = {
        "a": gradient_of(FedLin(), work()),
        "b": Absence("was not connected"),
    }
    in_progress.answer(first)
    assert in_progress.asked == ["a"]
    in_progress.answer({"a": trained(FedLin(), work())})
    assert in_progress.outcome() is not None
    after, record = in_progress.outcome()
    assert record.hospitals["b"].outcome == "absent"
    assert record.hospitals["b"].reason == "was not connected"
    assert (after.round, record.outcome) == (before.round + 1, "done")


def test_a_user_that_is_absent_in_the_second_exchange_costs_the_round() -> None:
    in_progress, before = begun(FedLin())
    in_progress.answer(
        {"a": gradient_of(FedLin(), work()), "b": gradient_of(FedLin(), work(agent="b"))}
    )
    in_progress.answer(
        {"a": Absence("did not answer within 2 s"), "b": trained(FedLin(), work(agent="b"))}
    )
    assert in_progress.outcome() is not None
    after, record = in_progress.outcome()
    assert (record.outcome, record.note) == (
        "skipped",
        "the user's own site is absent: did not answer within 2 s",
    )
    assert torch.equal(after.params, before.params)
