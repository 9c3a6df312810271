"""A hospital's answers in sealed rounds: from a request to the site's own rules and back."""

import hashlib
import hmac
import shutil
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

import torch
from pydantic import ValidationError
from torch import Tensor

from erosion_client.records.ledgers import SumTable
from erosion_client.sealed.sealed_site import SealedIdentity, SealedSite
from erosion_client.site_file import Site
from erosion_common.errors import Refusal, SiteError
from erosion_common.learning.local_work import LocalAnswer
from erosion_common.protocol.messages import EvaluateRequest, TrainRequest
from erosion_common.sealed import phases
from erosion_common.sealed.audit import Disclosure
from erosion_common.sealed.distance import Question
from erosion_common.sealed.keys import digest
from erosion_common.sealed.phases import Hello, RoundContext, SumRules, View
from erosion_common.sealed.pinned_keys import read_pinned_keys
from erosion_common.sealed.power_residues import ResidueKey, from_bytes, from_rows, to_rows
from erosion_common.settings.base import Settings, first_mistake
from erosion_common.support.files import make_private_folder, version_of, written_at
from erosion_common.support.keys import load_private_key
from erosion_common.support.text import file_name_of

F = TypeVar("F", bound=Settings)
RUNS_KEPT = 4  # in progress at the same time, an update each; and disclosures for an audit


class SealedSteps:
    """The sealed phases of one hospital, for as long as its program runs."""

    def __init__(self, site: Site, sums: SumTable, identity: SealedIdentity | None = None) -> None:
        """Nothing is read until the first sealed round. `identity`: a simulation's."""
        self._site, self._sums, self._given = site, sums, identity
        self._read: tuple[object, SealedIdentity] | None = None  # with the files' versions
        self._runs: OrderedDict[tuple[str, str], SealedSite] = OrderedDict()  # used last at the end
        self._steps: dict[str, Callable[[SealedSite, TrainRequest], LocalAnswer]] = {
            phases.DISTANCE: self._distance,
            phases.MASKED: self._masked,
            phases.UNMASK: self._unmask,
        }

    def check(self) -> None:
        """Raise SiteError where this site's keys for sealed rounds are missing or damaged."""
        _ = self._identity

    def hello(self, request: TrainRequest, update: Tensor) -> Hello:
        """Phase 1: what replaces the update. Raises Refusal, and SiteError as `check`."""
        asked = _read(phases.Attempted, request)
        context = RoundContext(
            study=request.study.digest,
            run=request.run,
            arm=request.arm,
            round=request.round,
            attempt=asked.attempt,
            received=request.received,
        )
        # A study sums the updates of one arm; in another they would be summed again.
        settings = request.study.arms[request.arm]
        if settings.user_only:
            raise Refusal(f"{request.arm} asks no hospital but the user.")
        if request.study.problem_with_sealed_values(update):  # the patients say how many moved
            raise Refusal(
                "The update of this site would not be hidden: too few of its values have moved",
                remedy="Check the study's learning rate, and that most of its model is trained.",
            )
        identity = self._identity  # keys may have been pinned or renewed meanwhile
        run = request.study.digest, request.run
        rounds = self._runs.pop(run) if run in self._runs else self._new_rounds(identity)
        self._runs[run] = rounds
        while len(self._runs) > RUNS_KEPT:
            self._runs.popitem(last=False)
        rounds.identify(identity)
        values = update.contiguous().numpy()
        return rounds.hello(context, values)

    def answer(self, request: TrainRequest) -> LocalAnswer:
        """Phases 2 to 4. Raises Refusal."""
        if request.step not in self._steps:
            raise Refusal(f"The step {request.step!r} is not one of a sealed round.")
        rounds = self._runs.get((request.study.digest, request.run))
        at = rounds and rounds.context  # phase 1 checked the approval, and who the user is
        if not (rounds and at) or (request.arm, request.round) != (at.arm, at.round):
            raise Refusal("A phase of another sealed round than any that this site is at.")
        return self._steps[request.step](rounds, request)

    def _distance(self, rounds: SealedSite, request: TrainRequest) -> LocalAnswer:
        asked = _read(phases.DistanceAsked, request)
        # The user's site would hide nobody: its coordinator knows its update.
        study = request.study
        if strangers := set(asked.roster) - (set(study.hospitals) - {study.user}):
            raise Refusal(
                f"The roster has {', '.join(sorted(strangers))}; only the study's hospitals without"
                " its user can be in a sum."
            )
        key = ResidueKey(from_bytes(asked.modulus), from_bytes(asked.base))
        num_bytes = key.modulus_bytes
        question = Question(
            key, from_rows(_rows(request, phases.SEALED_OWN, num_bytes)), asked.scale
        )
        proof = from_rows(_rows(request, phases.MODULUS_PROOF, num_bytes))
        sealed, envelopes = rounds.distance(asked.roster, question, proof)
        said = phases.DistanceSaid(envelopes=envelopes, dealt=dict(rounds.dealt))
        answer = {phases.SEALED_DISTANCE: to_rows([sealed], num_bytes)[0]}
        return LocalAnswer(answer, said.model_dump(mode="json"))

    def _masked(self, rounds: SealedSite, request: TrainRequest) -> LocalAnswer:
        asked = _read(phases.MaskedAsked, request)
        masked = rounds.masked(asked.weights, asked.scale, asked.envelopes)
        self._keep_opening(request.run, masked.opening)
        receipt = masked.receipt
        said = phases.MaskedSaid(rules=receipt.rules, signature=receipt.signature, seed=masked.seed)
        words = {phases.WORDS: torch.from_numpy(masked.words)}
        return LocalAnswer(words, said.model_dump(mode="json"))

    def _unmask(self, rounds: SealedSite, request: TrainRequest) -> LocalAnswer:
        asked = _read(phases.UnmaskAsked, request)
        shown = None
        if (view := asked.view) is not None:
            shown = View(rounds.asked, view.weights, view.scale), view.envelopes
        released = rounds.unmask(asked.delivered, shown)
        said = phases.UnmaskSaid(seeds=dict(released.seeds), keys=dict(released.keys))
        return LocalAnswer({}, said.model_dump(mode="json"))

    def _new_rounds(self, identity: SealedIdentity) -> SealedSite:
        return SealedSite(identity, self._sums, sum_rules(self._site))

    def _keep_opening(self, run: str, opening: Disclosure) -> None:
        """Replace the run's disclosure, for a person here to show in an audit. It is not synced."""
        if self._site.compute.state is None:
            return
        folder = self._site.consent_folder / "sealed" / file_name_of(run)
        path, temporary = folder / "opening.safetensors", folder / "opening.new"
        try:
            if not folder.exists():
                make_private_folder(folder)
                others = folder.parent.glob("*/opening.safetensors")
                for old in sorted(others, key=written_at)[: 1 - RUNS_KEPT]:
                    shutil.rmtree(old.parent, ignore_errors=True)
            temporary.touch(mode=0o600)
            opening.write(temporary)
            # To replace a file, ext4 writes the new one out at once: a model's size every round.
            path.unlink(missing_ok=True)
            temporary.rename(path)
        except OSError as problem:
            raise SiteError(
                f"What an audit would need cannot be written to {path}: {problem}",
                remedy="Make the folder writable (compute.state in the site file).",
            ) from None

    @property
    def _identity(self) -> SealedIdentity:
        if self._given is not None:
            return self._given
        site = self._site
        key = site.sealed.private_key or site.coordinator.private_key
        peers = site.sealed.peers
        if key is None or peers is None:
            raise SiteError(
                f"{site.name} has no key for sealed rounds",
                remedy="Enrol it: they need coordinator.private_key and sealed.peers in the site"
                " file.",
            )
        versions = version_of(key), version_of(peers)
        if self._read is None or self._read[0] != versions:
            keys = read_pinned_keys(peers, SiteError)
            own = load_private_key(key, SiteError)
            self._read = versions, SealedIdentity(site.name, own, keys)
        return self._read[1]


def sum_rules(site: Site) -> SumRules:
    """Return the rules from the site's limits."""
    limits = site.limits
    known = frozenset({site.name, *limits.summed_with}) if limits.summed_with else None
    return SumRules(limits.min_summed, limits.largest_share, known)


def _read(form: type[F], request: TrainRequest) -> F:
    try:
        return form.model_validate(dict(request.values))
    except ValidationError as mismatch:
        raise Refusal(
            f"The request for {request.step!r} has values whose {first_mistake(mismatch, 'form')}."
        ) from None


def _rows(request: TrainRequest, name: str, num_bytes: int) -> Tensor:
    rows = request.enclosed.get(name)
    if rows is None or rows.dtype != torch.uint8 or rows.dim() != 2 or rows.shape[1] != num_bytes:
        raise Refusal(f"The request for {request.step!r} brings no {name!r} that can be used.")
    return rows


def secret_of(request: TrainRequest | EvaluateRequest, secret: bytes) -> bytes:
    """Return the hospital's `secret`, in a sealed study derived for the run alone."""
    if not (secret and request.study.federation.sealed):
        return secret
    return hmac.digest(secret, digest("run", request.study.digest, request.run), hashlib.sha256)
