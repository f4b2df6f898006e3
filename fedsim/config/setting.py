"""Task and rows of a cell, as both clients and server derive them from its configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedsim.config.cell import CellConfig
from fedsim.config.criteria import make_filter
from fedsim.config.named_code import is_named
from fedsim.data.holdings import Holdings, Modality, load_holdings
from fedsim.errors import ConfigError
from fedsim.tasks import make_task, task_kind
from fedsim.tasks.base import Task
from fedsim.tasks.given_transformer import check_of_images
from fedsim.tasks.language_modelling import LanguageModelling
from fedsim.tasks.packing import packed
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
    known, own = (task.tokens(texts_of(rows, task.spec.model)) for rows in (private, auxiliary))
    same = {tuple(ids) for ids in known}
    apart = auxiliary.take([i for i, ids in enumerate(own) if tuple(ids) not in same])
    if not apart:
        raise ConfigError(
            f"auxiliary: of {task.max_length} tokens every text is a private one. Raise "
            "task.max_length, or name another data set or split."
        )
    return apart
