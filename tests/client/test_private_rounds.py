"""A hospital whose patients were promised differential privacy, and who asks more of it."""

import os
import signal
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from erosion_client.consent.approvals import listing
from erosion_client.consent.review import review
from erosion_client.dataset import task_checks
from erosion_client.dataset.local_dataset import LocalDataset
from erosion_client.disclosure.control import DisclosureControl
from erosion_client.preflight.study_checks import check_study_here
from erosion_client.records.account import dataset_of
from erosion_client.records.ledgers import Release
from erosion_client.records.records import Records
from erosion_client.site_file import Site
from erosion_client.training.hospital import Hospital
from erosion_common.errors import Refusal
from erosion_common.learning.private_step import PatientRows, clipped_sum
from erosion_common.protocol.messages import TrainRequest
from erosion_common.study.privacy import epsilon_of, strength_of
from erosion_common.study.study import Study
from tests.support.patience import PATIENCE
from tests.support.processes import start
from tests.support.said import raises, says
from tests.support.small_study import TWO_NUMBERS, make_site, make_study, twenty_patients

DIM = 6
SECRET = b"s" * 32
PATIENTS = 5  # how much older they are than the user's


def private_study(epsilon: float = 3.0, **changes: Any) -> Study:
    privacy = {"epsilon": epsilon, "learning_rate": 1.0, **changes.pop("privacy", {})}
    return make_study(privacy=privacy, **changes)


def request(study: Study, number: int = 1, value: float = 0.0, **changes: Any) -> TrainRequest:
    parameters = value * torch.arange(float(DIM))
    asked = TrainRequest(study, "fedavg", number, parameters, None, "r1")
    return replace(asked, **changes)


def peer_site(folder: Path, older: int = PATIENTS, **keys: Any) -> Site:
    keys = {"compute": {"state": folder / "state"}, **keys}
    return make_site(folder, twenty_patients(older=older), name="b", file="b.csv", **keys)


def user_site(folder: Path, **keys: Any) -> Site:
    return make_site(folder, twenty_patients(), **keys)


def peer(folder: Path, older: int = PATIENTS, **keys: Any) -> Hospital:
    return Hospital(peer_site(folder, older, **keys), SECRET)


def test_what_a_step_uses_first_is_imported_before_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    def grad(of: Any) -> Any:
        made.append(of)
        return of

    monkeypatch.setattr(task_checks, "grad", grad)
    site = peer(tmp_path, limits={"min_local_steps": 1})
    site.describe(make_study())
    assert made == []
    site.describe(private_study())
    arms = {"network_gems": {"public_hospital": "b"}}  # tunes its merged perceptron with Adam
    site.describe(make_study(arms=arms, model={"name": "mlp"}))
    assert made == [torch.sum, torch.sum]


def spent(folder: Path) -> float:
    """The strength of all that left."""
    site = peer_site(folder)
    with closing(Records(folder / "state" / "b", "b")) as ledger:
        return ledger.privacy.spent(dataset_of(site)).in_all


def of_one(study: Study) -> float:
    return study.privacy_cost / study.num_releases


def test_a_peers_update_has_the_noise_that_the_study_promises(tmp_path: Path) -> None:
    study = private_study()
    assert study.privacy is not None
    one, other = (
        Hospital(peer_site(tmp_path / s, compute={}), s.encode()) for s in _folders(tmp_path)
    )
    told = one.describe(study).num_samples
    deviation = study.privacy.noise_deviation(study.num_releases, told)
    apart = torch.cat(
        [
            one.train(request(study, run=f"r{n}")).delta
            - other.train(request(study, run=f"r{n}")).delta
            for n in range(60)
        ]
    )
    assert float(apart.std()) == pytest.approx(deviation * 2**0.5, rel=0.15)
    assert abs(float(apart.mean())) < deviation / 3


def test_noise_follows_from_seed_or_secret(tmp_path: Path) -> None:
    site = peer_site(tmp_path, compute={})

    def update(study: Study, number: int = 1, secret: bytes = b"") -> list[float]:
        found: list[float] = Hospital(site, secret).train(request(study, number)).delta.tolist()
        return found

    study = private_study()
    other = private_study(name="another", evaluation={"bootstrap": 200})
    assert update(study) == update(other)
    assert update(study) != update(private_study(seed=study.seed + 1))
    assert update(study) != update(study, 2)
    assert update(study, secret=SECRET) != update(study)
    assert update(study, secret=SECRET) != update(other, secret=SECRET)


def _folders(parent: Path) -> tuple[str, str]:
    for name in ("one", "other"):
        (parent / name).mkdir()
    return "one", "other"


def grown(num: int, blank: int | None = None) -> str:
    """So many patients of TWO_NUMBERS, the newer ones far from the others."""
    lines = ["age,dose,ill"]
    for number in range(num):
        age = number + 0.5 if number < 40 else 900.0 + number
        dose = "" if number == blank else f"{number % 7}.25"
        lines.append(f"{age},{dose},{'yes' if number % 3 else 'no'}")
    return "\n".join(lines) + "\n"


def test_one_record_moves_the_sum_by_no_more_than_its_cut(tmp_path: Path) -> None:
    """Whatever was trained before: a table grows, and one of its records is there or blank."""
    newer = 49
    one, other = _folders(tmp_path)
    worlds = ((tmp_path / one, None), (tmp_path / other, newer))
    for number, num in enumerate((40, 45, 50, 52, 60, 60)):
        sums = []
        for folder, blank in worlds:
            site = peer_site(folder, limits={"min_cell": 10})
            (folder / "b.csv").write_text(grown(num, blank), encoding="utf-8")
            study = private_study(name=f"s{number}", task={**TWO_NUMBERS, "missing": "drop"})
            of = LocalDataset(site, study, DisclosureControl(site, SECRET))
            (part, _), start = of.parts(None), torch.zeros(of.dim)
            rows = PatientRows(part.inputs, part.targets, of.training_patients)
            loss = study.task.training_loss(part.targets)
            sums.append(clipped_sum(of.model, start, rows, loss, clip_norm=1.0, seed=0))
        assert float((sums[0] - sums[1]).norm()) <= 1.0 + 1e-9, num


def test_what_a_private_study_was_trained_on_holds_no_later_study_to_it(tmp_path: Path) -> None:
    """Nothing exact left about these patients, so newcomers are trained on at once."""
    site = peer_site(tmp_path, limits={"min_cell": 10})
    (tmp_path / "b.csv").write_text(grown(40), encoding="utf-8")
    LocalDataset(site, private_study(task=TWO_NUMBERS), DisclosureControl(site, SECRET))
    (tmp_path / "b.csv").write_text(grown(45), encoding="utf-8")
    later = LocalDataset(site, make_study(task=TWO_NUMBERS), DisclosureControl(site, SECRET))
    assert later.num_training == 45


def many_rows(times: int) -> str:
    """Forty patients with so many rows each, all with the same values."""
    lines = [f"{p},{p + 0.5},{p % 7}.25,{'yes' if p % 3 else 'no'}" for p in range(40)]
    return "\n".join(["id,age,dose,ill", *[line for line in lines for _ in range(times)]]) + "\n"


def test_the_number_that_a_private_step_divides_by_is_of_patients(tmp_path: Path) -> None:
    """So is the one that delta is held against: one over 40 is allowed, one over 400 was not."""
    study = private_study(task=TWO_NUMBERS, privacy={"delta": 1e-3, "clip_norm": 1e-3})
    assert study.privacy is not None
    deviation = study.privacy.noise_deviation(study.num_releases, 40)
    for times in (1, 10):
        site = peer_site(tmp_path, data={"patient": "id"}, limits={"min_cell": 10}, compute={})
        (tmp_path / "b.csv").write_text(many_rows(times), encoding="utf-8")
        hospital = Hospital(site, SECRET)
        assert hospital.describe(make_study(task=TWO_NUMBERS)).num_samples == 40 * times
        assert hospital.describe(study).num_samples == 40
        start = torch.zeros(6)
        results = [hospital.train(request(study, run=f"r{n}", sent=start)) for n in range(40)]
        assert {(r.header.num_samples, r.header.samples_seen) for r in results} == {(40, 40)}
        noise = torch.stack([r.delta for r in results])
        assert float(noise.std(dim=0).mean()) == pytest.approx(deviation, rel=0.15)


def test_the_users_step_is_the_same_without_noise(tmp_path: Path) -> None:
    study, strict = private_study(), user_site(tmp_path)
    with raises(Refusal, "min_local_steps"):
        Hospital(strict, SECRET).train(request(study))
    willing = user_site(tmp_path, limits={"min_local_steps": 1})
    one = Hospital(willing, SECRET).train(request(study))
    assert (one.delta.dtype, one.delta.shape) == (torch.float32, (DIM,))
    assert torch.equal(one.delta, Hospital(willing, b"another").train(request(study)).delta)
    assert 0 < float(one.delta.norm()) <= 1.5  # clip norm and learning rate 1; 14 patients, told 12
    local = Hospital(willing, SECRET).train(request(study, arm="local"))
    assert not torch.equal(local.delta, one.delta)  # by the study's local training


def test_a_peer_tells_nothing_but_updates_and_its_number(tmp_path: Path) -> None:
    study = private_study(scaling="user")
    hospital = peer(tmp_path)
    described = hospital.describe(study)
    assert described.sums is None
    with raises(Refusal, "gives none"):
        hospital.summarise(study)
    reply = hospital.train(request(private_study())).header
    assert reply.metrics is None
    assert reply.num_samples == reply.samples_seen == described.num_samples


def test_what_is_asked_again_is_the_same_to_the_byte_and_free(tmp_path: Path) -> None:
    study = private_study()
    first = peer(tmp_path).train(request(study))
    assert spent(tmp_path) == pytest.approx(of_one(study))
    again = peer(tmp_path).train(request(study))  # a new program on the same folder
    assert torch.equal(first.delta, again.delta)
    assert spent(tmp_path) == pytest.approx(of_one(study))
    peer(tmp_path).train(request(study, 2))
    assert spent(tmp_path) == pytest.approx(2 * of_one(study))


@pytest.mark.parametrize("other", [{"value": 0.5}, {"older": 6}, {"secret": b"x"}])
def test_a_round_is_not_answered_on_anything_else(tmp_path: Path, other: dict[str, Any]) -> None:
    """Other parameters, one patient more, another secret: fresh noise would tell more."""
    study = private_study()
    peer(tmp_path).train(request(study))
    site = peer_site(tmp_path, other.get("older", PATIENTS))
    hospital = Hospital(site, SECRET, noise_secret=other.get("secret", SECRET))
    with raises(Refusal, "new run"):
        hospital.train(request(study, value=other.get("value", 0.0)))
    assert spent(tmp_path) == pytest.approx(of_one(study))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"round": 4}, "for 3 rounds"),
        ({"arm": "local"}, "does not ask"),
        ({"step": "gradient"}, "fedavg has train"),
    ],
)
def test_no_more_than_the_study_has(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with raises(Refusal, said):
        peer(tmp_path).answer(request(private_study(), **changes))
    assert spent(tmp_path) == 0


def test_a_run_that_does_not_fit_is_refused_at_its_first_update(tmp_path: Path) -> None:
    study = private_study(3.0)
    site = peer_site(tmp_path, limits={"epsilon": 3.0})
    hospital = Hospital(site, SECRET)
    hospital.describe(study)
    for number in (1, 2, 3):
        hospital.train(request(study, number))
    hospital.describe(study)  # a site that comes back to its run is let in
    with raises(Refusal, "limits.epsilon = 3"):
        hospital.train(request(study, run="r2"))
    for number in (1, 2, 3):  # the run that was paid for is answered again
        hospital.train(request(study, number))
    assert epsilon_of(spent(tmp_path), 1e-5) == pytest.approx(3.0, abs=1e-3)


def test_the_lifetime_budget_is_over_all_studies_and_outlives_the_program(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"limits": {"epsilon": 2.0}, "budget": {"epsilon": 2.5}}
    first, second = private_study(2.0), private_study(2.0, name="another")
    hospital = peer(tmp_path, **limits)
    for number in (1, 2, 3):
        hospital.train(request(first, number))
    with raises(Refusal, "budget.epsilon = 2.5"):
        peer(tmp_path, **limits).describe(second)
    with raises(Refusal, "2", "spent", "budget.epsilon = 2.5"):
        peer(tmp_path, **limits).train(request(second, run="r2"))
    small = private_study(0.5, name="small")
    peer(tmp_path, **limits).train(request(small, run="r3"))


def test_the_last_update_within_a_limit_is_the_last(tmp_path: Path) -> None:
    """Two coordinators that begin at once each fit; what they are given together does."""
    study = private_study(2.0, rounds=4)
    limits: dict[str, Any] = {"limits": {"epsilon": 2.5}}
    hospital = peer(tmp_path, **limits)
    hospital.train(request(study, run="r1"))
    cost = study.privacy_cost
    assert epsilon_of(1.25 * cost, 1e-5) < 2.5 < epsilon_of(2 * cost, 1e-5)
    hospital.train(request(study, run="r2"))
    rest = [request(study, number, run=run) for number in (2, 3, 4) for run in ("r1", "r2")]
    given = 2 + sum(_is_answered(hospital, asked) for asked in rest)
    assert 4 < given < 8
    assert epsilon_of(spent(tmp_path), 1e-5) <= 2.5


def _is_answered(hospital: Hospital, asked: TrainRequest) -> bool:
    try:
        hospital.train(asked)
    except Refusal:
        return False
    return True


def test_a_site_with_a_limit_takes_part_in_nothing_without_noise(tmp_path: Path) -> None:
    limited: dict[str, Any] = {"limits": {"epsilon": 1.0}}
    with raises(Refusal, "differential privacy"):
        peer(tmp_path, **limited).describe(make_study())
    with raises(Refusal, "differential privacy"):
        peer(tmp_path, **limited).summarise(make_study())
    with raises(Refusal, "the user"):
        Hospital(user_site(tmp_path, limits={"epsilon": 1.0}), SECRET).describe(private_study(1.0))
    with raises(Refusal, "patient", "3"):
        peer(tmp_path, **limited).describe(private_study(3.0))
    peer(tmp_path, **limited).describe(private_study(1.0))


def test_a_delta_that_could_give_a_patient_away_is_refused(tmp_path: Path) -> None:
    head = twenty_patients().splitlines()[0]
    text = "\n".join([head, *(f"{20 + n % 80 + n / 2000:.4f},f,{n % 2}" for n in range(1200))])
    loose = private_study(privacy={"delta": 1e-3})
    tight = private_study(privacy={"delta": 1e-4})
    for study, keys, refused in (
        (tight, {}, None),
        (loose, {}, "one over"),
        (private_study(3.0), {"limits": {"delta": 1e-3, "min_cell": 3}}, None),
        (  # at such a delta of its own its limits would bound nothing
            private_study(3.0),
            {"limits": {"delta": 1e-3, "min_cell": 3}, "budget": {"epsilon": 50.0}},
            "limits.delta = 0.001",
        ),
    ):
        site = make_site(tmp_path, text + "\n", name="b", file="b.csv", **keys)
        with raises(Refusal, refused) if refused else nullcontext():
            Hospital(site, SECRET).describe(study)


def answers_and_is_killed(folder: Path) -> None:
    peer(folder).train(request(private_study()))
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_site_that_is_killed_after_its_answer_has_paid(tmp_path: Path) -> None:
    """The process ends itself, without a chance to write, the moment that the update is there."""
    peer_site(tmp_path)
    process = start(answers_and_is_killed, tmp_path)
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    assert spent(tmp_path) == pytest.approx(of_one(private_study()))


def test_what_the_log_has_is_paid_once_and_by_its_own_data(tmp_path: Path) -> None:
    """The data file may be renamed: another year's patients have paid nothing yet."""
    with closing(Records(tmp_path, "b")) as ledger:
        before = Release("last year", "s", "r", "a", 1, 0.5)
        with ledger.transaction():
            ledger.privacy.pay(before, "x")
        assert ledger.privacy.spent("last year", "s", "q").by_run == 0
        assert ledger.privacy.reply_of(before) == "x"
        first, second = (Release("this year", "s", "r", "a", round_, 0.5) for round_ in (1, 2))
        assert ledger.privacy.recover([first, second]) == 2
        assert ledger.privacy.recover([first, second]) == 0
        assert ledger.privacy.spent("this year").in_all == 1
        assert ledger.privacy.spent("last year").in_all == 0.5


def test_review_and_status_say_what_it_costs_and_what_is_left(tmp_path: Path) -> None:
    study = private_study(3.0)
    site = peer_site(tmp_path, limits={"epsilon": 3.0}, budget={"epsilon": 10.0})
    records = Records.of(site)
    before = "\n".join(review(site, study, records))
    assert says(before, "3", "1e-05")
    assert says(before, "0", "3", "10")
    assert "quantiles" not in before
    loose = private_study(3.0, privacy={"delta": 1e-3})
    assert says("\n".join(review(site, loose, records)), "4.2", "1e-05", "limits.delta")
    for number in (1, 2, 3):
        Hospital(site, SECRET).train(request(study, number))
    assert says("\n".join(review(site, study, records)), "spent", "3")
    assert says("\n".join(listing(site, records)), "3 spent", "10", "1e-05")
    assert says("\n".join(review(user_site(tmp_path), study, records)), "without", "noise")
    records.close()


def test_the_check_says_what_a_run_costs_and_whether_it_fits(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"limits": {"epsilon": 2.0}, "budget": {"epsilon": 2.5}}
    first, second = private_study(2.0), private_study(2.0, name="another")
    site = peer_site(tmp_path, **limits)

    def said(study: Study) -> str:
        with closing(Records.existing(site)) as records:
            found = [*check_study_here(site, study, records)]
        return "\n".join(f"{f.outcome} {f.what} {f.text}" for f in found)

    assert says(said(first), "privacy", "2")
    assert says(said(first), "patients", "round")
    for number in (1, 2, 3):
        peer(tmp_path, **limits).train(request(first, number))
    assert says(said(first), "warning", "privacy")
    (failed,) = (line for line in said(second).splitlines() if line.startswith("failed"))
    assert says(failed, "budget.epsilon", "2.5")


def test_who_is_there_is_hardly_seen_through_the_noise_and_plainly_without(tmp_path: Path) -> None:
    """A test that knows all patients but one, and what that one's gradient would be."""
    epsilon, trials = 1.0, 100
    study = private_study(epsilon, rounds=1)
    assert study.privacy is not None
    whole = twenty_patients(older=PATIENTS)
    blank = "\n".join(whole.splitlines()[:-1]) + "\n"
    unhidden = private_study(100.0, privacy={"clip_norm": 1.0, "delta": 1e-3}, rounds=1)

    def guesses(of: Study) -> float:
        """The share of runs in which the better threshold tells whether the patient is there."""
        updates = []
        for text in (whole, blank):
            folder = tmp_path / f"{of.digest[:4]}{len(text)}"
            folder.mkdir()
            site = make_site(folder, text, name="b", file="b.csv")
            hospital = Hospital(site, SECRET)
            told = hospital.describe(of).num_samples
            updates.append(
                torch.stack(
                    [told * hospital.train(request(of, run=f"r{n}")).delta for n in range(trials)]
                )
            )
        there, away = updates
        direction = there.mean(dim=0) - away.mean(dim=0)
        seen = [torch.sort(u @ direction).values for u in (there, away)]
        middle = (seen[0].mean() + seen[1].mean()) / 2
        right = (seen[0] > middle).sum() + (seen[1] < middle).sum()
        return float(right) / (2 * trials)

    assert guesses(unhidden) > 0.95
    # The best that anybody can do is e^epsilon / (1 + e^epsilon) = .73; the direction is fitted.
    assert guesses(study) < 0.8
    assert strength_of(study.privacy.noise_multiplier(1)) < 1
