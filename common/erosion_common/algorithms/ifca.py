"""IFCA: iterative federated clustering (Ghosh et al. 2020, Algorithm 1, model averaging)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from erosion_common.aggregation.cohort import Cohort, squared_distances
from erosion_common.algorithms.base import Algorithm, BuildContext, Step, relative_weights
from erosion_common.algorithms.fedavg import Averaging
from erosion_common.learning.local_work import LocalOutcome, LocalWork

_MODELS = "models"  # (clusters, dim), each minus the user's parameters
_CLUSTER = "cluster"  # (1,) the number of the one that a hospital took, from 0


@dataclass(frozen=True, slots=True)
class Clusters:
    """One model for each group, seen from that of the user's."""

    offsets: Tensor  # (clusters, dim); (0, dim) before the first round


class Ifca(Averaging):
    """Hospitals choose one of several models in each round, and train it with those who chose it.

    Each takes the model with the least loss on its training patients, and FedAvg is done in each
    group. The user's model is that of the group that it chose last, by the same rule when it
    predicts. Use it where you expect two or three kinds of hospitals. In place of random starts,
    which a linear model does not survive, the first round is FedAvg's, and groups it by updates:
    the user's is the first centre, each further one the update farthest from all so far. Every
    hospital gets all models. One more number than an update is sent: which model was chosen. It
    takes no `server_optimizer`.
    Source: Ghosh, Chung, Yin, Ramchandran, An Efficient Framework for Clustered Federated Learning,
    2020.
    """

    sums_only: ClassVar[bool] = False  # one for each group, and who is in it
    private_updates: ClassVar[bool] = False  # the choice is made by patients, without noise
    discloses: ClassVar[str] = "which of the groups' models predicts its training patients best"

    algorithm: Literal["ifca"] = "ifca"
    clusters: int = Field(default=2, ge=2, le=10, description="How many models there are.")

    def rule(self, context: BuildContext) -> Algorithm[Any]:
        return Algorithm(
            lambda dim: Clusters(torch.zeros(0, dim)),
            self._update,
            broadcast=lambda state: {_MODELS: state.offsets} if len(state.offsets) else {},
            forget=lambda state, _agent: Clusters(state.offsets[:0]),  # groups are made again
        )

    def train(self, work: LocalWork) -> LocalOutcome:
        chosen, start = self._chosen(work)
        result = work.sgd(start)
        return LocalOutcome(
            start + result.delta - work.received,
            result.samples_seen,
            {_CLUSTER: torch.tensor([float(chosen)])},
        )

    def personal(self, work: LocalWork) -> Tensor:
        return self._chosen(work)[1]

    def problem_with(self, num_hospitals: int) -> str | None:
        """Refuse an optimiser: what it adds to the user's step would move the other models, too."""
        if self.server_optimizer.name == "none":
            return None
        return "ifca has several models, and server_optimizer moves one; leave it out"

    def attachment_sizes(self, dim: int) -> Mapping[str, int]:
        """Return one number: of the model that was chosen."""
        return {_CLUSTER: 1}

    def _chosen(self, work: LocalWork) -> tuple[int, Tensor]:
        if _MODELS not in work.enclosed:
            return 0, work.received
        models = list(work.received + work.enclosed[_MODELS])
        losses = [work.loss(model) for model in models]
        chosen = losses.index(min(losses))
        return chosen, models[chosen]

    def _update(self, state: Clusters, cohort: Cohort) -> Step[Clusters]:
        groups = self._groups(state, cohort)
        counts = [u.num_samples if self.weighting == "samples" else 1 for u in cohort.updates]

        def shares(group: int) -> Tensor:
            of = [n if g == group else 0 for n, g in zip(counts, groups, strict=True)]
            return torch.tensor(of, dtype=torch.float64)

        def trained(group: int) -> Tensor:
            if group in groups:
                return self.average(cohort, shares(group))
            # Nobody took it: it stays; in the first round there are fewer kinds than models.
            return state.offsets[group] if len(state.offsets) else trained(groups[0])

        own = trained(groups[0])
        offsets = torch.stack([trained(group) - own for group in range(self.clusters)])
        weights = relative_weights(cohort, shares(groups[0]).tolist())
        return Step(own, weights, Clusters(offsets))

    def _groups(self, state: Clusters, cohort: Cohort) -> list[int]:
        """Return the group of each update, own first."""
        if len(state.offsets):
            chosen = [float(u.attachments[_CLUSTER]) for u in cohort.updates]
            return [round(min(max(number, 0.0), self.clusters - 1)) for number in chosen]
        squared, centres = squared_distances(cohort), [0]
        for _ in range(1, self.clusters):
            centres.append(int(squared[:, centres].min(dim=1).values.argmax()))
        found: list[int] = squared[:, centres].argmin(dim=1).tolist()
        return found
