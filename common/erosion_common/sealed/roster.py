"""What everybody in one attempt at a round hashes, signs and checks, and each one's masks.

Who is in it, under which keys and with which view goes into the masks' keys, so that sites with
different views cannot be unmasked.
"""

from collections.abc import Mapping

import numpy as np
import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray
from torch import Tensor

from erosion_common.sealed.keys import Part, agree, derive, digest, doubtful, private_half
from erosion_common.sealed.masks import Mask, Words, apply_masks, encode
from erosion_common.sealed.phases import Hello, Receipt, Roster, RoundContext, SumRules, View
from erosion_common.support.keys import PrivateKey, PublicKey

_SIGNATURE = ec.ECDSA(hashes.SHA256())


def sign_hello(
    key: PrivateKey, context: RoundContext, name: str, mask: bytes, seal: bytes
) -> Hello:
    """Return the keys, signed for this attempt."""
    return Hello(mask, seal, key.sign(_signed(context, name, mask, seal), _SIGNATURE))


def is_signed(key: PublicKey, context: RoundContext, name: str, hello: Hello) -> bool:
    """Return whether a hello was signed by the node key of that name, for this attempt."""
    return _verify(key, hello.signature, _signed(context, name, hello.mask, hello.seal))


def roster_hash(context: RoundContext, roster: Roster) -> bytes:
    """Return the attempt, and everybody in it."""
    entries = [part for n in sorted(roster) for part in (n, roster[n].mask, roster[n].seal)]
    return digest("roster", *context.parts, *entries)


def usable(roster: Roster) -> dict[str, Hello]:
    """Return those with valid keys that nobody else has; sites accept no others."""
    bad = doubtful([key for hello in roster.values() for key in (hello.mask, hello.seal)])
    return {name: h for name, h in roster.items() if not bad & {h.mask, h.seal}}


def sketch_seed(roster_hash: bytes) -> bytes:
    """Return the seed of the sketch's signs and buckets: nobody can choose it."""
    return derive(roster_hash, digest("sketch"))


def places(roster: Roster) -> dict[str, int]:
    """Return the place of each site's shares: from 1, by name."""
    return {name: place for place, name in enumerate(sorted(roster), start=1)}


def words_hash(words: Words) -> bytes:
    """Return the hash of a masked update."""
    return digest("words", words.data.cast("B"))


def seed_hash(view: View, name: str, seed: bytes) -> bytes:
    """Return the hash of the random seed of a site's self mask; it discloses nothing of it."""
    return digest("seed", view.hash, name, seed)


def received_hash(parameters: Tensor | None, scaling: str, enclosed: Mapping[str, Tensor]) -> bytes:
    """Return the hash of all that a site trains from, so that a sum is of comparable updates.

    `parameters` (dim,) float32, `scaling` as JSON or "", and what the method sends along.
    """
    parts: list[Part] = []
    for name, tensor in sorted(enclosed.items()):
        parts += [name, str(tensor.dtype), str(tuple(tensor.shape)), _bytes(tensor.detach().cpu())]
    start = b"" if parameters is None else _bytes(parameters)
    return digest("received", start, scaling, *parts)


def _bytes(values: Tensor) -> memoryview:
    return values.contiguous().reshape(-1).view(torch.uint8).numpy().data  # also of () and (0, n)


def sign_receipt(key: PrivateKey, view: View, name: str, words: bytes, rules: SumRules) -> Receipt:
    """Sign; `words` is the masked update's hash."""
    return Receipt(words, rules, key.sign(_delivered(view, name, words, rules), _SIGNATURE))


def is_receipt(key: PublicKey, view: View, name: str, receipt: Receipt) -> bool:
    """Return whether the site of that name delivered, with the same view."""
    signed = _delivered(view, name, receipt.words, receipt.rules)
    return _verify(key, receipt.signature, signed)


def _signed(context: RoundContext, name: str, mask: bytes, seal: bytes) -> bytes:
    return digest("keys", *context.parts, name, mask, seal)


def _delivered(view: View, name: str, words: bytes, rules: SumRules) -> bytes:
    return digest("masked", view.hash, name, words, *rules.parts)


def _verify(key: PublicKey, signature: bytes, content: bytes) -> bool:
    try:
        key.verify(signature, content, _SIGNATURE)
    except InvalidSignature:
        return False
    return True


def masked_words(
    view: View, roster: Roster, name: str, update: NDArray[np.float32], secrets: tuple[bytes, bytes]
) -> Words:
    """Return an update's words (dim,), by the secrets seed and mask key. Raises ValueError."""
    seed, mask_key = secrets[0], private_half(secrets[1])
    masks = [self_mask(view, name, seed, +1)]
    for other in view.members:
        if other != name:
            masks.append(pair_mask(view, roster, (name, other), mask_key, +1))
    # Never in the memory of an earlier answer: that may still be on its way, and would for a moment
    # show what is not under its masks yet.
    words = np.empty(len(update), np.uint32)
    apply_masks(words, masks, encode(update, view.weights[name] * view.scale, words))
    return words


def self_mask(view: View, name: str, seed: bytes, sign: int) -> Mask:
    """Return the mask that comes off with shares of the seed."""
    return Mask(derive(seed, digest("self", view.hash, name)), sign)


def pair_mask(
    view: View, roster: Roster, pair: tuple[str, str], private: X25519PrivateKey, sign: int
) -> Mask:
    """Return the mask of a pair's first, with its `private` key; the second has the opposite."""
    name, other = pair
    first, second = sorted(pair)
    bound = digest("pair", view.hash, first, second, roster[first].mask, roster[second].mask)
    secret = agree(private, roster[other].mask)
    return Mask(derive(secret, bound), sign if name < other else -sign)
