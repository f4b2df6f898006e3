"""The 18-layer residual network for ImageNet (He et al. 2016), in torchvision's layout."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsim.models.network import ImageNetwork

Norm = Callable[[int], nn.Module]
"""A normalisation of so many channels."""


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with normalisation, added to a shortcut.

    Where size or width change, the shortcut is a normalised 1x1 convolution (option B).
    """

    def __init__(self, channels: int, planes: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(
            channels, planes, kernel_size=3, stride=stride, padding=1, bias=False
        )
        self.bn1 = norm(planes)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, padding=1, bias=False)
        self.bn2 = norm(planes)
        self.downsample = (
            nn.Sequential(
                nn.Conv2d(channels, planes, kernel_size=1, stride=stride, bias=False), norm(planes)
            )
            if planes != channels
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps ``(batch, planes, height / stride, width / stride)``."""
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet18(ImageNetwork):
    """Residual network for ImageNet with 18 layers (He et al. 2016), as torchvision has it.

    A 7x7 convolution of stride 2, max-pooling, four stages of two blocks with 64, 128, 256 and 512
    channels, average pooling and a linear classifier: 11,181,642 parameters at 10 classes. Tensors
    have torchvision's names and order. The last stage sees a 32nd of the image, so in train mode a
    batch of one image needs more than 32 pixels a side.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        norm = self.norm
        self.conv1 = nn.Conv2d(input_shape[0], 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = norm(64)
        for number, (before, after) in enumerate(pairwise([64, 64, 128, 256, 512]), 1):
            first = BasicBlock(before, after, after // before, norm)
            self.add_module(
                f"layer{number}", nn.Sequential(first, BasicBlock(after, after, 1, norm))
            )
        self.fc = nn.Linear(512, num_classes)

    @staticmethod
    def norm(channels: int) -> nn.Module:
        """Batch normalisation."""
        return nn.BatchNorm2d(channels)

    def initialise(self, rng: torch.Generator) -> None:
        """Convolutions normal of variance ``2 / fan_out``, as in torchvision; the head as torch's.

        Normalisation starts as the identity.
        """
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(
                    part.weight, mode="fan_out", nonlinearity="relu", generator=rng
                )
        bound = self.fc.in_features**-0.5
        for parameter in self.fc.parameters():
            nn.init.uniform_(parameter, -bound, bound, generator=rng)

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``(batch, class)``."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(images))), 3, stride=2, padding=1)
        for number in range(1, 5):
            x = self.get_submodule(f"layer{number}")(x)
        logits: Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits


class GroupNormResNet18(ResNet18):
    """ResNet18 with group normalisation of two groups (Hsieh et al. 2020); no running statistics.

    Reddi et al. 2021, "Adaptive Federated Optimization", train it on 24-pixel crops of CIFAR-100.
    """

    @staticmethod
    def norm(channels: int) -> nn.Module:
        """Group normalisation."""
        return nn.GroupNorm(2, channels)
