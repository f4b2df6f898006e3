"""The captures of another Flower application, as updates to attack."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from torch import nn

from attacks.observed.input_range import likely_range, range_evidence
from experiments.captures.client_layers import with_client_layers
from experiments.captures.control_variates import plain_steps
from experiments.captures.facts import facts_of
from experiments.captures.reading import Finding, Reading, descending
from experiments.captures.second_records import read_beside
from experiments.captures.update import Update, update_of, without_decayed
from experiments.plan.known_model import check_model_is_known
from fedsim.config.build import suggest
from fedsim.config.named_code import is_named, options_of_code
from fedsim.errors import ConfigError
from fedsim.models import MODELS, transformer
from fedsim.models.adapters import HEADS
from fedsim.reply_kind import kind_of
from fedsim.store.capture import CaptureKey, CaptureRecord, CaptureStore, Kind, Observation
from fedsim.store.files import load_tensors
from fedsim.store.plain_files import check_folder
from fedsim.store.tensor_files import read_state_dict
from fedsim.tasks import load_task, read_spec
from fedsim.tasks.base import Task, state
from fedsim.tasks.given import Model, task_of
from fedsim.tasks.images import ImageClassification
from fedsim.tensor_names import Given, from_parts, named, own_tensors
from fedsim.types import Tensors
from fedsim.visible import say

_SHOWING = 3
"""Captures that are asked for the range of their inputs."""


@dataclass(frozen=True)
class Captured:
    """A folder of captures with the task that they are about.

    Iterating yields an ``Update`` for each capture, by round and client, and says on stderr which
    cannot be read, such as those of clients that did not train.

    Attributes:
        store: the folder.
        task: the model's architecture and loss.
        base: weights that were not sent; None if there are none.
        knows: facts that the attacker knows in addition to what is recorded.
        kind: what the clients reply with, if that is not what was recorded.
        named: whether the model and its loss are names, which other processes can import.
        rounds: those that are read; all if empty.
        clients: those that are read; all if empty.
    """

    store: CaptureStore
    task: Task
    base: Given | nn.Module | None
    knows: dict[str, Any]
    kind: Kind | None
    named: bool
    _network: nn.Module = field(repr=False, compare=False)
    rounds: frozenset[int] = frozenset()
    clients: frozenset[int] = frozenset()

    @property
    def keys(self) -> list[CaptureKey]:
        """Those that are read, by round and client."""
        return [
            key
            for key in self.store.keys()
            if (not self.rounds or key.round in self.rounds)
            and (not self.clients or key.client in self.clients)
        ]

    def only(self, rounds: Collection[int], clients: Collection[int]) -> Captured:
        """Some of the captures.

        Raises:
            ConfigError: there are none of these rounds and clients.
        """
        chosen = replace(self, rounds=frozenset(rounds), clients=frozenset(clients))
        if not chosen.keys:
            there = ", ".join(map(str, self.store.keys()[:3]))
            raise ConfigError(
                f"--rounds, --clients: {self.store.root} holds no such capture. It holds {there}."
            )
        return chosen

    def __iter__(self) -> Iterator[Update]:
        refusals = list[ConfigError]()
        keys = self.keys
        for key in keys:
            try:
                update = self.update(key)
            except ConfigError as error:
                refusals.append(error)
                if len(keys) > 1:
                    say(f"left out: {error}", error=True)
            else:
                yield update
        if keys and len(refusals) == len(keys):
            raise refusals[0]

    def __len__(self) -> int:
        return len(self.keys)

    def update(self, key: CaptureKey | str) -> Update:
        """One capture, its tensors under the names of the model.

        Raises:
            ConfigError: they do not fit the model.
            StoreError: a file is missing, cut or altered.
        """
        try:
            return self._readings(key)
        except ConfigError as error:
            if str(error).startswith(f"{key}:"):
                raise
            raise ConfigError(f"{key}: {error}") from None

    def _readings(self, key: CaptureKey | str) -> Update:
        seen, parts = self._whole(self.store.load(key))
        record = self.store.record(seen.key)
        plain = plain_steps(self.store, replace(seen, kind=self.kind or seen.kind))
        whole = self._joined(plain.observation)
        reading = self._read(whole, record, whole.kind).finding(parts, *plain.findings)
        if not plain.findings and len(whole.received) == len(seen.received):
            reading = read_beside(self.store, reading, self._network)
        if self.kind is None and record.sign_open:
            other = self._read(self._joined(seen), record, "difference").observation
            return Update(reading, self.task, record.claimed_examples, other)
        reading = with_client_layers(reading, self._earlier(seen.key))
        reading = without_decayed(descending(reading, self.task), self.task)
        return Update(reading, self.task, record.claimed_examples)

    def _whole(self, seen: Observation) -> tuple[Observation, Finding | None]:
        """The tensors behind pairs of values and places, or factors, and a word of them."""
        dense, parts = from_parts(seen.received, self._network)
        if not parts:
            return seen, None
        sent = named(seen.sent, self._network, "before", partial=True).tensors
        arrays = ({k: v.numpy() for k, v in tensors.items()} for tensors in (sent, dense))
        finding = Finding("parts", f"it came as {parts}")
        return replace(seen, sent=sent, received=dense, kind=kind_of(*arrays)), finding

    def _joined(self, seen: Observation) -> Observation:
        """With the model's tensors that came in other records, as of apps with one a layer."""
        sent, received = self.store.beside(seen.key)
        if not received:
            return seen
        expected = own_tensors(self._network)
        return replace(
            seen,
            sent=seen.sent | _of_records(sent, expected, seen.sent),
            received=seen.received | _of_records(received, expected, seen.received),
        )

    def _earlier(self, key: CaptureKey) -> Iterator[Reading]:
        """The replies of the same client in the rounds before, the latest first."""
        for other in reversed(self.store.keys()):
            if other.client == key.client and other.round < key.round:
                seen = self.store.load(other)
                with suppress(ConfigError):
                    yield self._read(seen, self.store.record(other), self.kind or seen.kind)

    def _read(self, seen: Observation, record: CaptureRecord, kind: Kind) -> Reading:
        return update_of(
            self.task,
            seen.sent,
            _updated(seen),
            kind=kind,
            base=self.base,
            knowledge=seen.knowledge.model_copy(update=self.knows),
            key=seen.key,
            claimed_examples=record.claimed_examples,
            network=self._network,
        )


def _of_records(beside: Tensors, expected: Tensors, given: Tensors) -> Tensors:
    """Tensors that ``given`` lacks, by ``<record>/<entry>``, the entry or both being the name."""
    if not given.keys() & expected.keys():
        return {}
    tensors: Tensors = {}
    for place, value in beside.items():
        record, _, entry = place.partition("/")
        for name in (entry, f"{record}.{entry}"):
            if name in expected.keys() - given.keys() and expected[name].shape == value.shape:
                tensors.setdefault(name, value)
    return tensors


def _updated(seen: Observation) -> Tensors:
    """What was received of the tensors that were sent: clients may append others, as SCAFFOLD's."""
    shared = seen.received.keys() & seen.sent.keys()
    more = len(seen.received) > len(seen.sent) and shared
    return {k: v for k, v in seen.received.items() if k in shared} if more else seen.received


def captured(
    folder: Path | str,
    model: Model | None = None,
    *,
    base: Given | nn.Module | str | None = None,
    knows: dict[str, Any] | None = None,
    kind: Kind | None = None,
    **description: Any,  # noqa: ANN401
) -> Captured:
    """Read a folder that ``server.eavesdropper.Eavesdropper`` wrote.

    Args:
        folder: the captures.
        model: needed if the eavesdropper was not given it; as in ``fedsim.tasks.given.task_of``.
        base: the weights that are not on the wire, their file, or the hub id or folder of a model.
        knows: facts that the attacker knows, as in ``Update.of``.
        kind: what the clients reply with, as in ``Eavesdropper``; None for what was recorded.
        **description: the other arguments of ``task_of``: ``tokenizer``, ``task``, ``loss``,
            ``image_shape``, ``input_shape``, ``input_range``, ``max_length``, ``lora_alpha``.

    Raises:
        ConfigError: the folder holds no captures, ``check_folder`` refuses it, or the model is
            missing or does not fit.
        StoreError: a file is missing, cut or altered.

    Example:
        After a run of an application whose strategy was wrapped:

        >>> import fedsim
        >>> for victim in fedsim.captured("captures"):  # doctest: +SKIP
        ...     print(fedsim.attack(victim, "span"))
    """
    if kind not in (None, *get_args(Kind)):
        raise ConfigError(f"kind: {kind!r} is none. {suggest(str(kind), get_args(Kind))}")
    store = CaptureStore(Path(folder).resolve())
    keys = store.keys()
    if not keys:
        raise ConfigError(
            f"{folder}: holds no captures. Name the folder that the eavesdropper printed."
        )
    check_folder(store.root)
    task = _task(store, keys[0], model, description)
    if isinstance(base, str):
        base = _pretrained(base, task)
    elif base is None and isinstance(model, nn.Module):
        base = model
    elif base is None and (store.root / CaptureStore.BASE).exists():
        base = load_tensors(store.root / CaptureStore.BASE)
    facts = facts_of(task, knows or {})
    added = {fact: getattr(facts, fact) for fact in facts.model_fields_set}
    named = all(isinstance(source, str | None) for source in (model, description.get("loss")))
    read = Captured(store, task, base, added, kind, named, task.build())
    ranged = isinstance(task, ImageClassification) and not task.form.plain
    return read if ranged or description.get("input_range") else _ranged(read)


def _ranged(captures: Captured) -> Captured:
    """With the range of inputs that the first captures tell, if it is not [0, 1]."""
    if captures.task.modality == "text":
        return captures
    shown = []
    for key in captures.store.keys()[:_SHOWING]:
        with suppress(ConfigError):  # said of each where all are read
            update = captures.update(key)
            shown.append(range_evidence(update.observation, update.task))
    likely = likely_range([each for each in shown if each is not None])
    if likely is None:
        say(
            "the range of inputs is not known, and attacks that search take [0, 1]; pass "
            "input_range (--input-range LOW,HIGH) if it is another",
            error=True,
        )
    elif not likely.form.plain:
        say(f"{likely}; pass input_range if they do not", error=True)
        return replace(captures, task=likely.of(captures.task))
    return captures


def _task(
    store: CaptureStore, key: CaptureKey, model: Model | None, description: dict[str, Any]
) -> Task:
    written = store.root / "task.json"
    if model is None:
        if not written.exists():
            check_model_is_known(store.root)
        return load_task(store.root)
    given = {name: value for name, value in description.items() if value}
    if written.exists():
        spec = read_spec(store.root)
        if spec.kind == "image-classification" and "tokenizer" not in given:
            if "image_shape" not in given:
                given.setdefault("input_shape", spec.owner_shape or spec.input_shape)
            given.setdefault("input_range", (spec.low, spec.high))
            if "loss" not in given and isinstance(model, str) and is_named(model):
                code = options_of_code(spec.factory, spec.loss)
                raise ConfigError(f"loss: that of {spec.model} is not known. Name both: {code}.")
        elif (
            not {"tokenizer", "loss", "image_shape"} & given.keys()
            and (store.root / "tokenizer").is_dir()
        ):
            given["tokenizer"] = str(store.root / "tokenizer")
    shapes = {name: tuple(value.shape) for name, value in store.load(key).received.items()}
    return task_of(model, arrays=shapes, **given)


def _pretrained(name: str, task: Task) -> Tensors:
    if Path(name).is_file():
        return read_state_dict(Path(name))
    if name in MODELS or task.modality == "image":
        raise ConfigError(
            f"base: {name!r} has no pretrained weights. Name a folder or hub id of "
            "transformers, or a file of tensors."
        )
    spec = task.spec
    weights = state(transformer.pretrained(name, spec.architecture, spec.kind, 0))
    # A head that the folder lacks is drawn at random, and cannot be told from one that it has.
    return {name: value for name, value in weights.items() if not name.startswith(HEADS)}
