"""A method that asks for figures of the patients before they train, and says that all has noise."""

from dataclasses import replace
from typing import Any

import pytest

from erosion_common.algorithms.base import (
    TRAIN,
    Algorithm,
    Ask,
    BuildContext,
    Exchanges,
    ExpectedReply,
    RoundStart,
    TensorSpec,
)
from erosion_common.algorithms.fedavg import FedAvg
from erosion_common.learning.local_work import LocalAnswer, LocalWork

MEAN = "mean"


def _mean(work: LocalWork) -> LocalAnswer:
    return LocalAnswer({MEAN: work.inputs.mean().reshape(1)})


def make_fedavg_ask_for_a_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each round, before the updates; no check of a study finds anything wrong with it."""
    average_of = FedAvg.rule

    def rule(arm: FedAvg, context: BuildContext) -> Algorithm[Any]:
        average = average_of(arm, context)

        def exchanges(state: Any, _begun: RoundStart) -> Exchanges[Any]:
            yield Ask(MEAN, expects=ExpectedReply(tensors={MEAN: TensorSpec((1,))}))
            trained = yield Ask(TRAIN)
            return average.update(state, trained.cohort)

        return replace(average, exchanges=exchanges)

    monkeypatch.setattr(FedAvg, "rule", rule)
    monkeypatch.setattr(FedAvg, "site_steps", lambda arm: {MEAN: _mean, TRAIN: arm.train})
    monkeypatch.setattr(FedAvg, "problem_with_privacy", lambda _arm: None)
