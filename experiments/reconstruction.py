"""Reconstructs patients, as a coordinator could, from updates of a logistic regression.

`solved` and `fitted` need to know the order of the mini-batches; `swept` needs none where a round
goes over all patients, and asks at parameters of its choice.
"""

import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import least_squares
from torch import Tensor

from erosion_common.learning.local_sgd import mini_batches, round_generator
from erosion_common.study.study import Study

SETTLED_AFTER = 60  # rounds
CLOSE = 0.05  # of a value; they spread by 1
ALONE = 0.2  # of a patient between two cuts, for there to be one
STEEP = 300.0  # weight of a column at which the model all but says on which side of a value it is


def public_batches(
    study: Study, hospital: str, rounds: int, num_patients: int
) -> list[list[Tensor]]:
    """Return the mini-batches of every round as anybody who knows the study would draw them."""
    return [
        list(
            mini_batches(num_patients, study.training, round_generator(study.seed, hospital, r), r)
        )
        for r in range(1, rounds + 1)
    ]


def _shares(batches: list[list[Tensor]], num: int) -> NDArray[np.float64]:
    """Return how much each patient counts in every round, over its mini-batches: (rounds, num)."""
    counts = np.zeros((len(batches), num))
    for row, of_round in enumerate(batches):
        for batch in of_round:  # in which a patient may be twice
            np.add.at(counts[row], batch.numpy(), 1 / len(batch))
    return counts


def solved(study: Study, hospital: str, deltas: list[Tensor], num: int) -> NDArray[np.float64]:
    """Records (n, 3) by linear equations, of updates from parameters that are all zero.

    There the gradient of the class "yes" is the mean of (1/2 - y) (1, x) over a mini-batch.
    """
    counts = _shares(public_batches(study, hospital, len(deltas), num), num)
    updates = torch.stack(deltas).double().numpy()
    # Weights of "no" and of "yes" for each column, then both biases.
    yes = updates[:, [2, 3, 5]] / -study.training.learning_rate
    records, *_ = np.linalg.lstsq(counts, yes, rcond=None)
    ill = records[:, 2] < 0
    return np.column_stack([records[:, :2] / np.where(ill, -0.5, 0.5)[:, None], ill])


def fitted(
    study: Study, hospital: str, starts: list[Tensor], deltas: list[Tensor], num: int
) -> NDArray[np.float64]:
    """Return records (n, 3) of an ordinary study that would give just these updates by training.

    They are looked for by least squares, beginning with a guess: once the model has settled, a
    patient's share of a gradient, (p - y) (1, x), hardly changes, so that the updates are linear
    equations in the shares, and x is their ratio.
    """
    batches = public_batches(study, hospital, len(deltas), num)
    first = min(SETTLED_AFTER, len(batches) // 2)
    counts = _shares(batches[first:], num)
    rate = study.training.learning_rate
    wanted = torch.stack(deltas).double()
    shares, *_ = np.linalg.lstsq(counts, wanted.numpy()[first:, [2, 3, 5]] / -rate, rcond=None)
    ill = torch.from_numpy((shares[:, 2] < 0).astype(np.float64))
    seen = shares[:, 2:] != 0  # in few rounds, somebody may be in no mini-batch
    ratios = np.divide(shares[:, :2], shares[:, 2:], out=np.ones((num, 2)), where=seen)
    guess = np.clip(ratios, -2, 4)
    chosen = torch.stack([torch.stack(of_round) for of_round in batches])  # (rounds, steps, batch)
    start = torch.stack(starts).double()
    # Of two classes: the difference of their weights and biases says everything.
    begun = start[:, [2, 3, 5]] - start[:, [0, 1, 4]]

    def misfit(flat: Tensor) -> Tensor:
        inputs = torch.cat([flat.reshape(num, 2), torch.ones(num, 1, dtype=flat.dtype)], dim=1)
        weights = begun
        for step in range(chosen.shape[1]):
            rows = chosen[:, step]
            seen = inputs[rows]  # (rounds, batch, 3)
            wrong = torch.sigmoid((seen * weights[:, None]).sum(dim=2)) - ill[rows]
            weights = weights - 2 * rate * (wrong[..., None] * seen).mean(dim=1)
        return ((weights - begun) / (2 * rate) - wanted[:, [2, 3, 5]] / rate).flatten()

    def residuals(flat: NDArray[np.float64]) -> NDArray[np.float64]:
        return misfit(torch.from_numpy(flat)).numpy()

    def slopes(flat: NDArray[np.float64]) -> NDArray[np.float64]:
        with warnings.catch_warnings():  # of torch itself, when it first differentiates forwards
            warnings.simplefilter("ignore", DeprecationWarning)
            return np.asarray(torch.func.jacfwd(misfit)(torch.from_numpy(flat)).numpy())

    found = least_squares(
        residuals, guess.flatten(), slopes, loss="soft_l1", f_scale=0.01, max_nfev=60
    )
    return np.column_stack([found.x.reshape(num, 2), ill.numpy()])


def cut_at(value: float) -> Tensor:
    """Parameters (6,) of a model that says "yes" where the first column is above `value`."""
    return torch.tensor([0.0, 0.0, STEEP, 0.0, 0.0, -STEEP * value])


def swept(study: Study, deltas: list[Tensor], num: int) -> NDArray[np.float64]:
    """Records (k, 2) of full-batch updates from `cut_at` of ascending values.

    The gradient of the class "yes" is the mean of (p - y) (1, x). Between two cuts it changes by
    (1, x) / n for each patient between them, of any class: where that is one, x is the
    quotient. Of a round of several full batches the parameters hardly move.
    """
    rounds = study.training.epochs or 1
    scale = -study.training.learning_rate * rounds
    sums = torch.stack(deltas).double().numpy()[:, [2, 3, 5]] / scale * num
    between = sums[:-1] - sums[1:]
    alone = np.abs(between[:, 2] - 1) < ALONE
    return between[alone, :2] / between[alone, 2:]


def num_found(guessed: NDArray[np.float64], patients: NDArray[np.float64]) -> int:
    """Return the patients with all values close to those guessed for them."""
    return int((np.abs(guessed[:, :2] - patients[:, :2]).max(axis=1) < CLOSE).sum())


def num_among(guessed: NDArray[np.float64], patients: NDArray[np.float64]) -> int:
    """Patients who are close to any of the records that were guessed (k, 2)."""
    if not len(guessed):
        return 0
    apart = np.abs(guessed[None, :, :2] - patients[:, None, :2]).max(axis=2)
    return int((apart.min(axis=1) < CLOSE).sum())
