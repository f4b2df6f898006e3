"""Interface of the built-in image models."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn


class ImageNetwork(nn.Module, ABC):
    """An image classifier, built as ``Network(input_shape, num_classes, **options)``.

    Attributes:
        options: further keyword arguments and their values in an experiment.
        smallest: smallest height and width in pixels.
    """

    options: ClassVar[dict[str, int]] = {}
    smallest: ClassVar[int] = 1

    @abstractmethod
    def initialise(self, rng: torch.Generator) -> None:
        """Draw all weights from a generator on the CPU."""

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Logits ``(batch, class)`` of images ``(batch, channel, height, width)`` in [0, 1]."""


def copied(network: nn.Module) -> nn.Module:
    """A copy; of a network with torch's older weight norm or spectral norm, too.

    These keep the weight that they compute, which is no leaf and cannot be copied, as an attribute.
    """
    computed = {
        id(value): value.detach().clone()
        for part in network.modules()
        for value in vars(part).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }
    return copy.deepcopy(network, computed)


def kaiming(network: nn.Module, rng: torch.Generator) -> None:
    """Normal weights of variance ``2 / fan_in`` for ReLU (He et al. 2015), biases 0."""
    for part in network.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu", generator=rng)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
