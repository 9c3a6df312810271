"""A hospital's answers, from the data file to the reply."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import cross_entropy

from erosion_client.dataset.local_dataset import LocalDataset
from erosion_client.finding import Severity
from erosion_client.preflight.check import check_compute
from erosion_client.site_file import Site
from erosion_client.training.hospital import Hospital
from erosion_common.errors import Refusal, SiteError
from erosion_common.learning.local_sgd import Samples, round_generator, train_locally
from erosion_common.learning.models import build_model
from erosion_common.protocol.compression import Packed
from erosion_common.protocol.messages import (
    MOST_LOSS,
    EvaluateRequest,
    Scaling,
    TrainReply,
    TrainRequest,
    TrainResult,
)
from erosion_common.protocol.scaling import pool
from erosion_common.protocol.wire import Encoder, KnownStudies, decode_evaluate
from erosion_common.rounds.selection import fold_studies, trials
from erosion_common.study.study import Study
from erosion_common.tasks.inputs import TabularTask
from tests.support.close import assert_close
from tests.support.said import raises, says
from tests.support.small_study import make_site, make_study, twenty_patients, with_missing

DIM = 6  # two columns, two classes: 4 weights and 2 biases


def request(study: Study, value: float = 0.0, **changes: Any) -> TrainRequest:
    usual = {
        "study": study,
        "arm": "fedavg",
        "round": 1,
        "sent": torch.full((DIM,), value),
        "scaling": None,
    }
    return TrainRequest(**{**usual, **changes})


def user_site(folder: Path, **keys: Any) -> Site:
    return make_site(folder, twenty_patients(), **keys)


def peer_site(folder: Path, **keys: Any) -> Site:
    return make_site(folder, twenty_patients(older=5), name="b", file="b.csv", **keys)


def test_a_hospital_introduces_itself_by_its_training_patients(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    user = Hospital(user_site(tmp_path)).describe(make_study())
    assert (user.hospital, user.sums) == ("a", None)
    assert user.num_samples in (12, 15)  # 14, to a multiple of the smallest cell
    peer = Hospital(peer_site(tmp_path)).describe(make_study())
    assert (peer.hospital, peer.num_samples in (18, 21)) == ("b", True)  # 20
    assert torch.get_num_threads() == 1
    sums = Hospital(user_site(tmp_path)).describe(make_study(scaling="federated")).sums
    assert sums is not None
    assert sums.count in ((12, 0), (15, 0))
    assert sums.total[1] == 0
    study = make_study(scaling="local")
    scaling = (
        Hospital(user_site(tmp_path)).evaluate(EvaluateRequest(study, {}, None)).header.scaling
    )
    assert scaling == pool([sums], study.task)  # of the training part alone


def test_a_round_has_the_learning_rate_of_its_schedule(tmp_path: Path) -> None:
    training = {"steps": 1, "batch_size": 100, "schedule": "inverse_sqrt"}  # a step on everybody
    study = make_study(rounds=8, training=training)
    hospital = Hospital(peer_site(tmp_path, limits={"min_local_steps": 1}))
    first, fourth = (hospital.answer(request(study, round=number)) for number in (1, 4))
    assert isinstance(first, TrainResult)
    assert isinstance(fourth, TrainResult)
    assert bool(first.delta.any())
    assert_close(fourth.delta, first.delta / 2)


def test_a_final_model_is_tuned_at_the_rate_after_its_arms_last_round(tmp_path: Path) -> None:
    training = {"steps": 1, "batch_size": 100, "schedule": "inverse_sqrt"}
    study = make_study(rounds=8, training=training, arms=["fine_tuning"])
    user = Hospital(user_site(tmp_path, limits={"min_local_steps": 1}))

    def moved(rounds: int) -> torch.Tensor:
        start, had = torch.zeros(DIM), {"fine_tuning": rounds}
        sent = Encoder().encode(EvaluateRequest(study, {"fine_tuning": start}, None, rounds=had))
        return user.evaluate(decode_evaluate(sent, KnownStudies())).personal["fine_tuning"]

    assert_close(moved(3), moved(0) / 2)


def test_training_is_that_of_local_sgd_on_all_of_a_peers_patients(tmp_path: Path) -> None:
    study = make_study()
    result = Hospital(peer_site(tmp_path)).train(request(study, 0.1))
    text = twenty_patients(older=5).splitlines()[1:]
    rows = [(float(a), float(s == "m")) for a, s, _ in (line.split(",") for line in text)]
    labels = torch.tensor([int(line[-1] != "0") for line in text])
    expected = train_locally(
        build_model(study.model, (2,), 2),
        torch.full((DIM,), 0.1),
        Samples(torch.tensor(rows), labels, cross_entropy),
        study.training,
        round_generator(study.seed, "b", 1),
    )
    assert torch.equal(result.delta, expected.delta)
    header = result.header
    assert (header.hospital, header.arm, header.round) == ("b", "fedavg", 1)
    assert (header.num_samples in (18, 21), header.samples_seen, header.metrics) == (True, 20, None)
    assert header.seconds > 0


@pytest.mark.parametrize(
    ("training", "changes", "steps"),
    [
        ({"epochs": 2, "batch_size": 8}, {}, 6),  # 20 patients: 8, 8 and 4, twice
        ({"steps": 6, "batch_size": 8}, {}, None),  # which the study says
        ({"epochs": 2, "batch_size": 8}, {"arms": ["fedavg"]}, None),  # which compares nothing
    ],
)
def test_steps_are_told_where_updates_are_compared_by_them(
    tmp_path: Path, training: dict[str, object], changes: dict[str, object], steps: int | None
) -> None:
    study = make_study(**{"training": training, "arms": ["weight_erosion"], **changes})
    asked = TrainRequest(study, next(iter(study.arms)), 1, torch.zeros(DIM), None)
    assert Hospital(peer_site(tmp_path)).train(asked).header.steps == steps


def test_the_user_measures_what_it_received_before_training(tmp_path: Path) -> None:
    metrics = Hospital(user_site(tmp_path)).train(request(make_study())).header.metrics
    assert metrics is not None
    assert (metrics.num_patients, metrics["accuracy"], metrics["auroc"]) == (6, 0.5, 0.5)
    assert metrics["majority_accuracy"] == 0.5
    assert metrics["log_loss"] == pytest.approx(np.log(2))
    sent = request(make_study(), sent=torch.tensor([3e38, 0.0, 0.0, 0.0, 0.0, 0.0]))
    reply = Hospital(user_site(tmp_path)).train(sent).header
    assert reply.own_loss == MOST_LOSS  # an infinite loss can be told
    assert TrainReply.model_validate_json(reply.model_dump_json()) == reply


def test_the_user_tells_the_loss_on_its_training_part_of_what_it_received(tmp_path: Path) -> None:
    study = make_study(arms={"fedavg": {}, "local": {}})
    sent = request(study, sent=torch.arange(DIM) / 10)
    hospital = Hospital(user_site(tmp_path))
    training, _ = LocalDataset(user_site(tmp_path), study).parts(sent.scaling, "fedavg")
    slopes, intercepts = torch.tensor([[0.0, 0.1], [0.2, 0.3]]), torch.tensor([0.4, 0.5])
    expected = cross_entropy(training.inputs @ slopes.T + intercepts, training.targets)
    assert hospital.train(sent).header.own_loss == pytest.approx(float(expected))
    assert hospital.train(replace(sent, arm="local")).header.own_loss is None
    peer = Hospital(peer_site(tmp_path)).train(sent)
    assert peer.header.own_loss is None


def test_an_arm_that_asks_nobody_is_scaled_by_the_users_own_patients(tmp_path: Path) -> None:
    study = make_study(scaling="federated")
    user = Hospital(user_site(tmp_path))
    sums = user.describe(study).sums
    assert sums is not None
    own = pool([sums], study.task)
    poisoned = Scaling(mean=(1e6, 0.0), deviation=(1e6, 1.0))
    asked = request(study)
    flat = asked.parameters
    assert flat is not None
    alone = [
        user.train(replace(asked, arm="local", scaling=scaling)).delta
        for scaling in (own, poisoned, None)
    ]
    assert alone[1].equal(alone[0])
    assert alone[2].equal(alone[0])
    together = [user.train(replace(asked, scaling=scaling)).delta for scaling in (own, poisoned)]
    assert not together[1].equal(together[0])
    finals = dict.fromkeys(study.arms, flat)
    figures = [
        user.evaluate(EvaluateRequest(study, finals, scaling)).header for scaling in (own, poisoned)
    ]
    assert figures[0].arms["local"] == figures[1].arms["local"]
    assert figures[1].own_scaling == own
    assert figures[1].scaling == poisoned


def test_what_a_scaling_cuts_is_told_once_to_people_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study, peer = make_study(scaling="federated"), Hospital(peer_site(tmp_path))
    peer.describe(study)
    for deviation in (10.0, 0.1, 0.1):
        peer.train(request(study, scaling=Scaling(mean=(60.0, 0.0), deviation=(deviation, 1.0))))
    (note,) = [found for found in caplog.messages if "cut" in found]
    assert says(note, "study small", "age", "100")


FOLDS: dict[str, Any] = {"evaluation": {"folds": 4, "repeats": 2, "bootstrap": 100}}


@pytest.mark.parametrize("scaling", ["federated", "local", "none"])
@pytest.mark.parametrize("held_out", ["folds", "trials"])
def test_folds_are_scaled_by_the_others(tmp_path: Path, held_out: str, scaling: str) -> None:
    changes = FOLDS if held_out == "folds" else {"selection": {"folds": 4}}
    study = make_study(task=with_missing("impute"), scaling=scaling, **changes)
    parts = fold_studies(study) if held_out == "folds" else next(iter(trials(study, "local")))
    asked_before = Hospital(user_site(tmp_path))

    def figures(hospital: Hospital, of: Study) -> object:
        prepared = hospital._prepare(of)
        return prepared.scaling(None, "local"), prepared.missing_values

    whole = figures(asked_before, study)
    found = [figures(asked_before, part) for part in parts]
    assert found == [figures(Hospital(user_site(tmp_path)), part) for part in parts]
    assert any(each != whole for each in found)


def test_what_is_not_told_is_no_set_of_the_budget(tmp_path: Path) -> None:
    """The folds of two cuts are 2 x 2 sets that differ in a cell of patients and more."""
    cut = {"folds": 2, "repeats": 2, "bootstrap": 100}
    study = make_study(scaling="federated", evaluation=cut)
    user = Hospital(user_site(tmp_path, budget={"sets": 1}))
    for each in (study, *fold_studies(study)):
        user._prepare(each)
    assert says(user.disclosed()[0], "1", "1 different")
    peer = Hospital(peer_site(tmp_path))
    for scaling in ("local", "user", "none"):
        peer._prepare(make_study(scaling=scaling)).begin()
    assert len(peer.disclosed()) == 1  # updates


def test_nothing_is_told_of_a_fold_or_trial(tmp_path: Path) -> None:
    user = Hospital(user_site(tmp_path))
    fold = fold_studies(make_study(scaling="federated", **FOLDS))[0]
    (trial, *_) = next(iter(trials(make_study(scaling="local", selection={}), "local")))
    for part in (fold, trial):
        with raises(Refusal, "its study"):
            user.describe(part)
        with raises(Refusal, "its study"):
            user.summarise(part)
    with raises(Refusal, "final figures"):
        user.evaluate(EvaluateRequest(trial, {}, None))


def test_missing_numbers_are_imputed_by_the_training_mean_without_scaling(tmp_path: Path) -> None:
    study = make_study(task=with_missing("impute"))
    site = make_site(tmp_path, twenty_patients() + "?,f,0\n")
    reply = Hospital(site).evaluate(EvaluateRequest(study, {}, None)).header
    assert reply.scaling is None
    assert reply.missing_means is not None
    assert 30 < reply.missing_means[0] < 65
    assert reply.missing_means[1] == 0
    assert Hospital(site).train(request(study)).delta.isfinite().all()


def test_the_user_evaluates_every_arm_and_the_declared_comparison(tmp_path: Path) -> None:
    text = "".join(twenty_patients(older=i).partition("\n")[2] for i in range(5))
    hospital = Hospital(make_site(tmp_path, "age,sex,ill\n" + text))
    # Logits of "ill" rise with age, and pass those of "healthy" at 50.
    good = torch.tensor([0.0, 0.0, 0.2, 0.0, 10.0, 0.0])
    study = make_study(evaluation={"bootstrap": 100})
    reply = hospital.evaluate(
        EvaluateRequest(study, {"fedavg": good, "local": torch.zeros(DIM)}, None)
    ).header
    assert reply.class_counts == {"healthy": 15, "ill": 15}
    assert reply.arms["fedavg"]["accuracy"] == 1
    assert reply.arms["local"].intervals["accuracy"].high <= 0.8
    assert reply.comparison is not None
    assert (reply.comparison.arm, reply.comparison.reference) == ("fedavg", "local")
    assert reply.comparison.conclusion == "better"
    again = hospital.evaluate(EvaluateRequest(study, {"fedavg": good}, None)).header
    assert again.comparison is None
    assert again.arms["fedavg"] == reply.arms["fedavg"]


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        (torch.zeros(7), "shape (7,)…model has 6"),
        (torch.zeros(2, 3), "shape (2, 3)"),
        (torch.zeros(6, dtype=torch.float64), "torch.float64"),
        (torch.full((6,), float("nan")), "not finite"),
        (None, "no parameters"),
        (Packed("float16", torch.zeros(1, dtype=torch.uint8).expand(2**44)), "model has 6"),
    ],
)
def test_wrong_parameters(
    tmp_path: Path, parameters: torch.Tensor | Packed | None, reason: str
) -> None:
    with raises(Refusal, reason):
        Hospital(peer_site(tmp_path)).train(request(make_study(), sent=parameters))


@pytest.mark.parametrize(
    "enclosed",
    [torch.zeros(7), torch.zeros(3, 7), torch.tensor(1.0), torch.full((2, 6), torch.nan)],
)
def test_what_is_enclosed_must_fit_the_model(tmp_path: Path, enclosed: torch.Tensor) -> None:
    with pytest.raises(Refusal):
        Hospital(peer_site(tmp_path)).train(request(make_study(), enclosed={"mean": enclosed}))


@pytest.mark.parametrize(
    ("scaling", "reason"),
    [
        (None, "brings no scaling"),
        (Scaling(mean=(0.0,), deviation=(1.0,)), "the study has 2 columns"),
        (Scaling(mean=(0.0, 0.0), deviation=(1.0, 0.0)), "not more than 0"),
        (Scaling(mean=(0.0, 0.0), deviation=(1.0, 1e-320)), "next to nothing"),
        (Scaling(mean=(0.0, -1e308), deviation=(1.0, 1.0)), "beyond all"),
    ],
)
def test_wrong_scalings_are_refused(tmp_path: Path, scaling: Scaling | None, reason: str) -> None:
    study = make_study(scaling="federated")
    with raises(Refusal, reason):
        Hospital(peer_site(tmp_path)).train(request(study, scaling=scaling))


def test_a_scaling_is_checked_in_the_first_round_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study of many columns has as many features to ask."""
    prepared = LocalDataset(peer_site(tmp_path), make_study(scaling="federated"))
    scaling = Scaling(mean=(0.0, 0.0), deviation=(1.0, 1.0))
    parts = prepared.parts(scaling)
    monkeypatch.setattr(TabularTask, "terms", None)
    assert prepared.parts(scaling.model_copy()) is parts


def test_what_cannot_be_answered_is_refused(tmp_path: Path) -> None:
    hospital = Hospital(user_site(tmp_path, limits={"min_patients": 15}))
    with raises(Refusal, "training", "limits.min_patients = 15"):
        hospital.describe(make_study())
    with pytest.raises(Refusal):
        hospital.train(request(make_study()))
    with raises(Refusal, "fedavg, local"):
        Hospital(peer_site(tmp_path)).train(request(make_study(), arm="ditto"))
    with raises(Refusal, "test part"):  # of a peer, which has none
        Hospital(peer_site(tmp_path)).evaluate(EvaluateRequest(make_study(), {}, None))
    other = Hospital(user_site(tmp_path, limits={"studies": ["other"]}))
    (tmp_path / "a.csv").unlink()  # a refused study reads no data
    with raises(Refusal, "limits.studies"):
        other.describe(make_study())


def test_a_peer_of_one_class_trains(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "age,sex,ill\n" + "".join(f"{30 + i},f,1\n" for i in range(12))
    hospital = Hospital(make_site(tmp_path, text, name="b"))
    assert hospital.train(request(make_study())).delta.isfinite().all()
    (note,) = caplog.messages
    assert says(note, "study small", "'ill'")
    for number in range(3):  # more than the studies whose data are kept
        hospital.train(request(make_study(fold={"number": number, "of": 3})))
    hospital.train(request(make_study(arms={"fedavg": {"weighting": "uniform"}})))  # a trial
    hospital.train(request(make_study()))
    assert len(caplog.messages) == 1


def test_a_device_that_is_not_there_is_a_site_error(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    site = user_site(tmp_path, compute={"device": "cuda"})
    with raises(SiteError, "compute.device"):
        Hospital(site)
    found = check_compute(site)
    assert found.outcome == Severity.FAILED
    assert says(found.text, "compute.device", '"cuda"')
    assert check_compute(user_site(tmp_path)).outcome == Severity.OK


def test_images_are_trained_on(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for label in ("0", "1"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for index in range(8):
            pixels = generator.integers(256, size=(4, 4), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / f"images/{label}/{index}.png")
    task = {"kind": "image", "classes": ["0", "1"], "shape": [1, 4, 4]}
    hospital = Hospital(make_site(tmp_path, file="images"))
    study = make_study(task=task)
    assert hospital.describe(study.model_copy(update={"scaling": "none"})).num_samples == 12
    result = hospital.train(request(study, sent=torch.zeros(34)))
    assert result.header.metrics is not None
    assert result.header.metrics.num_patients == 4
