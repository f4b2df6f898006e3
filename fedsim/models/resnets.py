"""The residual networks of He et al. 2016, for CIFAR and for ImageNet, and other norms in them."""

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
