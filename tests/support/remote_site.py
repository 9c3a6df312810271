"""A site's program in sealed rounds, asked over the line as by any coordinator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from erosion_client.sealed.sealed_site import MaskedUpdate, Released
from erosion_common.algorithms.base import TRAIN
from erosion_common.errors import Refusal
from erosion_common.protocol import wire
from erosion_common.protocol.flower import read_error
from erosion_common.protocol.messages import StepResult, TrainRequest, TrainResult
from erosion_common.sealed import phases
from erosion_common.sealed.distance import Question
from erosion_common.sealed.phases import Hello, Receipt, Roster, RoundContext, View
from erosion_common.sealed.power_residues import from_rows, to_bytes, to_rows
from erosion_common.sealed.roster import received_hash, words_hash
from erosion_common.sealed.shares import Dealt
from erosion_common.study.study import Study
from tests.support.rogue import Rogue
from tests.support.sealed_study import ARM

START = torch.zeros(22)


def context(study: Study, number: int = 1, attempt: int = 0, run: str = "r1") -> RoundContext:
    """A round from START."""
    attempts = bytes([attempt]) * 16
    return RoundContext(study.digest, run, ARM, number, attempts, received_hash(START, "", {}))


@dataclass
class RemoteSite:
    """Stands where a `SealedSite` stands; what the site refuses is raised here as Refusal."""

    rogue: Rogue
    study: Study
    at: RoundContext | None = None  # that of the last hello
    dealt: Dealt = field(default_factory=dict, init=False)

    def hello(self, context: RoundContext, *_: object) -> Hello:
        """Leg 1."""
        self.at = context
        result = self.ask(TRAIN, {"attempt": context.attempt.hex()}, parameters=START)
        assert isinstance(result, TrainResult)
        assert result.header.sealed is not None
        return result.header.sealed

    def distance(
        self, everyone: Roster, question: Question, modulus_proof: Sequence[int]
    ) -> tuple[int, dict[str, bytes]]:
        """Leg 2."""
        num_bytes = question.key.modulus_bytes
        asked = phases.DistanceAsked(
            roster=dict(everyone),
            modulus=to_bytes(question.key.n, num_bytes),
            base=to_bytes(question.key.y, num_bytes),
            scale=question.scale,
        )
        result = self.ask(
            phases.DISTANCE,
            asked.model_dump(mode="json"),
            {
                phases.SEALED_OWN: to_rows(question.sealed_own, num_bytes),
                phases.MODULUS_PROOF: to_rows(modulus_proof, num_bytes),
            },
        )
        assert isinstance(result, StepResult)
        said = phases.DistanceSaid.model_validate(result.header.values)
        self.dealt = said.dealt
        (sealed,) = from_rows(result.tensors[phases.SEALED_DISTANCE].reshape(1, -1))
        return sealed, said.envelopes

    def masked(
        self, weights: Mapping[str, float], scale: float, envelopes: Mapping[str, bytes]
    ) -> MaskedUpdate:
        """Leg 3."""
        asked = _told(weights, scale, envelopes)
        result = self.ask(phases.MASKED, asked.model_dump(mode="json"))
        assert isinstance(result, StepResult)
        said = phases.MaskedSaid.model_validate(result.header.values)
        words = result.tensors[phases.WORDS].numpy()
        receipt = Receipt(words_hash(words), said.rules, said.signature)
        return MaskedUpdate(words, receipt, said.seed, opening=None)  # type: ignore[arg-type]

    def unmask(
        self, delivered: Mapping[str, Receipt], told: tuple[View, Mapping[str, bytes]] | None = None
    ) -> Released:
        """Leg 4."""
        view = None
        if told is not None:
            view = _told(told[0].weights, told[0].scale, told[1])
        asked = phases.UnmaskAsked(delivered=dict(delivered), view=view)
        result = self.ask(phases.UNMASK, asked.model_dump(mode="json"))
        assert isinstance(result, StepResult)
        said = phases.UnmaskSaid.model_validate(result.header.values)
        return Released(said.seeds, said.keys)

    def ask(
        self,
        step: str,
        values: Mapping[str, Any],
        enclosed: Mapping[str, torch.Tensor] | None = None,
        parameters: torch.Tensor | None = None,
    ) -> TrainResult | StepResult:
        """Any leg, with any values."""
        assert self.at is not None
        request = TrainRequest(
            self.study,
            ARM,
            self.at.round,
            parameters,
            None,
            self.at.run,
            enclosed=enclosed or {},
            step=step,
            exchange=1 if step == TRAIN else 2,
            values=values,
        )
        reply = self.rogue.ask(wire.Encoder().encode(request), wire.train_type(step))
        if reply.has_error():
            raise Refusal(read_error(reply.error).reason)
        if step == TRAIN:
            return wire.decode_train_result(reply.content)
        return wire.decode_step_result(reply.content)


def _told(
    weights: Mapping[str, float], scale: float, envelopes: Mapping[str, bytes]
) -> phases.MaskedAsked:
    return phases.MaskedAsked(weights=dict(weights), scale=scale, envelopes=dict(envelopes))
