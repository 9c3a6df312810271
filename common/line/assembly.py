"""A message that arrives in frames, put together in a place that was made for it."""

from typing import Any, Protocol

import numpy as np
from flwr.app import RecordDict

from erosion.common.line.envelope import Description
from erosion.common.line.frames import LineFault


class Space(Protocol):
    """Where a message's arrays are put."""

    def write(self, data: memoryview) -> None:
        """Append. Raises OSError."""

    def memory(self) -> memoryview:
        """All that was written."""


class MemorySpace:
    """Memory of the announced size; the machine gives it only as it is written to."""

    def __init__(self, num_bytes: int) -> None:
        self._values = np.empty(num_bytes, dtype=np.uint8)
        self._at = 0

    def write(self, data: memoryview) -> None:
        """Append."""
        end = self._at + len(data)
        self._values[self._at : end] = np.frombuffer(data, dtype=np.uint8)
        self._at = end

    def memory(self) -> memoryview:
        """All of it."""
        return self._values.data


class Nowhere:
    """For a message that nobody waits for."""

    def write(self, data: memoryview) -> None:
        """Let it go."""

    def memory(self) -> memoryview:
        """Nothing."""
        return memoryview(b"")


class Assembly:
    """One message under way: its head is here, and so much of its arrays as has come."""

    def __init__(self, head: dict[str, Any], description: Description, space: Space) -> None:
        self.head = head
        self.num_bytes = description.num_bytes
        self._description, self._space, self._come = description, space, 0

    @property
    def is_whole(self) -> bool:
        """Has everything come?"""
        return self._come == self.num_bytes

    def take(self, data: memoryview) -> None:
        """The next bytes. Raises LineFault where they are more than was announced, and OSError."""
        if not len(data) or self._come + len(data) > self.num_bytes:
            raise LineFault("more or less data than the message announced")
        self._space.write(data)
        self._come += len(data)

    def let_go(self) -> None:
        """Nobody waits for it any more: what has come is not kept, nor what is to come."""
        self._space = Nowhere()

    def content(self) -> RecordDict:
        """The content, once it is whole."""
        return self._description.content(self._space.memory())
