"""FedFomo: first-order model optimisation (Zhang et al. 2021, equation 6)."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from erosion_common.aggregation.cohort import Cohort, HospitalName
from erosion_common.algorithms.base import Algorithm, ArmBase, BuildContext, TensorSpec
from erosion_common.algorithms.own_model import OwnModelState, follow_own_model, with_others
from erosion_common.learning.local_work import LocalOutcome, LocalWork, WorkSize

_BASE = "base"  # the user's model before its last local training, theta_i^(l-1)
_SHARES = "shares"  # (n,) w of the user's own model and of the others, as last enclosed
LARGEST_LOSS = 1e30  # of a model that diverged, so that a gain over it is a number


class FedFomo(ArmBase):
    """The user moves towards the models of those who predict well for its held-out patients.

    Before each local training the user weighs every hospital's latest model theta_n, its own
    included: w_n is proportional to max(0, [L(theta) - L(theta_n)] / |theta_n - theta|), where L is
    the task's loss on some of its training patients, held out of all training, and theta its model
    before the last round; theta then moves by the sum of w_n (theta_n - theta). Peers train from
    the user's model. Use it where few hospitals are useful and the user can spare the patients;
    their models reach the user's site, and nobody else.
    Source: Zhang, Sapra, Fidler, Yeung, Alvarez, Personalized Federated Learning with First Order
    Model Optimization, 2021.
    """

    private_updates: ClassVar[bool] = True

    algorithm: Literal["fedfomo"] = "fedfomo"
    validation_share: float = Field(
        default=0.25,
        gt=0,
        lt=1,
        description="Share of the user's training patients by which models are compared.",
    )

    def build(self, context: BuildContext) -> Algorithm[Any]:
        return follow_own_model(_shares)

    def own_attachments(self, num_hospitals: int) -> Mapping[str, TensorSpec]:
        return {_SHARES: TensorSpec((None,), most_values=num_hospitals)}

    def train(self, work: LocalWork) -> LocalOutcome:
        """Train; the user first moves, and trains without the patients held out."""
        if not work.is_user:
            return super().train(work)
        start, shares = self._moved(work)
        rest, _ = work.hold_out(self.validation_share)
        result = rest.sgd(start)
        return LocalOutcome(
            start + result.delta - work.received,
            result.samples_seen,
            attachments={_SHARES: shares},
            keep={_BASE: start},
        )

    def local_trainings(self, whole: WorkSize) -> tuple[WorkSize, ...]:
        return (whole.without_held_out(self.validation_share) if whole.is_user else whole,)

    def personal(self, work: LocalWork) -> Tensor:
        return self._moved(work)[0]

    def _moved(self, work: LocalWork) -> tuple[Tensor, Tensor]:
        """Return theta + sum w_n (theta_n - theta): (dim,), and w: (n,), own model first."""
        models = with_others(work)
        base = work.kept.get(_BASE)
        if base is None:  # before the first local training there is nothing to compare
            return work.received, torch.zeros(len(models))
        _, held_out = work.hold_out(self.validation_share)
        at_base = min(held_out.loss(base), LARGEST_LOSS)
        moves = models - base
        gains = torch.tensor([max(0.0, at_base - held_out.loss(model)) for model in models])
        lengths = moves.norm(dim=1).cpu()
        weights = torch.where(lengths > 0, gains / lengths, 0.0)
        if weights.sum() > 0:
            weights = weights / weights.sum()
        return base + weights.to(moves.device) @ moves, weights


def _shares(state: OwnModelState, cohort: Cohort) -> Mapping[HospitalName, float]:
    """Return the weights that the user's site found for the models that were enclosed for it.

    As `relative_weights`, and also of hospitals that are away and have a known model.
    """
    user = cohort.own.agent
    weighed = [user, *sorted(state.offsets)]
    found = cohort.own.attachments.get(_SHARES, torch.zeros(0)).tolist()
    shares = {**dict.fromkeys(weighed, 0.0), **{u.agent: 0.0 for u in cohort.updates}}
    if len(found) == len(weighed) and min(found) >= 0 and any(found):
        shares |= dict(zip(weighed, found, strict=True))
    else:  # nothing is found before the second round, or nothing was better
        shares[user] = 1.0
    unit = shares[user] or max(shares.values())
    return {agent: share / unit for agent, share in shares.items()}
