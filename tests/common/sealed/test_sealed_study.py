"""Studies that cannot be sealed are refused when they are read, with the reason."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.refusals import refused
from tests.support.sealed_study import sealed_study
from tests.support.small_study import TEN_NUMBERS

LOCAL: dict[str, Any] = {"local": {}}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"quorum": 4}, ["quorum = 4", "5"]),
        ({"user": "all"}, ["user"]),
        ({"scaling": "federated"}, ['"user"', '"local"']),
        ({"selection": {"folds": 2}}, ["selection"]),
        ({"arms": {"fedavg": {}, "weight_erosion": {}}}, ["2 arms", "(fedavg, weight_erosion)"]),
        ({"arms": LOCAL}, ["0 arms"]),
        ({"arms": {"krum": {}, **LOCAL}}, ["arms.krum", "single"]),
        ({"arms": {"scaffold": {}, **LOCAL}}, ["arms.scaffold"]),
        ({"arms": {"fedlin": {}, **LOCAL}}, ["arms.fedlin"]),
        ({"arms": {"weight_erosion": {"cone": "stop"}}}, ['cone = "stop"']),
        ({"arms": {"bias_correction": {"bias": "per_hospital"}}}, ["single"]),
    ],
)
def test_a_study_that_cannot_be_sealed_is_refused(
    changes: dict[str, Any], reason: list[str]
) -> None:
    with refused(ValidationError, *reason):
        sealed_study(**changes)


def features(number: int) -> dict[str, Any]:
    return {"task": {**TEN_NUMBERS, "features": TEN_NUMBERS["features"][:number]}}


@pytest.mark.parametrize(
    ("number", "arms", "values"),
    [
        # of one value the distance tells all but the sign
        (1, {"weight_erosion": {"own_parameters": ["output_bias"]}}, 1),
        (1, {"evidence_erosion": {}}, 1),  # which keeps that bias, too
        (2, {"fedavg": {"own_parameters": ["*weight"]}}, 1),  # the bias of no and that of yes
        (6, {"fedavg": {}}, 7),
        (9, {"weight_erosion": {"layer_weights": {"1.weight": 0.0}}}, 1),
        (8, {"weight_erosion": {"distance": "cosine"}}, 9),  # two lengths are told, too
    ],
)
def test_an_update_of_so_few_values_that_its_distance_gives_it_away_is_not_sealed(
    number: int, arms: dict[str, Any], values: int
) -> None:
    with refused(ValidationError, f" {values} count"):
        sealed_study(**features(number), arms={**arms, **LOCAL})
    assert not sealed_study(
        **features(number), arms={**arms, **LOCAL}, sealed=False
    ).federation.sealed


def test_enough_values_are_sealed() -> None:
    for number, arms in (
        (7, {"fedavg": {}}),
        (9, {"weight_erosion": {"distance": "cosine"}}),
        (8, {"evidence_erosion": {}}),
    ):
        assert sealed_study(**features(number), arms={**arms, **LOCAL}).federation.sealed


def test_a_bound_on_norms_cannot_be_kept() -> None:
    federation = {"sealed": True, "quorum": 5, "max_update_norm": 1.0}
    with refused(ValidationError, "max_update_norm"):
        sealed_study(federation=federation)
