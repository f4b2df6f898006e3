"""The linear layers of networks."""

from __future__ import annotations

from torch import nn


def is_transposed(module: nn.Module) -> bool:
    """Whether it is GPT-2's linear layer, whose weight is ``(in, out)``."""
    return type(module).__name__ == "Conv1D"  # importing the class would import transformers
