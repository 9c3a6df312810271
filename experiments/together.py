"""Trains hospitals' models together and returns their answers.

A rule calls for training wherever it likes. So a hospital answers until it comes to training that
has not been done, and is left there. When each was left or has answered, all that is to be trained
is trained as a stack, and the hospitals that were left answer again, now with the result. An
answer depends on the request and on what was kept before it alone, so a hospital comes to the same
place again.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn

from erosion.common.learning.local_sgd import LocalResult, Pull, Samples, Trainer, train_locally
from erosion.common.learning.stacked_sgd import Job, train_stacked
from erosion.common.learning.training import Training

A = TypeVar("A")  # an answer


class _UntrainedError(BaseException):
    """A hospital came to training that has not been done. Handlers of faults let it pass."""

    def __init__(self, job: Job) -> None:
        self.job = job


@dataclass(slots=True)
class _Trained:
    """What was trained for one answer, in the order in which it is asked for."""

    results: list[LocalResult] = field(default_factory=list)
    seconds: float = 0.0  # its shares in the time of the stacks

    def trainer(self, *, alone: bool) -> Trainer:
        """Gives the results one after the other, and beyond them raises `_UntrainedError`.

        `alone`: nobody is left to be trained with, so it trains.
        """
        results = iter(self.results)

        def train(
            model: nn.Module,
            start: Tensor,
            samples: Samples,
            training: Training,
            generator: torch.Generator,
            pull: Pull | None,
            round_number: int,
        ) -> LocalResult:
            if (result := next(results, None)) is not None:
                return result
            job = Job(model, start, samples, training, generator, pull, round_number)
            if alone:
                return train_locally(*job)
            raise _UntrainedError(job)

        return train


def answers_together(
    calls: Mapping[int, Callable[[Trainer], A]], clock: Callable[[], float]
) -> Iterator[tuple[A, float]]:
    """What each call gave, as it comes, and the seconds of its share in the training."""
    trained = {number: _Trained() for number in calls}
    while True:
        jobs: dict[int, Job] = {}
        for number in list(trained):
            trainer = trained[number].trainer(alone=len(trained) == 1)
            try:
                answer = calls[number](trainer)
            except _UntrainedError as left:
                jobs[number] = left.job
                continue
            yield answer, trained.pop(number).seconds
            del answer  # it may be large
        if not jobs:
            return
        started = clock()
        results = train_stacked(list(jobs.values()))
        share = (clock() - started) / len(jobs)
        for number, result in zip(jobs, results, strict=True):
            trained[number].results.append(result)
            trained[number].seconds += share
