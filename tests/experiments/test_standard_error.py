"""A mean with its standard error."""

import pytest

from erosion.experiments.standard_error import in_words, mean_and_error


def test_the_standard_error_is_that_of_the_mean() -> None:
    # deviations from 3: -2, 0, 2; variance 8 / 2 = 4; 2 / sqrt(3)
    assert mean_and_error([1.0, 3.0, 5.0]) == pytest.approx((3.0, 2 / 3**0.5))


def test_a_sign_is_written_before_the_mean_alone() -> None:
    assert in_words([1.0, 3.0, 5.0]) == "3.000 ± 1.155"
    assert in_words([1.0, 3.0, 5.0], "+.1f") == "+3.0 ± 1.2"
