"""The knowledge that weighted sums give to somebody who chooses what the hospitals start from."""

from pathlib import Path

import numpy as np
import torch

from erosion.client.training.hospital import Hospital
from erosion.common.protocol.messages import TrainRequest
from erosion.common.sealed.sums.sum_rules import SumRules
from tests.support.sealed_study import ARM, PEERS, sealed_study
from tests.support.small_study import TWO_NUMBERS, make_site, sixty_patients

ROUNDS = 40


def test_rounds_that_all_begin_from_the_same_parameters_tell_each_ones_typical_update(
    tmp_path: Path,
) -> None:
    """A weakness that the threat model names: three hospitals with weight, others each round."""
    study = sealed_study(sealed=False, rounds=ROUNDS, task=TWO_NUMBERS)
    updates = np.array(
        [
            [
                site.train(
                    TrainRequest(study, ARM, number, torch.zeros(6), None, "run")
                ).delta.numpy()
                for number in range(1, ROUNDS + 1)
            ]
            for site in (
                Hospital(make_site(tmp_path, sixty_patients(n), name=n, file=f"{n}.csv"), bytes(32))
                for n in PEERS
            )
        ]
    )  # (hospital, round, dim)
    weights = np.array([np.roll([0.5, 0.25, 0.25, 0], number) for number in range(ROUNDS)])
    assert all(
        SumRules().problem_with(dict(zip(PEERS, row.tolist(), strict=True))) is None
        for row in weights
    )
    sums = np.einsum("rh,hrd->rd", weights, updates)
    found, *_ = np.linalg.lstsq(weights, sums, rcond=None)
    typical = updates.mean(axis=1)
    cosines = (found * typical).sum(axis=1) / np.linalg.norm(found, axis=1)
    cosines /= np.linalg.norm(typical, axis=1)
    assert min(cosines) > 0.9
    of_two = sums[:2].mean(axis=0)  # what two rounds tell is about everybody alike
    assert np.linalg.norm(of_two - typical[0]) > np.linalg.norm(found[0] - typical[0])
