"""Means, intervals and tables of the pages, by hand."""

import pytest

from experiments.page import grid, joined, page, table
from experiments.tables import (
    Comparison,
    about,
    comparisons,
    in_words,
    mean_and_error,
    paired_difference,
)


def test_the_standard_error_is_that_of_the_mean() -> None:
    # deviations from 3: -2, 0, 2; variance 8 / 2 = 4; 2 / sqrt(3)
    assert mean_and_error([1.0, 3.0, 5.0]) == pytest.approx((3.0, 2 / 3**0.5))
    assert in_words([1.0, 3.0, 5.0]) == "3.000 ± 1.155"
    assert in_words([1.0, 3.0, 5.0], "+.1f") == "+3.0 ± 1.2"


def test_what_has_no_entry_is_left_out() -> None:
    rows = table(["a", "b"], [["1", "2"], ["3", ""]])
    assert rows == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert table(["a", "b"], [["3", ""]]) == joined(["", ""]) == ""
    assert joined(["a", "", "b"]) == "a\n\nb"
    assert grid("", {"x": 1}, {"y": 2}, lambda x, y: f"{x + y}").endswith("| x | 3 |")
    heading, about, *last = page("slow-erosion", losses=f"{rows}\n").text.split("\n\n")
    assert heading.startswith("# ")
    assert max(map(len, about.splitlines())) <= 100
    assert last == [f"{rows}\n"]


def test_an_interval_of_paired_differences_is_students() -> None:
    # differences 1, 2, 3: mean 2, standard error 1 / sqrt(3); t with 2 degrees at .975 is 4.3027
    found = paired_difference([2.0, 4.0, 6.0], [1.0, 2.0, 3.0], comparisons=1)
    assert found.mean == pytest.approx(2.0)
    assert found.high - found.mean == pytest.approx(4.3027 / 3**0.5, rel=1e-4)
    assert not found.leaves_out_zero
    wider = paired_difference([2.0, 4.0, 6.0], [1.0, 2.0, 3.0], comparisons=5)
    assert wider.high > found.high


def test_an_interval_that_allows_for_shared_patients_is_marked_twice() -> None:
    # n = 3, half tested: variance times 1/3 + 1, not 1/3, so the interval is twice as wide
    apart, nothing = [1.0, 1.1, 1.2], [0.0, 0.0, 0.0]
    plain = paired_difference(apart, nothing, comparisons=1)
    assert plain.text().endswith("\\*")
    found = paired_difference(apart, nothing, comparisons=1, test_share=0.5)
    assert found.shared == pytest.approx(2 * (plain.high - plain.mean))
    assert found.text() == f"{plain.text()}\\*"
    nearer = paired_difference([0.3, 0.4, 0.5], nothing, comparisons=1, test_share=0.5)
    assert (nearer.leaves_out_zero, nearer.holds_for_others) == (True, False)
    every = [Comparison("s", "a", "b", "m", one) for one in (found, nearer, plain, None)]
    assert about(every).endswith("Of 3 differences 3 are marked, 1 of them twice.")


def test_two_splits_that_differ_alike_show_nothing() -> None:
    found = paired_difference([0.3, 0.5], [0.2, 0.4], comparisons=72)
    assert found.mean == pytest.approx(0.1)
    assert not found.leaves_out_zero


def test_a_comparison_is_of_the_splits_where_both_have_the_metric() -> None:
    splits = [{"a": {"m": 1.0 + n}, "b": {"m": 0.5 if n else None}} for n in range(3)]
    (one,) = comparisons({"s": splits}, ["a"], ["b"], ["m"])
    assert one.difference is not None
    assert one.difference.mean == pytest.approx((1.5 + 2.5) / 2)
    (none,) = comparisons({"s": splits}, ["a"], ["b"], ["m"], fewest=3)
    assert none.difference is None
