"""MNIST for GEMS: 50,000 images to train, 5,000 to validate and 5,000 to test, one fixed split."""

from pathlib import Path

import torch

from erosion.experiments.papers.gems.pools import Pool, Samples
from erosion.experiments.sources.mnist import read_mnist
from erosion.experiments.sources.source import data_folder

SPLIT_SEED = 0


def mnist_pool(data_dir: Path | None, trial: int) -> Pool:
    """Pixels divided by 255, as in the authors' baselines; the same in every trial."""
    del trial
    images, labels = read_mnist(data_folder(data_dir, "mnist"), "train")
    every = Samples(
        torch.tensor(images.reshape(len(images), -1)).float() / 255, torch.from_numpy(labels)
    )
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(SPLIT_SEED))
    train, validation, test = (
        every.only(part) for part in torch.split(order, [50_000, 5_000, 5_000])
    )
    return Pool(train, validation, test, classes=10)
