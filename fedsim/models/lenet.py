"""The LeNet with sigmoids that Deep Leakage from Gradients attacks (Zhu et al. 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedsim.models.network import ImageNetwork


class LeNet(ImageNetwork):
    """LeNet of DLG (Zhu et al. 2019): three 5x5 convolutions with sigmoids and a linear layer.

    Each convolution has 12 channels, and the first two have stride 2. The sigmoid is twice
    differentiable, which the attack's second-order optimiser needs. 15,826 parameters for CIFAR-10,
    as in Learning To Invert; DLG itself uses 100 classes.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(input_shape[0], 12, kernel_size=5, padding=2, stride=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, kernel_size=5, padding=2, stride=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, kernel_size=5, padding=2),
            nn.Sigmoid(),
            nn.Flatten(),
        )
        # Two convolutions halve the size, rounding up: 768 features at 32 pixels, 588 at 28.
        height, width = (-(-size // 4) for size in input_shape[1:])
        self.fc = nn.Linear(12 * height * width, num_classes)

    def initialise(self, rng: torch.Generator) -> None:
        """Weights and biases uniform in [-0.5, 0.5], as in the authors' code."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5, generator=rng)

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``(batch, class)``."""
        logits: Tensor = self.fc(self.body(images))
        return logits
