"""Secrets that two sites share: X25519, and HKDF-SHA256 for each purpose.

X25519 gives the same secret for several keys, so only one form of a number is a key, and two keys
are compared by the secrets that they give.

Every key, signature and commitment of sealed rounds is of a `digest`, SHA-256 over parts each with
its length in front, so all of them hold for this version of the protocol alone.
"""

import hashlib
import struct
from collections import Counter
from collections.abc import Collection

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PROTOCOL = "erosion sealed rounds 3"
Part = bytes | memoryview | str | int | float  # a memoryview of bytes: long values, not copied


def digest(*parts: Part) -> bytes:
    """Return the hash of the parts in their order: 32 bytes."""
    total = hashlib.sha256()
    for part in (PROTOCOL, *parts):
        content = _content(part)
        total.update(struct.pack("<Q", len(content)))
        total.update(content)
    return total.digest()


def _content(part: Part) -> bytes | memoryview:
    match part:
        case bytes() | memoryview():
            return part
        case str():
            return part.encode()
        case int():
            return str(part).encode()
        case float():
            return struct.pack("<d", part)  # every bit counts: 0.1 and its neighbour differ


KEY_BYTES = 32  # of every key, public, private or derived
_PRIME = 2**255 - 19


def new_pair() -> tuple[bytes, bytes]:
    """Return a fresh private key and its public half."""
    key = X25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def private_half(private: bytes) -> X25519PrivateKey:
    """Return a private key that is used several times: reading it costs as much as using it."""
    return X25519PrivateKey.from_private_bytes(private)


def public_half(private: bytes) -> bytes:
    """Return the public key of a private one. Raises ValueError for other than 32 bytes."""
    return private_half(private).public_key().public_bytes_raw()


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """Return two pairs' secret, from either side. Raises ValueError for a key that is none."""
    if int.from_bytes(public, "little") >= _PRIME:
        raise ValueError("a public key that is not in its one form")
    return private.exchange(X25519PublicKey.from_public_bytes(public))


def derive(secret: bytes, purpose: bytes) -> bytes:
    """Return a key for one purpose: 32 bytes that say nothing of the keys for others."""
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=purpose).derive(secret)


def doubtful(keys: Collection[bytes]) -> set[bytes]:
    """Return the public keys that are invalid, or that give the same secrets as another one."""
    probe = X25519PrivateKey.generate()
    effects = {key: _effect(probe, key) for key in keys}
    number = Counter(effects[key] for key in keys)
    return {key for key, effect in effects.items() if effect is None or number[effect] > 1}


def _effect(probe: X25519PrivateKey, public: bytes) -> bytes | None:
    try:
        return agree(probe, public)
    except ValueError:
        return None
