"""The task and the rows of a cell, as clients and server both derive them from its config."""

from __future__ import annotations

from dataclasses import dataclass

from fedsim.cell import CellConfig
from fedsim.criteria import make_filter
from fedsim.data.holdings import Holdings, Modality, load_holdings
from fedsim.tasks import make_task, task_kind
from fedsim.tasks.base import Task


@dataclass(frozen=True)
class Setting:
    """What is learned, and who holds which rows."""

    task: Task
    holdings: Holdings


def load_setting(config: CellConfig) -> Setting:
    """Load the data sets, filter them and make the task.

    Raises:
        ConfigError: model and data do not fit, or one of them is not there.
    """
    kind = task_kind(config.task)
    modality: Modality = "image" if kind == "image-classification" else "text"
    holdings = load_holdings(config, modality, make_filter(config.task))
    return Setting(make_task(config.task, holdings.private), holdings)
