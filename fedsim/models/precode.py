"""PRECODE: a variational bottleneck before the last layer, whose draws hide what is before it."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedsim.models.lenet import GroupNormLeNet

_WEIGHT = 0.003
"""Of the divergence in the loss, as in the code of Balunovic et al. 2022."""


class VariationalBottleneck(nn.Module):
    """Passes on a normal draw whose mean and variance depend on the features.

    With h the tanh of a linear map of the features, the draw is ``b = mu + exp(v / 2) e``, with mu
    and v linear in h and e standard normal; the result is the tanh of a linear map of b. Without
    gradients, as where utility is measured, e is 0.

    Of one example the gradients of the layers are ``(error of mu) h^T`` and ``(error) b^T``, beside
    those errors as gradients of their biases. So both h and b can be read off, and with them e.

    Attributes:
        draw: e ``(size,)`` that is used in place of new ones; None draws.
        divergence: from a standard normal, of the last pass; the mean over examples.
    """

    def __init__(self, features: int, size: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(features, size)
        self.mean, self.log_variance = nn.Linear(size, size), nn.Linear(size, size)
        self.decoder = nn.Linear(size, features)
        self.draw: Tensor | None = None
        self.divergence: Tensor | None = None

    def forward(self, features: Tensor) -> Tensor:
        """Of features ``(batch, feature)``, of the same shape."""
        hidden = self.encoder(features).tanh()
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        if self.draw is not None:
            draw = self.draw.to(mean)
        elif torch.is_grad_enabled():
            draw = torch.randn_like(mean)
        else:
            draw = torch.zeros_like(mean)
        apart = log_variance.exp() + mean.square() - 1 - log_variance
        self.divergence = apart.sum(1).mean() / 2
        result: Tensor = self.decoder(mean + (log_variance / 2).exp() * draw).tanh()
        return result

    @torch.no_grad()
    def read(self, gradient: Mapping[str, Tensor]) -> Tensor | None:
        """The draw behind a gradient of one example, or a multiple; None where it does not tell.

        Args:
            gradient: of this module's parameters, by their names in it.
        """
        inputs = {}
        for name in ("mean", "decoder"):
            weight, error = (gradient.get(f"{name}.{part}") for part in ("weight", "bias"))
            if weight is None or error is None or not error.any():
                return None
            inputs[name] = (error @ weight / error.square().sum()).to(self.mean.weight)
        hidden = inputs["mean"]
        deviation = (self.log_variance(hidden) / 2).exp()
        draw: Tensor = (inputs["decoder"] - self.mean(hidden)) / deviation
        return draw


def divergences(network: object) -> Tensor | float:
    """What the bottlenecks of a network add to the loss of its last pass; 0 without any."""
    total: Tensor | float = 0.0
    for part in network.modules() if isinstance(network, nn.Module) else ():
        if isinstance(part, VariationalBottleneck) and part.divergence is not None:
            total, part.divergence = total + _WEIGHT * part.divergence, None
    return total


class PrecodeLeNet(GroupNormLeNet):
    """LeNet with a variational bottleneck of 256 units (Scheliga et al. 2022, "PRECODE").

    Sizes and the weight of the divergence are those of the code by which Balunovic et al. 2022
    attack it; normalisation and tanh are those of ``lenet-group-norm``. Its authors report that no
    attack of theirs succeeds. An attacker who has the architecture reads the draw off the update of
    one example and replays the network with it, after which nothing is random.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        head = self.fc
        del self.fc
        self.bottleneck = VariationalBottleneck(head.in_features, 256)
        self.fc = head  # last, as the classifier of every network is

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``(batch, class)``."""
        logits: Tensor = self.fc(self.bottleneck(self.body(images)))
        return logits
