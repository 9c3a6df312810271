"""The verdict's error rates: the made-up studies are what they say, and the rates are counted."""

from dataclasses import replace

import numpy as np
import pytest

from erosion_client.evaluation.final_figures import sign_flip_p_value
from experiments.cells import Cell
from experiments.papers import verdict_refits as refits
from experiments.papers import verdict_simulated as nulls
from experiments.papers.verdict import LEVELS, SEEDS, draw, holding, plans, pooled
from experiments.papers.verdict_simulated import (
    RULES,
    Studies,
    betting_claims,
    claims_of,
    sign_flip_p_values,
)


def some_studies(studies: int, patients: int) -> Studies:
    generator = np.random.default_rng(0)
    first, second = generator.uniform(0.02, 0.98, size=(2, studies, patients))
    return Studies(first, second, generator.random((studies, patients)) < 0.5)


# -- rules -----------------------------------------------------------------------------------------


def test_the_p_values_of_many_studies_are_those_of_the_program() -> None:
    differences = some_studies(5, 40).log_losses() + 0.3
    ours = sign_flip_p_values(differences)
    for one, ours_of_one in zip(differences, ours, strict=True):
        theirs = sign_flip_p_value(one, seed=3)
        # two draws of 20,000 patterns: four standard errors of their difference
        assert ours_of_one == pytest.approx(
            theirs, abs=4 * (2 * theirs * (1 - theirs) / 20_000) ** 0.5 + 1e-4
        )


def test_the_losses_are_clipped_and_of_the_first_minus_the_second() -> None:
    studies = Studies(np.array([[0.5, 0.0]]), np.array([[0.25, 1.0]]), np.array([[True, False]]))
    assert studies.log_losses()[0].tolist() == pytest.approx(
        [np.log(0.25 / 0.5), np.log(0.99 / 0.01)]
    )
    assert studies.brier_scores()[0].tolist() == pytest.approx([0.25 - 0.5625, 1.0])


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_claims_the_better_arm_and_nothing_where_a_class_has_four(rule: str) -> None:
    good, bad = np.full((1, 200), 0.9), np.full((1, 200), 0.2)
    half = np.arange(200)[None, :] < 100
    assert claims_of(rule, Studies(good, bad, half)).tolist() == [-1]
    assert claims_of(rule, Studies(bad, good, half)).tolist() == [1]
    assert claims_of(rule, Studies(good, good, half)).tolist() == [0]
    few = np.arange(200)[None, :] < 4
    assert claims_of(rule, Studies(good, bad, few)).tolist() == [0]


def test_one_more_patient_takes_a_small_sample_its_claim() -> None:
    good, bad = np.full((1, 30), 0.9), np.full((1, 30), 0.8)
    studies = Studies(good, bad, np.arange(30)[None, :] < 15)
    assert claims_of("declared", studies).tolist() == [-1]
    assert claims_of("one more patient", studies).tolist() == [0]


def test_a_bet_seldom_wins_where_the_mean_is_zero() -> None:
    rare = np.where(np.random.default_rng(0).random((2000, 100)) < 0.03, 0.97, -0.03)
    wrong = np.mean(betting_claims(rare, 1.0, 0.05) != 0)
    assert wrong <= 0.05
    assert (
        np.mean(sign_flip_p_values(rare, flips=2000) <= 0.02) > 0.04
    )  # the test of signs does not


# -- made-up predictions ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*nulls.KINDS, nulls.EASY])
def test_the_difference_of_the_mean_losses_is_what_the_kind_says(kind: str) -> None:
    found = nulls.draw(kind, 400, 500, seed=5).log_losses()
    expected = -float(kind.split()[1]) if kind.startswith("gain") else 0.0
    error = found.mean(axis=1).std() / 400**0.5
    assert found.mean() == pytest.approx(expected, abs=4 * error + 0.003)


def test_only_the_rare_patients_are_gross_errors() -> None:
    studies = nulls.draw("gross errors", 20, 500, seed=0)
    grossly_wrong = studies.first < 0.01
    assert grossly_wrong.mean() == pytest.approx(nulls.GROSS_SHARE, abs=0.01)


# -- whole studies ---------------------------------------------------------------------------------


def test_a_fit_is_where_the_slope_vanishes() -> None:
    generator = np.random.default_rng(0)
    inputs = np.hstack([generator.standard_normal((80, 3)), np.ones((80, 1))])
    classes = generator.random(80) < 1 / (1 + np.exp(-inputs[:, 0]))
    weights = np.vstack([np.ones(80), np.where(np.arange(80) < 40, 1.0, 0.5)])
    found = refits.fit(inputs, classes, weights)
    chance = 1 / (1 + np.exp(-(found @ inputs.T)))
    ridge = refits.RIDGE * found * np.array([1, 1, 1, 1e-3 / refits.RIDGE])
    np.testing.assert_allclose((weights * (chance - classes)) @ inputs + ridge, 0, atol=1e-6)
    assert found[0, 0] > 0.3


def test_folds_hold_every_patient_once_and_both_classes() -> None:
    classes = np.arange(50) < 15
    parts = list(refits.folds_of(classes, 5, np.random.default_rng(0)))
    assert sorted(np.concatenate(parts).tolist()) == list(range(50))
    assert [int(classes[part].sum()) for part in parts] == [3] * 5


def test_every_patient_is_predicted_by_a_fit_that_never_saw_it() -> None:
    generator = np.random.default_rng(0)
    inputs = np.hstack([generator.standard_normal((60, 2)), np.ones((60, 1))])
    classes = generator.random(60) < 0.5
    cut = list(refits.folds_of(classes, 5, generator))
    weights = np.ones((5, 60))
    for number, part in enumerate(cut):
        weights[number, part] = 0.0
    of_fits = refits.losses(refits.fit(inputs, classes, weights), inputs, classes)
    crossed = refits._cross_fitted(of_fits, [cut], 0)
    for number, part in enumerate(cut):
        rest = np.setdiff1d(np.arange(60), part)
        alone = refits.fit(inputs[rest], classes[rest], np.ones((1, len(rest))))
        expected = refits.losses(alone, inputs[part], classes[part])[0]
        np.testing.assert_allclose(crossed[part], expected, atol=1e-6)
        assert not np.allclose(crossed[part], of_fits[(number + 1) % 5, part])


def test_a_study_measures_every_pair_by_every_scheme() -> None:
    generator = np.random.default_rng(0)
    inputs = np.hstack([generator.standard_normal((900, 3)), np.ones((900, 1))])
    classes = generator.random(900) < 1 / (1 + np.exp(-2 * inputs[:, 0]))
    found = refits.measure((inputs, classes), 40, "alike", studies=3, seed=0)
    assert list(found) == ["full - local", "full - half", "some - rest"]
    for figures in found.values():
        assert {refits.HOLD_OUT, *refits.SCHEMES, refits.TRUTH} < set(figures)
        assert all(len(values) == 3 for values in figures.values())
    truths = found["full - local"][refits.TRUTH]
    assert sum(truths) < 0  # more patients of the same kind help
    lucky = found["some - rest"][refits.TRUTH]
    assert 0 < abs(sum(lucky)) < abs(sum(truths))
    again = refits.measure((inputs, classes), 40, "alike", studies=3, seed=0)
    assert again == found


# -- the page --------------------------------------------------------------------------------------


def figures(right: int, wrong: int) -> dict[str, list[float]]:
    """Of 200 studies in which the first arm is better, so many claims."""
    signed = [-0.001] * right + [0.001] * wrong + [0.5] * (200 - right - wrong)
    truth = [-0.1] * 200
    return {
        refits.TRUTH: truth,
        refits.TRUTH_OF_TRAINING_PART: truth,
        **dict.fromkeys((refits.HOLD_OUT, *refits.SCHEMES), signed),
    }


def cells(wrong: int) -> dict[str, Cell]:
    found = {}
    for plan in plans():
        if "kind" in plan.config:
            values: object = {rule: {"first": 40, "second": 20} for rule in RULES}
        else:
            values = {" - ".join(pair): figures(50, wrong) for pair in refits.PAIRS}
        found[plan.name] = Cell(plan, values, "c0ffee", "command", 1.0)  # type: ignore[arg-type]
    return found


STUDIES = 200 * len(SEEDS)  # of a setting


def test_cells_of_several_seeds_are_pooled_and_claims_judged_by_the_sign_of_the_truth() -> None:
    found = pooled(cells(wrong=2))
    assert len(found) * len(SEEDS) == sum("data" in plan.config for plan in plans())
    assert {study.studies for study in found} == {STUDIES}
    assert found[0].rates(("full", "local"), "5 folds", 0.01) == (0.25, 0.01)


def test_the_page_names_the_scheme_that_holds_everywhere() -> None:
    page = draw(cells(wrong=2))
    made_up, gains = page.text.split("Claims of a true difference")
    assert "| declared | 3.0 | 3.0 |" in made_up  # 60 of 2000
    assert "| declared | 2.0 | 2.0 |" in gains  # 40: the other 20 claim that the worse is better
    assert "at p ≤ 0.02 claims most true" in " ".join(page.text.split())
    assert page.pictures["verdict.svg"].startswith(b"<?xml")
    assert "none of them claims most" in " ".join(draw(cells(wrong=20)).text.split())


def test_the_worst_cell_is_told_with_its_own_studies() -> None:
    found = cells(wrong=0)
    names = [name for name, cell in found.items() if "data" in cell.plan.config]
    bad, *_, missing = names
    by_pair = {" - ".join(pair): figures(50, 8) for pair in refits.PAIRS}
    found[bad] = replace(found[bad], figures=by_pair)
    del found[missing]  # so that another setting has fewer studies
    text = " ".join(draw(found).text.split())
    assert f"Its worst cell, {800 / STUDIES:.1f} % of {STUDIES} studies" in text


def test_claims_between_arms_that_nobody_made_better_are_counted_apart() -> None:
    found = cells(wrong=2)
    for name in [name for name, cell in found.items() if "data" in cell.plan.config]:
        by_pair = {**found[name].figures, "some - rest": figures(0, 1)}
        found[name] = replace(found[name], figures=by_pair)
    text = draw(found).text
    assert "| 5 folds | 0.005 | 0.5 | 0.5 | 0.5 |" in text  # 1 of 200
    assert "| 5 folds | 0.005 (claimed at) | 25.0 | 1.0 | 1.0 |" in text  # the others'


def test_a_scheme_with_one_bad_cell_is_left_out() -> None:
    found = cells(wrong=2)
    assert len(holding(pooled(found))) == 5 * len(LEVELS)  # the hold-out and four schemes
    bad = {" - ".join(pair): figures(50, 2) for pair in refits.PAIRS}
    bad["full - half"]["5 folds"] = figures(0, 40)["5 folds"]
    name = next(name for name, cell in found.items() if "data" in cell.plan.config)
    found[name] = replace(found[name], figures=bad)
    assert {scheme for scheme, _ in holding(pooled(found))} == {
        refits.HOLD_OUT,
        *(set(refits.SCHEMES) - {"5 folds"}),
    }
