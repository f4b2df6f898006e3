"""Convolutions of few and small images, faster on the CPU without oneDNN."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.process import exclusive

_WORK = 2e6
"""Multiplications below which oneDNN's copies cost more than it saves, on networks of three
convolutions of 6 to 32 channels at 32 and 64 pixels."""


@exclusive
def suited_convolutions(network: nn.Module, run: Callable[[], object]) -> Iterator[None]:
    """Convolve with or without oneDNN, by the size of the work.

    For one picture on LeNet a gradient's slope takes half the time without.

    Args:
        network: of the attack's model.
        run: passes all images through it at once.
    """
    flags: Any = torch.backends.mkldnn
    before = flags.enabled
    flags.enabled = before and _multiplications(network, run) >= _WORK
    try:
        yield
    finally:
        flags.enabled = before


def _multiplications(network: nn.Module, run: Callable[[], object]) -> int:
    """Of one forward pass, in its convolutions."""
    done: list[int] = []

    def count(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        assert isinstance(module.weight, Tensor)
        done.append(output.numel() * module.weight[0].numel())

    with ExitStack() as stack, torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                stack.callback(module.register_forward_hook(count).remove)
        run()
    return sum(done)
