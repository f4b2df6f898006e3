"""Task and rows of a cell, as both clients and server derive them from its configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedsim.cell import CellConfig
from fedsim.criteria import make_filter
from fedsim.data.holdings import Holdings, Modality, load_holdings
from fedsim.errors import ConfigError
from fedsim.named_code import is_named
from fedsim.tasks import make_task, task_kind
from fedsim.tasks.base import Task
from fedsim.tasks.given_transformer import check_of_images
from fedsim.tasks.language_modelling import LanguageModelling
from fedsim.tasks.packing import packed


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
    if config.task.packed:
        if not isinstance(task, LanguageModelling):
            raise ConfigError(
                f"task.packed: texts are packed for language modelling, but the task is "
                f"{kind!r}. Leave it out."
            )
        holdings = replace(holdings, private=packed(task, holdings.private))
    return Setting(task, holdings)
