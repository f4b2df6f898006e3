"""The LeNet that Deep Leakage from Gradients attacks (Zhu et al. 2019), and one that learns."""

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


class GroupNormLeNet(LeNet):
    """LeNet's layers with group normalisation (Wu and He 2018) and tanh in place of sigmoids.

    Four channels form a group. It learns by plain SGD within some tens of rounds, which the LeNet
    of DLG does not, and is as smooth for attackers that differentiate twice.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        layers: list[nn.Module] = []
        for layer in self.body:
            smooth = isinstance(layer, nn.Sigmoid)
            layers += [nn.GroupNorm(3, 12), nn.Tanh()] if smooth else [layer]
        self.body = nn.Sequential(*layers)

    def initialise(self, rng: torch.Generator) -> None:
        """Weights and biases uniform within ``1 / sqrt(fan_in)``, as torch draws them."""
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                bound = layer.weight[0].numel() ** -0.5
                for parameter in layer.parameters():
                    nn.init.uniform_(parameter, -bound, bound, generator=rng)
