"""Every rule that the coordinator alone applies gives over gRPC what it gives in simulation."""

from pathlib import Path

import pytest
import torch

from common import checkpoint
from experiments.simulator import simulate
from tests.e2e.federation import Federation, small_study

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
        result = federation.finish()
        study = federation.study
        simulated = simulate(study, {name: federation.hospital(name) for name in study.hospitals})
        for arm, final in simulated.finals.items():
            deployed = checkpoint.load(
                federation.run_folder.checkpoint(arm), final, arm=arm, study_digest=study.digest
            )
            torch.testing.assert_close(deployed.params, final.params, rtol=1e-6, atol=1e-7)
            assert deployed.weights == pytest.approx(final.weights)
            assert result.arms[arm].metrics == simulated.evaluation.arms[arm]
