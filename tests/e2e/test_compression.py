"""Compressed parameters and updates over real gRPC."""

from pathlib import Path

from erosion_server.run.journal import read_journal
from tests.support.federation import Federation, small_study


def test_a_compressed_deployment_equals_its_simulation(tmp_path: Path) -> None:
    study = small_study(
        model={"name": "mlp", "hidden": [200]},
        arms={"weight_erosion": {"distance_penalty": 0.1}, "scaffold": {}},
        federation={
            "compression": "int8",
            "round_deadline_seconds": 120.0,
            "join_deadline_seconds": 300.0,
        },
    )
    with Federation(study, tmp_path) as federation:
        for name in study.hospitals:
            federation.start_site(name)
        federation.start()
        federation.finish()
        federation.compare_with_simulation()
        lines = list(read_journal(federation.run_folder.journal))
    numbers = 2 * 200 + 200 + 200 * 2 + 2  # of the model
    for line in lines:
        if line["arm"] == "weight_erosion":
            for hospital in line["hospitals"].values():
                assert hospital["bytes_received"] < 4 * numbers  # a quarter, and the header
