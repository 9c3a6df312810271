"""A pipe between two processes whose large arrays lie in memory that both share.

Values are pickled; the two processes are one program, which forked. Tensors leave the pickle as
arrays (pickle protocol 5), and arrays of LARGE bytes or more are copied into the shared memory and
out of it, which takes about a quarter of a pipe's processor time. What does not fit goes through
the pipe.
"""

import io
import mmap
import pickle
from collections.abc import Sequence
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from erosion.common.study.study import Study

Bytes = NDArray[np.uint8]

LARGE = 1 << 16  # bytes of an array that is worth a place in the shared memory
_TAKEN = b""  # what a receiver answers once the shared memory is free again


class Channel:
    """One end. Of two messages with large arrays the second waits until the first was taken."""

    def __init__(self, pipe: Connection, outgoing: mmap.mmap, incoming: mmap.mmap) -> None:
        """`outgoing` and `incoming` are the other end's incoming and outgoing."""
        self.pipe = pipe
        self._outgoing = np.frombuffer(outgoing, dtype=np.uint8)
        self._incoming = np.frombuffer(incoming, dtype=np.uint8)
        self._is_free = True  # of the outgoing memory

    def send(self, message: object) -> None:
        """Send. Raises OSError where the other process has ended."""
        arrays: list[pickle.PickleBuffer] = []
        text = _pickled(message, arrays)
        parts = [np.frombuffer(array.raw(), dtype=np.uint8) for array in arrays]
        shared = self._place(parts)
        rest = [part.tobytes() for part, place in zip(parts, shared, strict=True) if place < 0]
        sizes = [part.size for part in parts]
        header = pickle.dumps((list(zip(sizes, shared, strict=True)), text, rest), protocol=5)
        self.pipe.send_bytes(header)

    def receive(self) -> tuple[Any] | None:
        """What the next message holds, in a tuple of one; None where it only said "taken".

        Raises EOFError and OSError where the other process has ended.
        """
        header = self.pipe.recv_bytes()
        if header == _TAKEN:
            self._is_free = True
            return None
        described, text, rest = pickle.loads(header)  # noqa: S301 - this program, forked
        others = iter(rest)
        buffers: list[Bytes] = []
        for size, place in described:
            # torch's own memory is aligned as the tensor's was before.
            buffer: Bytes = torch.empty(size, dtype=torch.uint8).numpy()
            buffer[:] = (
                self._incoming[place : place + size]
                if place >= 0
                else np.frombuffer(next(others), dtype=np.uint8)
            )
            buffers.append(buffer)
        if any(place >= 0 for _, place in described):
            self.pipe.send_bytes(_TAKEN)
        return (pickle.loads(text, buffers=buffers),)  # noqa: S301 - likewise

    def close(self) -> None:
        """The other end then finds that this one has ended."""
        self.pipe.close()

    def _place(self, parts: Sequence[Bytes]) -> list[int]:
        """Copy large arrays to the shared memory: where each begins there; -1: it does not."""
        places, end = [], 0
        for part in parts:
            fits = part.size >= LARGE and end + part.size <= self._outgoing.size
            places.append(end if fits else -1)
            end += part.size if fits else 0
        if end:
            while not self._is_free:
                message = self.receive()
                assert message is None, "a message came before the last one was taken"
            self._is_free = False
        for part, place in zip(parts, places, strict=True):
            if place >= 0:
                self._outgoing[place : place + part.size] = part
        return places


class _Pickler(pickle.Pickler):
    """Tensors as arrays, whose values stay outside the pickle."""

    def reducer_override(self, value: object) -> Any:
        """How to make it again."""
        if isinstance(value, Tensor):
            return torch.from_numpy, (value.detach().contiguous().numpy(),)
        if isinstance(value, Study):  # as it travels over a network
            return _study, (value.canonical_json(),)
        return NotImplemented


@lru_cache(maxsize=4)  # a study is named by every request
def _study(text: str) -> Study:
    return Study.model_validate_json(text)


def _pickled(message: object, arrays: list[pickle.PickleBuffer]) -> bytes:
    def keep_small(array: pickle.PickleBuffer) -> bool:
        """True: it is part of the pickle."""
        if array.raw().nbytes < LARGE:
            return True
        arrays.append(array)
        return False

    with io.BytesIO() as stream:
        _Pickler(stream, protocol=5, buffer_callback=keep_small).dump(message)
        return stream.getvalue()
