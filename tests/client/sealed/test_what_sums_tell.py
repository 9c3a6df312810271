"""The knowledge that sums and distances give to a coordinator that breaks the protocol."""

from pathlib import Path

import numpy as np
import torch

from erosion_client.training.hospital import Hospital
from erosion_common.errors import Refusal
from erosion_common.protocol.messages import TrainRequest
from erosion_common.sealed.distance import Question
from erosion_common.sealed.paillier import prove
from erosion_common.sealed.phases import SumRules
from tests.client.sealed.sites import NAMES, attempt, sites
from tests.common.sealed.keys import noise, paillier_key
from tests.common.sealed.vectors import f32
from tests.support.said import raises
from tests.support.sealed_study import ARM, PEERS, sealed_study
from tests.support.small_study import TWO_NUMBERS, make_site, sixty_patients

ROUNDS = 40


def test_rounds_from_the_same_parameters_show_each_typical_update(tmp_path: Path) -> None:
    """A weakness that the threat model names: others have weight in each round."""
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
    weights = np.array([np.roll([0.25] * 4 + [0], number) for number in range(ROUNDS)])
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
    assert np.linalg.norm(of_two - typical) > np.linalg.norm(found - typical)


def test_a_crafted_question_reads_two_of_eight_values_and_there_is_no_second_one() -> None:
    """A weakness that the threat model names: an answer is 64 bits of a function that is chosen.

    Here |v|^2, and two values of 15 bits above it. The update is 2^14 whole numbers long, which is
    as few digits as a site gives a distance of.
    """
    at, key = sites(4), paillier_key()
    updates = dict.fromkeys(NAMES[:4], f32([0.3, -0.1, 0.25, 0.02, -0.4, 0.15, 0.05, -0.2]))
    scale = 2.0**14 / float(np.linalg.norm(updates["s0"])) * 1.01
    half = int(pow(2, -1, key.public.n))
    context = attempt(1)
    proof = prove(key, context.run_hash)
    roster = {n: at[n].hello(context, update) for n, update in updates.items()}

    def asked(factors: dict[int, int]) -> int:
        crafted = [-half * factors.get(place, 0) for place in range(8)]
        sealed = [key.public.encrypt(value, noise()) for value in crafted]
        answer, _ = at["s0"].distance(roster, Question(key.public, sealed, scale), proof)
        return key.decrypt(answer) % 2**64

    packed, read = asked({0: 2**30, 1: 2**46}) >> 30, []
    for _ in range(2):
        digit = (packed + 2**15) % 2**16 - 2**15
        read.append(digit / scale)
        packed = (packed - digit) // 2**16
    assert np.abs(np.array(read) - updates["s0"][:2]).max() < 1e-4
    with raises(Refusal, "distance", "already"):
        asked({2: 2**30, 3: 2**46})
    roster = {n: at[n].hello(attempt(2), update) for n, update in updates.items()}
    with raises(Refusal, "distance", "already"):
        asked({2: 2**30, 3: 2**46})
