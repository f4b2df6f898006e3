"""From embeddings to tokens: the nearest rows of the word table that may stand there."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from fedsim.tasks.text import TextTask


class Vocabulary:
    """The word table, and which of its rows a guess may use.

    Attributes:
        table: ``(token, width)``.
        allowed: ids of the tokens that may be guessed.
        size: mean norm of a row.
    """

    def __init__(self, network: nn.Module, allowed: Tensor) -> None:
        """``allowed``: ids of the tokens that may be guessed."""
        words: nn.Embedding = cast(Any, network).get_input_embeddings()
        every = torch.arange(len(words.weight), device=words.weight.device)
        self.table = words(every).detach()  # Gemma multiplies its table
        self.size = float(self.table.norm(dim=1).mean())
        self.allowed = allowed.to(self.table.device)
        self._directions = normalize(self.table[self.allowed])

    def nearest(self, embeddings: Tensor) -> Tensor:
        """Ids of the tokens of largest cosine, ``(...)`` from ``(..., width)``."""
        flat = embeddings.reshape(-1, embeddings.shape[-1])
        rows = [(part @ self._directions.T).argmax(1) for part in flat.split(256)]
        return self.allowed[torch.cat(rows)].view(embeddings.shape[:-1])


def words_of(task: TextTask) -> Tensor:
    """Ids of all tokens but special and unused ones, ascending.

    LAMP's code lets start, end and padding stand inside a sentence; it too leaves out the unused.
    """
    tokenizer = task.tokenizer
    never = set(task.spec.special_ids)
    never |= {i for token, i in tokenizer.get_vocab().items() if token.startswith("[unused")}
    return torch.tensor([i for i in range(len(tokenizer)) if i not in never])


def frame(task: TextTask) -> tuple[list[int], list[int]]:
    """Ids that stand before and after every sentence."""
    special = set(task.spec.special_ids)
    (ids,) = task.tokens(["a"])
    start = next((i for i, token in enumerate(ids) if token not in special), len(ids))
    stop = next((i for i, token in enumerate(reversed(ids)) if token not in special), 0)
    return ids[:start], ids[len(ids) - stop :]
