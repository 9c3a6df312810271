"""A hospital's message of leg 3: its update times its weight, under masks."""

import numpy as np
from numpy.typing import NDArray

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
    masks = [self_mask(view, seed, +1)]
    for other in view.members:
        if other != name:
            masks.append(pair_mask(view, mask_key, roster[other].mask, +1 if name < other else -1))
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


def self_mask(view: View, seed: bytes, sign: int) -> Mask:
    """The mask that comes off with shares of the seed."""
    return Mask(derive(seed, b"self" + view.hash), sign)


def pair_mask(view: View, private: bytes, public: bytes, sign: int) -> Mask:
    """The mask that two hospitals share, and which cancels in their sum. Raises ValueError."""
    return Mask(derive(agree(private, public), b"pair" + view.hash), sign)
