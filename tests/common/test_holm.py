"""Holm's method by hand."""

import pytest

from erosion_common.support.holm import adjusted_p_values


def test_each_p_value_is_multiplied_by_the_tests_that_are_left() -> None:
    assert adjusted_p_values({"a": 0.04, "b": 0.01, "c": 0.02}) == pytest.approx(
        {"b": 0.03, "c": 0.04, "a": 0.04}
    )


def test_what_follows_one_that_is_not_small_enough_is_not_either() -> None:
    found = adjusted_p_values({"a": 0.01, "b": 0.03, "c": 0.04})
    assert found == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})


def test_none_is_above_one_and_none_of_none_is_nothing() -> None:
    assert adjusted_p_values({"a": 0.7, "b": 0.9}) == {"a": 1.0, "b": 1.0}
    assert adjusted_p_values({}) == {}
