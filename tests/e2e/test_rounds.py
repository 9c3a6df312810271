"""The promises of the driver of rounds, over real gRPC."""

from pathlib import Path

from erosion_server.run.journal import read_journal
from tests.support import programs
from tests.support.federation import Federation, small_study


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
