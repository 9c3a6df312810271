"""Paillier noise made ahead, while the hospitals train."""

import threading
from collections import deque

import gmpy2
from gmpy2 import mpz

from erosion.common.sealed.paillier import PrivateKey


class NoisePool:
    """Each noise is given out once."""

    def __init__(self, key: PrivateKey) -> None:
        """Nothing is made until `prepare` or `take`."""
        self._key = key
        self._ready: deque[mpz] = deque()
        self._thread: threading.Thread | None = None

    def prepare(self, count: int) -> None:
        """Have so many ready in a while."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = threading.Thread(target=self._fill, args=(count,), daemon=True)
        self._thread.start()

    def take(self) -> mpz:
        """One noise, made now where none is ready."""
        try:
            return self._ready.popleft()
        except IndexError:
            return self._key.noise()

    def _fill(self, count: int) -> None:
        gmpy2.get_context().allow_release_gil = True  # of this thread
        while len(self._ready) < count:
            self._ready.append(self._key.noise())
