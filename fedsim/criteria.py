"""Criteria of ``[task.filter]``, some of which depend on the model or on named entities."""

from __future__ import annotations

from functools import lru_cache

import torch

from fedsim.cell import FilterConfig, TaskConfig
from fedsim.data.filters import NO_FILTER, Criterion, Filter
from fedsim.data.tables import cache_folder
from fedsim.errors import ConfigError
from fedsim.metrics.nerr import EntityRecovery, NamedEntityRecovery, RuledEntityRecovery
from fedsim.models import MODELS, transformer
from fedsim.tasks import initial_weights, make_task, task_kind
from fedsim.tasks.language_modelling import LanguageModelling
from fedsim.tasks.perplexity import perplexities
from fedsim.types import Rows

UNKNOWN = "<unk>"
"""Placeholder for a rare word in the tokenized version of WikiText."""


def make_filter(task: TaskConfig) -> Filter:
    """Filter of the task's rows, its criteria ordered from cheap to expensive.

    Raises:
        ConfigError: a criterion does not fit the model, or a package that it needs is missing.
    """
    config = task.filter
    if config == FilterConfig():
        return NO_FILTER
    kind = task_kind(task)
    if kind == "image-classification":
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
    if config.entities != "off":
        finder = _finder(config)
        criteria.append(
            Criterion(
                "entities",
                f"a named entity by {config.entities}",
                lambda texts: [bool(finder.names(text)) for text in texts],
            )
        )
    if limit := config.perplexity_below:
        if kind != "language-modelling" or task.model in MODELS:
            raise ConfigError(
                f"task.filter.perplexity_below: {task.model!r} has no pretrained weights that "
                "predict the next token. Leave it out, or name a model of the GPT-2 type."
            )
        criteria.append(
            Criterion(
                "perplexity_below",
                f"a perplexity below {limit:g}",
                lambda texts: [value < limit for value in _perplexities(task, texts)],
            )
        )
    return Filter(config.sentences, tuple(criteria))


def _finder(config: FilterConfig) -> EntityRecovery:
    if config.entities == "rules":
        return RuledEntityRecovery()
    finder = NamedEntityRecovery()
    if finder.available():
        raise ConfigError(
            "task.filter.entities: 'spacy' needs spaCy and its model en_core_web_sm, which are "
            "not installed. Run pip install -e '.[entities]', or set 'rules'."
        )
    return finder


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


def _perplexities(task: TaskConfig, texts: tuple[str, ...]) -> list[float]:
    rows = Rows(texts, torch.zeros(len(texts), dtype=torch.int64), tuple(range(len(texts))))
    judge = make_task(task, rows)
    assert isinstance(judge, LanguageModelling)
    weights = initial_weights(judge, task.model_copy(update={"weights": "pretrained"}), 0)
    return perplexities(judge, judge.model(weights), texts, cache_folder() / "fedsim-perplexities")
