"""Types of tokens (``token_type_ids``), which tell the sentences of a pair."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

TYPE_TABLES = ("token_type_embeddings", "segment_embeddings")
"""Last names of the tables of token types."""


@dataclass(frozen=True)
class Segments:
    """The type of each token of a text.

    Attributes:
        types: by place, the last from there on; or of each sentence, the last of all behind.
        behind: the token that ends each sentence, as BERT's ``[SEP]``; None for types by place.
    """

    types: tuple[int, ...]
    behind: int | None = None

    def of(self, ids: Tensor) -> Tensor:
        """Types ``(text, token)`` of token ids."""
        if self.behind is None:
            sentence = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        else:
            ends = (ids == self.behind).long()
            sentence = ends.cumsum(1) - ends
        types = torch.tensor(self.types, device=ids.device)
        return types[sentence.clamp(max=len(self.types) - 1)]


def type_table(network: nn.Module) -> str | None:
    """Name of the table ``(type, width)``; None where there is none of two rows or more."""
    for name, module in network.named_modules():
        if name.endswith(TYPE_TABLES) and isinstance(module, nn.Embedding):
            return f"{name}.weight" if module.num_embeddings > 1 else None
    return None


def types_by_place(types: Tensor, places: Tensor) -> Segments | None:
    """The type of each token of a single text; None where all have the type 0.

    The gradient of a type is the sum of those of the places that have it, each of one type, so that
    least squares tells them.

    Args:
        types: gradient of the table of types ``(type, width)``.
        places: rows of the places in use of that of positions, in order ``(place, width)``.
    """
    shares = types.to(places) @ torch.linalg.pinv(places)
    kinds = tuple(shares.argmax(0).tolist())
    return Segments(kinds) if any(kinds) else None
