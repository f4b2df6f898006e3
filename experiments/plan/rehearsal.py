"""A dry run of everything that a simulation needs, before it writes or trains anything."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from clients.probes import make_probes
from experiments.plan.cells import Cell
from experiments.plan.config import ExperimentConfig
from fedsim.config.build import registry
from fedsim.config.cell import CaptureConfig, CellConfig, TaskConfig
from fedsim.config.setting import Setting, load_setting
from fedsim.data.holdings import fresh_rows
from fedsim.data.partition import partition
from fedsim.data.rows import is_builtin
from fedsim.data.tables import find_label, label_candidates, locate, open_tables
from fedsim.defenses import build_chain
from fedsim.errors import ConfigError
from fedsim.metrics import METRICS
from fedsim.tasks import initial_weights
from fedsim.tasks.base import Task
from fedsim.types import Tensors


@dataclass(frozen=True)
class Start:
    """Starting point of a cell's clients.

    Attributes:
        setting: data and task of the cell.
        weights: global model of the first round.
        reply_bytes: bytes that are kept of one client's reply, without frozen parameters.
    """

    setting: Setting
    weights: Tensors
    reply_bytes: int


def rehearse(cells: Iterable[Cell]) -> dict[str, Start]:
    """Load and partition the rows, build the models and attach the defenses, without training.

    Work that several cells share is done once.

    Returns:
        The starting point of each cell, by its name.

    Raises:
        ConfigError: the simulation of a cell would fail, or a requested metric cannot be computed.
    """
    loaded: dict[str, Start] = {}
    starts: dict[str, Start] = {}
    replies: dict[str, Tensors] = {}
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
        if config.candidates.fresh and config.capture.enabled:
            fresh_rows(config.candidates.fresh, setting.holdings)
        mode = config.federation.train_mode
        sends_statistics = mode and config.federation.batch_statistics == "sent"
        if (defended := f"{key}{mode}{sends_statistics}{config.defense}") not in replies:
            model = setting.task.build().train(mode)
            chain = build_chain(config.defense, "defense")
            chain.on_model(model)
            if sends_statistics:
                chain.on_statistics(model)
            sent = [
                (name, parameter)
                for name, parameter in model.named_parameters()
                if parameter.requires_grad
            ]
            reply = dict(sent) | (dict(model.named_buffers()) if sends_statistics else {})
            replies[defended] = {name: value.detach().to("meta") for name, value in reply.items()}
        size = _kept_bytes(config.capture, replies[defended])
        starts[cell.name] = replace(loaded[key], reply_bytes=size)
    return starts


def _kept_bytes(policy: CaptureConfig, reply: Tensors) -> int:
    for i, part in enumerate(policy.tensors):
        if not any(CaptureConfig(tensors=(part,)).keeps_tensor(name) for name in reply):
            raise ConfigError(
                f"capture.tensors[{i}]: the clients send no tensor of {part!r}. They send "
                f"{', '.join([*reply][:3])} and so on; write one or a part of it between dots."
            )
    return sum(value.nbytes for name, value in reply.items() if policy.keeps_tensor(name))


def _check_labels(config: TaskConfig, task: Task) -> None:
    """Refuse to train a classifier on rows without labels, which would all count as class 0."""
    if task.spec.num_classes == 0 or is_builtin(config.dataset):
        return
    tables = open_tables(*locate(config.dataset), config.dataset)
    features = next(iter(tables.values())).features
    if not find_label(features, config.label_column, config.dataset):
        names = " or ".join(map(repr, label_candidates(features)))
        advice = f"Name it, for example {names}." if names else "Choose another data set."
        raise ConfigError(
            f"task.label_column: no column of {config.dataset} is named or typed as a label. "
            + advice
        )


def _check_metrics(experiment: ExperimentConfig, task: Task) -> None:
    known = registry(METRICS, "fedsim.metrics")
    for i, name in enumerate(experiment.metrics):
        metric = known[name]()
        if reason := task.unfit(metric):
            raise ConfigError(f"metrics[{i}]: {name!r} {reason}. Remove it.")
        if reason := metric.available():
            raise ConfigError(f"metrics[{i}]: {name!r} cannot be computed: {reason}.")


def _check_parts(config: CellConfig, setting: Setting) -> None:
    """Refuse a batch or probe larger than any client's rows; tables would state a wrong size."""
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
