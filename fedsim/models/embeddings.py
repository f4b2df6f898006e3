"""Names of the word and position embedding tables of a text model."""

from dataclasses import dataclass

from torch import nn

_POSITION_TABLES = {"embed_positions", "position_embeddings", "wpe"}


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Parameter names as in ``named_parameters()``; None if the model has no such table.

    Attributes:
        word: the table ``(vocabulary, width)``; in GPT-2 it is also the output head.
        position: the learned table ``(position, width)``; RoBERTa and OPT count from row 2.
    """

    word: str | None
    position: str | None


def embedding_names(module: nn.Module) -> Embeddings:
    """Word and position tables of a text model; None where there is none.

    Rotary and most relative positions have no table.
    """
    find = getattr(module, "get_input_embeddings", None)
    if find is None:
        return Embeddings(None, None)
    table = find().weight
    word = next((name for name, weight in module.named_parameters() if weight is table), None)
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding) and name.rsplit(".", 1)[-1] in _POSITION_TABLES:
            return Embeddings(word, f"{name}.weight")
    return Embeddings(word, None)
