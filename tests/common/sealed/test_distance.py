"""Distances under Paillier: exact, and 64 bits whatever is asked."""

import importlib.util
import logging
import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from erosion_common.sealed import paillier
from erosion_common.sealed.distance import (
    Asker,
    Question,
    answer,
    is_fine,
    own_values,
    problem_with_question,
)
from erosion_common.sealed.paillier import (
    PaillierKey,
    problem_with_modulus,
    product_of_powers,
    prove,
)
from tests.common.sealed.keys import noise, paillier_key
from tests.common.sealed.vectors import f32

SEED = bytes(32)


def ask(own: list[float], other: list[float]) -> float:
    key = paillier_key()
    mine, theirs = f32(own), f32(other)
    asker = Asker.of(key, mine, float(np.linalg.norm(mine.astype(float))), SEED)
    question = asker.question(noise)
    return asker.distance(answer(question, own_values(question, theirs, SEED), noise()))


def test_the_distances_by_hand() -> None:
    """|g_0| = 5, so s = 2^(22 - 3) and u = 2^19 (3, 4)."""
    asker = Asker.of(paillier_key(), f32([3, 4]), 5.0, SEED)
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
    assert Asker.of(paillier_key(), f32([3, 4]), 5.0, SEED).farthest == 408.0
    assert ask([3, 4], [3000, 4000]) >= 408.0
    assert ask([3, 4], [-3000, -4000]) >= 408.0
    assert ask([3, 4], [1200, 1600]) == pytest.approx(399.0)


def test_decrypting_undoes_encrypting_with_either_noise() -> None:
    key = paillier_key()
    for message in (0, 1, 2**64, int(key.public.n) - 1):
        assert key.decrypt(key.public.encrypt(message, noise())) == message
        assert key.decrypt(key.public.encrypt(message, key.public.noise())) == message


def test_noise_made_with_the_primes_is_an_nth_power_too() -> None:
    """n-th powers are what decrypts to 0: their (p - 1)(q - 1)-th power modulo n^2 is 1."""
    key = paillier_key()
    n = key.public.n
    for made in (noise(), key.public.noise()):
        assert 0 < made < n**2
        assert pow(made, (key.p - 1) * (key.q - 1), n**2) == 1


@given(st.lists(st.tuples(st.integers(2, 10**9), st.integers(-(2**31), 2**31)), max_size=40))
def test_powers_together_are_the_product_of_powers(powers: list[tuple[int, int]]) -> None:
    modulus = 2**127 - 1
    expected = 1
    for base, exponent in powers:
        expected = expected * pow(base, exponent, modulus) % modulus
    bases, exponents = [b for b, _ in powers], [e for _, e in powers]
    assert product_of_powers(bases, exponents, modulus) == expected


def test_a_crafted_question_gets_64_bits() -> None:
    """u = (2^300, 2^600): the answer is |v|^2 modulo 2^64, and random above."""
    key = paillier_key()
    public, v = key.public, f32([1234567, -7654321])
    sealed = [public.encrypt(2**300, noise()), public.encrypt(2**600, noise())]
    question = Question(public, sealed, 1.0)
    values = own_values(question, v, SEED)
    seen = [key.decrypt(answer(question, values, public.noise())) for _ in range(2)]
    square = int(np.dot(v.astype(int), v.astype(int)))
    assert {value % 2**64 for value in seen} == {square % 2**64}
    assert seen[0] != seen[1]
    assert min(value >> 64 for value in seen).bit_length() > 1900


def test_values_with_few_digits_would_be_read_one_by_one() -> None:
    """With u = -(1, 2^6, 2^12, ...) / 2 and |v| small, ten values are read in one answer."""
    key = paillier_key()
    public, update = key.public, f32([1.0, -0.7, 0.5, 0.3, -0.9, 0.2, 0.1, -0.4, 0.8, -0.6])
    half = -pow(2, -1, public.n)
    sealed = [public.encrypt(int(half * 2 ** (6 * j)), noise()) for j in range(10)]
    question = Question(public, sealed, 20.0)
    values = own_values(question, update, SEED)
    low = key.decrypt(answer(question, values, noise())) % 2**64
    packed = low - int(values @ values)  # which is guessed, being small
    read = []
    for _ in range(10):
        digit = (packed + 32) % 64 - 32
        read.append(digit)
        packed = (packed - digit) // 64
    assert read == values.tolist()
    assert not is_fine(values)


def test_an_honest_question_is_about_values_with_many_digits() -> None:
    asker = Asker.of(paillier_key(), f32([3, 4]), 5.0, SEED)
    question = asker.question(noise)
    assert is_fine(own_values(question, f32([3 / 64, 0]), SEED))
    assert not is_fine(own_values(question, f32([3 / 1024, 0]), SEED))


def test_an_honest_modulus_has_a_proof_and_others_have_none() -> None:
    key = paillier_key()
    roots = prove(key, b"run")
    assert problem_with_modulus(key.public, roots, b"run") is None
    assert "proof" in str(problem_with_modulus(key.public, roots, b"another run"))
    assert "proof" in str(problem_with_modulus(key.public, [*roots[:-1], roots[-1] + 1], b"run"))
    assert "proof" in str(problem_with_modulus(key.public, roots[:-1], b"run"))
    assert "bits" in str(problem_with_modulus(PaillierKey(3233), roots, b"run"))
    assert "small factor" in str(problem_with_modulus(PaillierKey(key.public.n * 3), roots, b"run"))


def test_a_square_modulus_cannot_be_proved() -> None:
    """n = p^2 shares p with phi(n): only one number in p has an n-th root."""
    p = paillier_key().p
    q = p
    n = p * q
    guessed = [pow(2 + i, n, n) for i in range(11)]
    assert "proof" in str(problem_with_modulus(PaillierKey(n), guessed, b"run"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda n, sealed: (sealed[:1], 1.0), "1 sealed values, expected 2"),
        (lambda n, sealed: ([0, sealed[1]], 1.0), "out of range"),
        (lambda n, sealed: ([n**2, sealed[1]], 1.0), "out of range"),
        (lambda n, sealed: ([n, sealed[1]], 1.0), "none"),
        (lambda n, sealed: (sealed, math.inf), "scale"),
        (lambda n, sealed: (sealed, -1.0), "scale"),
    ],
)
def test_a_malformed_question_has_a_reason(change, reason) -> None:  # type: ignore[no-untyped-def]
    public = paillier_key().public
    honest = [public.encrypt(value, noise()) for value in (3, 4)]
    assert problem_with_question(Question(public, honest, 1.0), 2) is None
    sealed, scale = change(public.n, honest)
    assert reason in str(problem_with_question(Question(public, sealed, scale), 2))


def test_without_gmpy2_numbers_are_the_same_and_one_line_says_that_it_is_slower(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "gmpy2", None)
    spec = importlib.util.spec_from_file_location("without_gmpy2", paillier.__file__)
    assert spec is not None
    assert spec.loader is not None
    plain = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, plain)
    spec.loader.exec_module(plain)
    made = plain.new_private_key(1024)
    known = paillier.private_key_of(made.p, made.q)
    assert type(made.p) is int
    with caplog.at_level(logging.WARNING, "erosion.sealed"):
        sealed = made.public.encrypt(-5, plain.NoiseMaker(made).make())
        assert known.decrypt(sealed) == made.decrypt(sealed) == made.public.n - 5
        half = plain.product_of_powers([sealed], [-2], made.public.n**2)
        assert made.decrypt(half * made.public.noise()) == 10
    assert len(caplog.records) == 1
    assert plain.prove(made, b"run") == paillier.prove(known, b"run")
