"""The user's Paillier key of one run, and what is made from it."""

from collections.abc import Callable, Sequence
from functools import cached_property

from gmpy2 import mpz

from erosion.common.sealed.modulus_proof import prove
from erosion.common.sealed.noise_pool import NoisePool
from erosion.common.sealed.paillier import PrivateKey, new_private_key


class CoordinatorKeys:
    """Made when they are first needed; a run that is resumed has fresh ones."""

    def __init__(self, make: Callable[[], PrivateKey] = new_private_key) -> None:
        """`make` gives the key."""
        self._make = make

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
