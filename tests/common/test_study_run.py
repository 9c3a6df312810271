"""The driver over a scripted transport: which rounds there are, and what ends an arm."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import nan
from pathlib import Path

import pytest
import torch

from erosion_common.errors import DivergedError, HopelessError, RunError
from erosion_common.protocol.messages import (
    EvaluateRequest,
    FinalMetrics,
    TrainRequest,
    TrainResult,
)
from erosion_common.rounds.arm import LastRound, arms_of, initial_state, outlier_of
from erosion_common.rounds.channel import Connection, Reply, Request, Result, too_late
from erosion_common.rounds.data_check import pointing_away
from erosion_common.rounds.driver import run_arm
from erosion_common.rounds.evaluation import evaluate_seconds
from erosion_common.rounds.presence import UserDeclinedError
from erosion_common.rounds.records import Absence, RoundRecord, RunState
from erosion_common.study.study import Study
from erosion_server.coordination.folder_store import FolderStore
from erosion_server.run.run_folder import open_run_folder
from tests.support.close import assert_close
from tests.support.open_study import FEDERATION, everybody, outcomes, played, study
from tests.support.refusals import refused
from tests.support.scripted import Kept, Scripted, context, metrics, step_result, study_run, trained


def saying(result: TrainResult, **changes: object) -> TrainResult:
    """The same answer with another header."""
    return replace(result, header=result.header.model_copy(update=changes))


def amend(transport: Scripted, change: Callable[[str, TrainResult], TrainResult]) -> None:
    """Hospitals train as before, and send what `change` makes of it."""
    honest = transport.respond

    def respond(name: str, request: TrainRequest) -> Result | Absence | None:
        result = honest(name, request)
        return change(name, result) if isinstance(result, TrainResult) else result

    transport.respond = respond


def test_who_does_not_answer_costs_a_round_its_deadline_and_no_more() -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        return None if (name, request.round) == ("b", 2) else trained(name, request)

    transport, kept = played(study(), respond=respond)
    assert transport.clock == 10.0
    assert outcomes(kept, "b") == ["accepted", "absent", "accepted", "accepted"]
    assert kept.records[1].hospitals["b"].reason == "did not answer within 10 s"
    assert kept.records[1].hospitals["b"].bytes_sent == 100
    assert [record.outcome for record in kept.records] == ["done"] * 4


def test_without_the_user_rounds_are_skipped_and_then_the_run_stops() -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        return None if name == "a" and request.round > 1 else trained(name, request)

    transport, kept = (
        everybody(study(federation={"max_skipped_rounds": 2}), respond=respond),
        Kept(),
    )
    with refused(RunError, "fedavg", "Try again", "max_skipped_rounds") as ended:
        study_run(transport, kept, remedy="Try again.")
    assert "quorum" not in str(ended.value)  # more hospitals would not be the user
    assert [record.outcome for record in kept.records] == ["done", "skipped", "skipped"]


@pytest.mark.parametrize("needed", ["by the method", "by the quorum"])
def test_a_higher_quorum_is_advised_only_where_a_method_needs_more_hospitals(needed: str) -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        return None if name == "c" else trained(name, request)

    federation = {"max_skipped_rounds": 2, "quorum": 2 if needed == "by the method" else 3}
    of = study(federation=federation, arms=["coordinate_median"])
    with refused(RunError, "updates") as ended:
        study_run(everybody(of, respond=respond), Kept())
    assert ("higher" in str(ended.value)) == (needed == "by the method")


def cut_off(*names: str, seconds: float) -> tuple[Scripted, Kept]:
    """Those sites are gone after the first round, for so long."""

    def respond(name: str, request: TrainRequest) -> TrainResult:
        if (name, request.round) == ("c", 1):
            for gone in names:
                transport.leave(gone)
            transport.at(transport.clock + seconds, lambda script: script.join(*names))
        return trained(name, request)

    changes = {"longest_wait_seconds": None, "max_skipped_rounds": 1}
    transport, kept = everybody(study(federation=changes)), Kept()
    transport.respond = respond
    return transport, kept


@pytest.mark.parametrize(
    ("gone", "seconds"), [(("a",), 5.0), (("b", "c"), 32.0), (("b", "c"), 86_400.0)]
)
def test_a_user_or_peers_that_are_cut_off_cost_time_and_no_round(
    gone: tuple[str, ...], seconds: float
) -> None:
    transport, kept = cut_off(*gone, seconds=seconds)
    study_run(transport, kept)
    assert seconds <= transport.clock <= seconds + 2
    after = kept.events[kept.events.index(("left", gone[0])) :]
    assert ("waits_for", *gone) in after
    assert ("waits_for",) in after
    assert outcomes(kept, gone[0]) == ["accepted"] * 4


@pytest.mark.parametrize("gone", ["a", "bc"])
def test_who_breaks_off_in_a_round_is_asked_again_in_it(gone: str) -> None:
    """The round is late, and not lost."""
    broken: set[str] = set()

    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        if name in gone and request.round == 2 and name not in broken:
            broken.add(name)
            transport.leave(name)
            transport.at(transport.clock + 300.0, lambda script: script.join(name))
            return None
        return trained(name, request)

    of = study(federation={"longest_wait_seconds": None, "quorum": 3})
    transport, kept = everybody(of, respond=respond), Kept()
    study_run(transport, kept)
    assert [record.outcome for record in kept.records] == ["done"] * 4
    assert [name for name, number, _ in transport.log if number == 2] == [*"abc", *gone]
    uncut = study_run(everybody(of), Kept())
    assert torch.equal(kept.states["fedavg"].params, uncut.finals["fedavg"].params)


def test_a_wait_has_the_end_that_the_study_says_and_names_who_was_missing() -> None:
    transport, kept = cut_off("b", "c", seconds=1e9)
    changes = {**FEDERATION, "longest_wait_seconds": 600.0}
    transport.study = study(federation=changes)
    with pytest.raises(
        RunError, match=r"b, c did not come back within 600 s. Resume it. `--longest"
    ):
        study_run(transport, kept, remedy="Resume it.")
    assert 600.0 <= transport.clock <= 602.0
    assert [record.outcome for record in kept.records] == ["done"]


def test_nobody_is_waited_for_who_is_not_needed() -> None:
    transport, kept = cut_off("b", seconds=1e9)
    study_run(transport, kept)
    assert [record.outcome for record in kept.records] == ["done"] * 4
    assert transport.clock == 0.0


@pytest.mark.parametrize(
    ("revoked", "error", "said"),
    [
        (("b", "c"), RunError, ("of 3 only 1", "b: its key was revoked")),
        (("a",), UserDeclinedError, ("its key was revoked",)),
    ],
)
def test_a_quorum_or_a_user_whose_keys_are_revoked_in_the_middle_is_not_waited_for(
    revoked: tuple[str, ...], error: type[RunError], said: tuple[str, ...]
) -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult:
        if (name, request.round) == ("c", 1):
            for gone in revoked:
                transport.leave(gone, expelled="its key was revoked")
        return trained(name, request)

    transport = everybody(study(federation={"longest_wait_seconds": None}), respond=respond)
    with refused(error, *said):
        study_run(transport, Kept())


def test_a_site_that_breaks_down_whenever_it_is_asked_does_not_keep_a_round_for_ever() -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        if name == "a":
            transport.leave("a")
            transport.join("a")
            return None
        return trained(name, request)

    transport, kept = everybody(study(federation={"longest_wait_seconds": None})), Kept()
    transport.respond = respond
    with pytest.raises(RunError, match="3 rounds in a row were skipped"):
        study_run(transport, kept)
    assert len([entry for entry in transport.log if entry[0] == "a"]) == 6


def test_a_connected_user_without_a_sign_of_life_is_waited_for() -> None:
    """Its machine was frozen: the line stands for a while, and short rounds would pass in it."""

    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        if (name, request.round) == ("a", 2) and "a" not in transport.silent and not frozen:
            frozen.append(2)
            transport.silent.add("a")
            transport.at(transport.clock + 200.0, lambda script: script.silent.clear())
            return None
        return trained(name, request)

    frozen: list[int] = []
    changes = {"max_skipped_rounds": 2, "longest_wait_seconds": None}
    transport, kept = everybody(study(federation=changes), respond=respond), Kept()
    study_run(transport, kept)
    assert [record.outcome for record in kept.records] == ["done", "skipped", "done", "done"]
    assert ("waits_for", "a") in kept.events


def test_an_answer_that_cannot_be_used_is_recorded_in_a_few_printable_words() -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult | Absence:
        return Absence("\x1b[2J" * 1000) if name == "b" else trained(name, request)

    _, kept = played(study(), respond=respond)
    reason = kept.records[0].hospitals["b"].reason
    assert reason.isprintable()
    assert len(reason) <= 300


def test_a_round_whose_figures_no_model_has_is_skipped_and_leaves_none() -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult:
        result = trained(name, request)  # a peer's figures are nobody's business
        return saying(result, metrics=metrics(-700.0)) if request.round == 2 else result

    _, kept = played(study(), respond=respond)
    assert [record.outcome for record in kept.records] == ["done", "skipped", "done", "done"]
    assert "-700" in kept.records[1].note
    assert [record.user_metrics is None for record in kept.records] == [False, True, False, False]
    assert outcomes(kept, "b") == ["accepted"] * 4


def test_a_hospital_that_is_eroded_is_not_asked_any_more() -> None:
    of = study(arms={"weight_erosion": {"distance_penalty": 1000.0}})
    transport, kept = played(of)
    assert outcomes(kept, "b") == ["accepted", "not_asked", "not_asked", "not_asked"]
    assert kept.records[-1].hospitals["b"].weight_after == 0.0
    assert [entry[1] for entry in transport.log if entry[0] == "b"] == [1]


# -- A round that does harm ----------------------------------------------------------------------


def poisons(rounds: set[int], *, times: float = 15.0, of: int = 6) -> tuple[Scripted, Kept]:
    """Hospital b sends what screening lets pass, and what the user's model does not survive."""

    def respond(name: str, request: TrainRequest) -> TrainResult:
        result = trained(name, request)
        if name == "b" and request.round in rounds:
            result = replace(result, sent=times * result.delta)
        if name == "a":
            assert request.parameters is not None
            starts.append(request.parameters)
            astray = (request.parameters - starts[0]).abs().max() > 0.35 * request.round
            result = saying(result, own_loss=30.0 if astray else 0.5)
        return result

    starts: list[torch.Tensor] = []
    whole = study(rounds=of, hospitals=["a", "b", "c", "d"])
    return everybody(whole, respond=respond), Kept()


def test_an_arm_whose_only_round_was_undone_has_no_model() -> None:
    transport, kept = poisons({1}, of=2)
    with refused(HopelessError, "undone"):
        study_run(transport, kept)
    assert [record.undoes for record in kept.records] == [None, 1]


def test_a_round_that_ruins_the_users_model_is_undone_and_the_culprit_named() -> None:
    transport, kept = poisons({2})
    study_run(transport, kept)
    assert [record.outcome for record in kept.records] == ["done"] * 2 + ["skipped"] + ["done"] * 3
    note = kept.records[2].note
    assert "round 2 is undone: the user's loss was 30 after it, and usually 0.5" in note
    assert "what b sent was" in note
    assert "b is not asked any more in fedavg" in note
    assert outcomes(kept, "b")[3:] == ["not_asked"] * 3
    assert [entry[1] for entry in transport.log if entry[0] == "b"] == [1, 2, 3]
    state = kept.states["fedavg"]
    assert list(state.distrusted) == ["b"]
    assert state.skipped_in_a_row == 0
    weights = [record.hospitals["b"].weight_after for record in kept.records]
    assert weights == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert state.weights["b"] == 0.0
    # one round of all, and after it three of a, c and d: 0.1, 0.3 and 0.4
    first = initial_state(transport.study, "fedavg").params
    moved = torch.full_like(first, (0.1 + 0.2 + 0.3 + 0.4) / 4 + 3 * (0.1 + 0.3 + 0.4) / 3)
    assert_close(state.params - first, moved)


@pytest.mark.parametrize(("times", "outcome"), [(15.0, "rejected"), (3.0, "accepted")])
def test_an_update_that_few_steps_make_long_is_measured_so(times: float, outcome: str) -> None:
    """b says that it took one step, where the user took 25: five are believed."""

    def lengthened(name: str, result: TrainResult) -> TrainResult:
        return (
            replace(saying(result, steps=1), sent=times * result.delta) if name == "b" else result
        )

    of = study(
        rounds=1,
        hospitals=["a", "b", "c", "d", "e"],
        training={"steps": None, "epochs": 5, "batch_size": 2},
        arms={"weight_erosion": {"distance_penalty": 0.0, "own_parameters": []}},
    )
    transport, kept = everybody(of), Kept()
    amend(transport, lengthened)
    study_run(transport, kept)
    assert outcomes(kept, "b") == [outcome]
    # 0.2 times 3 and 25 / 5, where the others' are 0.3 to 0.5
    length = 3.0 if outcome == "accepted" else None
    of_b = kept.states["weight_erosion"].lengths.get("b")
    dim = len(kept.states["weight_erosion"].params)
    assert (of_b or {}).get("") == (None if length is None else pytest.approx(length * dim**0.5))


def test_the_round_that_is_undone_is_the_one_that_did_harm() -> None:
    """And not one that was skipped since."""
    transport, kept = poisons({2}, times=25.0)
    honest = transport.respond
    transport.respond = lambda name, request: (
        None if (name, request.round) == ("a", 3) else honest(name, request)
    )
    study_run(transport, kept)
    assert [record.undoes for record in kept.records[:4]] == [None, None, None, 2]
    assert kept.records[3].note.startswith("round 2 is undone: ")
    assert kept.states["fedavg"].distrusted["b"].startswith("round 2: ")


class Killed(Exception):  # noqa: N818 - stands for a signal
    """The coordinator's end."""


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_run_that_was_killed_undoes_the_same_round(tmp_path: Path, number: int) -> None:
    transport, kept = poisons({2})
    study_run(transport, kept)

    class Dies(FolderStore):
        def keep_round(self, study: Study, state: RunState, record: RoundRecord) -> None:
            super().keep_round(study, state, record)
            if record.round == number:
                raise Killed

    interrupted, _ = poisons({2})
    folder = open_run_folder(tmp_path, interrupted.study)
    with Dies(folder) as dying, pytest.raises(Killed):
        study_run(interrupted, Kept(), store=dying)
    with FolderStore(folder) as keeper:
        again = everybody(interrupted.study, respond=interrupted.respond)
        resumed = study_run(again, Kept(), store=keeper)
    found, wanted = resumed.finals["fedavg"], kept.states["fedavg"]
    assert [r.note for r in resumed.records["fedavg"]] == [r.note for r in kept.records]
    assert found.distrusted == wanted.distrusted
    assert torch.equal(found.params, wanted.params)


def misleads(arm: str, *, shows_in: int, leaves: bool = False) -> tuple[Scripted, Kept]:
    """In round 2 b sends honest updates, and what others train on is 15 times what is usual."""

    def respond(name: str, request: TrainRequest) -> Result | None:
        times = 15.0 if (name, request.round) == ("b", 2) else 1.0
        if request.step == "gradient":
            assert request.parameters is not None
            gradient = torch.full_like(request.parameters, times)
            found = step_result(name, request, gradient=gradient)
            header = found.header.model_copy(update={"values": {"num_samples": 10}})
            return replace(found, header=header)
        if leaves and name == "b" and request.round > 2:
            return None
        trains = trained(name, request)
        longer = {key: times * tensor for key, tensor in trains.attachments.items()}
        if name == "a":
            trains = saying(trains, own_loss=30.0 if request.round == shows_in else 0.5)
        return replace(trains, attachments=longer)

    of = study(rounds=6, hospitals=["a", "b", "c", "d"], arms=[arm])
    return everybody(of, respond=respond), Kept()


@pytest.mark.parametrize("leaves", [False, True])
def test_a_control_variate_does_its_harm_a_round_later_and_is_not_sent_on(leaves: bool) -> None:
    transport, kept = misleads("scaffold", shows_in=4, leaves=leaves)
    study_run(transport, kept)
    assert [record.undoes for record in kept.records] == [None, None, None, 3, None, None]
    assert "what b sent was 15 times as long as usual" in kept.records[3].note
    assert list(kept.states["scaffold"].distrusted) == ["b"]
    # those of round 1 are 1; in round 2 b's is 15; of round 3 on it is 1 again, if b is there
    means = {
        request.round: float(request.enclosed["mean_control"][0])
        for name, request in transport.requests
        if isinstance(request, TrainRequest) and name == "a" and request.enclosed
    }
    assert means == {2: 1.0, 3: 4.5, 4: 4.5 if leaves else 1.0, 5: 0.75, 6: 0.75}


def test_a_gradient_that_others_trained_on_tells_who_did_harm() -> None:
    transport, kept = misleads("fedlin", shows_in=3)
    study_run(transport, kept)
    assert [record.undoes for record in kept.records] == [None, None, 2, None, None, None]
    assert "what b sent was 15 times as long as usual" in kept.records[2].note


@pytest.mark.parametrize(("sent", "named"), [(18.0, ("c", 18.0)), (1.0, None)])
def test_what_one_hospital_alone_brings_stands_out_from_nothing(
    sent: float, named: tuple[str, float] | None
) -> None:
    lengths = {"a": {"": 1.0}, "c": {"": sent}, "pub": {"tune": 1.3}}
    assert outlier_of(LastRound(0, lengths, baseline_loss=0.5), "a") == named


def test_what_a_method_bounds_itself_makes_nobody_stand_out() -> None:
    """The noise of few patients' halves is large, and moves nobody's model far."""
    transport, kept = poisons({2})

    def noisy(name: str, result: TrainResult) -> TrainResult:
        times = 100 if name == "c" else 1
        return replace(result, attachments={k: times * t for k, t in result.attachments.items()})

    amend(transport, noisy)
    arms = {"evidence_erosion": {"bias_penalty": 0.0}}
    transport.study = study(rounds=4, hospitals=["a", "b", "c", "d"], arms=arms)
    study_run(transport, kept)
    assert [record.undoes for record in kept.records] == [None, None, 2, None]
    assert list(kept.states["evidence_erosion"].distrusted) == ["b"]


def test_training_that_diverges_by_itself_names_nobody() -> None:
    transport, kept = poisons({2}, times=1.0)
    amend(
        transport,
        lambda name, result: (
            saying(result, own_loss=30.0) if name == "a" and result.header.round >= 3 else result
        ),
    )
    study_run(transport, kept)
    assert [record.outcome for record in kept.records] == ["done"] * 6
    assert not kept.states["fedavg"].distrusted


def test_the_test_patients_undo_nothing() -> None:
    transport, kept = poisons({2})

    def tested(name: str, result: TrainResult) -> TrainResult:
        figures = metrics(0.5 if result.header.own_loss == 0.5 else 4.5)
        return saying(result, metrics=figures, own_loss=0.5) if name == "a" else result

    amend(transport, tested)
    study_run(transport, kept)
    assert [record.outcome for record in kept.records] == ["done"] * 6


def test_a_run_that_goes_on_knows_the_loss_that_was_usual() -> None:
    transport, kept = poisons({3})
    honest, last = transport.respond, 2

    def respond(name: str, request: TrainRequest) -> Result | Absence | None:
        if request.round > last:
            raise KeyboardInterrupt
        result = honest(name, request)
        if name == "a" and request.round == 1 and isinstance(result, TrainResult):
            result = saying(result, own_loss=2.0)
        return result

    transport.respond = respond
    with pytest.raises(KeyboardInterrupt):
        study_run(transport, kept)
    last = 6
    study_run(everybody(transport.study, respond=respond), kept)
    assert "the user's loss was 30 after it, and usually 2;" in kept.records[3].note


# -- A rule that stops ---------------------------------------------------------------------------

STOPPING = {"weight_erosion": {"zero_norm": "stop"}, "fedavg": {}}


def stands_still(name: str, request: TrainRequest) -> TrainResult:
    """The user's update of weight_erosion is zero from round 3 on."""
    still = request.arm == "weight_erosion" and request.round >= 3 and name == "a"
    return trained(name, request, 0.0 if still else 0.1)


def test_a_rule_that_stops_has_finished_and_the_other_arms_run() -> None:
    transport, kept = everybody(study(arms=STOPPING), respond=stands_still), Kept()
    outcome = study_run(transport, kept)
    final = outcome.finals["weight_erosion"]
    assert final.stopped
    assert (final.round, outcome.finals["fedavg"].round) == (3, 4)
    assert outcome.records["weight_erosion"][-1].outcome == "stopped"
    assert outcome.records["weight_erosion"][-1].note
    two_rounds = study(arms={"weight_erosion": {}}, rounds=2)
    reached = study_run(everybody(two_rounds), Kept()).finals["weight_erosion"].params
    assert torch.equal(final.params, reached)
    assert kept.events.count(("arm_finished", "weight_erosion")) == 1


def test_an_arm_that_has_stopped_is_not_taken_up_again() -> None:
    of = study(arms=STOPPING)
    kept = Kept()
    first = study_run(everybody(of, respond=stands_still), kept)
    again = study_run(everybody(of, respond=stands_still), kept)
    assert again.finals == first.finals
    assert len(kept.records) == 7


def test_a_trial_that_stops_counts_with_what_it_reached() -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult:
        figures = metrics(1.0 / request.round) if name == "a" else None
        return saying(stands_still(name, request), metrics=figures)

    of = study(arms={"weight_erosion": {"zero_norm": "stop"}}, selection={"folds": 2})
    outcome = study_run(everybody(of, respond=respond), Kept())
    choice = outcome.choices["weight_erosion"]
    # Round 3 shows what two rounds led to, and stops: more rounds lead to the same.
    (tried,) = choice.tried
    assert tried == pytest.approx((1 / 2, 1 / 3, 1 / 3, 1 / 3))
    assert choice.rounds == 2


def runs_away(name: str, request: TrainRequest, *, after: int) -> TrainResult:
    """The user's loss falls for so many rounds; then its updates are not finite."""
    delta = nan if name == "a" and request.round > after else 0.1
    figures = metrics(1.0 / min(request.round, after + 1)) if name == "a" else None
    return saying(trained(name, request, delta), metrics=figures)


def test_a_trial_that_diverges_counts_with_what_it_reached() -> None:
    trial = 0

    def respond(name: str, request: TrainRequest) -> TrainResult:
        nonlocal trial
        trial += (name, request.round) == ("a", 1)
        return runs_away(name, request, after=1 if trial == 1 else 9)

    penalties = [{"distance_penalty": penalty} for penalty in (0.1, 0.2)]
    selection = {"folds": 2, "method": "validation", "candidates": {"weight_erosion": penalties}}
    of = study(arms=["weight_erosion"], selection=selection)
    choice = study_run(everybody(of, respond=respond), Kept()).choices["weight_erosion"]
    assert choice.tried[0] == pytest.approx((1 / 2, 1 / 2, 1 / 2, 1 / 2))
    assert choice.tried[1] == pytest.approx((1 / 2, 1 / 3, 1 / 4, 1 / 5))
    assert choice.settings == {"distance_penalty": 0.2}


@pytest.mark.parametrize(
    ("privacy", "rate"),
    [
        (None, "training.learning_rate"),
        ({"epsilon": 8, "learning_rate": 1}, "privacy.learning_rate"),
    ],
)
def test_a_study_whose_training_diverges_says_what_to_change(privacy: object, rate: str) -> None:
    away = partial(runs_away, after=2)
    open_ = study(rounds=6, federation={"max_skipped_rounds": 2}, privacy=privacy)
    with refused(DivergedError, rate):
        study_run(everybody(open_, respond=away), Kept())


def test_after_a_skipped_first_round_the_next_shows_who_learns_the_opposite() -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        is_away = name == "a" and request.round == 1
        return None if is_away else trained(name, request, -0.1 if name == "b" else 0.1)

    of, ends = study(), {"low": 0.7, "high": 0.9}
    _, kept = played(of, respond=respond)
    directions = [record.hospitals["b"].direction for record in kept.records]
    assert directions == [None, pytest.approx(-1, abs=1e-6), None, None]
    figures = {"num_patients": 100, "auroc": 0.8, "intervals": {"auroc": ends}}
    arms = {"fedavg": FinalMetrics.model_validate(figures)}
    (away,) = pointing_away(of, [kept.records], arms)
    assert away.hospital == "b"
    # So does the first round of a later arm, of who was not in the one before.
    entries = ({n: e for n, e in r.hospitals.items() if n != "b"} for r in kept.records)
    earlier = [replace(r, hospitals=each) for r, each in zip(kept.records, entries, strict=True)]
    assert pointing_away(of, [earlier, kept.records], arms) == [away]


def test_a_fold_without_a_round_that_was_done_has_no_predictions() -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        is_away = name == "a" and request.study.fold is not None
        return None if is_away else trained(name, request)

    of = study(rounds=2, evaluation={"folds": 2})
    with refused(HopelessError, "fold", "skipped"):
        study_run(everybody(of, respond=respond), Kept())


def test_steps_that_a_hospital_says_it_took_count_up_to_a_bound() -> None:
    """By their rounded numbers all take the same: 10 patients, three mini-batches."""

    def respond(name: str, request: TrainRequest) -> TrainResult:
        return saying(trained(name, request), steps={"a": 3, "b": 6, "c": 2**53}[name])

    kept = Kept()
    training = {"epochs": 1, "batch_size": 4, "learning_rate": 0.1}
    of = study(arms=["weight_erosion"], training=training)
    study_run(everybody(of, respond=respond), kept)
    # The updates are 1, 2 and 3 times the same: b's is as of half as many steps, and c's of 10.
    found = {n: e.distance for n, e in kept.records[0].hospitals.items()}
    assert found == pytest.approx({"a": 0, "b": 0, "c": 1 - 3 * 3 / 10})


def test_samples_that_nobody_can_have_used_are_no_contribution() -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult:
        return saying(trained(name, request), samples_seen=2**53 if name == "b" else 10)

    kept = Kept()
    study_run(everybody(study(), respond=respond), kept)
    seen = [{n: e.samples_seen for n, e in r.hospitals.items()} for r in kept.records]
    assert seen == [{"a": 10, "b": 80, "c": 10}] * 4  # 4 times 5 steps of 4 patients


def test_what_a_hospital_described_is_kept_beside_what_it_counts_for() -> None:
    sizes = {"a": 120, "b": 5000}

    def respond(name: str, request: TrainRequest) -> TrainResult:
        return saying(trained(name, request), num_samples=sizes[name])

    kept, transport = Kept(), Scripted(study(hospitals=["a", "b"]), respond=respond)
    for name, num_samples in sizes.items():
        transport.join(name, num_samples=num_samples)
    study_run(transport, kept)
    entries = kept.records[0].hospitals
    assert {n: e.described_samples for n, e in entries.items()} == sizes
    assert {n: e.num_samples for n, e in entries.items()} == {"a": 120, "b": 120}


@dataclass
class WithoutFigures(Scripted):
    """The user's site never answers to the last question of all."""

    deadlines: list[float] = field(default_factory=list)

    def ask(self, requests: Mapping[Connection, Request], seconds: float) -> Iterator[Reply]:
        (request,) = set(map(type, requests.values()))
        if request is not EvaluateRequest:
            yield from super().ask(requests, seconds)
            return
        self.deadlines.append(seconds)
        self.clock += seconds
        yield from (too_late(connection, seconds, 100) for connection in requests)


@pytest.mark.parametrize(("every_user", "patients"), [(True, 20), (False, 2**53)])
def test_a_user_that_others_wait_for_counts_for_no_more_than_all_of_them(
    every_user: bool, patients: int
) -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult:
        result = trained(name, request)
        if (name, request.round) == ("c", 4):
            transport.leave("b")  # it counts among all others nevertheless
        return saying(result, num_samples=2**53) if name == "a" else result

    of = study(hospitals=["a", "b", "c"])
    transport = WithoutFigures(of, respond)
    transport.join("b", "c")
    transport.join("a", num_samples=2**53)
    with pytest.raises(RunError, match="final figures are missing"):
        study_run(transport, Kept(), every_user=every_user)
    assert transport.deadlines == [evaluate_seconds(of, patients)]


def test_a_user_that_leaves_whenever_it_is_asked_has_one_deadline_for_its_figures() -> None:
    @dataclass
    class Leaving(WithoutFigures):
        def ask(self, requests: Mapping[Connection, Request], seconds: float) -> Iterator[Reply]:
            for reply in super().ask(requests, seconds):
                if not isinstance(next(iter(requests.values())), EvaluateRequest):
                    yield reply
                    continue
                self.clock -= 0.6 * seconds  # it left before the time was over
                self.leave("a")
                self.at(self.clock + 50, lambda script: script.join("a"))
                yield replace(reply, left=True)

    of = study()
    transport = Leaving(of)
    transport.join(*of.hospitals)
    with pytest.raises(RunError, match="final figures are missing"):
        study_run(transport, Kept())
    whole = evaluate_seconds(of, 10)
    wanted = [whole * 0.6**number for number in range(10)]  # the time away is not counted
    assert transport.deadlines == pytest.approx(wanted)


def test_more_of_anything_gives_the_final_figures_longer_but_never_more_than_a_day() -> None:
    small = evaluate_seconds(study(), 1000)
    more: list[Study] = [
        study(arms=["fedavg", "local"]),
        study(evaluation={"folds": 2, "repeats": 2}),
        study(evaluation={"bootstrap": 2000}),
    ]
    assert all(evaluate_seconds(each, 1000) > small for each in more)
    assert small < evaluate_seconds(study(), 2000) < evaluate_seconds(study(), 2**53) == 86_400


def test_where_an_arm_began_is_not_held_once_it_has_moved(tmp_path: Path) -> None:
    """It is on the disk, from where the round can be undone."""
    of = study()
    transport = everybody(of)
    with FolderStore(open_run_folder(tmp_path, of)) as store:
        ctx = context(transport, of, Kept(), store=store)
        arms = arms_of(ctx)
        arm = next(arms)
        first = weakref.ref(arm.state.params)
        run_arm(ctx, arm, 1)
    transport.requests.clear()
    assert arm.last is not None
    assert first() is None
