"""The parts of sealed rounds: sealed distances, masks and shares, and the sums that are allowed."""

import contextlib
import heapq
import importlib.util
import itertools
import logging
import math
import secrets
import sys
from collections.abc import Iterable
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from erosion_common.sealed import power_residues
from erosion_common.sealed.coordinator import SKETCH_SLACK, check_sum
from erosion_common.sealed.distance import (
    Asker,
    Question,
    answer,
    is_fine,
    own_values,
    problem_with_question,
)
from erosion_common.sealed.keys import digest, new_pair, private_half
from erosion_common.sealed.masks import (
    BUCKETS,
    CHUNK,
    LARGEST,
    Mask,
    Words,
    apply_masks,
    decode_sum,
    encode,
    fits_range,
    scale_for,
    sketch,
)
from erosion_common.sealed.phases import SumRules
from erosion_common.sealed.power_residues import (
    NUM_ROOTS,
    ResidueKey,
    ResiduePrivateKey,
    problem_with_key,
    product_of_powers,
    prove,
)
from erosion_common.sealed.shares import (
    PairChannel,
    Shares,
    combine_shares,
    split_secret,
    threshold,
)
from tests.common.sealed.keys import residue_key
from tests.common.sealed.vectors import f32, u32
from tests.support.refusals import refused

SEED = bytes(32)


def ask(own: list[float], other: list[float]) -> float:
    key = residue_key()
    mine, theirs = f32(own), f32(other)
    asker = Asker.of(key, mine, float(np.linalg.norm(mine.astype(float))), SEED)
    question = asker.question()
    return asker.distance(answer(question, own_values(question, theirs, SEED)))


def test_the_distances_by_hand() -> None:
    """|g_0| = 5, so s = 2^(22 - 3) and u = 2^19 (3, 4)."""
    asker = Asker.of(residue_key(), f32([3, 4]), 5.0, SEED)
    assert asker.scale == 2.0**19
    assert asker.own.tolist() == [1572864, 2097152]
    for other, distance in (([8, 4], 1), ([3, 9], 1), ([-3, -4], 2), ([3, 4], 0)):
        assert ask([3, 4], [float(x) for x in other]) == pytest.approx(distance, abs=1e-12)


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=6).filter(
        lambda pairs: any(abs(own) > 0.1 for own, _ in pairs)
    )
)
def test_a_distance_is_the_one_in_the_clear(pairs: list[tuple[float, float]]) -> None:
    own, other = np.array(pairs, np.float32).T.astype(np.float64)
    expected = float(np.linalg.norm(other - own) / np.linalg.norm(own))
    assert ask(own.tolist(), other.tolist()) == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_no_update_that_is_too_far_passes_for_a_nearer_one() -> None:
    """Farthest is 255 * 2^22 / (2^19 * 5) = 408."""
    assert Asker.of(residue_key(), f32([3, 4]), 5.0, SEED).farthest == 408.0
    assert ask([3, 4], [3000, 4000]) >= 408.0
    assert ask([3, 4], [-3000, -4000]) >= 408.0
    assert ask([3, 4], [1200, 1600]) == pytest.approx(399.0)


def test_a_crafted_question_gets_63_bits() -> None:
    """u = (2^40, 2^62) reads 2 |v|^2 - 2^42 v_0 modulo 2^64: always even, and sealed afresh."""
    key, v = residue_key(), f32([1234567, -7654321])
    question = Question(key.public, [key.seal(2**40), key.public.seal(2**62)], 1.0)
    values = own_values(question, v, SEED)
    sent = [answer(question, values) for _ in range(2)]
    square = 1234567**2 + 7654321**2
    assert [key.open(each) for each in sent] == [(2 * square - 2**42 * 1234567) % 2**64] * 2
    assert sent[0] != sent[1]


@given(
    st.lists(st.tuples(st.integers(-(2**33), 2**33), st.integers(-(2**31), 2**31)), min_size=1),
    st.integers(2, 2**64),
)
def test_an_answer_shows_nothing_of_sealed_values_that_are_no_numbers(
    drawn: list[tuple[int, int]], odd: int
) -> None:
    """Whatever else is in a crafted value is a 2^64-th power, or goes with a square's sign."""
    key = residue_key()
    n = key.public.n
    crafted = [pow(odd, 2**64, n) * key.seal(number) % n for number, _ in drawn]
    crafted[0] = n - crafted[0]  # not a square modulo q
    values = np.array([value for _, value in drawn], np.int64)
    sent = answer(Question(key.public, crafted, 1.0), values)
    expected = 2 * sum(int(v) ** 2 for v in values) - 4 * sum(u * v for u, v in drawn)
    # -1 is y^(2^63 t) modulo p, so four times it is 0 modulo 2^64.
    assert key.open(sent) == expected % 2**64
    assert pow(sent, key.q // 2, key.q) == 1


def test_values_with_few_digits_would_be_read_one_by_one() -> None:
    """With u = -(1, 2^6, 2^12, ...) and |v| small, ten values are read in one answer."""
    key = residue_key()
    update = f32([1.0, -0.7, 0.5, 0.3, -0.9, 0.2, 0.1, -0.4, 0.8, -0.6])
    sealed = [key.seal(-(2 ** (6 * j))) for j in range(10)]
    question = Question(key.public, sealed, 20.0)
    values = own_values(question, update, SEED)
    packed = (key.open(answer(question, values)) - 2 * int(values @ values)) // 4  # it is guessed
    read = []
    for _ in range(10):
        digit = (packed + 32) % 64 - 32
        read.append(digit)
        packed = (packed - digit) // 64
    assert read == values.tolist()
    assert not is_fine(values)


def test_an_honest_question_is_about_values_with_many_digits() -> None:
    asker = Asker.of(residue_key(), f32([3, 4]), 5.0, SEED)
    question = asker.question()
    assert is_fine(own_values(question, f32([3 / 64, 0]), SEED))
    assert not is_fine(own_values(question, f32([3 / 1024, 0]), SEED))


def test_powers_made_ahead_hide_one_number_each() -> None:
    key = ResiduePrivateKey(residue_key().p, residue_key().q)
    key.make_ahead(2)
    numbers = [5, 5, 5, -5, 2**64 - 1, 0, 2**40 + 3]  # two with powers that are there
    sealed = [key.seal(number) for number in numbers]
    assert len(set(sealed)) == len(numbers)
    assert [key.open(each) for each in sealed] == [number % 2**64 for number in numbers]
    key.make_ahead(1)
    assert key.seal(5) not in sealed


def test_an_honest_modulus_has_a_proof_and_others_have_none() -> None:
    key = residue_key()
    public, roots = key.public, prove(key, b"run")
    assert problem_with_key(public, roots, b"run") is None
    assert "proof" in str(problem_with_key(public, roots, b"another run"))
    assert "proof" in str(problem_with_key(public, [*roots[:-1], roots[-1] + 1], b"run"))
    assert "proof" in str(problem_with_key(public, roots[:-1], b"run"))
    assert "proof" in str(problem_with_key(ResidueKey(public.n, public.y + 1), roots, b"run"))
    assert "base" in str(problem_with_key(ResidueKey(public.n, key.q), roots, b"run"))
    assert "bits" in str(problem_with_key(ResidueKey(3235, 2), roots, b"run"))
    assert "4" in str(problem_with_key(ResidueKey(public.n * 3, public.y), roots, b"run"))
    assert "small factor" in str(
        problem_with_key(ResidueKey(public.n * 5, public.y), roots, b"run")
    )


def test_with_a_third_prime_half_of_the_roots_are_missing() -> None:
    """So two of its primes cannot give 63 bits each: n = p p' q, with all roots that there are."""
    first, other = residue_key(), power_residues.new_private_key(2048)
    primes, y = [first.p, other.p, first.q], first.public.y
    n = math.prod(primes)

    def has_root(number: int) -> bool:
        return any(
            all(pow(each * number, prime // 2, prime) == 1 for prime in primes)
            for each in (1, -1, y, -y)
        )

    draws = np.random.default_rng(1)
    found = sum(has_root(int.from_bytes(draws.bytes(400))) for _ in range(200))
    assert 60 < found < 140  # of two hundred: 40 is six standard deviations
    assert NUM_ROOTS == 128
    assert "proof" in str(problem_with_key(ResidueKey(n, y), prove(first, b"run"), b"run"))


def test_roots_are_the_same_each_time_and_their_signs_are_not_those_of_one_prime() -> None:
    """Two roots of one number would show the primes, and so might roots of one kind."""
    key = residue_key()
    roots = prove(key, b"run")
    assert prove(ResiduePrivateKey(key.p, key.q), b"run") == roots
    kinds = {
        (pow(root, key.p // 2, key.p) == 1, pow(root, key.q // 2, key.q) == 1) for root in roots
    }
    assert len(kinds) == 4


@given(st.lists(st.tuples(st.integers(2, 10**9), st.integers(-(2**31), 2**31)), min_size=1))
def test_a_product_of_powers_is_that_of_single_ones(drawn: list[tuple[int, int]]) -> None:
    n = 2**521 - 1
    bases, exponents = zip(*drawn, strict=True)
    expected = math.prod(pow(b, e, n) for b, e in drawn) % n
    assert product_of_powers(bases, exponents, n) == expected


@pytest.mark.parametrize(
    "exponents",
    [[2**30] + [1] * 255, [2**30 - number for number in range(256)], [3**n for n in range(19)]],
)
def test_any_exponents_take_a_bounded_number_of_steps(
    exponents: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Mock(wraps=heapq)
    monkeypatch.setattr(power_residues, "heapq", steps)
    product_of_powers([3] * len(exponents), exponents, 2**521 - 1)
    taken = steps.heapreplace.call_count + steps.heappop.call_count
    assert 0 < taken <= sum(exponent.bit_length() for exponent in exponents)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda n, sealed: (sealed[:1], 1.0), "1 sealed values, expected 2"),
        (lambda n, sealed: ([0, sealed[1]], 1.0), "out of range"),
        (lambda n, sealed: ([n, sealed[1]], 1.0), "out of range"),
        (lambda n, sealed: ([residue_key().q, sealed[1]], 1.0), "none"),
        (lambda n, sealed: (sealed, math.inf), "scale"),
        (lambda n, sealed: (sealed, -1.0), "scale"),
    ],
)
def test_a_malformed_question_has_a_reason(change, reason) -> None:  # type: ignore[no-untyped-def]
    public = residue_key().public
    honest = [public.seal(value) for value in (3, 4)]
    assert problem_with_question(Question(public, honest, 1.0), 2) is None
    sealed, scale = change(public.n, honest)
    assert reason in str(problem_with_question(Question(public, sealed, scale), 2))


def test_without_gmpy2_numbers_are_the_same_and_one_line_says_that_it_is_slower(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "gmpy2", None)
    spec = importlib.util.spec_from_file_location("without_gmpy2", power_residues.__file__)
    assert spec is not None
    assert spec.loader is not None
    plain = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, plain)
    spec.loader.exec_module(plain)
    made = plain.new_private_key(1024)
    known = ResiduePrivateKey(made.p, made.q)
    assert type(made.p) is int
    with caplog.at_level(logging.WARNING, "erosion.sealed"):
        sealed = made.seal(-5)
        assert known.open(sealed) == made.open(sealed) == 2**64 - 5
        twice = plain.product_of_powers([sealed], [-2], made.public.n)
        assert made.open(twice * made.public.seal(1)) == 11
    assert len(caplog.records) == 1
    assert plain.prove(made, b"run") == prove(known, b"run")


# -- The building blocks of sealed rounds, against values worked out by hand -----------------------

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


def ring(values: list[float], times: float) -> Words:
    words = np.empty(len(values), np.uint32)
    assert [*encode(f32(values), times, words)] == [slice(0, len(values))]
    return words


def test_the_ring_by_hand() -> None:
    """bound = 2^ceil(log2(1.25 * 5 * 3)) = 32; -3 * 2/9 * 2^25 = -22369621.33."""
    scale = scale_for(5.0, 2.0)
    assert scale == 2.0**25
    words = ring([-3, 8], 2 / 9 * scale)
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
        total += ring(values, share * scale)
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
    here = PairChannel.between(("ann", "bob"), private_half(a), b_public, b"roster")
    there = PairChannel.between(("bob", "ann"), private_half(b), a_public, b"roster")
    shares = Shares(secrets.token_bytes(33), secrets.token_bytes(33))
    envelope = here.seal(shares, sender="ann", receiver="bob")
    assert len(envelope) == 66 + 16
    assert there.open(envelope, sender="ann", receiver="bob") == shares
    with refused(ValueError, "sender"):
        there.open(envelope, sender="bob", receiver="ann")
    other_round = PairChannel.between(("bob", "ann"), private_half(b), a_public, b"other roster")
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


# -- The sums that a hospital lets its update into, and the weights lowered until it does ----------

RULES = SumRules()


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ([0.3, 0.3, 0.3, 0.0], "3 hospitals"),
        ([0.4, 0.4, 1e-12, 1e-12], "2 hospitals"),
        ([0.2, 0.2, 0.2, 0.0199], "3 hospitals"),
        ([0.2, 0.2, 0.2, 5e-324], "3 hospitals"),
        ([0.4, 0.1, 0.1, 0.1], "has 0.667"),
        ([0.3, 0.3, 0.1, 0.1], "has 0.6"),
        ([0.5, 0.5, 0.5, 0.5], "add up"),
        ([-0.1, 0.2, 0.2, 0.2], "outside"),
        ([1.5, 0.2, 0.2, 0.2], "outside"),
        ([float("nan"), 0.2, 0.2, 0.2], "outside"),
        ([float("inf"), 0.2, 0.2, 0.2], "outside"),
        ([], "0 hospitals"),
        ([0.0], "0 hospitals"),
    ],
)
def test_a_sum_that_shows_too_much_has_a_reason(weights: list[float], reason: str) -> None:
    assert reason in str(RULES.problem_with(named(weights)))


def named(weights: Iterable[float]) -> dict[str, float]:
    return {f"h{place}": weight for place, weight in enumerate(weights)}


WEIGHTS = st.one_of(
    st.floats(0, 1), st.sampled_from([0.0, 5e-324, 1e-300, 1e-12, 1e-6, 0.01, 0.1, 0.3, 0.5])
)


@given(
    st.lists(WEIGHTS, min_size=1, max_size=9),
    st.integers(3, 6),
    st.sampled_from([0.2, 0.34, 0.5]),
    st.integers(1, 5),
    st.data(),
)
def test_whoever_helps_the_coordinator_what_is_left_of_a_sum_is_as_the_rules_say(
    drawn: list[float], min_summed: int, share: float, helpers: int, data: st.DataObject
) -> None:
    """With k helpers: min_summed + 1 - k hospitals, none with above share / (1 - (k - 1) share).

    Counted are those with a tenth of the largest weight. Of the default's .5 nothing is said from
    two helpers on, as that would be all; of 1 / (k + 1) half is left.
    """
    rules = SumRules(min_summed, share)
    weights = [weight / max(1.0, sum(drawn)) for weight in drawn]
    if rules.problem_with(named(weights)):
        return
    helpers = min(helpers, len(weights))
    gone = data.draw(st.permutations(range(len(weights))))[:helpers]
    left = [weight for place, weight in enumerate(weights) if place not in gone]
    real = sum(weight >= 0.1 * max(weights) for weight in left)
    assert real >= min_summed + 1 - helpers
    if left and (bound := 1 - (helpers - 1) * share) > 0:
        assert max(left) <= share / bound * sum(left) * (1 + 1e-6)


def test_the_largest_weights_are_lowered_to_what_the_rules_allow() -> None:
    """Without b, a may have as much as the rest: .1 + .05."""
    assert list((RULES.capped(named([0.9, 0.2, 0.1, 0.05])) or {}).values()) == pytest.approx(
        [0.15, 0.15, 0.1, 0.05]
    )
    assert list((RULES.capped(named([0.5, 0.1, 0.1, 0.05])) or {}).values()) == pytest.approx(
        [0.15, 0.1, 0.1, 0.05]
    )
    unchanged = named([0.2, 0.2, 0.2, 0.2, 0.0])
    assert RULES.capped(unchanged) == unchanged
    assert RULES.capped(named([0.3, 0.3, 0.3, 0.0])) is None
    assert RULES.capped(named([0.3, 0.3, 0.3, 1e-12])) is None


@given(st.lists(WEIGHTS, min_size=3, max_size=10), st.sampled_from([0.34, 0.4, 0.5]))
def test_lowered_weights_may_be_summed_and_keep_their_order(
    drawn: list[float], largest_share: float
) -> None:
    rules = SumRules(largest_share=largest_share)
    weights = named(weight / max(1.0, sum(drawn)) for weight in drawn)
    capped = rules.capped(weights)
    if capped is None:
        assert rules.problem_with(weights) is not None
        return
    assert rules.problem_with(capped) is None
    assert all(capped[name] <= weights[name] for name in weights)
    lowered = [name for name in weights if capped[name] < weights[name]]
    kept = [capped[name] for name in weights if name not in lowered]
    assert all(capped[name] >= max(kept) * (1 - 1e-9) for name in lowered)


def test_no_honest_sum_fails_the_check_by_the_sketch_more_often_than_once_in_10_9() -> None:
    """Where all distances are of one direction, and so too short together."""
    assert chi2.cdf(BUCKETS / SKETCH_SLACK**2, BUCKETS) <= 1.001e-9
    dim, draws = 300, np.random.default_rng(0)
    own, apart = (f32(draws.normal(size=dim)) for _ in range(2))
    length = float(np.linalg.norm(apart))
    seeds = [number.to_bytes(32) for number in range(2000)]
    shares = np.array([np.square(sketch(apart, seed)).sum() for seed in seeds]) / length**2
    worst = float(shares.min()) ** 0.5
    assert shares.std() == pytest.approx((2 / BUCKETS) ** 0.5, rel=0.1)
    assert 1.01 / SKETCH_SLACK < worst < 0.9
    weights, own_norm = dict.fromkeys("abcd", 0.2), float(np.linalg.norm(own))
    claimed = dict.fromkeys("abcd", worst * length / own_norm)
    total = 0.8 * (own + apart)
    assert check_sum(total, own, weights, claimed, own_norm=own_norm, rounding=0).holds


def test_the_check_by_hand() -> None:
    """g_0 = (3, 4), g = (8, 4), (3, 9), (-3, -4) at 1, 1, 2, weights .25, .25, .8/3.6."""
    own = f32([3, 4])
    others = np.array([[8, 4], [3, 9], [-3, -4]])
    weights = {"a": 0.25, "b": 0.25, "c": 0.8 / 3.6}
    total = np.array(list(weights.values())) @ others
    check = check_sum(total, own, weights, {"a": 1, "b": 1, "c": 2}, own_norm=5, rounding=0)
    assert check.apart == pytest.approx(0.53432, abs=1e-5)
    assert check.at_most == pytest.approx(4.72222 * 1.001, abs=1e-4)
    assert check.holds
    lie = check_sum(total, own, weights, {"a": 0.1, "b": 0.1, "c": 0.1}, own_norm=5, rounding=0)
    assert not lie.holds
