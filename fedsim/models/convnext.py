"""A ConvNeXt at the size of CIFAR images."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsim.models.network import ImageNetwork

_DEVIATION = 0.02  # of the normal weights, as in the authors' code
_SCALE = 1e-6  # at which a block's branch starts, as in the paper


class ConvNeXtBlock(nn.Module):
    """A depthwise 7x7 convolution, normalisation and a GELU layer of 4 x width, beside a shortcut.

    The branch is scaled by one learned number a channel.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, kernel_size=7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), _SCALE))

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps of the shape of ``x``, ``(image, width, height, width of the map)``."""
        branch = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        branch = self.scale * self.outer(F.gelu(self.inner(branch)))
        added: Tensor = x + branch.permute(0, 3, 1, 2)
        return added


class ConvNeXt(ImageNetwork):
    """ConvNeXt (Liu et al. 2022) of one stage, for small images.

    Patches of 4 x 4 pixels become positions by one convolution; at the right and at the bottom,
    images whose size is no multiple of 4 are padded with zeros. Without stochastic depth. 323,242
    parameters for CIFAR-10.
    """

    options: ClassVar[dict[str, int]] = {"width": 96, "depth": 4}
    patch: ClassVar[int] = 4

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, width: int, depth: int
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(input_shape[0], width, kernel_size=self.patch, stride=self.patch)
        self.stem_norm = nn.LayerNorm(width)
        self.blocks = nn.Sequential(*(ConvNeXtBlock(width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def initialise(self, rng: torch.Generator) -> None:
        """Truncated normal weights, biases 0."""
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Conv2d):
                nn.init.trunc_normal_(part.weight, std=_DEVIATION, generator=rng)
                assert part.bias is not None
                nn.init.zeros_(part.bias)
            elif isinstance(part, nn.LayerNorm):
                nn.init.ones_(part.weight)
                nn.init.zeros_(part.bias)
            elif isinstance(part, ConvNeXtBlock):
                nn.init.constant_(part.scale, _SCALE)

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``(image, class)``."""
        right, below = (-length % self.patch for length in (images.shape[3], images.shape[2]))
        stem = self.stem(F.pad(images, (0, right, 0, below)))
        start = self.stem_norm(stem.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        logits: Tensor = self.head(self.norm(self.blocks(start).mean(dim=(2, 3))))
        return logits
