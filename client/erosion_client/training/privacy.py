"""Differential privacy at a hospital: the noise in an update, its cost, and whether it leaves."""

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from math import inf

from torch import Tensor

from erosion_client.records.account import dataset_of
from erosion_client.records.ledgers import Release, Spent
from erosion_client.records.records import Records
from erosion_client.site_file import Site
from erosion_client.training.request import hash_of
from erosion_common.algorithms.base import TRAIN
from erosion_common.errors import Refusal
from erosion_common.learning.private_step import PrivateStep
from erosion_common.protocol.compression import Packed, sent_arrays
from erosion_common.protocol.messages import EvaluateRequest, TrainRequest
from erosion_common.study.privacy import ROUNDING, epsilon_of, strength_of
from erosion_common.study.study import Study


class PrivateRounds:
    """The privacy cost of one hospital's updates, for as long as its program runs."""

    def __init__(self, site: Site, noise_secret: bytes, records: Records) -> None:
        """`noise_secret`: the noise is drawn from it; empty in a simulation."""
        self._site, self._secret, self._records = site, noise_secret, records
        self._dataset, self._ledger = dataset_of(site), records.privacy

    def step(
        self, request: TrainRequest | EvaluateRequest, arm: str, patients: int
    ) -> PrivateStep | None:
        """Return how an update for the others is made; None: by local training.

        `patients`: their disclosed number. At the user the step is the same without noise.
        """
        study = request.study
        terms, is_user = study.privacy, self._site.name == study.user
        if terms is None or (is_user and study.arms[arm].user_only):
            return None
        self._check_delta(study, patients)
        return PrivateStep(
            clip_norm=terms.clip_norm,
            noise_multiplier=0.0 if is_user else terms.noise_multiplier(study.num_releases),
            learning_rate=terms.learning_rate,
            weight_decay=study.training.weight_decay,
            patients=patients,
            key=self._key(request, arm),
            repeats=not self._secret,
        )

    def check(self, study: Study, patients: int) -> None:
        """Check a study before this hospital joins it. Raises Refusal."""
        if study.privacy is None or self._site.name == study.user:
            return
        self._check_delta(study, patients)
        spent = self._ledger.spent(self._dataset, study.digest)
        if not spent.by_study:  # otherwise it may be a run that continues
            self._check_cost(study, spent, study.privacy_cost)

    def check_step(self, request: TrainRequest) -> None:
        """Check that a peer in such a study only trains. Raises Refusal."""
        study = request.study
        if study.privacy is None or self._site.name == study.user or request.step == TRAIN:
            return
        raise Refusal(
            f"Study {study.name!r} promises differential privacy to the patients here, and what"
            f" the step {request.step!r} answers has no noise: {self._site.name} gives updates"
            " alone for it."
        )

    def pay(
        self, request: TrainRequest, update: Tensor | Packed, attachments: Mapping[str, Tensor]
    ) -> None:
        """Note durably that this peer's update is about to leave. Raises Refusal, SiteError."""
        study = request.study
        if study.privacy is None or self._site.name == study.user:
            return
        # What the study's noise was computed for:
        if study.arms[request.arm].user_only:
            raise Refusal(f"{request.arm} of study {study.name!r} asks no hospital but the user.")
        if request.round > study.rounds:
            raise Refusal(
                f"The noise of study {study.name!r} is for {study.rounds} rounds; this is round"
                f" {request.round}."
            )
        strength = strength_of(study.privacy.noise_multiplier(study.num_releases))
        where = self._dataset, study.digest, request.run, request.arm, request.round
        release = Release(*where, strength)
        reply = hash_of({**attachments, **sent_arrays(update)})
        with self._records.transaction():
            given = self._ledger.reply_of(release)
            if given is None:
                spent = self._ledger.spent(self._dataset, study.digest, request.run)
                # A run that does not fit is refused at its first update, not later.
                cost = release.strength if spent.by_run else study.privacy_cost
                self._check_cost(study, spent, cost)
                self._ledger.pay(release, reply)
            elif given != reply:
                raise Refusal(
                    f"{self._site.name} gave its update of round {release.round} of"
                    f" {release.arm} in this run already, and another one would cost its"
                    " patients more privacy than they were promised: its data or the request have"
                    " changed since",
                    remedy="Start a new run.",
                )

    def _check_delta(self, study: Study, patients: int) -> None:
        if study.privacy is None:
            return
        deltas = {"privacy.delta": study.privacy.delta}
        if self._site.lifetime_epsilon is not None:
            deltas["limits.delta"] = self._site.limits.delta  # its limits would bound nothing
        for key, delta in deltas.items():
            if delta * patients >= 1:
                raise Refusal(
                    f"{self._site.name} declines study {study.name!r}: {key} = {delta:g} could give"
                    " away a patient outright; it must be below one over the number of patients."
                )

    def _check_cost(self, study: Study, spent: Spent, cost: float) -> None:
        if problem := _over_limit(self._site, spent, cost):
            raise Refusal(
                f"{self._site.name} declines study {study.name!r}: {problem}",
                remedy="Ask for a smaller privacy.epsilon, or ask the hospital to change its site"
                " file.",
            )

    def _key(self, request: TrainRequest | EvaluateRequest, arm: str) -> bytes:
        """Return the noise's key: nobody without this site's secret can repeat it.

        A simulation has no secret. Its noise follows from seed, hospital, arm, round and fold, so
        that other settings of a study, and new keys of later programs, do not change it.
        """
        study, fold = request.study, request.study.fold
        number = request.round if isinstance(request, TrainRequest) else 0
        if self._secret:
            asked = ["privacy", study.digest, request.run, arm, number]
        else:
            place = None if fold is None else [fold.number, fold.of, fold.cut]
            asked = ["privacy", study.seed, self._site.name, arm, number, place]
        return hmac.digest(self._secret, json.dumps(asked).encode(), hashlib.sha256)


def promised(site: Site, study: Study, records: Records) -> Iterator[str]:
    """Yield how updates of the study are made here, and a run's cost; nothing without [privacy]."""
    terms = study.privacy
    if terms is None:
        return
    step = "a round is one step with the gradients of all patients"
    if site.name == study.user:
        yield f"{step}, each cut to a length of {terms.clip_norm:g}; as the user, without noise"
        return
    noise = terms.noise_multiplier(study.num_releases)
    yield (
        f"{step}, each cut to a length of {terms.clip_norm:g}, with noise of {noise:.3g} times that"
    )
    delta, spent = site.limits.delta, records.privacy.spent(dataset_of(site), study.digest)

    def of(most: float | None, key: str) -> str:
        return "" if most is None else f" (of {most:g}, {key})"

    cost = _epsilon(study.privacy_cost, delta)
    yield (
        f"a run costs each patient epsilon {cost} at delta {delta:g} (limits.delta; the study"
        f" promises epsilon {terms.epsilon:g} at delta {terms.delta:g});"
        f" spent so far: {_epsilon(spent.by_study, delta)} by this study"
        f"{of(site.limits.epsilon, 'limits.epsilon')},"
        f" {_epsilon(spent.in_all, delta)} by all on these data"
        f"{of(site.lifetime_epsilon, 'budget.epsilon')}"
    )


def _over_limit(site: Site, spent: Spent, cost: float) -> str | None:
    delta = site.limits.delta
    for key, most, before, what in (
        ("limits.epsilon", site.limits.epsilon, spent.by_study, "this study"),
        ("budget.epsilon", site.lifetime_epsilon, spent.in_all, "all studies of these data"),
    ):
        if most is not None and (after := epsilon_of(before + cost, delta)) > most * ROUNDING:
            return (
                f"after this run {what} would have cost its patients epsilon {after:.3g} at delta"
                f" {delta:g} ({epsilon_of(before, delta):.3g} is spent); {key} = {most:g}"
            )
    return None


def problem_with_cost(site: Site, study: Study, records: Records) -> str | None:
    """Return why a new run does not fit into the rest of the budget, or None."""
    if site.name == study.user:
        return None
    spent = records.privacy.spent(dataset_of(site), study.digest)
    return _over_limit(site, spent, study.privacy_cost)


def spent_here(site: Site, records: Records) -> list[str]:
    """Return what was spent on this site's data; nothing if none was, without a limit."""
    delta, found = site.limits.delta, records.privacy.spent(dataset_of(site)).in_all
    left, most = "", site.lifetime_epsilon
    if not found and most is None:
        return []
    if most is not None:
        rest = max(0.0, most - epsilon_of(found, delta))
        left = f" of {most:g} (budget.epsilon), {rest:.3g} left"
    return [
        f"Privacy of each patient: epsilon {_epsilon(found, delta)} spent{left}, at delta {delta:g}"
    ]


def _epsilon(strength: float, delta: float) -> str:
    found = epsilon_of(strength, delta)
    return "without bound" if found == inf else f"{found:.3g}"
