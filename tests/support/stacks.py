"""Local training of several hospitals, to be done as a stack or one by one."""

from typing import Any

import torch

from erosion_common.learning.local_sgd import Samples, objective
from erosion_common.learning.models import Mlp, build_model, flat_parameters
from erosion_common.learning.networks import ModelBase
from erosion_common.learning.stacked_sgd import Job
from erosion_common.learning.training import Training
from erosion_common.tasks.task import Task, as_tensor
from tests.support.task_examples import patients
from tests.support.tasks import classes_of

SIZES = (23, 8, 40, 5, 23)  # samples of each hospital
TABLE, IMAGES = (3,), (1, 12, 12)


def settings(**keys: Any) -> Training:
    return Training.model_validate({"batch_size": 8, "learning_rate": 0.2, **keys})


def jobs(
    training: Training,
    model: ModelBase | None = None,
    task: Task | None = None,
    shape: tuple[int, ...] = TABLE,
) -> list[Job]:
    """The same whenever they are asked for; the generators are fresh."""
    task = task or classes_of(3)
    module = build_model(model or Mlp(), shape, task.num_outputs)
    start, made = flat_parameters(module), []
    for number, size in enumerate(SIZES):
        draws = torch.Generator().manual_seed(number)
        targets = as_tensor(patients(task, seed=number, count=size))
        inputs = torch.randn(size, *shape, generator=draws)
        own_start = start + 0.1 * torch.randn(len(start), generator=draws)
        samples = Samples(inputs, targets, objective(module, task.training_loss(targets)))
        made.append(Job(module, own_start, samples, training, draws, round_number=2))
    return made
