"""A hospital's message of leg 3: its update times its weight, under masks."""

import numpy as np
from numpy.typing import NDArray

from erosion.common.sealed.digest import digest
from erosion.common.sealed.masks import ring
from erosion.common.sealed.masks.key_agreement import agree, derive
from erosion.common.sealed.masks.mask import Mask, Words, chunks
from erosion.common.sealed.roster import Roster, View


def masked_words(
    view: View, roster: Roster, name: str, update: NDArray[np.float32], secrets: tuple[bytes, bytes]
) -> Words:
    """The words of an update that fits the view's range: (dim,).

    `secrets` are the hospital's seed and mask key. Raises ValueError for a key in the roster that
    is none.
    """
    seed, mask_key = secrets
    masks = [self_mask(view, name, seed, +1)]
    for other in view.members:
        if other != name:
            masks.append(pair_mask(view, roster, (name, other), mask_key, +1))
    # Never in the memory of an earlier answer: that may still be on its way, and would for a moment
    # show what is not under its masks yet.
    words = np.empty(len(update), np.uint32)
    encoder = ring.Encoder(view.weights[name], view.scale)
    for place in chunks(len(update)):  # all of it while the part is in the cache
        part = words[place]
        encoder.encode(update[place], part)
        for mask in masks:
            mask.apply(part)
    return words


def self_mask(view: View, name: str, seed: bytes, sign: int) -> Mask:
    """The mask that comes off with shares of the seed."""
    return Mask(derive(seed, digest("self", view.hash, name)), sign)


def pair_mask(view: View, roster: Roster, pair: tuple[str, str], private: bytes, sign: int) -> Mask:
    """The mask of the first of a pair, of which the second has the opposite. Raises ValueError.

    `private`: the first one's key. Names and keys are in its key, so no other pair has this mask.
    """
    name, other = pair
    first, second = sorted(pair)
    bound = digest("pair", view.hash, first, second, roster[first].mask, roster[second].mask)
    secret = agree(private, roster[other].mask)
    return Mask(derive(secret, bound), sign if name < other else -sign)
