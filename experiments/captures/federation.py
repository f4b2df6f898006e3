"""The experiment file of a captured federation: the same in simulation, with defenses."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import median
from typing import Any

from experiments.captures.captured import captured
from experiments.plan.config import find, parse_experiment
from fedsim.capture import CaptureRecord, CaptureStore, Observation
from fedsim.errors import ConfigError, FedsimError
from fedsim.files import write_bytes
from fedsim.models import IMAGE_MODELS, TEXT_MODELS, transformer
from fedsim.models.lora import is_adapter
from fedsim.named_code import is_named
from fedsim.tasks import read_spec
from fedsim.tasks.base import TaskSpec, load_state, state
from fedsim.toml_source import read_toml
from fedsim.types import Tensors

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


@dataclass(frozen=True)
class _Line:
    """``key = value``, and where the value is from."""

    key: str
    value: Any
    source: str

    def __str__(self) -> str:
        return f"{self.key} = {json.dumps(self.value)}  # {self.source}"


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
    counted = bool(_counted(store, records[0]))
    federation = list(_federation(store, records))
    lines = [
        "# The federation behind captures in simulation, with defenses: what each protects and",
        "# costs. What is NOT KNOWN, as a server does not see it, holds an example. Fill it in,",
        f"# then run: fedsim show {out.name}, and fedsim run {out.name}. The weakest strength that",
        f"# holds: fedsim calibrate {out.name} --hold {_hold(spec)}",
        f'name = "{out.stem}"',
        *_attacks(spec, counted=counted),
        "",
        "[task]",
        *map(str, _task(spec, folder, out, model)),
        "",
        "[auxiliary]  # public rows that the attacker may own",
        f'split = "{_public(spec)}"',
        f"rows = {_public_rows(federation) if counted else _ROWS}",
        "",
        "[federation]",
        *map(str, federation),
        "",
        *_defenses(store, spec, records),
        "",
    ]
    text = "\n".join(lines)
    write_bytes(out, text.encode())
    parse_experiment(read_toml(find(str(out))))
    lacking = [line.split(" = ")[0] for line in lines if "NOT KNOWN" in line.split("#")[-1]]
    return ", ".join(name for name in lacking if not name.startswith("#"))


def _attacks(spec: TaskSpec, *, counted: bool) -> Iterator[str]:
    yield "attacks = ["
    if spec.kind == "image-classification":
        yield "    # 4800 steps if not given, as in its paper; and told of each defense"
        yield '    { name = "inverting", steps = 200, variants = [{ adaptive = true }] },'
        yield '    { name = "ridge" },  # learns from defended updates of public rows'
        if counted:
            yield '    { name = "statistics" },  # reads the running statistics, too'
    else:
        yield '    { name = "span", variants = [{ adaptive = true }] },  # and told of each defense'
    yield '    { name = "prior_only" },  # the null baseline: it never looks at an update'
    yield "]"


def _hold(spec: TaskSpec) -> str:
    """A target: more than a blind guess reaches, and less than what one recognises."""
    return "psnr=18" if spec.kind == "image-classification" else "rouge1=.5"


def _public_rows(federation: list[_Line]) -> int:
    """Enough for two updates, which the attack on statistics needs."""
    values = {line.key: line.value for line in federation}
    return max(_ROWS, int(2 * values["batch_size"] * values["local_steps"]))


def _public(spec: TaskSpec) -> str:
    return "public" if _dataset(spec)[0] in ("shapes", "sentences") else "test"


def _task(spec: TaskSpec, folder: Path, out: Path, model: str | None) -> Iterator[_Line]:
    image = spec.kind == "image-classification"
    if model is not None:
        yield _Line("model", model, "as you named it")
    elif image and is_named(spec.factory) and not spec.factory.startswith(("torch.", "__main__")):
        yield _Line("model", spec.factory, "imported from the folder in which you start fedsim")
    elif image and spec.model in IMAGE_MODELS:
        yield _Line("model", spec.model, "built in")
    elif image:
        yield _Line(
            "model", "lenet", f"NOT KNOWN: {spec.model} was an object. Write module:function"
        )
    elif spec.model in TEXT_MODELS or _on_hub(spec.model):
        yield _Line("model", spec.model, "as the captures name it")
    else:
        place = out.with_suffix("").with_name(f"{out.stem}-model")
        _save_model(folder, place)
        yield _Line("model", str(place), "its architecture, tokenizer and broadcast weights")
    dataset, source = _dataset(spec)
    yield _Line("dataset", dataset, f"NOT KNOWN: {source} A hub id, a folder or a built-in")
    yield _Line("kind", spec.kind, "as captured")
    if image:
        yield _Line("image_size", spec.input_shape[-1], "as captured")
        if dataset == "shapes" and spec.num_classes < _CLASSES:
            yield _Line("classes", list(range(spec.num_classes)), "as many as the model has")
    else:
        yield _Line("max_length", spec.input_shape[0], "in tokens, as captured")
    if spec.lora is not None:
        yield _Line("lora_rank", spec.lora.rank, "as captured")
        yield _Line("lora_alpha", float(spec.lora.alpha), "as captured")
        yield _Line("lora_targets", list(spec.lora.targets), "as captured")


def _dataset(spec: TaskSpec) -> tuple[str, str]:
    """Data that the model takes, and what of the clients' it stands for."""
    if spec.kind != "image-classification":
        return "sentences", "the clients' texts."
    if spec.input_shape[0] == 1:
        return _GREY, "the clients' grey pictures."
    if spec.num_classes > _CLASSES:
        return _MANY, f"the clients' pictures, of {spec.num_classes} classes."
    return "shapes", f"the clients' pictures, of {spec.num_classes} classes."


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


def _defenses(store: CaptureStore, spec: TaskSpec, records: list[CaptureRecord]) -> Iterator[str]:
    norms, count = [], 1
    for record in records:
        seen = store.load(record.key)
        statistics = _statistics(seen)
        parts = [value for name, value in seen.update().items() if name not in statistics]
        norms.append(sqrt(sum(float(part.square().sum()) for part in parts)))
        count = sum(part.numel() for part in parts)
    norm = median(norms)
    std = norm / sqrt(count)
    yield "[[defenses]]"
    yield 'name = "none"'
    for share, said in ((0.1, "a tenth of"), (1.0, "as large as")):
        yield "[[defenses]]"
        yield 'name = "gaussian_noise"'
        yield f"std = {share * std:.2g}  # {said} the root mean square of a captured update"
    yield "[[defenses]]"
    yield 'name = "prune"'
    yield "fraction = 0.9"
    if spec.kind != "image-classification":
        yield "[[defenses]]"
        yield 'name = "freeze_embeddings"'
        yield "word = true  # the word embeddings do not leave the client"
    yield "[[defenses]]"
    yield 'name = "clip"'
    yield f"norm = {norm / 2:.2g}  # half the median norm of a captured update"
    yield ""
    yield "# Secure aggregation and larger batches are options of the federation: compare them by"
    yield "# [sweep]"
    yield '# "federation.batch_size" = [8, 32, 128]'
