"""A site and a model that it installed: only what its limits allow is run, and nothing is lost."""

import hashlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from erosion.simulation.simulator import simulate
from erosion_client.consent.review import asked, leaving
from erosion_client.preflight.study_checks import check_model
from erosion_client.records.records import Records
from erosion_client.site_file import Site
from erosion_client.training.hospital import Hospital
from erosion_common.errors import Refusal, SiteError
from erosion_common.learning.models import Mlp, build_model
from erosion_common.protocol.messages import DescribeReply
from erosion_common.rounds.study import StudyOutcome
from erosion_common.study.study import Study
from tests.support.installed_package import forgotten_afterwards, install
from tests.support.said import raises, says
from tests.support.small_study import make_site, make_study, twenty_patients

# A width that a study's option does not give: of the surroundings, or of the patients.
ODD = """
    from pathlib import Path
    from torch import nn

    class Net(nn.Module):
        def __init__(self, input_shape, num_outputs, width, fails):
            super().__init__()
            self.hidden = nn.Linear(input_shape[0], width)
            self.drop = nn.Dropout(0.5)
            self.out = nn.Linear(width, num_outputs)
            self.fails = fails

        def forward(self, inputs):
            if self.fails and float(inputs[:, 0].max()) > 20:
                raise RuntimeError(f"patient of {float(inputs[:, 0].max())} years")
            return self.out(self.drop(self.hidden(inputs).tanh()))

    def make(input_shape, num_outputs, width=4, file="", fails=False):
        width = int(Path(file).read_text()) if file else width
        return Net(input_shape, num_outputs, width, fails)
"""


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from forgotten_afterwards(monkeypatch)


def study_of(sha256: str, **options: Any) -> Study:
    model = {"name": "installed", "entry_point": "small-net", "sha256": sha256, "options": options}
    return make_study(model=model, rounds=2, federation={"quorum": 1, "start": "quorum"})


def site(folder: Path, sha256: str | None, name: str = "a") -> Site:
    limits: dict[str, Any] = {"min_patients": 2}
    if sha256 is not None:
        limits["installed_models"] = {"small-net": sha256}
    return make_site(folder, twenty_patients(), name=name, file=f"{name}.csv", limits=limits)


def simulated(study: Study, **sites: Site) -> StudyOutcome:
    return simulate(study, {name: Hospital(found) for name, found in sites.items()})


def test_a_site_runs_only_what_its_limits_name_by_entry_point_and_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256 = install(tmp_path, monkeypatch, ODD, package="ward_q")
    study = study_of(sha256)
    for allowed, said in (
        (None, "limits.installed_models allows none"),
        ("1" * 64, f"limits.installed_models allows it with {'1' * 64} only"),
    ):
        with pytest.raises(Refusal) as refusal:
            Hospital(site(tmp_path, allowed)).describe(study)
        assert says(str(refusal.value), "'small-net'", "SHA-256", said)
    assert "ward_q" not in sys.modules
    described = Hospital(site(tmp_path, sha256)).describe(study)
    assert described.model is not None
    assert described.model.num_parameters == 2 * 4 + 4 + 4 * 2 + 2


def test_dropout_repeats_its_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sha256 = install(tmp_path, monkeypatch, ODD, package="ward_r")
    study = study_of(sha256)
    sites = {name: site(tmp_path, sha256, name) for name in ("a", "b")}
    first = simulated(study, **sites)
    torch.manual_seed(5)
    again = simulated(study, **sites)
    assert {r.hospitals["b"].outcome for r in first.records["fedavg"]} == {"accepted"}
    assert torch.equal(first.finals["fedavg"].params, again.finals["fedavg"].params)
    assert len(first.finals["fedavg"].params) == 22


def test_a_peer_whose_code_makes_another_model_is_left_out_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sha256 = install(tmp_path, monkeypatch, ODD, package="ward_s")
    width = tmp_path / "width"
    width.write_text("4")
    study = study_of(sha256, file=str(width))

    class Elsewhere(Hospital):
        def describe(self, study: Study, run: str = "") -> DescribeReply:
            width.write_text("5")
            found = super().describe(study, run)
            width.write_text("4")
            return found

    sites = {"a": Hospital(site(tmp_path, sha256)), "b": Elsewhere(site(tmp_path, sha256, "b"))}
    with caplog.at_level(logging.ERROR):
        found = simulate(study, sites)
    assert {r.hospitals["a"].outcome for r in found.records["fedavg"]} == {"accepted"}
    assert "b" not in found.finals["fedavg"].weights
    assert says(caplog.text, "27 parameters", "coordinator's", "22")


def test_a_model_that_fails_on_patients_costs_a_round_and_its_words_stay_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sha256 = install(tmp_path, monkeypatch, ODD, package="ward_t")
    study = study_of(sha256, fails=True)
    young = site(tmp_path, sha256)
    assert young.data.describe()
    (tmp_path / "a.csv").write_text(
        "age,sex,ill\n" + "".join(f"{i},{'fm'[i % 2]},{i // 10}\n" for i in range(20))
    )
    with caplog.at_level(logging.ERROR):
        found = simulated(study, a=young, b=site(tmp_path, sha256, "b"))
    record = found.records["fedavg"][0].hospitals["b"]
    assert (record.outcome, record.reason) == (
        "absent",
        "SiteError at the site; its own log says more",
    )
    assert says(caplog.text, "hospital's", "RuntimeError")


def test_a_model_that_cannot_be_copied_is_declined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds_a_generator = """
        from torch import nn

        def make(input_shape, num_outputs):
            model = nn.Linear(input_shape[0], num_outputs)
            model.left = (name for name in ())
            return model
    """
    sha256 = install(tmp_path, monkeypatch, holds_a_generator, package="ward_copy")
    with raises(SiteError, "small-net", "generator"):
        Hospital(site(tmp_path, sha256)).describe(study_of(sha256))


def test_check_and_review_show_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sha256 = install(tmp_path, monkeypatch, ODD, package="ward_u")
    study = study_of(sha256)
    refused, allowed = site(tmp_path, None), site(tmp_path, sha256)
    code, limits, rest = check_model(refused, study)
    assert code.text == f"'small-net' is ward_u:make of ward_u 1.0, SHA-256 {sha256}"
    assert limits.remedy.endswith(f'[limits.installed_models]: "small-net" = "{sha256}"')
    assert rest.text == "its code is not run before the limits allow it"
    assert any(says(line, "numbers", "installed") for line in leaving(refused, study))
    assert "ward_u" not in sys.modules
    _, counted = check_model(allowed, study)
    assert counted.text == "'small-net': 22 parameters travel"
    assert any(says(line, "update", "22 numbers") for line in leaving(allowed, study))
    assert any(
        says(line, "SHA-256", f"{sha256}") for line in asked(allowed, study, Records(None, "b"))
    )
    other = study_of("2" * 64)
    (found, *_) = check_model(allowed, other)
    assert says(found.text, "study", f"{'2' * 64}")


def test_frozen_parts_never_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    torch.save(build_model(Mlp(hidden=(6,)), (2,), 5).state_dict(), folder / "net.pt")
    digest = hashlib.sha256((folder / "net.pt").read_bytes()).hexdigest()
    model = {
        "name": "mlp",
        "hidden": [6],
        "pretrained": {"file": "net.pt", "sha256": digest, "new": ["3.*"]},
        "frozen": ["1.*"],
    }
    study = make_study(model=model, rounds=2)
    sites = {
        name: make_site(
            tmp_path,
            twenty_patients(),
            name=name,
            file=f"{name}.csv",
            limits={"min_patients": 2},
            compute={"weights": folder},
        )
        for name in ("a", "b")
    }
    start, counted = check_model(sites["a"], study)
    assert start.text == f"starts from net.pt, SHA-256 {digest}; afresh start 3.*"
    assert counted.text == (
        "mlp: 14 parameters travel; 18 are frozen and never do (1.weight, 1.bias)"
    )
    found = simulated(study, **sites)
    assert len(found.finals["fedavg"].params) == 14
    compute = sites["a"].compute.model_copy(update={"weights": tmp_path})
    absent = sites["a"].model_copy(update={"compute": compute})
    (missing,) = check_model(absent, study)
    assert missing.text == f"There are no weights {tmp_path / 'net.pt'}"
    assert missing.remedy.startswith("Put the file there")
