"""What a refusal is checked by: its class, and the values that it names."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

E = TypeVar("E", bound=BaseException)


@contextmanager
def refused(
    error: type[E] | tuple[type[E], ...], *values: object
) -> Iterator[pytest.ExceptionInfo[E]]:
    """The block raises this error, whose text has each of the values: a key, a name, a number."""
    with pytest.raises(error) as caught:
        yield caught
    text = str(caught.value)
    missing = [value for value in values if str(value) not in text]
    assert not missing, text
