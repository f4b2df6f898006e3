"""Train-mode behaviour of a network, read off its layers."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def has_dropout(network: nn.Module) -> bool:
    """Whether masks change what a layer gets in train mode."""
    return any(isinstance(part, nn.Dropout) and part.p > 0 for part in network.modules())


def has_train_mode(network: nn.Module) -> bool:
    """Whether masks or a batch's own statistics change what the network computes."""
    return has_dropout(network) or any(isinstance(p, _BatchNorm) for p in network.modules())
