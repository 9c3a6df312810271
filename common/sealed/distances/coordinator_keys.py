"""The user's Paillier key of one run and what is made from it, and the sites' public keys."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

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
        self._proofs: dict[bytes, Sequence[mpz]] = {}

    @cached_property
    def key(self) -> PrivateKey:
        """It stays in this process."""
        return self._make()

    def take_up(self, p: mpz, q: mpz) -> None:
        """Go on with the key of a run that is resumed."""
        if "key" not in vars(self) or (self.key.p, self.key.q) != (p, q):
            self.key = private_key_of(p, q)
            self.pool = NoisePool(self.key)
            self._proofs.clear()

    def proof(self, run_hash: bytes) -> Sequence[mpz]:
        """That the modulus hides what it should, in that run."""
        if run_hash not in self._proofs:
            self._proofs[run_hash] = prove(self.key, run_hash)
        return self._proofs[run_hash]

    @cached_property
    def pool(self) -> NoisePool:
        """Noise that is made ahead."""
        return NoisePool(self.key)
