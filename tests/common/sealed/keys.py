"""Keys for sealed distances in tests: one of each size, because making one takes a while."""

from functools import cache

from erosion_common.sealed.power_residues import ResiduePrivateKey, new_private_key


@cache
def residue_key(bits: int = 2048) -> ResiduePrivateKey:
    """The same key each time."""
    return new_private_key(bits)
