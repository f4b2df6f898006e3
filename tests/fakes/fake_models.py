"""Image models of somebody else, as torchvision's or timm's: functions of ``num_classes``."""

from torch import nn


def small(num_classes: int = 1000) -> nn.Module:
    """A convolution with ReLU in place, batch statistics and a linear classifier."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(128, num_classes),
    )


def deaf(num_classes: int = 1000) -> nn.Module:
    """A network of 1,000 classes whatever is asked for."""
    del num_classes
    return small()
