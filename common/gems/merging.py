"""One hidden layer for all hospitals: similar neurons are merged, all others appended (GEMS 3.2).

K-means on [w, b] makes clusters; in each, the largest set of neurons whose balls meet pairwise
becomes one neuron by equation 2. Balls that meet pairwise need not have a point in common, so the
worst ball leaves the set until they do. Nothing depends on the order of hospitals or neurons.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from erosion.common.gems.balls import Balls
from erosion.common.gems.descent import Spaces, descend
from erosion.common.gems.intersection import meet_balls


@dataclass(frozen=True, slots=True, eq=False)
class MergedLayer:
    """The neurons of the common layer, and what was made of how many."""

    neurons: Tensor  # (m, d + 1) float32, rows [w, b]
    offered: int  # neurons that the hospitals sent
    merged: int  # of them, those that became one with others
    lost: int  # and those in the cluster that `skip_first_cluster` leaves out


def merge_neurons(
    balls: Balls,
    clusters: int,
    *,
    seed: int = 0,
    skip_first_cluster: bool = False,
    masked_distance: bool = False,
) -> MergedLayer:
    """The common layer of all hospitals' neurons, which have balls (k, d + 1).

    `clusters` is m in the paper; with fewer distinct neurons each is a cluster. The authors' loop
    begins at cluster 1, so that cluster 0 is lost: `skip_first_cluster` does the same. With
    `masked_distance` equation 2 multiplies every difference by the centre's own value, as theirs.
    """
    ordered = balls.only(_canonical_order(balls))
    made, merged, lost = [], 0, 0
    for number, members in enumerate(_clusters(ordered.centres, clusters, seed)):
        if number == 0 and skip_first_cluster and len(members) < len(ordered):
            lost += len(members)
            continue
        together, point = _meeting_set(ordered, members, masked_distance)
        alone = [member for member in members if member not in together]
        if len(together) > 1:
            made.append(point)
            merged += len(together)
        else:
            alone = members
        made += [ordered.centres[member] for member in alone]
    return MergedLayer(torch.stack(made).float(), len(balls), merged, lost)


def largest_pairwise_set(balls: Balls) -> list[int]:
    """The largest set that a greedy search finds, from every ball, in which all pairs meet.

    Larger balls are tried first.
    """
    # Not by way of inner products, whose rounding sets apart what is the same.
    apart = torch.cdist(balls.centres, balls.centres, compute_mode="donot_use_mm_for_euclid_dist")
    meets = (apart <= balls.radii + balls.radii[:, None]).numpy()
    by_radius = np.argsort(-balls.radii.numpy(), kind="stable").tolist()
    return max((_greedy(meets, first, by_radius) for first in by_radius), key=len, default=[])


def _greedy(meets: NDArray[np.bool_], first: int, order: Iterable[int]) -> list[int]:
    chosen, welcome = [first], meets[first].copy()
    for candidate in order:
        if welcome[candidate] and candidate != first:
            chosen.append(candidate)
            welcome &= meets[candidate]
    return chosen


def _meeting_set(balls: Balls, members: list[int], masked: bool) -> tuple[list[int], Tensor]:
    """The members that become one neuron, and that neuron; a single member stays as it is."""
    chosen = [members[place] for place in largest_pairwise_set(balls.only(members))]
    while True:
        point, gaps = _met(balls.only(chosen), masked)
        if not bool((gaps > 0).any()):
            return chosen, point
        del chosen[int(gaps.argmax())]


def _met(balls: Balls, masked: bool) -> tuple[Tensor, Tensor]:
    """The neuron that equation 2 finds (d + 1,), and how far it lies outside each ball (k,)."""
    if masked:
        each = torch.ones_like(balls.radii)
        spaces = Spaces(balls.centres, balls.radii, each, scales=balls.centres)
        found = descend(spaces, spaces.mean)
        return found.point, found.gaps
    point, meeting = meet_balls(balls)
    return point, meeting.gaps


def _clusters(centres: Tensor, count: int, seed: int) -> list[list[int]]:
    """The places of each cluster's members, ascending; no cluster is empty."""
    from sklearn.cluster import KMeans  # a second to import, and only the coordinator needs it

    rows = centres.numpy()
    count = min(count, len(np.unique(rows, axis=0)))
    labels = KMeans(count, n_init=10, random_state=seed).fit_predict(rows)
    groups = (np.flatnonzero(labels == label).tolist() for label in range(count))
    return [group for group in groups if group]


def _canonical_order(balls: Balls) -> Tensor:
    """By the neurons' numbers, the first one first, then by radius."""
    keys = torch.cat([balls.centres, balls.radii[:, None]], dim=1).numpy()
    return torch.from_numpy(np.lexsort(keys.T[::-1]))
