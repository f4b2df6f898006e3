"""The 20-layer residual network for CIFAR (He et al. 2016, section 4.2), and other norms in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsim.models.network import ImageNetwork, kaiming


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch normalisation, added to an identity shortcut.

    Where the size is halved, the shortcut takes every second pixel and pads the new channels with
    zeros (option A), so it has no parameters.
    """

    def __init__(self, channels: int, planes: int) -> None:
        super().__init__()
        self.stride = planes // channels
        self.new_channels = planes - channels
        self.conv1 = nn.Conv2d(
            channels, planes, kernel_size=3, stride=self.stride, padding=1, bias=False
        )
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps ``(batch, planes, height / stride, width / stride)``."""
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        half = self.new_channels // 2
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, half))
        return F.relu(out + shortcut)


class ResNet20(ImageNetwork):
    """Residual network for CIFAR with 20 layers (He et al. 2016); 269,722 parameters at 10 classes.

    A convolution, three stages of three blocks with 16, 32 and 64 channels, average pooling and a
    linear classifier.
    """

    smallest: ClassVar[int] = 4

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(input_shape[0], 16, kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
        self.blocks = nn.Sequential(
            *(ResidualBlock(before, after) for before, after in pairwise(widths))
        )
        self.fc = nn.Linear(64, num_classes)

    def initialise(self, rng: torch.Generator) -> None:
        """Normal weights of variance ``2 / fan_in`` (He et al. 2015).

        Batch normalisation starts as the identity.
        """
        kaiming(self, rng)

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``(batch, class)``."""
        x = self.blocks(F.relu(self.bn1(self.conv1(images))))
        logits: Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits


class GroupNormResNet20(ResNet20):
    """ResNet20 with group normalisation of two groups (Hsieh et al. 2020); no running statistics.

    Hsieh et al. 2020, "The Non-IID Data Quagmire", train it in place of batch normalisation, which
    mixes a client's examples and fails where clients differ.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        _normalise(self, lambda _, channels: nn.GroupNorm(2, channels))


class NormFreeResNet20(ResNet20):
    """ResNet20 whose normalisations are a weight and a bias for each channel, and no more.

    The last weights of each of the nine residual branches start at a third, so that the sum of the
    branches is as large as what they are added to (De and Smith 2020, "Batch Normalization Biases
    Residual Blocks Towards the Identity Function").
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        share = 1 / math.sqrt(len(self.blocks))
        _normalise(self, lambda name, channels: Affine(channels, share if name == "bn2" else 1.0))


class Affine(nn.Module):
    """``x * weight + bias``, channel by channel."""

    def __init__(self, channels: int, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((channels, 1, 1), weight))
        self.bias = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps of the same shape."""
        return x * self.weight + self.bias


def _normalise(network: nn.Module, norm: Callable[[str, int], nn.Module]) -> None:
    """Put ``norm(name, channels)`` in the place of each batch normalisation."""
    for part in list(network.modules()):
        for name, layer in list(part.named_children()):
            if isinstance(layer, nn.BatchNorm2d):
                part.register_module(name, norm(name, layer.num_features))
