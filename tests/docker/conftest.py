"""A Docker engine for the tests that run containers."""

import pytest

from tests.support.docker_engine import why_no_compose, why_no_engine


@pytest.fixture(scope="session")
def engine() -> None:
    """Skips, with the reason, where there is no engine with Compose."""
    if (reason := why_no_engine()) is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def compose_client() -> None:
    """Skips, with the reason, where Compose files cannot be read."""
    if (reason := why_no_compose()) is not None:
        pytest.skip(reason)
