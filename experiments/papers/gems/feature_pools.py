"""CIFAR-10 and HAM10000 for GEMS, as features of a small convolutional network: not VGG-16.

The paper takes CIFAR-10's features from a VGG-16 trained on ImageNet, which needs a download of its
own. Here both data sets get their features from three convolutions that are trained, in every
trial, on a part of the data that nothing else uses. Figures can be held against each other, and
against the paper's only in their order.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from erosion.experiments.papers.gems.pools import Pool, Samples
from erosion.experiments.sources import cifar10
from erosion.experiments.sources.cifar10 import read_jpegs
from erosion.experiments.sources.ham10000 import read_ham10000
from erosion.experiments.sources.source import data_folder, existing_file

EPOCHS = 6
BATCH = 64
FEATURES = 512


def cifar10_pool(data_dir: Path | None, trial: int) -> Pool:
    """15,000 images for the features, then 25,000 to train, 5,000 to validate; 5,000 to test."""
    generator = torch.Generator().manual_seed(trial)
    folder = data_folder(data_dir, cifar10.FOLDER)
    images, labels = _cifar10(existing_file(folder, cifar10.TRAINING_FILE))
    order = torch.randperm(len(labels), generator=generator)
    first, train, validation = torch.split(order[:45_000], [15_000, 25_000, 5_000])
    network = _trained(images[first], labels[first], 10, generator)
    test_images, test_labels = _cifar10(existing_file(folder, cifar10.TEST_FILE))
    test = torch.randperm(len(test_labels), generator=generator)[:5_000]
    return Pool(
        _features(network, images[train], labels[train]),
        _features(network, images[validation], labels[validation]),
        _features(network, test_images[test], test_labels[test]),
        classes=10,
    )


def ham10000_pool(data_dir: Path | None, trial: int) -> Pool:
    """Two thirds of the lesions for the features; of the others 60, 20 and 20 %.

    A lesion's pictures stay together. Every part is balanced, by turning and mirroring pictures of
    rare diagnoses: 2,000 of each for the features, then 1,000, 300 and 300.
    """
    generator = torch.Generator().manual_seed(trial)
    pictures = read_ham10000(data_dir)
    images = torch.from_numpy(pictures.images).permute(0, 3, 1, 2).contiguous()
    labels, lesions = torch.from_numpy(pictures.labels), torch.from_numpy(pictures.lesions)
    parts = _by_lesion(lesions, (0.66, 0.204, 0.068, 0.068), generator)
    counts = (2_000, 1_000, 300, 300)
    first, train, validation, test = (
        _balanced(images[rows], labels[rows], count, generator)
        for rows, count in zip(parts, counts, strict=True)
    )
    network = _trained(*first, 7, generator)
    return Pool(
        _features(network, *train),
        _features(network, *validation),
        _features(network, *test),
        classes=7,
    )


def _cifar10(path: Path) -> tuple[Tensor, Tensor]:
    """Images (n, 3, 32, 32) uint8 and labels (n,)."""
    jpegs = read_jpegs(path)
    images = torch.from_numpy(jpegs.images(np.arange(len(jpegs.labels))))
    return images.permute(0, 3, 1, 2).contiguous(), torch.from_numpy(jpegs.labels)


def _by_lesion(
    lesions: Tensor, shares: tuple[float, ...], generator: torch.Generator
) -> list[Tensor]:
    """Rows of each part; every lesion is in one part only."""
    distinct = torch.unique(lesions)
    order = distinct[torch.randperm(len(distinct), generator=generator)]
    cuts = (torch.tensor(shares).cumsum(0) * len(order)).round().long().tolist()
    edges = [0, *cuts[:-1], len(order)]
    return [
        torch.nonzero(torch.isin(lesions, order[low:high])).flatten()
        for low, high in pairwise(edges)
    ]


def _balanced(
    images: Tensor, labels: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """`count` of each class: fewer pictures, or the same ones turned and mirrored."""
    chosen, classes = [], torch.unique(labels).tolist()
    for label in classes:
        rows = torch.nonzero(labels == label).flatten()
        rows = rows[torch.randperm(len(rows), generator=generator)]
        copies = [_turned(images[rows], number) for number in range(-(-count // len(rows)))]
        chosen.append(torch.cat(copies)[:count])
    return torch.cat(chosen), torch.tensor(classes).repeat_interleave(count)


def _turned(images: Tensor, number: int) -> Tensor:
    """One of the eight ways to lay a square picture; 0 leaves it as it is."""
    mirrored = images.flip(3) if number // 4 % 2 else images
    return mirrored.rot90(number % 4, (2, 3))


def _trained(
    images: Tensor, labels: Tensor, classes: int, generator: torch.Generator
) -> nn.Sequential:
    """Three convolutions (32, 64, 128) and 512 units, trained with a layer that is then left."""
    side = images.shape[-1] // 8
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
        blocks: list[nn.Module] = []
        for channels_in, channels_out in ((3, 32), (32, 64), (64, 128)):
            convolution = nn.Conv2d(channels_in, channels_out, 3, padding=1)
            blocks += [convolution, nn.ReLU(), nn.MaxPool2d(2)]
        dense = nn.Linear(128 * side * side, FEATURES)
        network = nn.Sequential(*blocks, nn.Flatten(), dense, nn.ReLU())
        output = nn.Linear(FEATURES, classes)
    optimizer = torch.optim.Adam([*network.parameters(), *output.parameters()], lr=0.001)
    for _ in range(EPOCHS):
        order = torch.randperm(len(labels), generator=generator)
        for rows in torch.split(order, BATCH):
            optimizer.zero_grad()
            logits = output(network(_scaled(images[rows])))
            torch.autograd.backward(nn.functional.cross_entropy(logits, labels[rows]))
            optimizer.step()
    return network


@torch.no_grad()
def _features(network: nn.Sequential, images: Tensor, labels: Tensor) -> Samples:
    parts = [network(_scaled(part)) for part in torch.split(images, 500)]
    return Samples(torch.cat(parts), labels)


def _scaled(images: Tensor) -> Tensor:
    return images.float() / 255 - 0.5
