"""Criteria of ``[task.filter]``, in tokens of the model."""

from __future__ import annotations

from functools import lru_cache

from fedsim.config.cell import FilterConfig, TaskConfig
from fedsim.data.filters import NO_FILTER, Criterion, Filter
from fedsim.errors import ConfigError
from fedsim.models import transformer
from fedsim.tasks import task_kind

UNKNOWN = "<unk>"
"""Placeholder for a rare word in the tokenized version of WikiText."""


def make_filter(task: TaskConfig) -> Filter:
    """Filter of the task's rows.

    Raises:
        ConfigError: the model takes images.
    """
    config = task.filter
    if config == FilterConfig():
        return NO_FILTER
    if task_kind(task) == "image-classification":
        raise ConfigError(
            f"task.filter: filters are for texts, but {task.model!r} takes images. Leave it out."
        )
    folder, criteria = transformer.locate_tokenizer(task), []
    if most := config.tokens_below:
        criteria.append(
            Criterion(
                "tokens_below",
                f"fewer than {most} tokens",
                lambda texts: [len(line) < most for line in _tokens(folder, texts)],
            )
        )
    if few := config.unknown_below:
        criteria.append(
            Criterion(
                "unknown_below",
                f"fewer than {few} unknown tokens",
                lambda texts: [count < few for count in _unknown(folder, texts)],
            )
        )
    return Filter(config.sentences, tuple(criteria))


@lru_cache(maxsize=4)  # two criteria count tokens of the same texts whenever a setting is loaded
def _tokens(folder: str, texts: tuple[str, ...]) -> list[list[int]]:
    encoded = transformer.tokenizer(folder)(list(texts), add_special_tokens=False, verbose=False)
    ids: list[list[int]] = encoded["input_ids"]
    return ids


def _unknown(folder: str, texts: tuple[str, ...]) -> list[int]:
    """Number of tokens of each text that stand for an unknown word."""
    tokenizer = transformer.tokenizer(folder)
    if tokenizer.unk_token == UNKNOWN:
        unwritten = [0] * len(texts)
    else:
        unwritten = [text.count(UNKNOWN) for text in texts]
    return [
        line.count(tokenizer.unk_token_id) + count
        for line, count in zip(_tokens(folder, texts), unwritten, strict=True)
    ]
