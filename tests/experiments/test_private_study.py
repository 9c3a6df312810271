"""A study with differential privacy as a whole: what its coordinator makes of noised updates."""

from pathlib import Path
from typing import Any

import pytest

from erosion.simulation.simulator import introduce
from erosion_client.training.hospital import Hospital
from erosion_common.errors import RunError
from erosion_common.rounds.records import RoundRecord
from tests.support.sealed_study import HOSPITALS, USER, Line, hospitals, run_in, sealed_study
from tests.support.small_study import make_site, sixty_patients
from tests.support.without_noise import make_fedavg_ask_for_a_mean


def rounds_of(
    folder: Path, known: dict[str, Hospital], arm: str, *, epsilon: float, **changes: Any
) -> list[RoundRecord]:
    """Of that arm, over these hospitals."""
    user = known[USER]
    limits = user.site.limits.model_copy(update={"min_local_steps": 1})
    user.site = user.site.model_copy(update={"limits": limits})
    study = sealed_study(
        arms={arm: {}, "local": {}},
        privacy={"epsilon": epsilon, "learning_rate": 2.0},
        scaling="user",
        **changes,
    )
    outcome, _ = run_in(folder, Line(study, known))
    return list(outcome.records[arm])


@pytest.mark.parametrize("arm", ["weight_erosion", "evidence_erosion"])
def test_what_is_taken_for_noise_does_not_depend_on_a_training_that_nobody_uses(
    tmp_path: Path, arm: str
) -> None:
    found = []
    for steps, batch_size in ((1, 2), (5, 60)):
        folder = tmp_path / str(steps)
        folder.mkdir()
        training = {"steps": steps, "batch_size": batch_size, "learning_rate": 0.5}
        records = rounds_of(
            folder, hospitals(folder), arm, epsilon=3.0, sealed=False, training=training
        )
        found.append(
            [
                (name, entry.samples_seen, entry.distance, entry.weight_after)
                for record in records
                for name, entry in record.hospitals.items()
                if name != USER
            ]
        )
    assert found[0] == found[1]
    assert {seen for _, seen, *_ in found[0]} == {60}


@pytest.mark.parametrize("sealed", [False, True])
def test_a_small_hospital_is_not_turned_away_for_the_noise_that_it_was_told_to_add(
    tmp_path: Path, sealed: bool
) -> None:
    """Its update is far longer than those of hospitals with a hundred times its patients."""
    known = {}
    for name in HOSPITALS:
        header, *lines = sixty_patients(name).splitlines()
        lines = lines[:12] if name == "erin" else lines * 20
        keyed = [f"{number},{line}" for number, line in enumerate(lines)]
        site = make_site(
            tmp_path,
            "\n".join([f"id,{header}", *keyed]) + "\n",
            name=name,
            file=f"{name}.csv",
            data={"patient": "id"},
        )
        known[name] = Hospital(site)
    introduce(known)
    records = rounds_of(tmp_path, known, "fedavg", epsilon=0.1, sealed=sealed)
    said = [(r.hospitals["erin"].outcome, r.hospitals["erin"].reason) for r in records]
    assert said == [("accepted", "")] * len(records)


def test_a_simulated_hospital_answers_nothing_without_noise_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_fedavg_ask_for_a_mean(monkeypatch)
    changes = {"sealed": False, "quorum": 2, "rounds": 1}
    with pytest.raises(RunError, match=r"'mean' answers has no noise"):
        rounds_of(tmp_path, hospitals(tmp_path), "fedavg", epsilon=3.0, **changes)
