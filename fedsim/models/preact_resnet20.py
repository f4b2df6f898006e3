"""The 20-layer residual network for CIFAR with pre-activation (He et al. 2016b)."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsim.models.network import ImageNetwork, kaiming


class PreActBlock(nn.Module):
    """Normalisation, ReLU and a 3x3 convolution, twice, added to the block's input as it is.

    Where the number of channels changes, the shortcut is a 1x1 convolution of the activations.
    """

    def __init__(self, channels: int, planes: int) -> None:
        super().__init__()
        stride = planes // channels
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(
            channels, planes, kernel_size=3, stride=stride, padding=1, bias=False
        )
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, padding=1, bias=False)
        self.shortcut = (
            nn.Conv2d(channels, planes, kernel_size=1, stride=stride, bias=False)
            if planes != channels
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps ``(batch, planes, height / stride, width / stride)``."""
        active = F.relu(self.bn1(x))
        around = x if self.shortcut is None else self.shortcut(active)
        branch: Tensor = self.conv2(F.relu(self.bn2(self.conv1(active))))
        return branch + around


class PreActResNet20(ImageNetwork):
    """Residual network with pre-activation (He et al. 2016b), of 20 layers, for CIFAR.

    A convolution, three stages of three blocks with 16, 32 and 64 channels, normalisation, ReLU,
    average pooling and a linear classifier. 272,282 parameters at 10 classes.
    """

    smallest: ClassVar[int] = 4

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(input_shape[0], 16, kernel_size=3, padding=1, bias=False)
        widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
        self.blocks = nn.Sequential(
            *(PreActBlock(before, after) for before, after in pairwise(widths))
        )
        self.bn = nn.BatchNorm2d(64)
        self.fc = nn.Linear(64, num_classes)

    def initialise(self, rng: torch.Generator) -> None:
        """Normal weights of variance ``2 / fan_in`` (He et al. 2015)."""
        kaiming(self, rng)

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``(batch, class)``."""
        x = F.relu(self.bn(self.blocks(self.conv1(images))))
        logits: Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits
