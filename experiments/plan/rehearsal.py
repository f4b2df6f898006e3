"""What a simulation will need, tried before anything is written or trained."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from clients.probes import make_probes
from experiments.plan.cells import Cell
from experiments.plan.config import ExperimentConfig
from fedsim.build import registry
from fedsim.cell import CellConfig, TaskConfig
from fedsim.data.columns import find_label
from fedsim.data.partition import partition
from fedsim.data.rows import is_builtin
from fedsim.data.tables import locate, open_tables
from fedsim.defenses import build_chain
from fedsim.errors import ConfigError
from fedsim.metrics import METRICS
from fedsim.setting import Setting, load_setting
from fedsim.tasks import initial_weights
from fedsim.tasks.base import Task
from fedsim.types import Tensors


@dataclass(frozen=True)
class Start:
    """Where the clients of a cell start from.

    Attributes:
        weights: of the first round.
        reply_bytes: size of what a client trains and sends, frozen parameters left out.
    """

    setting: Setting
    weights: Tensors
    reply_bytes: int


def rehearse(cells: Iterable[Cell]) -> dict[str, Start]:
    """Load the rows, deal them out, build the models and fit the defenses on; trains nothing.

    What several cells share is tried once.

    Returns:
        By cell, what was loaded.

    Raises:
        ConfigError: what the simulation of one of the cells would end with, or a metric that
            was asked for and cannot be computed.
    """
    loaded: dict[str, Start] = {}
    starts: dict[str, Start] = {}
    replies: dict[str, int] = {}
    for cell in cells:
        config = cell.config
        key = repr((config.task, config.auxiliary))
        if key not in loaded:
            setting = load_setting(config)
            _check_labels(config.task, setting.task)
            weights = initial_weights(setting.task, config.task, config.seed)
            loaded[key] = Start(setting, weights, 0)
        setting = loaded[key].setting
        _check_metrics(cell.experiment, setting.task)
        _check_parts(config, setting)
        mode = config.federation.train_mode
        if (defended := f"{key}{mode}{config.defense}") not in replies:
            model = setting.task.build().train(mode)
            build_chain(config.defense, "defense").on_model(model)
            sent = sum(value.nbytes for value in model.parameters() if value.requires_grad)
            replies[defended] = sent + mode * sum(value.nbytes for value in model.buffers())
        starts[cell.name] = replace(loaded[key], reply_bytes=replies[defended])
    return starts


def _check_labels(config: TaskConfig, task: Task) -> None:
    """Refuse to learn classes from rows that have none, and thus all count as class 0."""
    if task.spec.num_classes == 0 or is_builtin(config.dataset):
        return
    tables = open_tables(*locate(config.dataset), config.dataset)
    features = next(iter(tables.values())).features
    if not find_label(features, config.label_column, config.dataset):
        raise ConfigError(
            f"task.label_column: {config.dataset} has no column of classes among "
            f"{', '.join(features)}. Choose another data set, or a language model."
        )


def _check_metrics(experiment: ExperimentConfig, task: Task) -> None:
    known = registry(METRICS, "fedsim.metrics")
    for i, name in enumerate(experiment.metrics):
        metric = known[name]()
        if metric.modality not in ("any", task.modality):
            raise ConfigError(
                f"metrics[{i}]: {name!r} is for {metric.modality}s, and the task is on "
                f"{task.modality}s. Leave it out."
            )
        if reason := metric.available():
            raise ConfigError(f"metrics[{i}]: {name!r} cannot be computed: {reason}.")


def _check_parts(config: CellConfig, setting: Setting) -> None:
    """Refuse a batch or a probe that no client can fill: the tables would name what never was."""
    federation, rows = config.federation, setting.holdings.private
    parts = partition(rows.labels, federation.clients, federation, config.seed)
    most = max(map(len, parts))
    if federation.protocol == "fedavg" and federation.client_rows:
        if federation.client_rows > most:
            raise ConfigError(
                f"federation.client_rows: {federation.client_rows} is more than any client has "
                f"({most} rows). Lower it, or use fewer clients or a longer task.split."
            )
        most = federation.client_rows
    if federation.batch_size > most:
        raise ConfigError(
            f"federation.batch_size: {federation.batch_size} is more rows than any client uses "
            f"({most}). Lower it, or use fewer clients or a longer task.split."
        )
    make_probes(config, setting.holdings, parts)
