"""Small batches are refused for a reason: an update of one patient is that patient's record.

For logistic regression the gradient of one patient x is (p - y) x for the weights and (p - y) for
the bias (Zhu et al. 2019, "Deep leakage from gradients", section 2), so their quotient is x.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from erosion_client.dataset.load import load_patients
from erosion_client.site_file import Site
from erosion_client.training.hospital import Hospital
from erosion_common.errors import Refusal
from erosion_common.protocol.messages import TrainRequest
from erosion_common.study.study import Study
from experiments.reconstruction import fitted, num_found, solved
from tests.support.federation import small_study
from tests.support.rogue import NUM_PATIENTS, write_patients
from tests.support.rogue import patients as victims
from tests.support.said import raises
from tests.support.small_study import TWO_NUMBERS, make_site, make_study, twenty_patients

NO_LIMITS = {"min_patients": 1, "min_batch_size": 1, "min_local_steps": 1}


def peer(folder: Path, **keys: Any) -> Site:
    return make_site(folder, twenty_patients(), name="b", file="b.csv", **keys)


def one_step_on(batch_size: int) -> Study:
    return make_study(training={"steps": 1, "batch_size": batch_size, "learning_rate": 0.1})


def update_of(site: Site, study: Study) -> Tensor:
    """What the coordinator receives: (dim,), four weights and two biases."""
    request = TrainRequest(study, "fedavg", 1, torch.zeros(6), None)
    return Hospital(site).train(request).delta


def record_in(update: Tensor) -> tuple[float, float]:
    """What anybody who sees the update can work out: age and sex."""
    weights, biases = update[:4].reshape(2, 2), update[4:]
    age, sex = (weights[1] / biases[1]).tolist()
    return age, sex


def patients(site: Site) -> list[tuple[float, float]]:
    rows = load_patients(site, one_step_on(4)).rows
    return [(float(age), float(sex)) for age, sex in rows]


def test_a_batch_of_one_patient_gives_that_patients_record_away(tmp_path: Path) -> None:
    site = peer(tmp_path, limits=NO_LIMITS)
    age, sex = record_in(update_of(site, one_step_on(1)))
    assert any(abs(age - a) < 1e-3 and abs(sex - s) < 1e-5 for a, s in patients(site))


def test_a_batch_of_several_patients_does_not(tmp_path: Path) -> None:
    site = peer(tmp_path, limits=NO_LIMITS)
    age, sex = record_in(update_of(site, one_step_on(8)))
    assert all(abs(age - a) > 0.1 or abs(sex - s) > 0.1 for a, s in patients(site))


def test_the_limit_on_batches_stops_it_before_anything_is_computed(tmp_path: Path) -> None:
    site = peer(tmp_path, limits={**NO_LIMITS, "min_batch_size": 2})
    with raises(Refusal, "1", "limits.min_batch_size = 2"):
        update_of(site, one_step_on(1))


def test_the_limits_of_a_new_site_file_stop_it(tmp_path: Path) -> None:
    with raises(Refusal, "batches", "1"):
        update_of(peer(tmp_path), one_step_on(1))


def first_update_of(
    folder: Path, lines: list[str], study: Study, **limits: int
) -> tuple[Tensor, Tensor]:
    """From zeros, of a logistic regression of age and dose: (outputs, 2), and biases (outputs,)."""
    limits = {"min_cell": 10, **limits}
    site = make_site(folder, "\n".join(lines) + "\n", name="b", limits=limits)
    outputs = study.task.num_outputs
    request = TrainRequest(study, "fedavg", 1, torch.zeros(3 * outputs), None)
    update = Hospital(site, bytes(32)).train(request).delta.double()
    return update[: 2 * outputs].reshape(outputs, 2), update[2 * outputs :]


def test_a_class_of_one_patient_beside_a_class_of_nobody_gives_that_patients_record(
    tmp_path: Path,
) -> None:
    """A weakness that the threat model names: what both classes' parts share is gone in between."""
    draws = torch.randn(80, 2, generator=torch.Generator().manual_seed(1)).tolist()
    lines = [
        f"{age:.4f},{dose:.4f},{2 if n == 17 else n % 2}" for n, (age, dose) in enumerate(draws)
    ]
    classes = [{"name": f"grade {value}", "values": [value]} for value in range(4)]
    study = make_study(
        task={**TWO_NUMBERS, "classes": classes},
        training={"epochs": 1, "batch_size": 16, "learning_rate": 1e-3},
    )
    weights, biases = first_update_of(tmp_path, ["age,dose,ill", *lines], study)
    found = ((weights[3] - weights[2]) / (biases[3] - biases[2])).tolist()
    assert found == pytest.approx(draws[17], abs=0.05)
    with raises(Refusal, "limits.min_class = 10"):
        first_update_of(tmp_path, ["age,dose,ill", *lines], study, min_class=10)


def test_an_interaction_with_a_category_of_one_patient_gives_that_patients_values(
    tmp_path: Path,
) -> None:
    """At any rate and after any steps: nobody else moves the weights of these products."""
    draws = torch.randn(80, 2, generator=torch.Generator().manual_seed(1)).tolist()
    lines = [
        f"{a:.4f},{d:.4f},{'r' if n == 17 else 'ab'[n % 2]},{n % 3 == 0:d}"
        for n, (a, d) in enumerate(draws)
    ]
    text = "\n".join(["age,dose,ward,ill", *lines, ""])
    features = [*TWO_NUMBERS["features"], {"name": "ward", "categories": ["a", "b", "r"]}]
    study = make_study(
        task={
            **TWO_NUMBERS,
            "classes": ["0", "1"],
            "features": features,
            "interactions": [["ward", "age"], ["ward", "dose"]],
        },
        training={"epochs": 3, "batch_size": 16, "learning_rate": 0.5},
    )
    request = TrainRequest(study, "fedavg", 1, torch.zeros(18), None)

    def weights(**limits: int) -> Tensor:
        site = make_site(tmp_path, text, name="b", limits={"min_cell": 10, **limits})
        return Hospital(site, bytes(32)).train(request).delta[:8]

    _, _, _, of_r, _, age, _, dose = weights().tolist()
    assert [age / of_r, dose / of_r] == pytest.approx(draws[17], abs=1e-3)
    with raises(Refusal, "limits.min_class = 2"):
        weights(min_class=2)


BY_CHANCE = 3  # of 60 patients


def found_in(
    folder: Path, study: Study, attack: Callable[[list[Tensor], list[Tensor]], Any], *, follow: bool
) -> list[int]:
    """The records that an attack finds where the order of patients is public, and where not.

    It sees the parameters and update of every round; `follow`: from where the last update led, else
    from zero.
    """
    write_patients(folder / "bob.csv", victims())
    site, found = make_site(folder, name="bob", file="bob.csv"), []
    for secret in (b"", b"s" * 32):
        hospital, parameters, starts, deltas = Hospital(site, secret), torch.zeros(6), [], []
        for number in range(1, study.rounds + 1):
            request = TrainRequest(study, "fedavg", number, parameters, None)
            starts.append(parameters)
            deltas.append(hospital.train(request).delta)
            parameters = parameters + deltas[-1] if follow else parameters
        found.append(num_found(attack(starts, deltas), victims()))
    return found


def test_chosen_parameters_are_no_system_of_equations_in_the_records(tmp_path: Path) -> None:
    """Zero parameters, a tiny rate, 90 requests: 60 of 60 patients where the order is public."""
    training = {"steps": 3, "batch_size": 16, "learning_rate": 1e-4}
    study = small_study(arms={"fedavg": {}}, scaling="none", rounds=90, training=training)
    public, secret = found_in(
        tmp_path, study, lambda _, deltas: solved(study, "bob", deltas, NUM_PATIENTS), follow=False
    )
    assert public == NUM_PATIENTS
    assert secret <= BY_CHANCE


def test_parameters_that_say_no_read_the_few_in_rounds_of_few(tmp_path: Path) -> None:
    """The biases' update counts those in the round; where it is one, the weights' shows who."""
    draws = torch.randn(300, 2, generator=torch.Generator().manual_seed(1))
    lines = [f"{a:.4f},{d:.4f},{'yn'[n % 12 > 0]}" for n, (a, d) in enumerate(draws.tolist())]
    site = make_site(tmp_path, "\n".join(["age,dose,ill", *lines, ""]), limits={"min_cell": 10})
    study = make_study(
        rounds=100,
        user="b",
        arms=["fedavg"],
        task={**TWO_NUMBERS, "classes": ["n", "y"]},
        training={"steps": 2, "batch_size": 8, "learning_rate": 0.1},
    )
    hospital, found = Hospital(site, b"s" * 32), list[int]()
    says_no = torch.tensor([0.0, 0, 0, 0, 6, -6])
    for number in range(1, study.rounds + 1):
        update = hospital.train(TrainRequest(study, "fedavg", number, says_no, None)).delta
        if abs(float(update[5]) * 80 - 1) < 0.1:  # one patient moves it by .1 / 8
            apart = (draws - update[2:4] / update[5]).abs().amax(dim=1)
            assert float(apart.min()) < 0.05
            found.append(int(apart.argmin()))
    assert len(found) > 20
    assert len(set(found)) > 15


def test_an_ordinary_study_of_200_rounds_gives_no_record(tmp_path: Path) -> None:
    training = {"steps": 3, "batch_size": 8, "learning_rate": 0.1}
    study = small_study(arms={"fedavg": {}}, scaling="none", rounds=200, training=training)
    public, secret = found_in(
        tmp_path,
        study,
        lambda starts, deltas: fitted(study, "bob", starts, deltas, NUM_PATIENTS),
        follow=True,
    )
    assert public > 10
    assert secret <= BY_CHANCE
