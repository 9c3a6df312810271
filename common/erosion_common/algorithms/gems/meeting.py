"""The search for a model in all balls, and the merging of neurons (GEMS, equation 2 and 3.2)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from erosion_common.algorithms.gems.balls import Balls

_MET = 1e-6  # of the scale: a residual up to this counts as 0


@dataclass(frozen=True, slots=True, eq=False)
class Spaces:
    """The spaces in which a model is good enough, one for each hospital."""

    centres: Tensor  # (k, d) float64, c_k
    radii: Tensor  # (k,) float64, r_k
    shares: Tensor  # (k,) float64, a_k; a space of share 0 does not count
    scales: Tensor | None = None  # (k, d) float64, s_k; None: 1
    hard: int | None = None  # the number of a ball that is never left

    def __post_init__(self) -> None:
        if not float(self.shares.sum()) > 0:
            raise ValueError("no ball to look for a model in")

    @property
    def mean(self) -> Tensor:
        """The mean of the centres by their shares: (d,)."""
        return self.shares @ self.centres / self.shares.sum()

    def apart(self, point: Tensor) -> Tensor:
        """Return s_k (w - c_k): (k, d)."""
        apart = point - self.centres
        return apart if self.scales is None else self.scales * apart

    def kept(self, point: Tensor) -> Tensor:
        """Return the nearest point of the hard ball."""
        if self.hard is None:
            return point
        away, radius = point - self.centres[self.hard], self.radii[self.hard]
        distance = away.norm()
        return point if distance <= radius else self.centres[self.hard] + away * radius / distance


@dataclass(frozen=True, slots=True, eq=False)
class Missed:
    """What a model misses."""

    gaps: Tensor  # (k,) how far it lies outside each space, on that space's scale; 0: inside
    residual: float  # the sum of the gaps by their shares
    steps: int  # that led to it

    @property
    def in_all(self) -> bool:
        """Whether the model lies in every space that counts."""
        return self.residual == 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Found(Missed):
    """A model, and what it misses."""

    point: Tensor  # (d,) float64


STEP, MOST_STEPS = 0.01, 1000  # length, and of one descent


def descend(
    spaces: Spaces, start: Tensor, *, learning_rate: float = STEP, max_steps: int = MOST_STEPS
) -> Found:
    """Return the point of smallest residual on the way from `start` (d,).

    Steps end within about `learning_rate` of the best point.
    """
    point = spaces.kept(start)
    apart = spaces.apart(point)
    distances = apart.norm(dim=1)
    scale = float(distances[spaces.shares > 0].max())  # what does not count sets no measure
    gaps = (distances - spaces.radii).clamp(min=0.0)
    best = Found(gaps, float(spaces.shares @ gaps), 0, point)
    for step in range(1, max_steps + 1):
        if best.residual <= _MET * scale:
            break
        # a_k s_k^2 (w - c_k) / |s_k (w - c_k)|, over the spaces that miss the point. At a centre
        # itself there is no direction, and nothing to gain.
        missed = (gaps > 0) & (distances > 1e-12 * scale)
        pulls = torch.where(missed, spaces.shares / distances.clamp(min=1e-300), 0.0)
        slopes = pulls[:, None] * apart
        slope = (slopes if spaces.scales is None else spaces.scales * slopes).sum(dim=0)
        if float(slope.norm()) <= 1e-12 * float(spaces.shares.sum()):
            break  # the spaces pull evenly: no step leads on
        point = spaces.kept(point - learning_rate * slope)
        apart = spaces.apart(point)
        distances = apart.norm(dim=1)
        gaps = (distances - spaces.radii).clamp(min=0.0)
        residual = float(spaces.shares @ gaps)
        if residual < best.residual:
            best = Found(gaps, residual, step, point)
    if best.residual <= _MET * scale:
        # Rounding alone is left of these gaps.
        return Found(torch.where(spaces.shares > 0, 0.0, best.gaps), 0.0, best.steps, best.point)
    return best


def descend_from_afar(spaces: Spaces) -> Found:
    """Descend from the mean, in longer steps first where short ones could not cross the space.

    So one hospital with a model far from the others' moves the start, but hardly the result: in
    equation 2 it pulls with the same strength from everywhere. The last steps have length STEP.
    """
    found = descend(spaces, spaces.mean, max_steps=0)
    width = float((spaces.centres - found.point).norm(dim=1).max())
    length = STEP
    while length * MOST_STEPS < width:
        length *= 10
    while not found.in_all and length >= STEP * 0.99:
        found = descend(spaces, found.point, learning_rate=length)
        length /= 10
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Meeting(Missed):
    """The model found, and what it misses."""

    coefficients: Tensor  # (k,) float64, b_k of the model; they add up to 1


def meet(
    gram: Tensor,
    radii: Tensor,
    *,
    weights: Tensor | None = None,
    hard: int | None = None,
    from_afar: bool = False,
) -> Meeting:
    """Return the best point found for the weighted gap, from the (weighted) mean of the centres.

    `gram` (k, k) are the centres' inner products, from any origin; nearer is more precise.
    `weights` (k,) are 1 where not given; a ball of weight 0 does not count. The ball number `hard`
    is never left. Steps of length STEP end within about that of the best point; the best on
    the way is returned. `from_afar`: see `descend_from_afar`. Raises ValueError without a ball that
    counts.
    """
    spaces = _placed(gram, radii, weights, hard)
    found = descend_from_afar(spaces) if from_afar else descend(spaces, spaces.mean)
    return _meeting(spaces, found)


def meet_balls(balls: Balls) -> tuple[Tensor, Meeting]:
    """Return the model (d,) that `meet` finds for balls at hand, each counting alike."""
    apart = balls.centres - balls.centres[0]  # exactly 0 where all are the same
    meeting = meet(apart @ apart.T, balls.radii)
    return meeting.coefficients @ balls.centres, meeting


def _placed(gram: Tensor, radii: Tensor, weights: Tensor | None, hard: int | None) -> Spaces:
    """Return balls of the same radii and distances in k dimensions, the mean of centres at 0."""
    shares = torch.ones(len(radii)) if weights is None else weights
    shares, gram, radii = shares.double(), gram.double(), radii.double()
    mean = shares / shares.sum().clamp(min=1e-300)
    products = gram @ mean
    around = gram - products - products[:, None] + mean @ products  # inner products from the mean
    lengths, directions = torch.linalg.eigh((around + around.T) / 2)
    return Spaces(directions * lengths.clamp(min=0.0).sqrt(), radii, shares, hard=hard)


def _meeting(spaces: Spaces, found: Found) -> Meeting:
    """Return the coefficients of the point found: the smallest, where several come to the same.

    Centres that may depend on each other, or nearly, would otherwise let them grow without end.
    """
    used = spaces.shares > 0
    if spaces.hard is not None:
        used[spaces.hard] = True
    places = spaces.centres[used] - spaces.mean
    change = torch.linalg.pinv(places.T, rtol=1e-7) @ (found.point - spaces.mean)
    coefficients = spaces.shares / spaces.shares.sum() * (1 - change.sum())
    coefficients[used] += change
    return Meeting(found.gaps, found.residual, found.steps, coefficients)


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
    """Return the common layer of all hospitals' neurons, which have balls (k, d + 1).

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
    """Return the largest set that a greedy search finds, from every ball, in which all pairs meet.

    Larger balls are tried first.
    """
    # Not by inner products: their rounding sets equal centres apart.
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
    """Return the members that become one neuron, and that neuron; a single one stays as it is."""
    chosen = [members[place] for place in largest_pairwise_set(balls.only(members))]
    while True:
        point, gaps = _met(balls.only(chosen), masked)
        if not bool((gaps > 0).any()):
            return chosen, point
        del chosen[int(gaps.argmax())]


def _met(balls: Balls, masked: bool) -> tuple[Tensor, Tensor]:
    """Return equation 2's neuron (d + 1,), and how far it lies outside each ball (k,)."""
    if masked:
        each = torch.ones_like(balls.radii)
        spaces = Spaces(balls.centres, balls.radii, each, scales=balls.centres)
        found = descend(spaces, spaces.mean)
        return found.point, found.gaps
    point, meeting = meet_balls(balls)
    return point, meeting.gaps


def _clusters(centres: Tensor, count: int, seed: int) -> list[list[int]]:
    """Return the places of each cluster's members, ascending; no cluster is empty."""
    from sklearn.cluster import KMeans  # a second to import, and only the coordinator needs it

    rows = centres.numpy()
    count = min(count, len(np.unique(rows, axis=0)))
    labels = KMeans(count, n_init=10, random_state=seed).fit_predict(rows)
    groups = (np.flatnonzero(labels == label).tolist() for label in range(count))
    return [group for group in groups if group]


def _canonical_order(balls: Balls) -> Tensor:
    """Return the order by the neurons' numbers, the first one first, then by radius."""
    keys = torch.cat([balls.centres, balls.radii[:, None]], dim=1).numpy()
    return torch.from_numpy(np.lexsort(keys.T[::-1]))


def personal_weights(distances: Sequence[float], reach: float = 0.5) -> list[float]:
    """Return a_i = max(0, 1 - (d_i - d_min) / (reach d_min)) of the peers' distances to the user.

    The nearest peer counts fully; who is further by the share `reach` no longer counts. The
    distances are those of the normalised updates, from a common start.
    """
    if not distances:
        return []
    nearest = min(distances)
    if nearest <= 0:  # a peer with the user's own update: only such peers are near
        return [1.0 if distance <= 0 else 0.0 for distance in distances]
    return [max(0.0, 1 - (d - nearest) / (reach * nearest)) for d in distances]
