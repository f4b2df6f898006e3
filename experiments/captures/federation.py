"""The experiment file of a captured federation: the same in simulation, with defenses."""

import json
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from math import sqrt
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from experiments.captures.captured import captured
from experiments.plan.config import find, parse_experiment
from fedsim.config.named_code import is_named
from fedsim.config.toml_source import read_toml
from fedsim.errors import ConfigError, FedsimError
from fedsim.models import IMAGE_MODELS, TEXT_MODELS, transformer
from fedsim.models.adapters import is_adapter
from fedsim.store.capture import CaptureRecord, CaptureStore, Observation
from fedsim.store.files import write_bytes
from fedsim.tasks import read_spec
from fedsim.tasks.base import TaskSpec, load_state, state
from fedsim.types import Tensors

_TEMPLATE = "federation.toml.j2"
_COUNTER = "num_batches_tracked"
_GREY, _MANY = "ylecun/mnist", "uoft-cs/cifar100"
_CLASSES = 10
"""Of the built-in pictures."""
_ROWS = 100
"""Fewest public rows of the attacker."""
_DOZEN = 12
"""Clients of a simulation where too few were captured to decide a verdict."""
_CLIENTS = 5
"""Fewest with which a mean decides a verdict."""


class _Line(NamedTuple):
    """``key = value``, and where the value is from."""

    key: str
    value: Any
    source: str


def experiment_of(folder: Path, out: Path, model: str | None = None) -> str:
    """Write an experiment file that simulates a captured federation; returns what it lacks.

    A transformer that is no hub id is written beside it as a folder, with the weights that the
    server sent.

    Args:
        folder: the captures.
        out: the file, with the suffix ``.toml``.
        model: ``module:name`` of a network of images; that of the captures if None.

    Raises:
        ConfigError: the captures do not say their model, or fedsim cannot simulate it; or the file
            exists.
    """
    if out.exists():
        raise ConfigError(f"{out}: exists. Name another file: --out FILE.toml")
    if out.suffix != ".toml":
        raise ConfigError(f"{out}: an experiment file ends in .toml. Name another one.")
    store = CaptureStore(folder.resolve())
    keys = store.keys()
    if not keys:
        raise ConfigError(f"{folder}: holds no captures. Name the folder of the eavesdropper.")
    if not (store.root / "task.json").exists():
        raise ConfigError(
            f"{folder}: does not say which model it is about. Run fedsim attack {folder} "
            "--model NAME first, which notes it."
        )
    spec = read_spec(store.root)
    if spec.owner_shape or spec.target != "class":
        raise ConfigError(
            f"{folder}: its inputs are no images or texts, or its targets no classes, and fedsim "
            "simulates neither. Attack the captures themselves."
        )
    records = [store.record(key) for key in keys]
    dataset, what = _dataset(spec)
    norm, std = _sizes(store, records)
    counted = bool(_counted(store, records[0]))
    federation = list(_federation(store, records))
    text = _rendered(
        file=out.name,
        name=out.stem,
        spec=spec,
        model=_model(spec, folder, out, model),
        dataset=dataset,
        what=what,
        classes=_CLASSES,
        counted=counted,
        rows=_public_rows(federation) if counted else _ROWS,
        federation=federation,
        norm=norm,
        std=std,
    )
    write_bytes(out, text.encode())
    parse_experiment(read_toml(find(str(out))))
    known = [line.partition(" = ") for line in text.splitlines() if not line.startswith("#")]
    return ", ".join(key for key, _, rest in known if "NOT KNOWN" in rest.partition("#")[2])


def _rendered(**values: object) -> str:
    from jinja2 import DictLoader, Environment, StrictUndefined, select_autoescape

    source = files("experiments.captures").joinpath(_TEMPLATE).read_text("utf-8")
    pages = Environment(
        loader=DictLoader({_TEMPLATE: source}),
        autoescape=select_autoescape(),  # of HTML, which this is not
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    pages.filters["json"] = json.dumps
    return pages.get_template(_TEMPLATE).render(**values)


def _public_rows(federation: list[_Line]) -> int:
    """Enough for two updates, which the attack on statistics needs."""
    values = {line.key: line.value for line in federation}
    return max(_ROWS, int(2 * values["batch_size"] * values["local_steps"]))


def _model(spec: TaskSpec, folder: Path, out: Path, model: str | None) -> tuple[str, str]:
    """The model of the simulation, and where it is from."""
    image = spec.kind == "image-classification"
    if model is not None:
        return model, "as you named it"
    if image and is_named(spec.factory) and not spec.factory.startswith(("torch.", "__main__")):
        return spec.factory, "imported from the folder in which you start fedsim"
    if image and spec.model in IMAGE_MODELS:
        return spec.model, "built in"
    if image:
        return "lenet", f"NOT KNOWN: {spec.model} was an object. Write module:function"
    if spec.model in TEXT_MODELS or _on_hub(spec.model):
        return spec.model, "as the captures name it"
    place = out.with_suffix("").with_name(f"{out.stem}-model")
    _save_model(folder, place)
    return str(place), "its architecture, tokenizer and broadcast weights"


def _dataset(spec: TaskSpec) -> tuple[str, str]:
    """Data that the model takes, and what of the clients' it stands for."""
    if spec.kind != "image-classification":
        return "sentences", "texts"
    if spec.input_shape[0] == 1:
        return _GREY, "grey pictures"
    dataset = _MANY if spec.num_classes > _CLASSES else "shapes"
    return dataset, f"pictures, of {spec.num_classes} classes"


def _on_hub(name: str) -> bool:
    """Whether a name leads to a model without the application."""
    try:
        transformer.model_type(name)
    except FedsimError:
        return False
    return True


def _save_model(folder: Path, place: Path) -> None:
    """Write a transformer with the weights that the server sent, for ``from_pretrained``."""
    captures = captured(folder)
    sent: Tensors = next(iter(captures)).observation.sent
    spec = captures.task.spec
    network: Any = transformer.build(spec.architecture, spec.kind)
    tensors = state(network)
    known = {name.replace(".base_layer", ""): value for name, value in sent.items()}
    load_state(network, {k: v for k, v in known.items() if k in tensors and not is_adapter(k)})
    network.save_pretrained(str(place))
    captures.task.tokenizer.save_pretrained(str(place))  # type: ignore[attr-defined]  # of a text task


def _federation(store: CaptureStore, records: list[CaptureRecord]) -> Iterator[_Line]:
    first, known = records[0], records[0].knowledge
    gradient = all(record.kind == "gradient" for record in records)
    members = max(known.cohort, 1)
    by_round = Counter(record.key.round for record in records)
    captured = max(by_round.values()) * members
    clients = captured if captured >= _CLIENTS or members > 1 else _DOZEN
    yield _Line("protocol", "fedsgd" if gradient else "fedavg", f"clients send {first.kind}")
    few = f"{captured} captured in a round; a verdict needs {_CLIENTS}"
    whole = few if clients != captured else "captured in a round"
    yield _Line("clients", clients, whole)
    yield _Line("rounds", max(by_round), "captured")
    counted = _counted(store, first)
    steps, why = (1, "FedSGD") if gradient else (known.local_steps, "the server says so")
    if steps is None and counted:
        steps, why = counted, "counted by batch normalisation"
    claim = first.claimed_examples
    yield from _batch(known.batch_size, steps, claim, members)
    if not gradient:
        stated = why if steps else "NOT KNOWN: steps of a client in a round"
        yield _Line("local_steps", steps or 1, stated)
        rate, optimizer = known.learning_rate, known.optimizer
        said = "the server says so"
        yield _Line("optimizer", optimizer or "sgd", said if optimizer else "NOT KNOWN")
        yield _Line("learning_rate", rate or 0.05, said if rate else "NOT KNOWN: of a client")
    if counted:
        yield _Line("train_mode", True, "running statistics moved")
    if members > 1:
        yield _Line("secure_aggregation", members, "the server sees sums of so many clients")
    yield _Line("engine", "in-process", 'or "ray", several clients and attacks at a time')


def _batch(size: int | None, steps: int | None, claim: int | None, members: int) -> Iterator[_Line]:
    if size is not None:
        yield _Line("batch_size", size, "the server says so")
    elif claim:
        share = max(1, round(claim / members / (steps or 1)))
        yield _Line("batch_size", share, f"of {claim} claimed examples")
    else:
        yield _Line("batch_size", 8, "NOT KNOWN: examples in a step")


def _counted(store: CaptureStore, record: CaptureRecord) -> int:
    """Batches that the first normalisation layer counted; 0 if none did."""
    seen = store.load(record.key)
    names = _counters(seen)
    if not names or seen.kind != "weights":
        return 0
    return max(0, round(float(seen.received[names[0]] - seen.sent[names[0]])))


def _counters(seen: Observation) -> list[str]:
    """Counts of batches by name, or the whole numbers in an app's list of arrays."""
    return [
        name
        for name, value in seen.sent.items()
        if name in seen.received
        and (
            name.endswith(_COUNTER)
            or (name.isdecimal() and value.ndim == 0 and not value.is_floating_point())
        )
    ]


def _statistics(seen: Observation) -> set[str]:
    """Running mean and variance; of a list of arrays the two before each count of batches."""
    names = list(seen.sent)
    places = [names.index(name) for name in _counters(seen) if name.isdecimal()]
    before = {name for place in places for name in names[max(0, place - 2) : place]}
    return before | {name for name in seen.received if "running_" in name}


def _sizes(store: CaptureStore, records: list[CaptureRecord]) -> tuple[float, float]:
    """Median norm of the captured updates, and its root mean square."""
    norms, count = [], 1
    for record in records:
        seen = store.load(record.key)
        statistics = _statistics(seen)
        parts = [value for name, value in seen.update().items() if name not in statistics]
        norms.append(sqrt(sum(float(part.square().sum()) for part in parts)))
        count = sum(part.numel() for part in parts)
    return median(norms), median(norms) / sqrt(count)
