"""One step with the gradients of all of a hospital's patients, cut and noised (Abadi et al. 2016).

DP-SGD with every patient in the one mini-batch: nothing is sampled, so what a round costs a patient
is exact, and the noise is the least that a round can do with.
"""

import hashlib
import hmac
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from erosion.common.privacy.clipped_gradients import Rows, clipped_sum
from erosion.common.privacy.keyed_noise import with_noise
from erosion.common.tasks.task import Loss


@dataclass(frozen=True, slots=True)
class PrivateStep:
    """How a hospital's one step of a round is taken."""

    clip_norm: float  # the most that a patient's gradient counts
    noise_multiplier: float  # of clip_norm; 0 at the user, to whose coordinator it belongs
    learning_rate: float
    weight_decay: float
    patients: float  # that the sum is divided by: the number that the hospital gives
    key: bytes = field(default=b"", repr=False)  # of the noise of this request, at this site
    repeats: bool = False  # in a simulation: the same noise, whatever the gradients are

    def of_share(self, share: float, part: Tensor) -> "PrivateStep":
        """The same for some of the patients, with noise of its own."""
        chosen = hashlib.sha256(part.numpy().tobytes()).digest()
        return replace(
            self,
            patients=self.patients * share,
            key=hmac.digest(self.key, b"part" + chosen, hashlib.sha256),
        )

    def take(self, model: nn.Module, start: Tensor, rows: Rows, loss: Loss, seed: int) -> Tensor:
        """What the parameters (dim,) change by: (dim,) float32. Raises ModelError."""
        total = clipped_sum(model, start, rows, loss, clip_norm=self.clip_norm, seed=seed).cpu()
        if self.noise_multiplier > 0:
            # Of the sum itself, too: the same noise on another sum would give the difference away.
            said = b"" if self.repeats else total.numpy().tobytes()
            key = hmac.digest(self.key, b"noise" + said, hashlib.sha256)
            deviation = self.noise_multiplier * self.clip_norm
            total = torch.from_numpy(with_noise(total.numpy(), deviation, key))
        gradient = total / self.patients + self.weight_decay * start.cpu().double()
        return (-self.learning_rate * gradient).float().to(start.device)


def noise_deviation(step: PrivateStep) -> float:
    """Of each parameter of an update."""
    return step.learning_rate * step.noise_multiplier * step.clip_norm / step.patients
