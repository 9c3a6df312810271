"""Keys for sealed distances in tests, made and proved once, because that takes a while."""

from functools import cache

from erosion_common.sealed.power_residues import ResiduePrivateKey, Whole, new_private_key, prove


@cache
def residue_key(bits: int = 2048) -> ResiduePrivateKey:
    """The same key each time."""
    return new_private_key(bits)


@cache
def residue_proof(run_hash: bytes) -> tuple[Whole, ...]:
    """The proof of that key in a run."""
    return tuple(prove(residue_key(), run_hash))
