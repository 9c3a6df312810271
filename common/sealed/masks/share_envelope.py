"""Shares on their way through the coordinator: AES-256-GCM between two sites."""

from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from erosion.common.sealed.digest import digest
from erosion.common.sealed.masks.key_agreement import agree, derive, public_half
from erosion.common.sealed.masks.shamir import SHARE_BYTES

ENVELOPE_BYTES = 2 * SHARE_BYTES + 16  # both shares, and the tag


@dataclass(frozen=True, slots=True, repr=False)
class Shares:
    """What one site holds of another: a share of each of its two secrets."""

    seed: bytes  # of b_j, released if j delivered
    key: bytes  # of j's mask key, released if it did not


@dataclass(frozen=True, slots=True, repr=False)
class Channel:
    """The sealed way between two sites in one attempt at a round."""

    key: bytes
    roster_hash: bytes

    @classmethod
    def between(
        cls, names: tuple[str, str], own_private: bytes, other_public: bytes, roster_hash: bytes
    ) -> "Channel":
        """The same from either side. `names`: the own one first."""
        pairs = sorted(zip(names, (public_half(own_private), other_public), strict=True))
        bound = digest("seal", roster_hash, *(part for pair in pairs for part in pair))
        return cls(derive(agree(own_private, other_public), bound), roster_hash)

    def seal(self, shares: Shares, *, sender: str, receiver: str) -> bytes:
        """82 bytes that only the receiver can read. At most one message in each direction."""
        content = shares.seed + shares.key
        about = digest("shares", self.roster_hash, sender, receiver)
        return AESGCM(self.key).encrypt(_nonce(sender, receiver), content, about)

    def open(self, envelope: bytes, *, sender: str, receiver: str) -> Shares:
        """Raises ValueError where it was not sealed here, by that sender, for that receiver."""
        if len(envelope) != ENVELOPE_BYTES:
            raise ValueError(f"an envelope of {len(envelope)} bytes, expected {ENVELOPE_BYTES}")
        about = digest("shares", self.roster_hash, sender, receiver)
        try:
            content = AESGCM(self.key).decrypt(_nonce(sender, receiver), envelope, about)
        except InvalidTag:
            raise ValueError("an envelope that was not sealed by its sender") from None
        return Shares(content[:SHARE_BYTES], content[SHARE_BYTES:])


def _nonce(sender: str, receiver: str) -> bytes:
    # The key is of this pair and attempt and seals one message in each direction.
    return bytes(11) + (b"\1" if sender < receiver else b"\2")
