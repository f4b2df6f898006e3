"""Orientation of the weights of linear layers."""

from __future__ import annotations

from torch import nn


def is_transposed(module: nn.Module) -> bool:
    """True for GPT-2's linear layer, whose weight is ``(in, out)``."""
    return type(module).__name__ == "Conv1D"  # importing the class would import transformers
