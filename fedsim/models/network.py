"""Interface of the built-in image models; copies, and passes that keep activations, of any."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from fedsim.process import exclusive


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


_NEWER = (
    "_checkpoint_without_reentrant_generator",
    "_checkpoint_without_reentrant_generator_impl",
)
"""What the newer form calls, up to torch 2.13 and from 2.14 on."""


@exclusive
def without_checkpoints() -> Iterator[None]:
    """Let ``torch.utils.checkpoint`` keep activations, under whatever name a network imported it.

    The hooks of its newer form fail in ``torch.func``, and its older one in ``autograd.grad``.
    """
    replaced: dict[str, Any] = {"CheckpointFunction": _Kept}
    for name in filter(partial(hasattr, checkpoint), _NEWER):
        replaced[name] = lambda *args, **options: iter([None])
    former = {name: getattr(checkpoint, name) for name in replaced}
    try:
        for name, value in replaced.items():
            setattr(checkpoint, name, value)
        yield
    finally:
        for name, value in former.items():
            setattr(checkpoint, name, value)


class _Kept:
    """In place of the autograd function of the older form."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:  # noqa: ANN401
        return function(*args)
