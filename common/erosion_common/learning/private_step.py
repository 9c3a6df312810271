"""One step with the gradients of all of a hospital's patients, cut and noised (Abadi et al. 2016).

DP-SGD with every patient in the one mini-batch: nothing is sampled, so what a round costs a patient
is exact, and the noise is the least that a round can do with. Each row's gradient is taken alone
(`torch.func.vmap`), so no layer can mix patients; the rows of one patient are added up before the
sum is cut. The noise comes from the AES-256-CTR keystream of a key, not from torch's generator:
that one is seeded with 32 bits, which can all be tried out.
"""

import hashlib
import hmac
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from erosion_common.errors import ModelError
from erosion_common.learning.batch_statistics import SiteBatchNorm
from erosion_common.learning.models import load_flat_parameters
from erosion_common.learning.trainable import draws_from, named_trained_parameters, to_training
from erosion_common.sealed.masks import keystream
from erosion_common.tasks.task import Loss

_NUMBERS_AT_ONCE = 1 << 23  # of single gradients in memory


@dataclass(frozen=True, slots=True, eq=False)
class PatientRows:
    """What a hospital trains on, row by row."""

    inputs: Tensor  # (n, *shape)
    targets: Tensor  # (n, ...)
    patients: Tensor  # (n,) int64: rows with the same number are of one patient


def problem_with_layers(model: nn.Module) -> str | None:
    """Return the layer that looks at several patients at once, or None."""
    for name, module in model.named_modules():
        is_by_others = isinstance(module, _BatchNorm) and module.running_mean is None
        if is_by_others or isinstance(module, SiteBatchNorm):
            return (
                f"the layer {name} ({type(module).__name__}) normalises each patient by the others"
                " of the mini-batch, so no patient has its own gradient; use GroupNorm or"
                " LayerNorm"
            )
    return None


def clipped_sum(
    model: nn.Module, start: Tensor, rows: PatientRows, loss: Loss, *, clip_norm: float, seed: int
) -> Tensor:
    """Return the patients' sum of gradients at `start` (dim,), each cut to `clip_norm`: float64.

    `seed`: of what a layer draws (dropout). A gradient that is not finite counts as 0.
    Raises ModelError for a model that cannot be differentiated patient by patient.
    """
    load_flat_parameters(model, start)
    to_training(model)
    parameters = {name: p.detach() for name, p in named_trained_parameters(model)}

    def loss_of(values: dict[str, Tensor], row: Tensor, target: Tensor) -> Tensor:
        outputs = functional_call(model, values, (row.unsqueeze(0),))
        return loss(outputs, target.unsqueeze(0))

    gradients = vmap(grad(loss_of), in_dims=(None, 0, 0), randomness="different")

    def of_rows(places: Tensor) -> Tensor:
        found: dict[str, Tensor] = gradients(parameters, rows.inputs[places], rows.targets[places])
        return torch.cat([found[name].flatten(1) for name in parameters], dim=1).double()

    total = torch.zeros(len(start), dtype=torch.float64, device=start.device)
    with draws_from(seed, start.device):
        try:
            for of_patients in _by_patient(rows.patients, of_rows, len(start)):
                total += _cut(of_patients, clip_norm).sum(dim=0)
        except (RuntimeError, NotImplementedError, ValueError) as problem:
            reason = (str(problem).strip().splitlines() or [""])[0][:300]
            raise ModelError(
                "The model cannot be differentiated patient by patient, which [privacy] needs"
                f" ({type(problem).__name__}: {reason})",
                remedy="Use another model, or leave [privacy] out.",
            ) from None
    return total


def _by_patient(
    patients: Tensor, of_rows: Callable[[Tensor], Tensor], dim: int
) -> Iterator[Tensor]:
    """Yield the gradients of some patients at a time: (patients, dim)."""
    if not len(patients):  # a half that chance left empty
        return
    at_once = max(1, _NUMBERS_AT_ONCE // dim)
    order = torch.argsort(patients, stable=True)
    _, counts = torch.unique_consecutive(patients[order], return_counts=True)
    if bool((counts == 1).all()):
        yield from map(of_rows, torch.split(order, at_once))
        return
    for rows in torch.split(order, counts.tolist()):
        parts = [of_rows(part).sum(dim=0) for part in torch.split(rows, at_once)]
        yield torch.stack(parts).sum(dim=0, keepdim=True)


def _cut(gradients: Tensor, clip_norm: float) -> Tensor:
    """Return each row (dim,) no longer than `clip_norm`, in its direction."""
    lengths = gradients.norm(dim=1, keepdim=True)
    finite = torch.where(lengths.isfinite(), gradients, 0.0)
    kept: Tensor = clip_norm / lengths.clamp(min=clip_norm)
    return finite * kept.nan_to_num(nan=0.0)


Floats = NDArray[np.float64]

_PAIRS = 1 << 16  # of numbers that are made at a time
_GRID_BITS = 20  # a noised sum is given to this many bits below the noise's deviation


def gaussian(key: bytes, count: int) -> Floats:
    """Return `count` standard normal numbers of a key of 32 bytes (Box and Muller, 1958)."""
    stream = keystream(key)
    pairs = -(-count // 2)
    drawn = np.empty(2 * pairs)
    for start in range(0, pairs, _PAIRS):
        size = min(_PAIRS, pairs - start)
        words = np.frombuffer(stream.update(bytes(16 * size)), "<u8").reshape(size, 2)
        uniform = ((words >> np.uint64(11)) + np.float64(1.0)) * 2.0**-53  # from (0, 1]
        radius, angle = np.sqrt(-2 * np.log(uniform[:, 0])), 2 * np.pi * uniform[:, 1]
        part = drawn[2 * start : 2 * (start + size)]
        part[0::2], part[1::2] = radius * np.cos(angle), radius * np.sin(angle)
    return drawn[:count]


def with_noise(total: Floats, deviation: float, key: bytes) -> Floats:
    """Return `total` (dim,) and noise, on a grid: last bits would disclose it (Mironov 2012)."""
    grid = 2.0 ** (math.floor(math.log2(deviation)) - _GRID_BITS)
    noised: Floats = np.rint((total + deviation * gaussian(key, len(total))) / grid) * grid
    return noised


@dataclass(frozen=True, slots=True)
class PrivateStep:
    """How a hospital's one step of a round is taken."""

    clip_norm: float  # the most that a patient's gradient counts
    noise_multiplier: float  # of clip_norm; 0 at the user, for its own coordinator
    learning_rate: float
    weight_decay: float
    patients: float  # that the sum is divided by: the number that the hospital gives
    key: bytes = field(default=b"", repr=False)  # of the noise of this request, at this site
    repeats: bool = False  # in a simulation: the same noise for any gradients

    def of_share(self, share: float, part: Tensor) -> "PrivateStep":
        """Return the same for some of the patients, with its own noise."""
        chosen = hashlib.sha256(part.numpy().tobytes()).digest()
        return replace(
            self,
            patients=self.patients * share,
            key=hmac.digest(self.key, b"part" + chosen, hashlib.sha256),
        )

    def take(
        self, model: nn.Module, start: Tensor, rows: PatientRows, loss: Loss, seed: int
    ) -> Tensor:
        """Return the change of the parameters (dim,): (dim,) float32. Raises ModelError."""
        total = clipped_sum(model, start, rows, loss, clip_norm=self.clip_norm, seed=seed).cpu()
        if self.noise_multiplier > 0:
            # Of the sum itself, too: the same noise on another sum would give the difference away.
            said = b"" if self.repeats else total.numpy().tobytes()
            key = hmac.digest(self.key, b"noise" + said, hashlib.sha256)
            deviation = self.noise_multiplier * self.clip_norm
            total = torch.from_numpy(with_noise(total.numpy(), deviation, key))
        gradient = total / self.patients + self.weight_decay * start.cpu().double()
        return (-self.learning_rate * gradient).float().to(start.device)
