"""Normalisations of text models, each class of transformers with names of its own."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


def is_norm(module: nn.Module) -> bool:
    """True for LayerNorm, RMSNorm (Zhang and Sennrich 2019) and their variants with a weight."""
    names = {type(module).__name__[-len(kind) :] for kind in ("LayerNorm", "RMSNorm")}
    return bool(names & {"LayerNorm", "RMSNorm"}) and hasattr(module, "weight")


def normalised(module: nn.Module, inputs: Tensor) -> Tensor:
    """The inputs ``(..., width)`` before they are multiplied by the weight."""
    eps = getattr(module, "eps", getattr(module, "variance_epsilon", 0.0))
    kind = F.rms_norm if type(module).__name__.endswith("RMSNorm") else F.layer_norm
    return kind(inputs, inputs.shape[-1:], eps=eps)


def middle_norm(network: nn.Module) -> nn.Module:
    """The last normalisation of a transformer's middle block."""
    blocks = next(part for part in network.modules() if isinstance(part, nn.ModuleList))
    return [part for part in blocks[(len(blocks) - 1) // 2].children() if is_norm(part)][-1]
