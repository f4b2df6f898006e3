"""Task and filtered rows of a cell, as clients and server derive them from its configuration."""

from dataclasses import dataclass, replace
from functools import lru_cache

from fedsim.config.cell import CellConfig, FilterConfig, TaskConfig
from fedsim.config.named_code import is_named
from fedsim.data.holdings import NO_FILTER, Criterion, Filter, Holdings, Modality, load_holdings
from fedsim.errors import ConfigError
from fedsim.models import transformer
from fedsim.tasks import make_task, task_kind
from fedsim.tasks.base import Task
from fedsim.tasks.given_transformer import check_of_images
from fedsim.tasks.language_modelling import LanguageModelling, packed
from fedsim.tasks.text import TextTask, texts_of
from fedsim.types import Rows


@dataclass(frozen=True)
class Setting:
    """What a cell learns, and who holds which rows."""

    task: Task
    holdings: Holdings


def load_setting(config: CellConfig) -> Setting:
    """Load and filter the data sets of a cell and build its task.

    Raises:
        ConfigError: the model does not fit the data, or one of them cannot be found.
    """
    if is_named(config.task.model):
        check_of_images(config.task.model)
    kind = task_kind(config.task)
    modality: Modality = "image" if kind == "image-classification" else "text"
    holdings = load_holdings(config, modality, make_filter(config.task))
    task = make_task(config.task, holdings.private)
    if isinstance(task, TextTask) and holdings.auxiliary is not None:
        holdings = replace(holdings, auxiliary=_apart(task, holdings.auxiliary, holdings.private))
    if config.task.packed:
        if not isinstance(task, LanguageModelling):
            raise ConfigError(
                f"task.packed: texts are packed for language modelling, but the task is "
                f"{kind!r}. Leave it out."
            )
        holdings = replace(holdings, private=packed(task, holdings.private))
    return Setting(task, holdings)


def _apart(task: TextTask, auxiliary: Rows, private: Rows) -> Rows:
    """Auxiliary texts that are not private ones once both are cut to ``max_length``."""
    known, public = (task.tokens(texts_of(rows, task.spec.model)) for rows in (private, auxiliary))
    same = {tuple(ids) for ids in known}
    apart = auxiliary.take([i for i, ids in enumerate(public) if tuple(ids) not in same])
    if not apart:
        raise ConfigError(
            f"auxiliary: of {task.max_length} tokens every text is a private one. Raise "
            "task.max_length, or name another data set or split."
        )
    return apart


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
