"""Orientation of the weights of linear layers."""

from __future__ import annotations

from torch import nn


def is_transposed(module: nn.Module) -> bool:
    """True for GPT-2's linear layer, whose weight is ``(in, out)``, also as peft 0.6 adapts it."""
    adapted = getattr(module, "fan_in_fan_out", False) and "weight" in vars(module)["_parameters"]
    # Importing the class would import transformers.
    return type(module).__name__ == "Conv1D" or bool(adapted)
