"""Three hospitals: 0 is the user, 1 like it, 2 writes the two classes the wrong way round."""

import torch
from torch import Tensor, nn


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def data(site: int, patients: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + site + patients)
    inputs = torch.randn(patients, 4, generator=generator)
    targets = (inputs[:, 0] + inputs[:, 1] > 0).long()
    return inputs, 1 - targets if site == 2 else targets
