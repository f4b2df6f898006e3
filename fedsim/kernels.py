"""Kernels of torch that can be differentiated twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextmanager
def twice_differentiable(network: nn.Module) -> Iterator[None]:
    """Run a forward pass on kernels that have a second derivative, which gradient matching takes.

    Fused attention has none, on the CPU and on GPUs; nor have cuDNN's recurrent layers.
    """
    cudnn: Any = torch.backends.cudnn
    before = cudnn.enabled
    cudnn.enabled = before and not any(isinstance(part, nn.RNNBase) for part in network.modules())
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        cudnn.enabled = before
