"""The local training of every hospital in a round: optimiser, steps and batches."""

from math import ceil
from typing import Literal, Self

from pydantic import Field, model_validator

from erosion.common.learning.augmentation import Augmentation
from erosion.common.settings.base import Settings

LARGEST_FACTOR = 1e12  # of the numbers of a model, which are float32 and end at 3e38


class Training(Settings):
    """What every hospital does in a round, starting from the parameters that it receives."""

    steps: int | None = Field(default=None, ge=1, le=100_000)  # mini-batches a round
    epochs: int | None = Field(default=None, ge=1, le=1_000)  # or passes over the data
    batch_size: int = Field(default=32, ge=1)
    order: Literal["random", "sequential"] = "random"  # "sequential": mini-batches are the same in
    # every pass, in the order of the file, and a round goes on where the one before ended
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = Field(default=0.1, gt=0, le=LARGEST_FACTOR)
    momentum: float = Field(default=0.0, ge=0, lt=1)  # sgd only
    weight_decay: float = Field(default=0.0, ge=0, le=LARGEST_FACTOR)
    augmentation: Augmentation | None = None  # of images; None: they are trained on as they are

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either steps (mini-batches a round) or epochs (passes a round)")
        if self.optimizer == "adam" and self.momentum:
            raise ValueError("momentum belongs to optimizer = 'sgd'; leave it out with adam")
        return self

    def steps_with(self, num_samples: int) -> int:
        """How many mini-batches a hospital with so many training samples takes in a round."""
        if self.steps is not None:
            return self.steps
        return (self.epochs or 1) * ceil(num_samples / self.batch_size)

    def sizes_of_a_pass(self, num_samples: int, smallest: int) -> list[int]:
        """How many samples each mini-batch of a pass has where none may have fewer than `smallest`.

        The last one has those that are left over. Where they are too few, the last two share
        theirs evenly, or are one if that leaves either too few. A hospital with fewer samples has
        them all in one.
        """
        full, rest = divmod(num_samples, self.batch_size)
        sizes = [self.batch_size] * full + [rest] * (rest > 0)
        if full == 0 or not 0 < rest < smallest:
            return sizes
        shared = self.batch_size + rest
        fewer = shared // 2
        return sizes[:-2] + ([shared - fewer, fewer] if fewer >= smallest else [shared])

    def problem_for_plain_sgd(self, method: str) -> str | None:
        """Why a method whose steps are defined for plain SGD cannot use this, or None."""
        if self.optimizer == "sgd" and not self.momentum:
            return None
        given = "momentum" if self.optimizer == "sgd" else f"optimizer = {self.optimizer!r}"
        return (
            f"{method} is defined for plain SGD steps, and training has {given};"
            " write optimizer = 'sgd' and leave momentum out, or leave this arm out"
        )

    def problem_with_pull(self, proximal_weight: float) -> str | None:
        """Why steps cannot follow the pull of a proximal term, or None.

        SGD with momentum m diverges where curvature times learning rate is 2 (1 + m) or more.
        """
        product = self.learning_rate * (proximal_weight + self.weight_decay)
        if self.optimizer != "sgd" or product < 2 * (1 + self.momentum):
            return None
        return (
            f"proximal_weight = {proximal_weight:g} with learning_rate = {self.learning_rate:g}"
            " takes every step further beyond what it is pulled to; lower one of them until their"
            " product is below 2"
        )
