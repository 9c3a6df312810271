"""FedLin (Mitra, Jaafar, Pappas, Hassani 2021, Algorithm 1, without sparsification)."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from erosion_common.aggregation.cohort import HospitalName
from erosion_common.algorithms.base import (
    TRAIN,
    UPDATES,
    Algorithm,
    Ask,
    BuildContext,
    Exchanges,
    ExpectedReply,
    NoState,
    Payload,
    RoundStart,
    SiteStep,
    TensorSpec,
)
from erosion_common.algorithms.fedavg import Averaging
from erosion_common.learning.local_work import LocalAnswer, LocalOutcome, LocalWork
from erosion_common.settings.base import Settings

_GRADIENT = "gradient"  # grad f_i(x), at the hospital and on its way to the coordinator
_MEAN_GRADIENT = "mean_gradient"  # g, on its way to the hospitals


class _Counted(Settings):
    num_samples: int = Field(ge=1, le=2**53)


class FedLin(Averaging):
    """FedAvg with local steps along the common gradient, asked for at the start of each round.

    A round has two exchanges: first every hospital sends its gradient at the common parameters,
    then it takes local steps y - lr (grad f_i(y) - grad f_i(x) + g), where g is the mean of those
    gradients. So hospitals that differ move in the common direction even during many local steps,
    and nothing is remembered from round to round. Use it where FedAvg drifts because of long local
    training and hospitals come and go; it makes no personal model. A round takes two requests and
    two arrays of the model's length from every hospital. It needs optimizer = "sgd" without
    momentum.
    Source: Mitra et al., Linear Convergence in Federated Learning: Tackling Client Heterogeneity
    and Sparse Gradients, 2021.
    """

    sums_only: ClassVar[bool] = False  # gradients leave as they are
    private_updates: ClassVar[bool] = False
    is_of_plain_sgd: ClassVar[bool] = True

    algorithm: Literal["fedlin"] = "fedlin"
    weighting: Literal["samples", "uniform"] = Field(
        default="uniform", description='"samples" or "uniform".'
    )

    def rule(self, context: BuildContext) -> Algorithm[Any]:
        """Return the mean gradient, then the average of the updates."""
        average = super().rule(context)
        by_samples = self.weighting == "samples"

        def exchanges(state: NoState, begun: RoundStart) -> Exchanges[NoState]:
            terms = {_GRADIENT: TensorSpec(tuple(begun.parameters.shape), is_measured=True)}
            found = yield Ask(_GRADIENT, expects=ExpectedReply(tensors=terms, values=_Counted))
            answers = found.replies.values()
            counts = {n: a.values.num_samples for n, a in found.replies.items()}
            shares = torch.ones(len(counts), dtype=torch.float64)
            if by_samples:
                shares = torch.tensor(_capped(counts, begun.user), dtype=torch.float64)
            mean = torch.zeros(begun.parameters.shape, dtype=torch.float64)
            for share, answer in zip((shares / shares.sum()).tolist(), answers, strict=True):
                mean += share * answer.tensors[_GRADIENT].double()
            trained = yield Ask(TRAIN, Payload({_MEAN_GRADIENT: mean.float()}), expects=UPDATES)
            return average.update(state, trained.cohort)

        return Algorithm(average.init, average.update, exchanges=exchanges)

    def site_steps(self) -> dict[str, SiteStep]:
        return {_GRADIENT: self.gradient, TRAIN: self.train}

    def gradient(self, work: LocalWork) -> LocalAnswer:
        """Return the local loss's gradient at the received parameters, and keep it for training."""
        own = _gradient(work)
        return LocalAnswer({_GRADIENT: own}, {"num_samples": work.num_disclosed}, {_GRADIENT: own})

    def train(self, work: LocalWork) -> LocalOutcome:
        own = work.kept.get(_GRADIENT)
        if own is None:  # the site has lost what it keeps
            own = _gradient(work)
        mean = work.enclosed.get(_MEAN_GRADIENT, own)
        result = work.sgd(work.received, lambda _y: mean - own)
        return LocalOutcome(result.delta, result.samples_seen)


def _capped(counts: Mapping[HospitalName, int], user: HospitalName) -> list[int]:
    """Return counts of samples; as in updates, a peer has no more than all others together."""
    total = sum(counts.values())
    return [n if name == user else min(n, max(1, total - n)) for name, n in counts.items()]


def _gradient(work: LocalWork) -> Tensor:
    found = work.gradient(work.received)
    # What is not shared has no common direction.
    return found if work.own is None else found.masked_fill(work.own, 0.0)
