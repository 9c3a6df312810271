"""The weights that a run reports are those that its rule used."""

from pathlib import Path

import pytest
from torch import Tensor

from erosion.simulation.simulator import simulate, timeless
from erosion_client.training.hospital import Hospital
from erosion_common.algorithms.fedfomo import FedFomo
from erosion_common.learning.local_work import LocalOutcome, LocalWork
from tests.support.federation import small_study
from tests.support.small_study import make_site, sixty_patients


def sites(folder: Path) -> dict[str, Hospital]:
    """Three hospitals, of which carol has its labels the wrong way round."""
    found = {}
    for name in ("alice", "bob", "carol"):
        text = sixty_patients(name)
        if name == "carol":
            text = text.replace("yes", "?").replace("no", "yes").replace("?", "no")
        found[name] = Hospital(make_site(folder, text, name=name, file=f"{name}.csv"))
    return found


def test_fedfomos_weights_are_those_that_the_users_site_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Tensor] = []
    honest = FedFomo.train

    def train(arm: FedFomo, work: LocalWork) -> LocalOutcome:
        outcome = honest(arm, work)
        if work.is_user:
            sent.append(outcome.attachments["shares"])
        return outcome

    monkeypatch.setattr(FedFomo, "train", train)
    study = small_study(arms={"fedfomo": {}})
    records = simulate(study, sites(tmp_path), clock=timeless).records["fedfomo"]
    assert len(sent) == len(records) == 4
    reported = {name: entry.weight_after for name, entry in records[-1].hospitals.items()}
    own, bob, carol = sent[-1].tolist()
    assert bob > carol >= 0
    assert reported == pytest.approx({"alice": 1.0, "bob": bob / own, "carol": carol / own})
