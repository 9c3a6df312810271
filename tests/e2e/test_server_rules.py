"""Every rule that the coordinator alone applies gives over gRPC what it gives in simulation."""

from pathlib import Path

from tests.support.federation import Federation, small_study

ARMS = {
    "weighted_gradient": {},
    "bias_correction": {"server_optimizer": "momentum"},
    "krum": {},
    "multi_krum": {},
    "coordinate_median": {},
    "trimmed_mean": {},
    "geometric_median": {},
    "centered_clipping": {},
    "eroding_by_samples": {
        "algorithm": "weight_erosion",
        "weighting": "samples",
        "distance": "cosine",
        "distance_penalty": "auto",
    },
}


def test_the_rules_of_the_coordinator_are_those_of_the_simulation(tmp_path: Path) -> None:
    with Federation(small_study(arms=ARMS, rounds=3), tmp_path) as federation:
        for name in federation.study.hospitals:
            federation.start_site(name)
        federation.start()
        federation.finish()
        federation.compare_with_simulation()
