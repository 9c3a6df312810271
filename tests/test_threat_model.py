"""The threat model's claims name tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "threat-model.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+(?:\.py)?(?:::\w+)?)`", TEXT)))


def test_claims_name_tests() -> None:
    assert len(NAMED) >= 5


@pytest.mark.parametrize("named", NAMED)
def test_a_named_test_exists(named: str) -> None:
    path, _, function = named.partition("::")
    assert (ROOT / path).exists(), named
    if function:
        assert re.search(rf"^def {function}\(", (ROOT / path).read_text(), re.MULTILINE), named


def test_its_figure_is_the_one_that_the_experiment_drew() -> None:
    drawn = ROOT / "experiments" / "results" / "inference" / "found.svg"
    assert (ROOT / "docs" / "inference.svg").read_bytes() == drawn.read_bytes()
