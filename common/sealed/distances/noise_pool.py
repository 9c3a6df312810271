"""Paillier noise made ahead, while the hospitals train."""

import threading
import time
from collections import deque
from functools import cached_property

from gmpy2 import mpz

from erosion.common.sealed.distances.paillier import NoiseMaker, PrivateKey

_BREATH = 1e-5  # seconds in which others have Python's lock, after each millisecond of work


class NoisePool:
    """Each noise is given out once."""

    def __init__(self, key: PrivateKey) -> None:
        """Nothing is made until `prepare` or `take`."""
        self._key = key
        self._ready: deque[mpz] = deque()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # of the maker, which is made once

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
            return self._make()

    def _make(self) -> mpz:
        with self._lock:
            return self._maker.make()

    @cached_property
    def _maker(self) -> NoiseMaker:
        return NoiseMaker(self._key)

    def _fill(self, count: int) -> None:
        while len(self._ready) < count:
            self._ready.append(self._make())
            time.sleep(_BREATH)
