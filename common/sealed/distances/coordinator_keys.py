"""The user's Paillier key of one run and what is made from it, and the sites' public keys."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from gmpy2 import mpz

from erosion.common.sealed.distances.modulus_proof import prove
from erosion.common.sealed.distances.noise_pool import NoisePool
from erosion.common.sealed.distances.paillier import PrivateKey, new_private_key
from erosion.common.support.keys import PublicKey


class CoordinatorKeys:
    """Made when they are first needed; a run that is resumed has fresh ones."""

    def __init__(
        self,
        make: Callable[[], PrivateKey] = new_private_key,
        sites: Callable[[], Mapping[str, PublicKey]] = dict,
    ) -> None:
        """`make` gives the key, `sites` the hospitals' node keys as far as they are enrolled."""
        self._make, self.sites = make, sites

    @cached_property
    def key(self) -> PrivateKey:
        """It stays in this process."""
        return self._make()

    @cached_property
    def proof(self) -> Sequence[mpz]:
        """That the modulus hides what it should."""
        return prove(self.key)

    @cached_property
    def pool(self) -> NoisePool:
        """Noise that is made ahead."""
        return NoisePool(self.key)
