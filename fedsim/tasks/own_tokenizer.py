"""Whether a tokenizer is the one that a model was trained with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedsim.errors import ConfigError
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FEWEST = 0.9
"""Share of the embedding's rows that a tokenizer of the same model uses at least."""
_PADDED = 128
"""Embeddings are padded to a multiple of this or less, for speed."""


def check_tokenizer(
    name: str, architecture: Mapping[str, Any], words: PreTrainedTokenizerBase
) -> None:
    """Raise ``ConfigError`` if the vocabulary cannot be that of the model ``name``."""
    rows = int(architecture["vocab_size"])
    if not _FEWEST * rows <= len(words) <= rows:
        raise ConfigError(
            f"tokenizer: it has {len(words)} tokens, but the embedding of {name} has {rows} rows. "
            "Pass the tokenizer that the clients use."
        )


def doubt(task: Task) -> str:
    """What speaks for the tokenizer of another model, a clause; empty if nothing does.

    Some models have more unused rows, or other ends of a text, so this is no error.
    """
    if not isinstance(task, TextTask):
        return ""
    words, config = task.tokenizer, task.spec.architecture
    rows = int(config["vocab_size"])
    doubts = []
    if rows - len(words) >= _PADDED:
        doubts.append(f"has {len(words)} tokens for {rows} rows of the embedding")
    for which in ("bos", "eos"):
        token, known = getattr(words, f"{which}_token_id"), _ids(config.get(f"{which}_token_id"))
        if token is not None and known and token not in known and max(known) < rows:
            doubts.append(f"has the {which} token {token}, the model {known[0]}")
    return f"the tokenizer {' and '.join(doubts)}, as another model's would" if doubts else ""


def _ids(given: int | list[int] | None) -> list[int]:
    return given if isinstance(given, list) else [] if given is None else [given]
