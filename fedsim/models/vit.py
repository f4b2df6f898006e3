"""A vision transformer at the size of CIFAR images."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsim.models.network import ImageNetwork

_DEVIATION = 0.02  # of the normal weights, as in the paper's and DeiT's code


class VitBlock(nn.Module):
    """Attention and a GELU layer, each behind a normalisation and beside a residual path."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Output ``(image, token, width)``."""
        query, key, value = (
            self.qkv(self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        )
        # Fused attention has no second derivative, which gradient matching needs.
        shares = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
        x = x + self.out((shares @ value).transpose(1, 2).flatten(2))
        mixed: Tensor = x + self.outer(F.gelu(self.inner(self.norm_2(x))))
        return mixed


class ViT(ImageNetwork):
    """ViT (Dosovitskiy et al. 2021) with DeiT's class token, for small images.

    Patches of 4 x 4 pixels become tokens by one linear layer; a learned position is added to each.
    At the right and at the bottom, images whose size is no multiple of 4 are padded with zeros.
    Without dropout and without stochastic depth. 1,803,850 parameters for CIFAR-10.
    """

    options: ClassVar[dict[str, int]] = {"width": 192, "depth": 4, "heads": 3}
    patch: ClassVar[int] = 4

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, width: int, depth: int, heads: int
    ) -> None:
        super().__init__()
        channels, *size = input_shape
        tokens = torch.Size(-(-length // self.patch) for length in size).numel()
        self.embed = nn.Linear(channels * self.patch**2, width)
        self.start = nn.Parameter(torch.zeros(width))
        self.positions = nn.Parameter(torch.zeros(1 + tokens, width))
        self.blocks = nn.Sequential(*(VitBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def initialise(self, rng: torch.Generator) -> None:
        """Truncated normal weights, biases 0."""
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.trunc_normal_(part.weight, std=_DEVIATION, generator=rng)
                nn.init.zeros_(part.bias)
            elif isinstance(part, nn.LayerNorm):
                nn.init.ones_(part.weight)
                nn.init.zeros_(part.bias)
        for parameter in (self.start, self.positions):
            nn.init.trunc_normal_(parameter, std=_DEVIATION, generator=rng)

    def patches(self, images: Tensor) -> Tensor:
        """The pixels of each patch, row by row, ``(image, patch, value)``."""
        right, below = (-length % self.patch for length in (images.shape[3], images.shape[2]))
        padded = F.pad(images, (0, right, 0, below))
        return F.unfold(padded, self.patch, stride=self.patch).mT

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``(image, class)``."""
        tokens = self.embed(self.patches(images))
        first = self.start.expand(len(tokens), 1, -1)
        states = self.blocks(torch.cat([first, tokens], 1) + self.positions)
        logits: Tensor = self.head(self.norm(states)[:, 0])
        return logits
