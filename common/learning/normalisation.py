"""Group normalisation (Wu and He 2018) in place of batch normalisation, without statistics."""

from math import gcd

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

MOST_GROUPS = 8


def with_group_normalisation(model: nn.Module) -> nn.Module:
    """The same model, whose batch normalisations are replaced; their names stay."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, _BatchNorm):
                channels = child.num_features
                setattr(module, name, nn.GroupNorm(gcd(MOST_GROUPS, channels), channels))
    return model
