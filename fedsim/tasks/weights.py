"""Initial weights, which the first round broadcasts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fedsim.config.cell import TaskConfig
from fedsim.errors import ConfigError
from fedsim.models import MODELS, is_image_model, transformer
from fedsim.models.adapters import adapt, is_added
from fedsim.models.network import ImageNetwork
from fedsim.seeds import derive, generator, seeded
from fedsim.store.capture import CaptureStore
from fedsim.store.files import load_tensors, read_json
from fedsim.store.plain_files import check_folder
from fedsim.tasks.base import Task, load_state, state
from fedsim.types import Tensors


def initial_weights(task: Task, config: TaskConfig, seed: int) -> Tensors:
    """Parameters and buffers that ``config.weights`` asks for; random ones depend on ``seed``.

    Raises:
        ConfigError: the weights cannot be found, or they do not fit the task.
    """
    source = config.weights
    if source == "auto":
        ours = config.model in MODELS or is_image_model(config.model)
        source = "random" if ours else "pretrained"
    if source == "random":
        return _random(task, seed)
    if source == "pretrained":
        return _pretrained(task, config, seed)
    folder, at, number = source.rpartition("@")
    if not at or not number.isdecimal():
        raise ConfigError(
            f"task.weights: {source!r} is not known. "
            "Write 'auto', 'random', 'pretrained' or '<cell folder>@<round>'."
        )
    return _broadcast(task, Path(folder), int(number), seed)


def _random(task: Task, seed: int) -> Tensors:
    if task.modality == "text":
        spec = task.spec
        return _adapted(transformer.build(spec.architecture, spec.kind, _seed(seed)), task, seed)
    with seeded(_seed(seed)):  # for a network that another package adds
        network = task.build()
    if isinstance(network, ImageNetwork):
        network.initialise(generator(seed, "initial weights"))
    return state(network)


def _pretrained(task: Task, config: TaskConfig, seed: int) -> Tensors:
    if config.model in MODELS or is_image_model(config.model):
        which = "built-in" if config.model in MODELS else "added"
        raise ConfigError(
            f"task.weights: there are no pretrained weights for the {which} {config.model!r}. "
            "Set 'random', or '<cell folder>@<round>' for a model that an earlier run trained."
        )
    if config.tokenizer:
        raise ConfigError(
            f"task.tokenizer: the pretrained weights of {config.model!r} belong to its own "
            f"tokenizer, not to {config.tokenizer!r}. "
            "Leave tokenizer out, or set weights = 'random'."
        )
    spec = task.spec
    network = transformer.pretrained(spec.model, spec.architecture, spec.kind, _seed(seed))
    return _adapted(network, task, seed)


def _adapted(network: nn.Module, task: Task, seed: int) -> Tensors:
    adapters = task.spec.adapters
    return state(network if adapters is None else adapt(network, adapters, seed))


def _seed(seed: int) -> int:
    return derive(seed, "initial weights")


def _cell(folder: Path) -> Path:
    """The one cell of a run, or that of ``<run>/<option>=<value>``; else the folder itself."""
    named = "=" in folder.name and not folder.exists()
    run = folder.parent if named else folder
    cells = sorted(path.parent for path in run.glob("*/captures"))
    if not named or not cells:
        return cells[0] if len(cells) == 1 else run
    option, _, value = folder.name.partition("=")
    held = [_option(cell, option) for cell in cells]
    if held.count(value) != 1:
        raise ConfigError(
            f"task.weights: the cells of {str(run)!r} have {option} = {', '.join(held)}. "
            "Write <run>/<option>=<value> with a value that one cell has, or name the folder of a "
            "cell."
        )
    return cells[held.index(value)]


def _option(cell: Path, option: str) -> str:
    """The value that a cell's config has for a dotted name."""
    held: Any = read_json(cell / "cell.json")
    for key in option.split("."):
        held = held.get(key) if isinstance(held, Mapping) else None
    return str(held)


def _broadcast(task: Task, cell: Path, number: int, seed: int) -> Tensors:
    cell = _cell(cell)
    store = CaptureStore(cell / "captures")
    check_folder(store.root)
    keys = store.keys()
    if not keys:
        if cell.parent == Path("runs") and not cell.exists():
            raise ConfigError(
                f"task.weights: there is no run {str(cell)!r} yet. "
                f"Run fedsim run {cell.name} first, or name the folder of a simulated cell."
            )
        raise ConfigError(
            f"task.weights: {str(cell)!r} holds no captures. "
            "Name the folder of a simulated cell, <run>/<cell>, of a run with one cell, or "
            "<run>/<option>=<value> where one cell has that value."
        )
    captured = [key for key in keys if key.round == number]
    if not captured:
        rounds = ", ".join(str(known) for known in sorted({key.round for key in keys}))
        raise ConfigError(
            f"task.weights: {str(cell)!r} holds no capture of round {number}. "
            f"Choose one of its rounds: {rounds}."
        )
    record = store.record(captured[0])
    tensors = load_tensors(
        store.sent_path(record.sent_sha256), record.sent_sha256, record.sent_order
    )
    # Adapters may be added to a model that was trained without any.
    bare = task.spec.adapters is not None and not any(map(is_added, tensors))
    spec = task.spec
    network = transformer.build(spec.architecture, spec.kind) if bare else task.build()
    expected = {name: tuple(value.shape) for name, value in state(network).items()}
    sent = {name: tuple(value.shape) for name, value in tensors.items()}
    for name in expected | sent:
        if expected.get(name) != sent.get(name):
            raise ConfigError(
                f"task.weights: {name!r} has shape {_shown(sent.get(name))} in {str(cell)!r} and "
                f"{_shown(expected.get(name))} in {task.spec.model!r}. "
                "Use the model and the data set of that run."
            )
    if not bare:
        return tensors
    load_state(network, tensors)
    return _adapted(network, task, seed)


def _shown(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else str(shape)
