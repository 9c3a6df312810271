"""Imports without collections meanwhile."""

import gc

import pytest

from erosion_common.support.process import imports_for_good


def test_nothing_is_collected_meanwhile_and_afterwards_as_before() -> None:
    with imports_for_good():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


def test_where_collections_are_off_they_stay_off() -> None:
    gc.disable()
    try:
        with imports_for_good():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_import_that_fails_leaves_collections_on() -> None:
    with pytest.raises(ImportError), imports_for_good():
        raise ImportError
    assert gc.isenabled()
