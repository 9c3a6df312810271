"""A site's Paillier noise for its next distance, made while it has nothing else to do."""

import threading

import gmpy2
from gmpy2 import mpz

from erosion.common.sealed.distances.paillier import PublicKey


class NoiseAhead:
    """Of one key at a time; each noise is given out once."""

    def __init__(self) -> None:
        """Nothing is made until `prepare` or `take`."""
        self._thread: threading.Thread | None = None
        self._made: tuple[PublicKey, mpz] | None = None

    def prepare(self, key: PublicKey) -> None:
        """Have one ready in a while."""
        if self._thread is None and self._made is None:
            self._thread = threading.Thread(target=self._make, args=(key,), daemon=True)
            self._thread.start()

    def take(self, key: PublicKey) -> mpz:
        """One noise under the key, made now where none is ready."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        made, self._made = self._made, None
        return made[1] if made is not None and made[0] == key else key.noise()

    def _make(self, key: PublicKey) -> None:
        gmpy2.get_context().allow_release_gil = True  # of this thread
        self._made = key, key.noise()
