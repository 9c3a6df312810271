"""Secrets that two sites share: X25519, and HKDF-SHA256 for each purpose."""

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 32  # of every key, public, private or derived


def new_pair() -> tuple[bytes, bytes]:
    """A fresh private key and its public half."""
    key = X25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def public_half(private: bytes) -> bytes:
    """The public key of a private one. Raises ValueError for other than 32 bytes."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes) -> bytes:
    """The secret of two pairs, the same from either side. Raises ValueError for a weak key."""
    return X25519PrivateKey.from_private_bytes(private).exchange(
        X25519PublicKey.from_public_bytes(public)
    )


def derive(secret: bytes, purpose: bytes) -> bytes:
    """A key for one purpose: 32 bytes that say nothing of the keys for others."""
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=purpose).derive(secret)
