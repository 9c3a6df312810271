"""State kept between rounds, and that nothing can confuse it."""

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from erosion_client.site_file import Site
from erosion_client.training import kept_state
from erosion_client.training.hospital import Hospital
from erosion_client.training.kept_state import ACROSS_FOLDS, OF_A_RUN, KeptState, Moment, StateKey
from erosion_common.errors import CheckpointError, NotReady, SiteError
from erosion_common.protocol import wire
from erosion_common.protocol.compression import (
    compress,
    compress_with_feedback,
    pack,
    unpacked,
)
from erosion_common.protocol.messages import EvaluateRequest, TrainRequest, TrainResult
from erosion_common.study.study import Study
from tests.support.peak_memory import peak_bytes
from tests.support.said import raises
from tests.support.small_study import make_site, make_study, twenty_patients

DIM = 6
WHOLE = "0123456789abcdef" * 4  # a study's digest
PLACE = StateKey(WHOLE, "ditto", "first run", WHOLE)
ONE, TWO, THREE = ({"v": torch.tensor([float(n)])} for n in (1, 2, 3))


def study() -> Study:
    return make_study(
        arms={
            "ditto": {},
            "apfl": {},
            "scaffold": {},
            "bias": {"algorithm": "fedavg", "own_parameters": ["output_bias"]},
        },
        training={"steps": 3, "batch_size": 4, "learning_rate": 0.01},
    )


def site(folder: Path, **keys: Any) -> Site:
    return make_site(folder, twenty_patients(), compute={"state": folder / "state"}, **keys)


def train(hospital: Hospital, arm: str, round_number: int, run: str = "run") -> TrainResult:
    generator = torch.Generator().manual_seed(round_number)  # what the coordinator would send
    parameters = 0.1 * torch.randn(DIM, generator=generator)
    return hospital.train(TrainRequest(study(), arm, round_number, parameters, None, run))


def personal(hospital: Hospital, arm: str, run: str = "run") -> torch.Tensor:
    request = EvaluateRequest(study(), {arm: torch.full((DIM,), 0.1)}, None, run)
    return hospital.evaluate(request).personal[arm]


@pytest.fixture(params=["file", "memory"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> KeptState:
    return KeptState(tmp_path if request.param == "file" else None)


def value(kept: KeptState, round_number: int, place: StateKey = PLACE) -> float | None:
    found = kept.before(place, Moment(round_number))
    return float(found["v"]) if found else None


def test_a_round_starts_where_the_one_before_it_ended(kept: KeptState) -> None:
    assert value(kept, 1) is None
    kept.keep(PLACE, Moment(1), {}, ONE)
    assert value(kept, 1) is None  # asked for again
    assert value(kept, 7) == 1.0  # rounds that this site missed change nothing
    kept.keep(PLACE, Moment(5), ONE, TWO)
    assert [value(kept, number) for number in (5, 6)] == [1.0, 2.0]
    assert value(kept, 3) is None  # an earlier round starts afresh


def test_what_is_kept_belongs_to_one_study_arm_and_run(kept: KeptState) -> None:
    kept.keep(PLACE, Moment(1), {}, ONE)
    for other in (
        replace(PLACE, study="f" * 64),
        replace(PLACE, arm="apfl"),
        replace(PLACE, run="second run"),
    ):
        assert value(kept, 2, other) is None
    assert value(kept, 2) == 1.0


def test_a_method_that_keeps_nothing_writes_nothing(tmp_path: Path) -> None:
    KeptState(tmp_path).keep(PLACE, Moment(1), {}, {})
    assert not list(tmp_path.iterdir())
    KeptState(tmp_path).keep(PLACE, Moment(1), {}, ONE)
    (file,) = tmp_path.rglob("*.safetensors")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """So many files of other runs stay."""
    monkeypatch.setattr("erosion_client.training.kept_state.MOST_FILES", 2)
    return 2


def test_what_a_killed_program_left_half_written_goes_with_the_next_round(tmp_path: Path) -> None:
    kept, folder = KeptState(tmp_path), tmp_path / WHOLE[:16]
    kept.keep(PLACE, Moment(1), {}, ONE)
    (folder / ".tmpAb1Cd2").write_bytes(bytes(100))  # as safetensors names it
    kept.keep(PLACE, Moment(2), ONE, TWO)
    assert [file.name for file in folder.iterdir()] == ["ditto.safetensors"]
    assert value(kept, 3) == 2.0


@pytest.mark.usefixtures("few")
def test_of_other_runs_the_latest_files_are_kept(tmp_path: Path) -> None:
    kept = KeptState(tmp_path)
    places = [StateKey(digit * 64, PLACE.arm, f"run {digit}", digit * 64) for digit in "abcd"]
    for place in places:
        kept.keep(place, Moment(1), {}, ONE)
    kept.keep(places[3], Moment(2), ONE, TWO)
    assert [value(kept, 3, place) for place in places] == [None, 1.0, 1.0, 2.0]
    assert {path.name for path in tmp_path.iterdir()} == {"b" * 16, "c" * 16, "d" * 16}


def other_runs(folder: Path, count: int) -> list[Path]:
    """Files of as many arms of other runs, all of them kept before."""
    known = set(folder.rglob("*.safetensors"))
    for number in range(count):
        study = f"{number:016x}" * 4
        KeptState(folder).keep(StateKey(study, "apfl", f"run {number}", study), Moment(1), {}, ONE)
    return sorted(set(folder.rglob("*.safetensors")) - known)


def test_a_fast_clock_takes_nothing_from_the_run_under_way(tmp_path: Path, few: int) -> None:
    for path in other_runs(tmp_path, few):
        os.utime(path, (2.0**32, 2.0**32))
    kept = KeptState(tmp_path)
    other_arm = replace(PLACE, arm="apfl")
    kept.keep(PLACE, Moment(1), {}, ONE)
    kept.keep(other_arm, Moment(1), {}, TWO)
    assert (value(kept, 2), value(kept, 2, other_arm)) == (1.0, 2.0)


def test_what_another_program_of_the_site_removes_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptState(tmp_path)
    kept.keep(replace(PLACE, study="f" * 64), Moment(1), {}, ONE)

    def removed(path: Path) -> dict[str, Any]:
        path.unlink()
        raise FileNotFoundError(path)

    monkeypatch.setattr(kept_state, "read_header", removed)
    kept.keep(replace(PLACE, run="another"), Moment(1), {}, TWO)


def test_what_a_run_kept_in_a_fold_goes_once_it_is_in_another(tmp_path: Path) -> None:
    kept = KeptState(tmp_path)
    fold, other_run, next_fold = (
        replace(PLACE, study="a" * 64),
        replace(PLACE, study="b" * 64, run="second run"),
        replace(PLACE, study="c" * 64),
    )
    of_all_folds = replace(PLACE, arm=ACROSS_FOLDS)
    for place in (fold, other_run, of_all_folds):
        kept.keep(place, Moment(1), {}, ONE)
    assert value(kept, 2, fold) == 1.0  # its figures may be asked for again
    kept.keep(next_fold, Moment(1), {}, ONE)
    assert value(kept, 2, fold) is None
    assert [value(kept, 2, p) for p in (other_run, of_all_folds, next_fold)] == [1.0] * 3


@pytest.mark.usefixtures("few")
def test_other_trials_go_first_and_the_patients_of_the_run_never(tmp_path: Path) -> None:
    kept = KeptState(tmp_path)
    other_run = replace(PLACE, study="f" * 64, run="second run")
    of_the_run = replace(PLACE, arm=OF_A_RUN, study="a" * 64, whole="a" * 64)
    trials = [replace(PLACE, study=digit * 64, whole=digit * 64) for digit in "bcde"]
    for place in (other_run, of_the_run, *trials):
        kept.keep(place, Moment(1), {}, ONE)
    found = [value(kept, 2, place) for place in (other_run, of_the_run, *trials)]
    assert found == [1.0, 1.0, None, None, 1.0, 1.0]


def test_an_exchange_that_is_asked_again_starts_where_it_started(kept: KeptState) -> None:
    kept.keep(PLACE, Moment(1), {}, ONE)
    kept.keep(PLACE, Moment(2, 1), ONE, TWO)
    kept.keep(PLACE, Moment(2, 2), TWO, {})
    assert kept.before(PLACE, Moment(2, 2))["v"] == 2.0  # the connection broke
    assert kept.before(PLACE, Moment(2, 1))["v"] == 1.0  # the coordinator was killed
    assert not kept.before(PLACE, Moment(2, 3))
    assert not kept.before(PLACE, Moment(3))


def test_a_round_that_is_done_again_leaves_nothing_of_the_first_time(kept: KeptState) -> None:
    kept.keep(PLACE, Moment(1, 1), {}, {})
    kept.keep(PLACE, Moment(1, 2), {}, ONE)
    assert not kept.before(PLACE, Moment(1, 1))  # an exchange that keeps nothing is passed over
    assert kept.before(PLACE, Moment(2))["v"] == 1.0
    kept.keep(PLACE, Moment(1, 1), {}, TWO)
    kept.keep(PLACE, Moment(1, 2), TWO, ONE)
    kept.keep(PLACE, Moment(1, 1), {}, THREE)  # from its beginning, with another outcome
    assert kept.before(PLACE, Moment(1, 2))["v"] == 3.0


def of(number: int) -> torch.Tensor:
    """Parameters that a coordinator sends."""
    return torch.full((DIM,), float(number))


def play(kept: KeptState, moment: Moment, parameters: torch.Tensor | None, after: float) -> float:
    """One exchange that leaves `after`; what it started from, 0 for nothing."""
    before = kept.before(PLACE, moment, parameters)
    kept.keep(PLACE, moment, before, {"v": torch.tensor([after])}, parameters)
    return float(before.get("v", torch.zeros(1)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_kept(kept: KeptState, bad: float) -> None:
    kept.keep(PLACE, Moment(1), {}, {"v": torch.tensor([bad])})
    assert value(kept, 2) is None
    kept.keep(PLACE, Moment(2), {}, ONE)
    kept.keep(PLACE, Moment(3), ONE, {"v": torch.tensor([bad]), "n": torch.tensor([3])})
    assert value(kept, 4) == 1.0
    assert kept.before(PLACE, Moment(4)).keys() == {"v"}


def test_what_came_of_a_round_that_is_undone_does_not_stay(kept: KeptState) -> None:
    assert play(kept, Moment(1), of(1), 1.0) == 0.0
    assert play(kept, Moment(2), of(2), 2.0) == 1.0
    assert play(kept, Moment(3), of(66), 66.0) == 2.0  # round 2 has ruined the parameters
    assert play(kept, Moment(4), of(2), 4.0) == 2.0  # and is undone
    assert play(kept, Moment(4), of(2), 4.0) == 2.0  # the connection broke
    assert play(kept, Moment(5), of(5), 5.0) == 4.0
    assert play(kept, Moment(6), of(66), 66.0) == 5.0
    assert play(kept, Moment(7), of(5), 7.0) == 5.0


def test_rounds_that_are_skipped_do_not_hide_what_to_go_back_to(kept: KeptState) -> None:
    play(kept, Moment(1), of(1), 1.0)
    assert play(kept, Moment(2, 1), of(66), 66.0) == 1.0
    assert play(kept, Moment(2, 2), of(66), 67.0) == 66.0
    assert play(kept, Moment(3, 1), of(66), 68.0) == 67.0  # nothing has moved
    assert play(kept, Moment(3, 2), None, 69.0) == 68.0
    assert play(kept, Moment(4), of(66), 70.0) == 69.0
    assert play(kept, Moment(5), of(1), 2.0) == 1.0


def test_final_parameters_sent_before_are_of_an_undone_round(kept: KeptState) -> None:
    play(kept, Moment(1), of(1), 1.0)
    play(kept, Moment(2), of(66), 66.0)
    assert float(kept.before(PLACE, Moment(3), of(1))["v"]) == 1.0
    assert float(kept.before(PLACE, Moment(3), of(66))["v"]) == 66.0
    assert float(kept.before(PLACE, Moment(3), of(3))["v"]) == 66.0


def test_a_damaged_file_is_told_of_with_the_remedy(tmp_path: Path) -> None:
    KeptState(tmp_path).keep(PLACE, Moment(1), {}, ONE)
    (file,) = tmp_path.rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:20])
    with raises(CheckpointError, "ditto.safetensors", "cannot", "Delete it"):
        KeptState(tmp_path).before(PLACE, Moment(2))
    file.unlink()
    os.mkfifo(file)
    for look in (KeptState(tmp_path).before, KeptState(tmp_path).last):  # the disk, not the file
        with raises(NotReady, "ditto.safetensors", "cannot", "no ordinary"):
            look(PLACE, Moment(2))


def test_a_folder_that_cannot_be_written_to_is_told_of_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    with raises(SiteError, "compute.state"):
        KeptState(tmp_path / "state").keep(PLACE, Moment(1), {}, ONE)


@pytest.mark.parametrize("arm", ["ditto", "apfl", "scaffold", "bias"])
def test_a_site_that_is_restarted_goes_on_as_if_it_had_not_been(arm: str, tmp_path: Path) -> None:
    uninterrupted = Hospital(make_site(tmp_path, twenty_patients()))  # in memory
    expected = [train(uninterrupted, arm, r) for r in (1, 2, 3)]
    for round_number, before in enumerate(expected, start=1):
        restarted = Hospital(site(tmp_path))
        after = train(restarted, arm, round_number)
        assert torch.equal(after.delta, before.delta)
        assert all(
            torch.equal(after.attachments[n], before.attachments[n]) for n in after.attachments
        )
        assert after.header.metrics == before.header.metrics
    if arm != "scaffold":  # which has no personal model
        assert torch.equal(personal(Hospital(site(tmp_path)), arm), personal(uninterrupted, arm))


def test_own_parameters_are_in_no_message_that_leaves(tmp_path: Path) -> None:
    hospital = Hospital(site(tmp_path))
    for round_number in (1, 2):
        record = wire.encode_result(train(hospital, "bias", round_number))
        received = wire.decode_train_result(record)
        assert received.delta[4:].tolist() == [0.0, 0.0]  # the biases
        assert received.delta[:4].abs().min() > 0
        assert not received.attachments


def test_the_user_hands_its_personal_model_to_its_own_coordinator(tmp_path: Path) -> None:
    hospital = Hospital(site(tmp_path))
    train(hospital, "bias", 1)
    train(hospital, "scaffold", 1)
    received = torch.full((DIM,), 0.1)
    request = EvaluateRequest(study(), {"bias": received, "scaffold": received}, None, "run")
    result = hospital.evaluate(request)
    assert set(result.personal) == {"bias"}  # scaffold's is what the coordinator has
    assert torch.equal(result.personal["bias"][:4], received[:4])
    assert not torch.equal(result.personal["bias"][4:], received[4:])
    decoded = wire.decode_evaluate_result(wire.encode_result(result))
    assert torch.equal(decoded.personal["bias"], result.personal["bias"])
    assert decoded.header == result.header


def compressing(compression: str) -> Study:
    return make_study(
        arms={"fedavg": {}, "scaffold": {}},
        training={"steps": 3, "batch_size": 4, "learning_rate": 0.1},
        federation={"compression": compression},
    )


def hospital(folder: Path) -> Hospital:
    folder.mkdir(exist_ok=True)
    return Hospital(make_site(folder, twenty_patients(), compute={"state": folder / "state"}))


def answer(at: Hospital, number: int, kind: str = "int8", arm: str = "fedavg") -> TrainResult:
    parameters = 0.1 * torch.randn(DIM, generator=torch.Generator().manual_seed(number))
    result = at.answer(TrainRequest(compressing(kind), arm, number, parameters, None, "run"))
    assert isinstance(result, TrainResult)
    return result


def test_an_update_is_what_the_coordinator_will_have(tmp_path: Path) -> None:
    result = answer(hospital(tmp_path), 1)
    sent = wire.decode_train_result(wire.encode_result(result), "int8", DIM)
    assert torch.equal(sent.delta, result.delta)
    exact = answer(hospital(tmp_path / "other"), 1, "none")
    assert exact.sent is exact.delta
    assert torch.equal(result.delta, unpacked(compress(exact.delta, "int8")))


def test_what_the_first_update_left_over_comes_with_the_second(tmp_path: Path) -> None:
    compressed, exact = hospital(tmp_path), hospital(tmp_path / "other")
    error, without = None, []
    for number in range(1, 7):
        plain = answer(exact, number, "none").delta
        without_error = unpacked(compress(plain, "int8"))
        expected, error = compress_with_feedback(plain, error, "int8")
        assert torch.equal(answer(compressed, number).delta, unpacked(expected))
        without.append(torch.equal(unpacked(expected), without_error))
    assert not all(without)


def test_asked_again_it_answers_the_same_also_after_a_restart(tmp_path: Path) -> None:
    site = hospital(tmp_path)
    answer(site, 1)
    second = answer(site, 2)
    assert torch.equal(answer(site, 2).delta, second.delta)
    started_anew = hospital(tmp_path)
    assert torch.equal(answer(started_anew, 2).delta, second.delta)


@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_what_a_method_keeps_is_not_disturbed(tmp_path: Path, kind: str) -> None:
    compressed, exact = hospital(tmp_path), hospital(tmp_path / "other")
    for number in (1, 2):
        got, plain = (
            answer(at, number, k, "scaffold") for at, k in ((compressed, kind), (exact, "none"))
        )
        assert got.attachments.keys() == plain.attachments.keys()
        for name, tensor in plain.attachments.items():
            assert torch.equal(got.attachments[name], tensor)


def test_a_site_with_a_large_model_holds_three_others_and_what_is_sent(tmp_path: Path) -> None:
    of_site = make_study(
        model={"name": "mlp", "hidden": [3000, 3300]},
        training={"steps": 2, "batch_size": 2, "learning_rate": 0.1},
        federation={"compression": "bfloat16"},
    )
    site = hospital(tmp_path)
    site.describe(of_site, "run")
    dim = 3 * 3000 + 3001 * 3300 + 3301 * 2

    def take_part(number: int) -> None:
        sent = pack(torch.full((dim,), 0.001 * number), "bfloat16")
        site.answer(TrainRequest(of_site, "fedavg", number, sent, None, "run"))

    take_part(1)
    assert peak_bytes(lambda: take_part(2)) < 3.4 * 4 * dim
