"""Weight Erosion (Grimberg et al. 2020, Algorithm 1, equations 4-6)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import acos, ceil, degrees, sqrt
from statistics import fmean, median
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from erosion_common.aggregation.cohort import Cohort, HospitalName, Update
from erosion_common.algorithms.base import (
    OUTPUT_BIAS,
    Algorithm,
    BuildContext,
    Layout,
    Step,
)
from erosion_common.algorithms.equal_steps import (
    as_of_equal_steps,
    problem_with_sealed_epochs,
    unequal_steps,
)
from erosion_common.algorithms.personal_layers import own_places
from erosion_common.algorithms.server_optimizer import AggregatingArm
from erosion_common.learning.training import Training
from erosion_common.settings.names import OrAuto

SizeUnit = Literal["seen", "formula", "completed_passes", "batches"]
WeightedPlace = tuple[slice, float]  # a layer's place in the flat vector, and its weight


def repeats(
    unit: SizeUnit, update: Update, batch_size: int | None, rounds_before: int, seen_before: float
) -> int:
    """Return k_i, as `unit` counts it.

    `rounds_before` is r - 1, `seen_before` how many samples the hospital used in earlier rounds,
    `batch_size` is b (None: the samples of this round).
    """
    batch, samples = batch_size or update.samples_seen, update.all_samples or update.num_samples
    batches = ceil(samples / batch)
    match unit:
        case "seen":  # the intent: samples used before this round
            return int(seen_before // samples)
        case "formula":  # eq. 5 to the letter
            return int(rounds_before * batch // samples)
        case "completed_passes":  # the authors' Titanic code
            return (rounds_before + 1) // batches
        case "batches":  # the authors' MNIST code: |S_i| counted in batches
            return int(rounds_before * batch // batches)


FIRST_ROUNDS = 3  # by their distances the penalty is paced


def median_path(
    peers: Sequence[Update],
    distances: Sequence[float],
    *,
    last_round: int,
    size_penalty: float,
    size_unit: SizeUnit,
    batch_size: int | None,
) -> float:
    """Return the hospitals' median path from round 1 to `last_round` at these distances."""
    paths = [
        distance
        * sum(
            1
            + size_penalty
            * repeats(size_unit, update, batch_size, before, before * update.samples_seen)
            for before in range(last_round)
        )
        for update, distance in zip(peers, distances, strict=True)
    ]
    return median(paths)


def paced_penalty(paths: Sequence[float]) -> float:
    """Return p_d from the median paths of the first rounds."""
    typical = fmean(paths)
    return 1 / typical if typical else 0.0  # hospitals at no distance need no erosion


DistanceKind = Literal["euclidean", "cosine"]


@dataclass(frozen=True, slots=True)
class Distances:
    """How far every peer is from the user."""

    own_norm: float  # |g_0| in the same measure; where it is 0 no distance is defined
    to_own: Sequence[float]  # (n,) d_i, in the order of the cohort's peers


def measure(
    cohort: Cohort,
    kind: DistanceKind,
    places: Sequence[WeightedPlace],
    noise: Sequence[float] | None = None,
) -> Distances:
    """Return all d_i.

    With layer weights w_l, <g, h> is the sum over layers of w_l <g_l, h_l>. Euclidean:
    |g_i - g_0| / |g_0|. Cosine: 1 - <g_i, g_0> / (|g_i| |g_0|), from 0 (same direction) to 2; a
    zero update, or one no longer than its noise, has no direction and is at distance 1.
    `noise` (n,): how much of each peer's <g_i, g_i> is noise for privacy on average; it is no
    distance, and is taken off.
    """
    noisy = torch.tensor(noise or [0.0] * len(cohort.peers), dtype=torch.float64)
    if kind == "euclidean" and not places:
        own_norm, relative = cohort.own_norm(), cohort.distances_to_own()
        if noise and own_norm > 0:
            relative = (relative.square() - noisy / own_norm**2).clamp(min=0.0).sqrt()
        return Distances(own_norm, relative.tolist())
    squares, with_own = _products(cohort, places)
    own = squares[0]
    if noise:
        squares = (squares - torch.cat([torch.zeros(1), noisy])).clamp(min=0.0)
    if kind == "euclidean":
        apart = (squares - 2 * with_own + own).clamp(min=0.0).sqrt() / own.sqrt()
    else:
        lengths = (squares * own).sqrt()  # 0 where g_i is, or is no longer than its noise
        cosine = torch.where(lengths > 0, with_own / lengths, 0.0)
        apart = 1 - cosine.clamp(-1.0, 1.0)
    return Distances(float(own.sqrt()), apart[1:].tolist())


@dataclass(frozen=True, slots=True)
class ExpectedNoise:
    """What the noise for privacy adds to the squared length of a peer's update, on average."""

    deviation: Callable[[float], float]  # of each parameter of an update, by its number of patients
    weighted_dim: float  # parameters that carry noise, each with its weight in the measure

    def of(self, cohort: Cohort) -> list[float]:
        """Return it for each peer, (n,), in the cohort's order.

        A hospital of few patients must have much noise; one that lies would excuse any distance by
        its number, so no more is believed than of one with half the median's patients.
        """
        patients = [update.samples_seen for update in cohort.updates[1:]]
        fewest = median(patients) / 2 if patients else 0.0
        return [self.weighted_dim * self.deviation(max(n, fewest)) ** 2 for n in patients]


def noise_in(
    context: BuildContext, own_parameters: Sequence[str], places: Sequence[WeightedPlace] = ()
) -> ExpectedNoise | None:
    """Return the noise in a study's updates, or None. Parameters kept at hospitals carry none."""
    if context.noise_deviation is None:
        return None
    stays = own_places(own_parameters, context.layout())
    weights = _weights_in(slice(0, len(stays)), places)
    return ExpectedNoise(context.noise_deviation, float(weights[~stays].sum()))


def weighted_places(layer_weights: Mapping[str, float], layout: Layout) -> list[WeightedPlace]:
    """Return the places of weights other than 1; a name is a parameter or a group ("fc").

    The longest name that fits a parameter counts. Raises ValueError for a name that fits none, and
    where no weight is left.
    """
    for name in layer_weights:
        if not any(_fits(name, parameter) for parameter in layout):
            raise ValueError(
                f"layer_weights names {name!r}; the model's parameters are {', '.join(layout)}"
            )
    weights = {
        parameter: layer_weights[max(names, key=len)]
        for parameter in layout
        if (names := [name for name in layer_weights if _fits(name, parameter)])
    }
    if len(weights) == len(layout) and not any(weights.values()):
        raise ValueError("layer_weights are all 0; leave at least one layer in the distance")
    return [(layout[parameter], weight) for parameter, weight in weights.items() if weight != 1]


def _fits(name: str, parameter: str) -> bool:
    return parameter == name or parameter.startswith(f"{name}.")


def _products(cohort: Cohort, places: Sequence[WeightedPlace]) -> tuple[Tensor, Tensor]:
    """Return <g_i, g_i> and <g_i, g_0> with layer weights, own first: two (n+1,) float64."""
    squares = torch.zeros(len(cohort.updates), dtype=torch.float64)
    with_own = torch.zeros_like(squares)
    for block, rows in cohort.blocks():
        values = torch.stack(rows).double()
        scaled = values * _weights_in(block, places)
        squares += torch.linalg.vecdot(scaled, values)
        with_own += scaled @ values[0]
    return squares, with_own


def _weights_in(block: slice, places: Sequence[WeightedPlace]) -> Tensor:
    """Return the weight of each coordinate of a block: (width,) float64."""
    weights = torch.ones(block.stop - block.start, dtype=torch.float64)
    for place, weight in places:
        start, stop = max(place.start, block.start), min(place.stop, block.stop)
        if start < stop:
            weights[start - block.start : stop - block.start] = weight
    return weights


MOST_STEPS = 100_000
TOLERANCE = 1e-12  # of <u_i, v>, which is at most 1


def half_angle(gram: Tensor) -> float:
    """Return degrees, from 0 (all parallel) to 90; (n, n) inner products of the updates.

    Updates of norm zero have no direction and are left out.
    """
    norms = gram.diagonal().sqrt()
    moving = norms > 0
    cosines = (gram / (norms[:, None] * norms))[moving][:, moving]
    if len(cosines) < 2:
        return 0.0
    square = _squared_distance_to_zero(cosines)
    return degrees(acos(min(1.0, sqrt(square)))) if square > 1e-10 else 90.0


def _squared_distance_to_zero(cosines: Tensor) -> float:
    """Return min |sum m_i u_i|^2 over m >= 0 with sum 1: the MDM algorithm (Mitchell et al. 1974).

    Each step moves mass from the point that is furthest along v to the one that is least far, as
    much as lowers |v| most.
    """
    mass = torch.zeros(len(cosines), dtype=torch.float64)
    mass[0] = 1.0
    along = cosines[0].clone()  # <u_i, v>
    for _ in range(MOST_STEPS):
        to = int(along.argmin())
        source = int(torch.where(mass > 0, along, -torch.inf).argmax())
        gap = float(along[source] - along[to])
        if gap <= TOLERANCE:
            break
        apart = float(cosines[to, to] + cosines[source, source] - 2 * cosines[to, source])
        step = min(float(mass[source]), gap / apart)
        mass[to] += step
        mass[source] -= step
        along = along + step * (cosines[to] - cosines[source])
    return max(0.0, float(mass @ cosines @ mass))


NotNegative = Annotated[float, Field(ge=0)]

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {
        "distance_penalty": 0.01,
        "erosion_share": 2 / 3,
        "size_penalty": 0.2,
        "weighting": "equal",
        "own_parameters": (),
    },
    # `erosion experiment which-rule` found the rule, `slow-erosion` the share: distances grow while
    # the model comes to rest, so that weights end earlier than the first rounds let expect.
    "recommended": {
        "distance_penalty": "auto",
        "erosion_share": 3.0,
        "size_penalty": 0.0,
        "weighting": "samples",
        "own_parameters": (OUTPUT_BIAS,),
    },
}


@dataclass(frozen=True, slots=True)
class WeightErosionState:
    """What is known of every peer that has been in a cohort."""

    round: int  # rounds aggregated so far; r - 1 in the paper
    weights: Mapping[HospitalName, float]  # alpha_i; the user's own is always 1 and not stored
    samples_seen: Mapping[HospitalName, float]  # samples that hospital i has used in earlier rounds
    betas: Mapping[HospitalName, float]  # beta_i: 1, or n_i / n_0 of hospital i's last round
    paths: tuple[float, ...]  # of the first rounds; distance_penalty = "auto" learns from them


def _init(_dim: int) -> WeightErosionState:
    return WeightErosionState(round=0, weights={}, samples_seen={}, betas={}, paths=())


def _asks(state: WeightErosionState, agent: HospitalName) -> bool:
    # A weight of 0 never rises again (eq. 5), so an eroded hospital need not train any more.
    return state.weights.get(agent, 1.0) > 0.0


class WeightErosion(AggregatingArm):
    """Hospitals start with full weight and lose it by how far their updates are from the user's.

    In round r hospital i's weight alpha_i falls by (1 + p_s k_i) p_d d_i, where d_i = |g_i - g_0| /
    |g_0| is its relative distance and k_i how often its data have been used up; the aggregate is
    the average by the new weights. Similar hospitals help for many rounds, different ones for few,
    and small ones for fewer the more often their samples repeat. Use it where you do not know who
    is like you. Start from `preset` = "recommended": with the paper's setting, which is what the
    keys have without a preset, every other hospital's weight can reach zero long before the end,
    even that of a hospital with the user's own population. "recommended" erodes so slowly that such
    a hospital stays (distance_penalty = "auto", erosion_share = 3, size_penalty = 0), counts
    hospitals by their patients (weighting = "samples") and leaves each its own output bias
    (own_parameters = ["output_bias"]). "paper" names the authors' setting. A key that is given
    together with the preset takes precedence. Where training is in epochs, larger hospitals take
    more steps; with `per_step` (the default) every update is scaled to the user's number of steps
    before it is compared and averaged, so that a hospital is not punished for its size.
    Source: Grimberg, Hartley, Jaggi, Karimireddy, Weight Erosion, 2020; layers and share: Gengler,
    Beaussart, Yuan, 2020.
    """

    sums_only: ClassVar[bool] = True
    private_updates: ClassVar[bool] = True
    compares_steps: ClassVar[bool] = True
    leaves_user_out: ClassVar[bool] = True

    algorithm: Literal["weight_erosion"] = "weight_erosion"
    preset: Literal["paper", "recommended"] | None = Field(
        default=None,
        exclude=True,
        description="Stands for several keys; a key that is given as well takes precedence. "
        '`"recommended"`: erodes slowly, counts patients, own output bias. `"paper"`: the '
        "authors' setting, as without a preset.",
    )
    # never kept: its values take its place
    distance_penalty: OrAuto[NotNegative] = Field(  # p_d in eq. 5
        default=0.01,
        description="p_d: what a hospital's weight loses for its distance in each round. "
        '`"auto"`: chosen in the first three rounds, so that the median hospital\'s weight ends '
        "after `erosion_share` of the rounds.",
    )
    erosion_share: float = Field(
        default=2 / 3,
        gt=0,
        le=10,
        description='With distance_penalty = "auto", p_d is chosen in the first three rounds so '
        "that the median hospital's weight ends after this share of the study's rounds.",
    )
    size_penalty: float = Field(  # p_s in eq. 5
        default=0.2,
        ge=0,
        description="p_s: how much faster a hospital's weight falls the more often its samples "
        "repeat.",
    )
    size_unit: SizeUnit = Field(default="seen", description="How repeats are counted.")
    batch_size: int | None = Field(
        default=None,
        ge=1,
        description="b: samples of a mini-batch, where repeats are counted in these. Left out: "
        "the samples of the round.",
    )
    zero_norm: Literal["freeze", "erode", "stop"] = Field(
        default="freeze",
        description='What to do where the user\'s own update vanishes: "freeze" skips the round, '
        '"erode" drops the others, "stop" ends the run.',
    )
    zero_norm_below: float = Field(
        default=1e-12,
        ge=0,
        description="Length of the user's own update up to which it counts as zero.",
    )
    newcomer: Literal["median", "mean"] = Field(
        default="mean",
        description='The weight of a late joiner: the "mean" or "median" of all weights so far, '
        "the user's 1 included.",
    )
    per_step: bool = Field(
        default=True,
        description="Where training is in epochs: every update is scaled to the user's number of "
        "steps before it is compared and averaged, so that a hospital is not punished for its "
        "size. `false`: updates as they come; where hospitals take different numbers of steps "
        "the journal and the report say so.",
    )
    weighting: Literal["equal", "samples"] = Field(
        default="equal",
        description='"samples" multiplies alpha_i by beta_i = n_i / n_0 in the average, so that '
        "large hospitals are not under-represented; n_i is at most that of all others together. "
        '"equal": beta_i = 1.',
    )
    distance: DistanceKind = Field(
        default="euclidean",
        description='"euclidean", or "cosine", which asks for the direction alone.',
    )
    layer_weights: dict[str, NotNegative] = Field(
        default_factory=dict,
        description="What each parameter or layer, by name, counts in the distance; 1 unless "
        "named, 0 leaves it out.",
    )
    cone: Literal["off", "warn", "stop"] = Field(
        default="off",
        description='`"warn"` or `"stop"` once the updates that still have weight fit into no '
        'cone of `cone_angle`; `"off"`: not looked at.',
    )
    cone_angle: float = Field(  # degrees
        default=90.0, gt=0, le=90, description="Half-angle of that cone, in degrees."
    )

    @classmethod
    def expanded(cls, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        preset = settings.get("preset")
        if not isinstance(preset, str) or preset not in PRESETS:
            return settings
        given = {key: value for key, value in settings.items() if key != "preset"}
        return {**PRESETS[preset], **given}

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, raw: Any) -> Any:
        return cls.expanded(raw) if isinstance(raw, Mapping) else raw

    @model_validator(mode="after")
    def _counts_batches(self) -> Self:
        if self.size_unit == "batches" and self.batch_size is None:
            raise ValueError(
                "size_unit = 'batches' counts a hospital's samples in mini-batches; give batch_size"
            )
        return self

    def problem_with_model(self, layout: Callable[[], Layout]) -> str | None:
        """Refuse a layer weight for a parameter that the model does not have."""
        if not self.layer_weights:
            return None
        try:
            weighted_places(self.layer_weights, layout())
        except ValueError as problem:
            return str(problem)
        return None

    def problem_with_sealed_training(self, training: Training) -> str | None:
        """Refuse unequal steps: sealed distances compare updates unscaled."""
        if self.per_step and (problem := problem_with_sealed_epochs(training)):
            return f"{problem}, or per_step = false"
        return None

    def problem_with_sealing(self) -> str | None:
        """Refuse what is not of the plain distance and one sum."""
        if self.cone != "off":
            return f'cone = "{self.cone}" needs single updates, which nobody sees there'
        if self.distance == "cosine" or self.layer_weights:
            key = "layer_weights" if self.layer_weights else 'distance = "cosine"'
            return f"{key} needs more of an update than its distance from the user's; leave it out"
        return super().problem_with_sealing()

    def equal_steps(self, context: BuildContext) -> Callable[[int], int] | None:
        """Return the steps of the study's training, or None without `per_step`."""
        return context.steps if self.per_step else None

    def rule(self, context: BuildContext) -> Algorithm[WeightErosionState]:
        places = weighted_places(self.layer_weights, context.layout()) if self.layer_weights else []
        last_round = max(1, round(self.erosion_share * context.rounds))
        noise = noise_in(context, self.own_parameters, places)

        def update(state: WeightErosionState, cohort: Cohort) -> Step[WeightErosionState]:
            warning = ""
            if self.per_step:
                cohort, _ = as_of_equal_steps(cohort, context.steps)
            else:
                warning = unequal_steps(cohort, context.steps)
            expected = noise.of(cohort) if noise is not None else None
            measured = measure(cohort, self.distance, places, expected)
            step = self._update(state, cohort, measured, last_round)
            return replace(step, note="; ".join(filter(None, (step.note, warning))))

        return Algorithm(_init, update, _asks)

    def _update(
        self, state: WeightErosionState, cohort: Cohort, measured: Distances, last_round: int
    ) -> Step[WeightErosionState]:
        known = self._with_newcomers(state, cohort)
        if measured.own_norm <= self.zero_norm_below:
            return self._without_direction(state, known, cohort)

        penalty, paths = self._penalty(state, cohort, measured.to_own, last_round)
        eroded = {
            update.agent: self._eroded(state, update, known.weights[update.agent], penalty * d)
            for update, d in zip(cohort.updates[1:], measured.to_own, strict=True)
        }
        after = _after(known, cohort, {**known.weights, **eroded}, paths)
        factors = torch.tensor(
            [1.0, *(_factor(after, peer) for peer in cohort.peers)], dtype=torch.float64
        )
        note = self._outside_cone(cohort, factors)
        if note and self.cone == "stop":
            nothing = torch.zeros_like(cohort.own.delta)
            return Step(nothing, _shown(known, cohort), state, outcome="stopped", note=note)
        delta = self.average(cohort, factors)  # eq. 6, with the new weights
        distances = dict(zip(cohort.peers, measured.to_own, strict=True))
        return Step(delta, _shown(after, cohort), after, note=note, distances=distances)

    def _eroded(
        self, state: WeightErosionState, update: Update, weight: float, cost: float
    ) -> float:
        """Return eq. 5; `cost` is p_d d_i."""
        k = repeats(
            self.size_unit,
            update,
            self.batch_size,
            state.round,
            state.samples_seen.get(update.agent, 0),
        )
        return max(0.0, weight - (1 + self.size_penalty * k) * cost)

    def _penalty(
        self, state: WeightErosionState, cohort: Cohort, distances: Sequence[float], last_round: int
    ) -> tuple[float, tuple[float, ...]]:
        """Return p_d of this round, and the paths that it was found from."""
        if self.distance_penalty != "auto":
            return self.distance_penalty, ()
        paths = state.paths
        if distances and len(paths) < FIRST_ROUNDS:
            path = median_path(
                cohort.updates[1:],
                distances,
                last_round=last_round,
                size_penalty=self.size_penalty,
                size_unit=self.size_unit,
                batch_size=self.batch_size,
            )
            paths = (*paths, path)
        return paced_penalty(paths) if paths else 0.0, paths

    def _with_newcomers(self, state: WeightErosionState, cohort: Cohort) -> WeightErosionState:
        """Return weights of all peers known by now; a late joiner starts at the mean or median.

        They are over all hospitals registered so far, as in the paper: eroded ones and the user
        with its weight of 1.
        """
        typical = median if self.newcomer == "median" else fmean
        start = typical([1.0, *state.weights.values()])
        by_samples = self.weighting == "samples"
        betas = {
            update.agent: update.num_samples / cohort.own.num_samples if by_samples else 1.0
            for update in cohort.updates[1:]
        }
        return replace(
            state,
            weights={**dict.fromkeys(cohort.peers, start), **state.weights},
            betas={**state.betas, **betas},
        )

    def _outside_cone(self, cohort: Cohort, factors: torch.Tensor) -> str:
        """Return a warning if the updates with weight fit into no cone, else ""."""
        if self.cone == "off":
            return ""
        counted = factors > 0
        angle = half_angle(cohort.gram()[counted][:, counted])
        if angle < self.cone_angle:
            return ""
        return (
            f"the updates that still have weight fit into no cone of {self.cone_angle:g} degrees"
            f" (the narrowest around them has {angle:.0f})"
        )

    def _without_direction(
        self, state: WeightErosionState, known: WeightErosionState, cohort: Cohort
    ) -> Step[WeightErosionState]:
        """Return the step for |g_0| = 0, where no distance is defined (appendix A, example 3)."""
        note = "the user's own update has norm zero, so no distance is defined"
        if self.zero_norm == "erode":
            eroded = {**known.weights, **dict.fromkeys(cohort.peers, 0.0)}
            after = _after(known, cohort, eroded, state.paths)
            own = torch.tensor([1.0, *[0.0] * len(cohort.peers)], dtype=torch.float64)
            return Step(self.average(cohort, own), _shown(after, cohort), after, note=note)
        outcome: Literal["skipped", "stopped"] = (
            "stopped" if self.zero_norm == "stop" else "skipped"
        )
        nothing = torch.zeros_like(cohort.own.delta)
        # The hospitals have trained, so their samples count as seen.
        after = _after(known, cohort, known.weights, state.paths)
        return Step(nothing, _shown(known, cohort), after, outcome=outcome, note=note)


def _after(
    known: WeightErosionState,
    cohort: Cohort,
    weights: Mapping[HospitalName, float],
    paths: tuple[float, ...],
) -> WeightErosionState:
    seen = {
        update.agent: known.samples_seen.get(update.agent, 0) + update.samples_seen
        for update in cohort.updates[1:]
    }
    return WeightErosionState(
        known.round + 1, weights, {**known.samples_seen, **seen}, known.betas, paths
    )


def _factor(state: WeightErosionState, agent: HospitalName) -> float:
    """Return beta_i alpha_i: hospital i's weight in the average, relative to the user's 1."""
    return state.betas[agent] * state.weights[agent]


def _shown(state: WeightErosionState, cohort: Cohort) -> dict[HospitalName, float]:
    return {cohort.own.agent: 1.0} | {agent: _factor(state, agent) for agent in state.weights}
