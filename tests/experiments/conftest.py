"""Settings shared by the tests of experiments."""

import pytest

from erosion_server.run import provenance


@pytest.fixture(autouse=True)
def _a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells are computed by a program that is committed, which a program under test is not yet."""
    monkeypatch.setenv(provenance.COMMIT_VARIABLE, "c0ffee" * 7)
