"""Sentences drawn from the attacked language model, strangers to its update."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_SAMPLED = (24, 20)  # sentences and their tokens


@torch.no_grad()
def sampled(network: nn.Module, start: Sequence[int], rng: torch.Generator) -> Tensor:
    """Lines ``(line, token)`` that begin with ``start``; an end token does not end them."""
    count, length = _SAMPLED
    device = next(network.parameters()).device
    ids = torch.tensor([[*start]] * count, device=device)
    while ids.shape[1] < length:
        logits = network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, -1]
        drawn = torch.multinomial(logits.softmax(-1).cpu(), 1, generator=rng)
        ids = torch.cat([ids, drawn.to(device)], 1)
    return ids
