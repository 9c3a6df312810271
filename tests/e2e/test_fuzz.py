"""Sites that answer every request with nonsense, two hundred times in all."""

from pathlib import Path

from erosion_common.support.process import peak_megabytes
from tests.support import fuzzing, programs
from tests.support.federation import Federation, small_study

ROUNDS = 200 // len(fuzzing.SITES)
MOST_MEGABYTES = 1000  # more than before: 490 to 640 were seen, and the site pushes several GB


def test_200_malformed_replies_cost_nobody_a_round_and_leave_nothing_behind(
    tmp_path: Path,
) -> None:
    study = small_study(
        rounds=ROUNDS,
        arms={"fedavg": {}},
        hospitals=["alice", "carol", *fuzzing.SITES],
        federation={"round_deadline_seconds": 10.0},
    )
    before = peak_megabytes() or 0.0
    with Federation(study, tmp_path) as federation:
        federation.start_site("alice", programs.takes_its_time)
        for name in fuzzing.SITES:
            federation.start_site(name, fuzzing.fuzzes)
        federation.start_site("carol")
        federation.start()
        result = federation.finish()
        records = federation.observer.records
        assert len(federation.link._sessions.exchange) == 0
    assert [r.outcome for r in records] == ["done"] * ROUNDS
    for record in records:
        for name in fuzzing.SITES:
            liar = record.hospitals[name]
            assert liar.outcome in ("rejected", "absent"), (record.round, name)
            assert liar.reason
        assert record.hospitals["alice"].outcome == "accepted", record.round
        assert record.hospitals["carol"].outcome == "accepted", record.round
    assert result.verdict.text
    assert federation.run_folder.report.exists()
    assert (peak_megabytes() or 0.0) - before < MOST_MEGABYTES
