"""Frames on their way out: one of data at a time, and what is short goes first."""

import threading
from collections import deque


class LineClosed(Exception):  # noqa: N818 - how a writer learns of it
    """The line has ended, and nothing goes out any more."""


class SendQueue:
    """gRPC takes frames from it by iterating, in a thread of its own."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._control: deque[bytes] = deque()
        self._data: bytes | None = None
        self._is_closed = False

    def __iter__(self) -> "SendQueue":
        return self

    def __next__(self) -> bytes:
        """The next frame, when there is one."""
        with self._changed:
            while not (self._control or self._data is not None or self._is_closed):
                self._changed.wait()
            if self._control:
                return self._control.popleft()
            if self._data is None:
                raise StopIteration
            data, self._data = self._data, None
            self._changed.notify_all()
            return data

    def say(self, frame: bytes, *, once: bool = False) -> None:
        """Send a short frame soon; `once`: unless one like it waits to be sent already."""
        with self._changed:
            if once and frame in self._control:
                return
            self._control.append(frame)
            self._changed.notify_all()

    def put(self, frame: bytes) -> None:
        """Send a frame when the one before it has gone; waits for that. Raises LineClosed."""
        with self._changed:
            while self._data is not None and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                raise LineClosed
            self._data = frame
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing more goes out; waiting writers are told."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
