"""Requests in sealed studies that are not as they should be, and a hospital's answers."""

import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from erosion_client.sealed.sealed_site import Greeted, Phase, SealedIdentity
from erosion_client.sealed.sealed_steps import RUNS_KEPT
from erosion_client.training.hospital import Hospital
from erosion_client.training.limits import check_limits
from erosion_common.errors import Refusal, SiteError
from erosion_common.protocol.messages import Scaling, StepResult, TrainRequest, TrainResult
from erosion_common.sealed import phases
from erosion_common.sealed.audit import Disclosure, read_disclosure
from erosion_common.sealed.keys import new_pair
from erosion_common.sealed.phases import RoundContext
from erosion_common.sealed.pinned_keys import as_text
from erosion_common.sealed.power_residues import to_rows
from erosion_common.sealed.roster import sign_hello
from erosion_common.support.keys import PrivateKey, new_private_key, private_pem
from tests.common.sealed.keys import residue_key, residue_proof
from tests.support.said import raises
from tests.support.sealed_study import ARM, hospitals, sealed_study
from tests.support.small_study import counts, make_site, sixty_patients

ATTEMPT = {"attempt": "00" * 16}
RUN = RoundContext(sealed_study().digest, "run", ARM, 1, bytes(16), b"").run_hash


def request(step: str = "train", **changes: Any) -> TrainRequest:
    values: dict[str, Any] = {
        "study": sealed_study(),
        "arm": ARM,
        "round": 1,
        "sent": torch.zeros(22) if step == "train" else None,
        "scaling": None,
        "run": "run",
        "step": step,
        "values": ATTEMPT if step == "train" else {},
    }
    return TrainRequest(**{**values, **changes})


def test_a_peer_answers_a_sealed_study_without_its_update(tmp_path: Path) -> None:
    bob = hospitals(tmp_path)["bob"]
    result = bob.answer(request())
    assert isinstance(result, TrainResult)
    assert result.delta.numel() == 0
    assert result.header.sealed is not None


def test_a_peer_gives_no_distance_of_an_update_in_which_few_values_can_move(tmp_path: Path) -> None:
    """By this scaling nothing is left of the patients' values: the biases alone are trained."""
    bob, study = hospitals(tmp_path)["bob"], sealed_study(scaling="user")
    nothing = Scaling(mean=(0.0,) * 10, deviation=(1e30,) * 10)
    with raises(Refusal, "moved. Check"):
        bob.answer(request(study=study, scaling=nothing))


def with_roster(*names: str) -> dict[str, Any]:
    hello = {"mask": "00" * 32, "seal": "11" * 32, "signature": "22" * 70}
    return {
        "roster": dict.fromkeys(names, hello),
        "modulus": int(residue_key().public.n).to_bytes(256).hex(),
        "base": int(residue_key().public.y).to_bytes(256).hex(),
        "scale": float(1).hex(),
    }


def question(**changes: Any) -> TrainRequest:
    key = residue_key()
    sealed = [key.seal(value) for value in range(22)]
    options: dict[str, Any] = {
        "values": with_roster("bob", "carol", "dave"),
        "enclosed": {
            phases.SEALED_OWN: to_rows(sealed, 256),
            phases.MODULUS_PROOF: to_rows(residue_proof(RUN), 256),
        },
    }
    return request(phases.DISTANCE, **{**options, **changes})


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (request(values={}), "attempt is wrong"),
        (request(values={"attempt": "00"}), "attempt is wrong"),
        (request("gradient"), "'gradient' is not one of a sealed round"),
        (request(phases.MASKED), "weights is wrong"),
        (request(phases.UNMASK, values={"delivered": {}}), "not due at this site"),
        (question(values={}), "roster is wrong"),
        (question(enclosed={}), "brings no 'sealed_own'"),
        (question(enclosed={phases.SEALED_OWN: torch.zeros(22, 256)}), "brings no 'sealed_own'"),
        (question(), "other keys for this site"),
        (question(study=sealed_study(user="erin")), "another sealed round"),
        (question(run="other"), "another sealed round"),
        (question(round=2), "another sealed round"),
        (request(phases.MASKED, round=2), "another sealed round"),
        (request(phases.UNMASK, arm="other"), "another sealed round"),
        (question(values=with_roster("bob", "carol", "alice")), "The roster has alice; only"),
        (question(values=with_roster("bob", "carol", "ghost")), "The roster has ghost; only"),
    ],
)
def test_a_malformed_request_is_refused(tmp_path: Path, asked: TrainRequest, reason: str) -> None:
    bob = hospitals(tmp_path)["bob"]
    if asked.step in phases.STEPS:
        bob.answer(request())
    with raises(Refusal, reason):
        bob.answer(asked)


def site_with_keys(
    folder: Path, key: PrivateKey, pinned: Mapping[str, PrivateKey]
) -> tuple[Hospital, Path]:
    """Bob's, with its own key and those that it pinned; and the file of these."""
    files = {"peers": folder / "peers.pem", "private_key": folder / "node.key"}
    files["private_key"].touch(mode=0o600)
    files["private_key"].write_bytes(private_pem(key))
    files["peers"].write_text(as_text({name: each.public_key() for name, each in pinned.items()}))
    site = make_site(folder, sixty_patients("bob"), name="bob", file="bob.csv", sealed=files)
    return Hospital(site), files["peers"]


def test_without_keys_a_hospital_says_what_it_needs(tmp_path: Path) -> None:
    bob = Hospital(make_site(tmp_path, sixty_patients("bob"), name="bob", file="bob.csv"))
    for ask in (lambda: bob.describe(sealed_study()), lambda: bob.answer(request())):
        with raises(SiteError, "sealed", "rounds", "sealed.peers"):
            ask()


@pytest.mark.parametrize(
    ("damaged", "content", "said"),
    [
        ("peers.pem", None, "There is no "),
        ("peers.pem", b"", "is not a list of keys"),
        ("peers.pem", b"\xff\xfe", "cannot be read"),
        (
            "peers.pem",
            b"# bob\n-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
            "PEM",
        ),
        ("node.key", None, "There is no private key"),
        ("node.key", b"-----BEGIN PRIVATE KEY-----\n", "does not hold a private key"),
    ],
)
def test_a_site_whose_sealing_keys_are_damaged_joins_no_sealed_study_and_tells_no_path(
    tmp_path: Path, damaged: str, content: bytes | None, said: str
) -> None:
    key = new_private_key()
    bob, _ = site_with_keys(tmp_path, key, {"bob": key})
    if content is None:
        (tmp_path / damaged).unlink()
    else:
        (tmp_path / damaged).write_bytes(content)
    bob.describe(sealed_study(sealed=False))
    for ask in (lambda: bob.describe(sealed_study()), lambda: bob.answer(request())):
        with raises(SiteError, said) as problem:
            ask()
        assert damaged in str(problem.value)
        assert problem.value.public == "SiteError at the site; its own log says more"


def phase_of(hospital: Hospital) -> Phase:
    """Of the run that it was last in a round of."""
    *_, rounds = hospital._sealed._runs.values()
    return rounds.phase


def test_two_runs_are_in_a_round_at_the_same_time_and_no_number_of_them(tmp_path: Path) -> None:
    """Each holds an update, so the one that was in a round longest ago is forgotten."""
    bob = hospitals(tmp_path)["bob"]
    for run in ("first", "second"):
        bob.answer(request(run=run))
    with raises(Refusal, "other keys for this site"):  # it is still at phase 2 of the first
        bob.answer(question(run="first"))
    for number in range(RUNS_KEPT):
        bob.answer(request(run=f"{number}"))
    assert len(bob._sealed._runs) == RUNS_KEPT
    with raises(Refusal, "another sealed round"):
        bob.answer(question(run="first"))


def test_each_of_the_last_runs_can_be_audited_when_others_followed(tmp_path: Path) -> None:
    bob = hospitals(tmp_path, compute={"state": tmp_path / "state"})["bob"]
    runs = [f"20260{number}/{number}" for number in range(RUNS_KEPT + 2)]
    for place, run in enumerate(runs):
        opening = Disclosure("bob", "", np.ones(3, np.float32) * place, bytes(32), bytes(32))
        bob._sealed._keep_opening(run, opening)
        bob._sealed._keep_opening(run, opening)  # of its next round
        kept = [*(tmp_path / "state" / "bob" / "sealed").glob("*/opening.safetensors")]
        os.utime(max(kept, key=lambda path: path.stat().st_mtime_ns), (place, place))
    found = [read_disclosure(path, SiteError).update[0] for path in kept]
    assert sorted(found) == [*range(2, RUNS_KEPT + 2)]


def test_keys_that_are_pinned_while_it_runs_are_good_from_the_next_round_on(tmp_path: Path) -> None:
    keys = {name: new_private_key() for name in ("bob", "carol", "dave")}
    bob, peers = site_with_keys(tmp_path, keys["bob"], {})

    def measured(number: int, *pinned: str) -> StepResult | TrainResult:
        peers.write_text(as_text({name: keys[name].public_key() for name in pinned}))
        bob.answer(request(round=number))
        phase = phase_of(bob)
        assert isinstance(phase, Greeted)
        roster = {"bob": phase.hello}
        for name in ("carol", "dave"):
            (_, mask), (_, seal) = new_pair(), new_pair()
            roster[name] = sign_hello(keys[name], phase.context, name, mask, seal)
        said = {name: asdict(hello) for name, hello in roster.items()}
        values = {**with_roster("bob"), "roster": said, "scale": (2.0**22).hex()}
        return bob.answer(question(round=number, values=values))

    with raises(Refusal, "known here"):
        measured(1, "carol")
    measured(2, "carol", "dave")
    keys["dave"] = new_private_key()
    measured(3, "carol", "dave")


def test_a_hospital_may_take_part_in_sealed_studies_only(tmp_path: Path) -> None:
    bob = hospitals(tmp_path, limits={"sealed_only": True})["bob"]
    bob.describe(sealed_study())
    with raises(Refusal, "limits.sealed_only"):
        bob.describe(sealed_study(sealed=False))
    user = hospitals(tmp_path, limits={"sealed_only": True})["alice"]  # which no mask hides
    answer = user.answer(request())
    assert isinstance(answer, TrainResult)
    assert answer.delta.numel() == 22


def update_of(hospital: Hospital, asked: TrainRequest) -> Tensor:
    """What the hospital would put under its masks."""
    hospital.answer(asked)
    greeted = phase_of(hospital)
    assert isinstance(greeted, Greeted)
    return torch.from_numpy(greeted.update)


def test_slightly_other_parameters_do_not_repeat_an_update_in_another_run(tmp_path: Path) -> None:
    """Five runs with other weights would be five equations, which give single updates away."""
    site = make_site(tmp_path, sixty_patients("bob"), name="bob", file="bob.csv")
    apart = {}
    for secret in (b"", bytes(32)):
        bob = Hospital(site, secret)
        bob.identify(SealedIdentity("bob", new_private_key()))
        first = update_of(bob, request())
        assert torch.equal(first, update_of(bob, request(values={"attempt": "11" * 16})))
        second = update_of(bob, request(run="another", sent=torch.full((22,), 1e-6)))
        apart[secret] = float((second - first).norm() / first.norm())
        assert not torch.equal(first, second)  # so that it is another update to the ledger
    assert apart[b""] < 1e-4
    assert apart[bytes(32)] > 1e-2


def test_a_sealed_round_of_batches_of_most_patients_is_declined(tmp_path: Path) -> None:
    """Such updates hardly differ from round to round: sums with and without one give it away."""
    known = hospitals(tmp_path)
    training = {"steps": 3, "batch_size": 31, "learning_rate": 0.5}
    with raises(Refusal, "batch there"):
        known["bob"].describe(sealed_study(training=training))
    known["alice"].describe(sealed_study(training=training))
    known["bob"].describe(sealed_study(training={**training, "batch_size": 30}))


def test_a_batch_of_few_rows_may_be_of_most_patients(tmp_path: Path) -> None:
    site = hospitals(tmp_path, limits={"largest_round": 0.4})["bob"].site
    training = {"steps": 2, "batch_size": 12, "learning_rate": 0.5}
    check_limits(site, sealed_study(training=training), counts(60, 10))
    with raises(Refusal, "limits.largest_round = 0.4"):
        check_limits(site, sealed_study(training={**training, "batch_size": 13}), counts(60, 10))
    with raises(Refusal, "batch there"):
        check_limits(site, sealed_study(training={**training, "batch_size": 31}), counts(60, 10))
    check_limits(site, sealed_study(training=training), counts(60))


def test_batches_of_two_halves_trained_in_parallel_both_count(tmp_path: Path) -> None:
    site = hospitals(tmp_path, limits={"largest_round": 0.4})["bob"].site
    study = partial(sealed_study, arms={"evidence_erosion": {}, "local": {}})
    check_limits(site, study(training={"steps": 2, "batch_size": 6}), counts(60))
    with raises(Refusal, "limits.largest_round = 0.4"):
        check_limits(site, study(training={"steps": 2, "batch_size": 7}), counts(60))
    half = "a batch there may be of more than half"
    for batch_size, is_half in ((16, True), (15, False)):
        with pytest.raises(Refusal) as refused:
            check_limits(site, study(training={"steps": 2, "batch_size": batch_size}), counts(60))
        assert (half in str(refused.value)) == is_half


def test_a_site_may_bound_the_patients_that_a_sealed_round_goes_over(tmp_path: Path) -> None:
    bob = hospitals(tmp_path, limits={"largest_round": 0.4})["bob"]
    bob.describe(sealed_study())  # 24 of 60
    training = {"steps": 4, "batch_size": 8, "learning_rate": 0.5}
    said = "limits.largest_round = 0.4. Fewer steps or smaller batches prevent that"
    with raises(Refusal, said):
        bob.describe(sealed_study(training=training))
    of_all = {"epochs": 1, "batch_size": 4, "learning_rate": 0.5}
    said = "limits.largest_round = 0.4. A few steps in place of epochs prevent that"
    with raises(Refusal, said):
        bob.describe(sealed_study(training=of_all, arms={"fedavg": {}, "local": {}}))


def test_in_an_arm_that_asks_nobody_else_no_update_is_summed(tmp_path: Path) -> None:
    with raises(Refusal, "does not ask"):
        hospitals(tmp_path)["bob"].answer(request(arm="local"))
