"""The building blocks of sealed rounds, against values worked out by hand."""

import contextlib
import itertools
import secrets

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from erosion_common.sealed.keys import digest, new_pair
from erosion_common.sealed.masks import (
    BUCKETS,
    CHUNK,
    LARGEST,
    Mask,
    Words,
    apply_masks,
    decode_sum,
    encode_update,
    fits_range,
    scale_for,
    sketch,
)
from erosion_common.sealed.shares import (
    PairChannel,
    Shares,
    combine_shares,
    split_secret,
    threshold,
)
from tests.common.sealed.vectors import f32, u32
from tests.support.refusals import refused

KEYS = st.binary(min_size=32, max_size=32)


def test_parts_that_run_together_have_other_hashes() -> None:
    assert digest("ab", "c") != digest("a", "bc") != digest("abc")
    assert digest(0.1) != digest(0.1 + 2**-56)


def add_mask(words: Words, key: bytes, sign: int) -> None:
    apply_masks(words, [Mask(key, sign)])


def test_the_keystream_is_the_standard_one() -> None:
    """AES-256-CTR of zeros with key and counter 0: NIST's GFSbox vector."""
    words = np.zeros(4, np.uint32)
    add_mask(words, bytes(32), +1)
    assert words.astype("<u4").tobytes().hex() == "dc95c078a2408989ad48a21492842087"
    add_mask(words, bytes(32), -1)
    assert not words.any()


@given(key=KEYS, length=st.sampled_from([1, 5, CHUNK - 1, CHUNK, CHUNK + 3]))
def test_a_mask_comes_off_again_and_does_not_depend_on_how_it_is_cut(
    key: bytes, length: int
) -> None:
    words = np.arange(length, dtype=np.uint32)
    add_mask(words, key, +1)
    head = np.arange(min(3, length), dtype=np.uint32)
    add_mask(head, key, +1)
    assert np.array_equal(words[:3], head)
    add_mask(words, key, -1)
    assert np.array_equal(words, np.arange(length))


def test_the_ring_by_hand() -> None:
    """bound = 2^ceil(log2(1.25 * 5 * 3)) = 32; -3 * 2/9 * 2^25 = -22369621.33."""
    scale = scale_for(5.0, 2.0)
    assert scale == 2.0**25
    words = encode_update(f32([-3, 8]), 2 / 9, scale)
    assert words.tolist() == [2**32 - 22369621, 59652324]
    assert decode_sum(u32([2**32 - 1, 2**30 + 128]), 1.0).tolist() == [-1, 2**30 + 128]


@given(
    values=st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=20),
    factors=st.lists(st.floats(0, 1), min_size=1, max_size=16),
)
def test_a_sum_of_updates_in_range_never_wraps_round(
    values: list[float], factors: list[float]
) -> None:
    update, scale = f32(values), LARGEST
    assert fits_range(update, scale)
    shares = np.array(factors) / max(1.0, sum(factors))
    total = np.zeros(len(values), np.uint32)
    for share in shares:
        total += encode_update(update, share, scale)
    expected = shares.sum() * update.astype(np.float64)
    rounding = len(factors) / scale + 2**-24  # of the ring, and of float32
    assert decode_sum(total, scale) == pytest.approx(expected, abs=rounding)


def test_shamir_by_hand() -> None:
    """1234 + 166 x + 94 x^2 at x = 1, 2, 3."""
    shares = {x: y.to_bytes(33) for x, y in ((1, 1494), (2, 1942), (3, 2578))}
    assert int.from_bytes(combine_shares(shares)) == 1234


@given(secret=KEYS, num_sites=st.integers(3, 9))
def test_any_threshold_of_shares_gives_the_secret_and_one_less_does_not(
    secret: bytes, num_sites: int
) -> None:
    needed = threshold(num_sites)
    shares = dict(enumerate(split_secret(secret, needed, range(1, num_sites + 1)), start=1))
    chosen = list(itertools.combinations(shares, needed))
    for places in (chosen[0], chosen[-1], chosen[len(chosen) // 2]):
        assert combine_shares({place: shares[place] for place in places}) == secret
    too_few = {place: shares[place] for place in chosen[0][1:]}
    with contextlib.suppress(ValueError):  # the number is not one of 32 bytes
        assert combine_shares(too_few) != secret


def test_thresholds_leave_no_room_for_two_stories() -> None:
    assert [threshold(n) for n in (3, 4, 6, 16)] == [3, 3, 5, 11]
    assert all(2 * threshold(n) > n for n in range(3, 100))
    # So many of the sites would have to help whoever tells two stories.
    assert [2 * threshold(n) - n for n in (4, 5, 10, 16)] == [2, 3, 4, 6]


def test_an_envelope_opens_for_its_receiver_only_and_once_each_way() -> None:
    (a, a_public), (b, b_public) = new_pair(), new_pair()
    here = PairChannel.between(("ann", "bob"), a, b_public, b"roster")
    there = PairChannel.between(("bob", "ann"), b, a_public, b"roster")
    shares = Shares(secrets.token_bytes(33), secrets.token_bytes(33))
    envelope = here.seal(shares, sender="ann", receiver="bob")
    assert len(envelope) == 66 + 16
    assert there.open(envelope, sender="ann", receiver="bob") == shares
    with refused(ValueError, "sender"):
        there.open(envelope, sender="bob", receiver="ann")
    other_round = PairChannel.between(("bob", "ann"), b, a_public, b"other roster")
    with refused(ValueError, "sender"):
        other_round.open(envelope, sender="ann", receiver="bob")
    with refused(ValueError, 82):
        there.open(envelope[:-1], sender="ann", receiver="bob")


def test_a_sketch_is_linear_and_keeps_lengths_on_average() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 5000)).astype(np.float32)
    seed = bytes(32)
    assert sketch(a, seed).shape == (BUCKETS,)
    assert sketch(a + b, seed) == pytest.approx(sketch(a, seed) + sketch(b, seed), abs=1e-4)
    squares = [float(np.sum(sketch(a, bytes([n]) * 32) ** 2)) for n in range(200)]
    assert np.mean(squares) == pytest.approx(float(np.sum(a.astype(float) ** 2)), rel=0.02)
