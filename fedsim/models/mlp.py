"""A multilayer perceptron, whose first layer leaks its input in closed form."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from fedsim.models.network import ImageNetwork, kaiming


class MLP(ImageNetwork):
    """Multilayer perceptron with ReLU: ``depth`` hidden layers of ``width`` units, with biases.

    Flattened pixels go through the hidden layers into a linear classifier.
    """

    options: ClassVar[dict[str, int]] = {"width": 256, "depth": 2}

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, width: int, depth: int
    ) -> None:
        super().__init__()
        channels, height, size = input_shape
        features = channels * height * size
        layers: list[nn.Module] = [nn.Flatten()]
        for _ in range(depth):
            layers += [nn.Linear(features, width), nn.ReLU()]
            features = width
        self.body = nn.Sequential(*layers)
        self.fc = nn.Linear(features, num_classes)

    def initialise(self, rng: torch.Generator) -> None:
        """Normal weights of variance ``2 / fan_in`` (He et al. 2015), biases 0."""
        kaiming(self, rng)

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``(batch, class)``."""
        logits: Tensor = self.fc(self.body(images))
        return logits
