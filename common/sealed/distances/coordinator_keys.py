"""The user's Paillier key of one run and what is made from it, and the sites' public keys."""

from collections.abc import Callable, Mapping, Sequence

from gmpy2 import mpz

from erosion.common.sealed.distances.modulus_proof import prove
from erosion.common.sealed.distances.noise_pool import NoisePool
from erosion.common.sealed.distances.paillier import PrivateKey, new_private_key, private_key_of
from erosion.common.support.keys import PublicKey


class CoordinatorKeys:
    """Made when they are first needed."""

    def __init__(
        self,
        make: Callable[[], PrivateKey] = new_private_key,
        sites: Callable[[], Mapping[str, PublicKey]] = dict,
    ) -> None:
        """`make` gives the key, `sites` the hospitals' node keys as far as they are enrolled."""
        self._make, self.sites = make, sites
        self._key: PrivateKey | None = None
        self._pool: NoisePool | None = None
        self._proofs: dict[bytes, Sequence[mpz]] = {}

    @property
    def key(self) -> PrivateKey:
        """It stays in this process."""
        if self._key is None:
            self._key = self._make()
        return self._key

    def take_up(self, p: mpz, q: mpz) -> None:
        """Go on with the key of a run that is resumed."""
        if self._key is None or (self._key.p, self._key.q) != (p, q):
            self._key, self._pool = private_key_of(p, q), None
            self._proofs.clear()

    def proof(self, run_hash: bytes) -> Sequence[mpz]:
        """That the modulus hides what it should, in that run."""
        if run_hash not in self._proofs:
            self._proofs[run_hash] = prove(self.key, run_hash)
        return self._proofs[run_hash]

    @property
    def pool(self) -> NoisePool:
        """Noise that is made ahead."""
        if self._pool is None:
            self._pool = NoisePool(self.key)
        return self._pool
