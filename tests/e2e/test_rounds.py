"""What the driver of rounds promises, over real gRPC."""

from pathlib import Path

import torch

from erosion.client.site_file import load_site
from erosion.client.training.hospital import Hospital
from erosion.common.rounds import checkpoint
from erosion.experiments.simulator import simulate
from erosion.server.run.journal import read_journal
from tests.support import programs
from tests.support.early_stopping import ROUND, default_study, write_sites
from tests.support.federation import Federation, small_study


def test_an_arm_that_its_rule_stops_has_a_result_and_the_other_arms_run(tmp_path: Path) -> None:
    study = default_study()
    with Federation(study, tmp_path) as federation:
        sites = write_sites(study, tmp_path / "sites", federation.link.address)
        for name, path in sites.items():
            federation.start_program(name, programs.honest, path)
        federation.start()
        result = federation.finish()
        folder = federation.run_folder
    hospitals = {name: Hospital(load_site(path)) for name, path in sites.items()}
    simulated = simulate(study, hospitals)
    assert list(result.arms) == ["weight_erosion", "local"]
    stopped, other = result.arms.values()
    assert (stopped.rounds, stopped.skipped_rounds) == (ROUND, 0)
    assert stopped.stopped is not None
    assert "fit into no cone of 84 degrees" in stopped.stopped
    assert (other.rounds, other.stopped) == (study.rounds, None)
    assert "weight_erosion stopped in round 4: the updates" in folder.report.read_text()
    for arm, final in simulated.finals.items():
        path = folder.checkpoint(arm)
        deployed = checkpoint.load(path, final, arm=arm, study_digest=study.digest)
        assert deployed.stopped == final.stopped
        torch.testing.assert_close(deployed.params, final.params, rtol=1e-6, atol=1e-7)
        assert result.arms[arm].metrics == simulated.evaluation.arms[arm]


def test_a_site_that_lost_the_study_is_sent_it_again_within_the_round(tmp_path: Path) -> None:
    study = small_study(arms={"weight_erosion": {}, "fedlin": {}}, rounds=2)
    with Federation(study, tmp_path) as federation:
        federation.start_site("alice", programs.forgets_its_studies)  # the user: figures, too
        federation.start_site("bob", programs.forgets_its_studies)
        federation.start_site("carol")
        federation.start()
        federation.finish()
        federation.compare_with_simulation()
        lines = list(read_journal(federation.run_folder.journal))
    size = len(study.canonical_json())
    assert [line["outcome"] for line in lines] == ["done"] * 4
    for line in lines:
        sent = {name: entry["bytes_sent"] for name, entry in line["hospitals"].items()}
        assert {entry["outcome"] for entry in line["hospitals"].values()} == {"accepted"}
        assert sent["alice"] > sent["carol"] + size  # the request twice, once with the study
        assert sent["bob"] > sent["carol"] + size
