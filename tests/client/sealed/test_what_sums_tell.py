"""The knowledge that sums and distances give to a coordinator that breaks the protocol."""

from pathlib import Path

import gmpy2
import numpy as np
import torch

from erosion.client.training.hospital import Hospital
from erosion.common.protocol.messages import TrainRequest
from erosion.common.sealed.distances.distance import Question
from erosion.common.sealed.distances.modulus_proof import prove
from erosion.common.sealed.sums.sum_rules import SumRules
from tests.client.sealed.sites import NAMES, attempt, sites
from tests.common.sealed.keys import noise, paillier_key
from tests.common.sealed.vectors import f32
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


def test_three_crafted_questions_read_an_update_of_eight_values() -> None:
    """A weakness that the threat model names: each answer is 64 bits of a function that is chosen.

    The first is |v|^2; the others are four values of 15 bits each, v_j 2^(15 j), beside it. The
    longest is 2^14 whole numbers long, which is as few digits as a site gives a distance of.
    """
    at, key = sites(3), paillier_key()
    updates = dict.fromkeys(NAMES[:3], f32([0.3, -0.1, 0.25, 0.02, -0.4, 0.15, 0.05, -0.2]))
    scale = 2.0**14 / float(np.linalg.norm(updates["s0"])) * 1.01
    half = int(gmpy2.invert(2, key.public.n))

    def asked(number: int, factors: dict[int, int]) -> int:
        roster = {n: at[n].hello(attempt(number), update) for n, update in updates.items()}
        crafted = [-half * factors.get(place, 0) for place in range(8)]
        sealed = [key.public.encrypt(value, noise()) for value in crafted]
        answer, _ = at["s0"].distance(roster, Question(key.public, sealed, scale), prove(key))
        return key.decrypt(answer) % 2**64

    square = asked(1, {})
    read = []
    for number, first in ((2, 0), (3, 4)):
        packed = asked(number, {first + j: 2 ** (15 * j) for j in range(4)}) - square
        for _ in range(4):
            digit = (packed + 2**14) % 2**15 - 2**14
            read.append(digit / scale)
            packed = (packed - digit) // 2**15
    assert np.abs(np.array(read) - updates["s0"]).max() < 1e-4
