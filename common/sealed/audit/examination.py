"""Examines opened masks: did a hospital sum what it signed, at the distance it claimed?

A hospital cannot open other than what it sent: its update and secrets must give, bit by bit, the
masked words whose hash it signed.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from erosion.common.sealed.audit.evidence import Evidence
from erosion.common.sealed.audit.opening import Opening
from erosion.common.sealed.distances.sketch import sketch
from erosion.common.sealed.masks import ring
from erosion.common.sealed.masks.key_agreement import public_half
from erosion.common.sealed.masks.mask import norm_of
from erosion.common.sealed.masks.masked_update import masked_words
from erosion.common.sealed.roster import roster_hash, sketch_seed, words_hash

TOLERANCE = 1e-3  # of a distance, relative or absolute; a rounding error is a thousandth of that


@dataclass(frozen=True, slots=True)
class Finding:
    """What one opening shows."""

    hospital: str
    claimed: float  # distance to the user's update
    shown: float | None  # the true one; None: the opening is not of what was sent
    reason: str = ""  # why it is not
    lengths: tuple[float, float] | None = None  # claimed and shown, where it said any

    @property
    def is_honest(self) -> bool:
        """Whether what was summed was as near as was claimed."""
        if self.shown is None:
            return False
        length, true_length = self.lengths or (0.0, 0.0)
        return (
            abs(self.shown - self.claimed) <= TOLERANCE * max(1.0, self.shown)
            and abs(true_length - length) <= TOLERANCE * true_length
        )


def examine(evidence: Evidence, own: NDArray[np.float32], opening: Opening) -> Finding:
    """Hold an opening against what its hospital sent; `own` is the user's update."""
    name = opening.name
    roster = {hospital: keys.hello for hospital, keys in evidence.roster.items()}
    if name not in evidence.delivered:
        return Finding(name, evidence.distances.get(name, 0.0), None, "it is not in the sum")
    claimed = evidence.distances[name]
    everyone = roster_hash(evidence.context.context, roster)
    view = evidence.view
    if opening.view != view.hash.hex():
        return Finding(name, claimed, None, "the opening is of another round")
    if not (
        len(opening.update) == len(own)
        and ring.fits(opening.update, view.scale)
        and public_half(opening.mask_key) == roster[name].mask
    ):
        return Finding(name, claimed, None, "the opening is not of what it sent")
    words = masked_words(view, roster, name, opening.update, (opening.seed, opening.mask_key))
    if words_hash(words) != evidence.delivered[name].words:
        return Finding(name, claimed, None, "the opening is not of what it sent")
    seed, measure = sketch_seed(everyone), evidence.measure
    update, mine = measure.scaled(opening.update), measure.scaled(own)
    apart = np.linalg.norm(sketch(update, seed) - sketch(mine, seed))
    lengths = None
    if (said := evidence.lengths.get(name)) is not None:
        pairs = ((said.whole, norm_of(opening.update)), (said.measured, norm_of(update)))
        lengths = max(pairs, key=lambda pair: abs(pair[0] - pair[1]))
    return Finding(name, claimed, float(apart / norm_of(mine)), lengths=lengths)
