"""What a message is about, without its wording: columns, lines, keys, numbers, in their order."""

import re
from collections.abc import Iterable
from typing import TypeVar

import pytest

E = TypeVar("E", bound=BaseException)


def raises(kind: type[E], *parts: object) -> pytest.RaisesExc[E]:
    """Such an error, and its message holds these parts in this order; "…" is any text."""
    return pytest.raises(kind, match=_pattern(parts))


def says(told: str | Iterable[str], *parts: object) -> bool:
    """Whether a text, or one of several, holds these parts in this order."""
    texts = [told] if isinstance(told, str) else told
    return any(re.search(_pattern(parts), text) for text in texts)


def _pattern(parts: tuple[object, ...]) -> str:
    return "(?s)" + ".*".join(re.escape(str(part)) for part in parts).replace("…", ".*")
