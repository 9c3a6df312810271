"""What a run asks: the requests of a round, and that for the final figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from erosion.common.aggregation.cohort import HospitalName
from erosion.common.algorithms.base import Ask, Brings, Payload
from erosion.common.compression.codec import Packed, compress
from erosion.common.protocol.messages import EvaluateRequest, Scaling, TrainRequest
from erosion.common.rounds.arm_algorithm import algorithm_of
from erosion.common.rounds.records import RunState
from erosion.common.rounds.reply_bounds import most_reply_bytes, most_update_bytes
from erosion.common.study.study import Study


@dataclass(frozen=True, slots=True)
class Terms:
    """What every request of a run names beside its round."""

    study: Study
    arm: str
    scaling: Scaling | None = None  # pooled, where the study wants it
    run: str = ""  # of which the sites keep state

    def requests(
        self, state: RunState, ask: Ask, exchange: int, names: Sequence[HospitalName]
    ) -> dict[HospitalName, TrainRequest]:
        """What the exchange asks of each of `names`: one object where it is the same."""
        sent = self._parameters(state) if ask.sends_parameters else (None, None)
        to_all = self._request(state, ask, exchange, sent)
        return {
            name: _with_payload(to_all, ask.to_each[name]) if name in ask.to_each else to_all
            for name in names
        }

    def brought(self, brings: Brings, dim: int, *, by_user: bool) -> Brings:
        """What an answer must bring, with what the arm's method attaches to every update.

        With `by_user` also what it may attach to the user's own.
        """
        if not brings.update:
            return brings
        arm = self.study.arms[self.arm]
        own = arm.own_attachments(len(self.study.hospitals)) if by_user else {}
        return replace(
            brings,
            tensors={**arm.attachment_terms(dim), **brings.tensors},
            optional={**own, **brings.optional},
        )

    def _parameters(self, state: RunState) -> tuple[Tensor, Packed | None]:
        """As the sites will have them: compressed, if the study wants that; simulated, too."""
        return compress(state.params, self.study.federation.compression)

    def _request(
        self,
        state: RunState,
        ask: Ask,
        exchange: int,
        sent: tuple[Tensor | None, Packed | None],
    ) -> TrainRequest:
        dim = len(state.params)
        most = self.brought(ask.brings, dim, by_user=True)
        return TrainRequest(
            study=self.study,
            arm=self.arm,
            round=state.round + 1,
            parameters=sent[0],
            packed=sent[1],
            scaling=self.scaling,
            run=self.run,
            enclosed=ask.to_all.tensors,
            step=ask.step,
            exchange=exchange,
            wants_update=ask.brings.update,
            values=ask.to_all.values,
            most_reply_bytes=most_reply_bytes(most, dim),
        )


def _with_payload(request: TrainRequest, payload: Payload) -> TrainRequest:
    return replace(
        request,
        enclosed={**request.enclosed, **payload.tensors},
        values={**request.values, **payload.values},
    )


def evaluate_request(
    study: Study, finals: Mapping[str, RunState], *, scaling: Scaling | None, run: str = ""
) -> EvaluateRequest:
    """What is asked of the user when every arm has ended."""
    enclosed = {}
    for arm, state in finals.items():
        algorithm = algorithm_of(study, arm)
        kept = state.algorithm_state
        enclosed[arm] = {**algorithm.broadcast(kept), **algorithm.broadcast_to_user(kept)}
    parameters = {arm: state.params for arm, state in finals.items()}
    # Personal parameters are the user's own model, or everybody's for a mean of their predictions.
    return EvaluateRequest(
        study,
        parameters,
        scaling,
        run,
        enclosed,
        most_reply_bytes=sum(
            most_update_bytes(len(params) * len(study.hospitals)) for params in parameters.values()
        ),
    )
