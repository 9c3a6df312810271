"""Opened masks: did a hospital sum, to the bit, what it signed, at the distance it claimed?"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from erosion_common.errors import ErosionError
from erosion_common.formats.tensor_file import read_tensors, write_tensors
from erosion_common.sealed.keys import KEY_BYTES, public_half
from erosion_common.sealed.masks import fits_range, norm_of, sketch
from erosion_common.sealed.records import Evidence
from erosion_common.sealed.roster import masked_words, roster_hash, sketch_seed, words_hash
from erosion_common.settings.names import checked_name
from erosion_common.support.text import printable


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Disclosure:
    """One hospital's part of one sum."""

    name: str  # of the hospital
    view: str  # hash of the view that the hospitals got, hexadecimal
    update: NDArray[np.float32]  # (dim,)
    seed: bytes  # of the self mask
    mask_key: bytes

    def write(self, path: Path) -> None:
        """As a safetensors file. Raises OSError."""
        about = {
            "name": self.name,
            "view": self.view,
            "seed": self.seed.hex(),
            "mask_key": self.mask_key.hex(),
        }
        write_tensors(path, {"update": torch.from_numpy(self.update)}, about)


def _secret(text: str) -> bytes:
    secret = bytes.fromhex(text)
    if len(secret) != KEY_BYTES:
        raise ValueError(f"a secret of {len(secret)} bytes, expected {KEY_BYTES}")
    return secret


def read_disclosure(path: Path, error: type[ErosionError]) -> Disclosure:
    """Read what `write` wrote; raises `error`."""
    try:
        about, tensors = read_tensors(path)
        update = tensors["update"]
        name = checked_name(about["name"])
        view = about["view"]
        seed, mask_key = _secret(about["seed"]), _secret(about["mask_key"])
    except (OSError, KeyError, ValueError) as why:
        raise error(f"{path} is not an opening that can be read ({printable(str(why))}).") from None
    if update.dtype != torch.float32 or update.ndim != 1:
        kind = str(update.dtype).removeprefix("torch.")
        raise error(f"{path} holds {kind} of shape {tuple(update.shape)}, which is no update.")
    return Disclosure(name, view, update.numpy(), seed, mask_key)


TOLERANCE = 1e-3  # of a distance, relative or absolute; a rounding error is a thousandth of that


@dataclass(frozen=True, slots=True)
class Examined:
    """The finding about one opening."""

    hospital: str
    claimed: float  # distance to the user's update
    shown: float | None  # the true one; None: the opening is not of what was sent
    reason: str = ""  # why it is not

    @property
    def is_honest(self) -> bool:
        """Whether what was summed was as near as was claimed."""
        if self.shown is None:
            return False
        return abs(self.shown - self.claimed) <= TOLERANCE * max(1.0, self.shown)


def examine(evidence: Evidence, own: NDArray[np.float32], opening: Disclosure) -> Examined:
    """Compare an opening with what its hospital sent; `own` is the user's update."""
    name = opening.name
    roster = evidence.roster
    if name not in evidence.delivered:
        return Examined(name, evidence.distances.get(name, 0.0), None, "it is not in the sum")
    claimed = evidence.distances[name]
    everyone = roster_hash(evidence.context, roster)
    view = evidence.view
    if opening.view != view.hash.hex():
        return Examined(name, claimed, None, "the opening is of another round")
    if not (
        len(opening.update) == len(own)
        and fits_range(opening.update, view.scale)
        and public_half(opening.mask_key) == roster[name].mask
    ):
        return Examined(name, claimed, None, "the opening is not of what it sent")
    words = masked_words(view, roster, name, opening.update, (opening.seed, opening.mask_key))
    if words_hash(words) != evidence.delivered[name].words:
        return Examined(name, claimed, None, "the opening is not of what it sent")
    seed = sketch_seed(everyone)
    apart = np.linalg.norm(sketch(opening.update, seed) - sketch(own, seed))
    return Examined(name, claimed, float(apart / norm_of(own)))
