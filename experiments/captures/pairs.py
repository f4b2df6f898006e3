"""A folder of state dicts before and after local training, as any framework can write it.

    updates.toml               what they are about, where it is not said on the command line
    round-1/before.pt          what the server sent, or global, initial, sent or server
    round-1/site-1.pt          what each client replied, named as you like
    round-1/site-2.pt

A client's own ``site-1_before.pt`` and ``site-1_after.pt`` are a pair, and so are two files alone,
in the order of their names. A single round may lie in the folder itself. The folder becomes
captures, ``captures/`` inside it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, ValidationError

from experiments.captures import MANIFEST
from experiments.captures.saving import save_capture
from fedsim.config.build import explain, suggest
from fedsim.config.named_code import is_named
from fedsim.config.section import ConfigSection
from fedsim.config.toml_source import read_toml
from fedsim.errors import ConfigError
from fedsim.knowledge import FACTS, Knowledge
from fedsim.reply_kind import hides_its_sign, kind_of
from fedsim.store.capture import CaptureKey, CaptureRecord, CaptureStore, Kind, Observation
from fedsim.store.files import digest, read_json, write_json
from fedsim.store.plain_files import SUFFIXES, check_folder, digest_plain
from fedsim.store.tensor_files import read_state_dict
from fedsim.store.truth import TruthStore
from fedsim.types import Batch, Tensors
from fedsim.visible import say

_BEFORE, _FRESH = "before", ".captures"
_SENT = (_BEFORE, "global", "initial", "sent", "server")
"""Names of what the server sent, the surest first."""
_OWN = re.compile(r"(?P<before>before|pre)|(?P<after>after|post)")
"""Parts of names, between letters of no kind, by which a client has a pair of its own."""
_NUMBER = re.compile(r"\d+$")


class Exchange(NamedTuple):
    """What the server sent and what clients replied to it.

    Attributes:
        number: of the round.
        before: the file that was sent.
        replies: name of the client -> its file.
        by: how they were told apart, ``name`` or ``order``.
    """

    number: int
    before: Path
    replies: dict[str, Path]
    by: str

    def __str__(self) -> str:
        names = ", ".join(path.name for path in self.replies.values())
        return f"round {self.number}: {self.before.name} was sent, {names} replied (by {self.by})"


class Manifest(ConfigSection):
    """``updates.toml``: what ``fedsim attack`` takes as options, and facts that the server knows.

    Attributes:
        model: hub id or folder of a transformer. Code, ``module:Net`` or ``file.py:Net``, is named
            on the command line alone.
        kind: what the clients reply with; told from the numbers if it is left out.
        knows: facts of ``fedsim.knowledge``, such as ``learning_rate`` and ``num_examples``.
    """

    model: str = ""
    tokenizer: str = ""
    task: str = ""
    loss: str = ""
    base: str = ""
    image_shape: tuple[int, ...] = ()
    input_shape: tuple[int, ...] = ()
    input_range: tuple[float, float] | None = None
    max_length: int = 0
    lora_alpha: float = 0.0
    kind: Kind | None = None
    knows: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Manifest:
        """As ``read``; an empty one where there is none.

        Raises:
            ConfigError: as ``read``.
        """
        return cls.read(folder) if (folder / MANIFEST).is_file() else cls()

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a folder; facts stand beside the other entries.

        Raises:
            ConfigError: an entry does not exist or does not fit, or names code.
        """
        path = folder / MANIFEST
        table = read_toml(path)
        facts = {name: table.pop(name) for name in FACTS if name in table}
        known = [*cls.model_fields, *FACTS]
        if unknown := [name for name in table if name not in cls.model_fields]:
            raise ConfigError(f"{path}: {unknown[0]}: no such entry. {suggest(unknown[0], known)}")
        try:
            manifest = cls.model_validate_json(json.dumps({**table, "knows": facts}, default=str))
        except ValidationError as error:
            raise ConfigError(f"{path}: {explain(error, '')}") from None
        for name in ("model", "loss"):
            if is_named(value := getattr(manifest, name)):
                raise ConfigError(
                    f"{path}: {name} = {value!r} is code, and no code that a file names is run. "
                    f"Name it yourself: --{name} {value}."
                )
        return manifest


def captures_in(folder: Path) -> Path:
    """The captures made of a folder of state dicts, made anew if a file has changed.

    Raises:
        ConfigError: a file is missing, cut or no state dict, or ``check_folder`` refuses one.
    """
    check_folder(folder)
    kind, store = Manifest.of(folder).kind, CaptureStore(folder / "captures")
    exchanges = list(_exchanges(folder))
    if not exchanges:
        raise ConfigError(
            f"{folder}: holds no pair. Write the weights that the server sent as before.pt, and "
            "what each client replied beside it, as site-1.pt."
        )
    files = {path for each in exchanges for path in (each.before, *each.replies.values())}
    seal = {str(path.relative_to(folder)): digest_plain(path) for path in sorted(files)}
    seal["kind"] = str(kind)
    marker = store.root / "run.json"
    if marker.exists() and read_json(marker).get("files") == seal:
        return store.root
    # The earlier captures and what attacks made of them stay until all files could be read.
    fresh = CaptureStore(folder / _FRESH)
    shutil.rmtree(fresh.root, ignore_errors=True)
    numbers = _numbers([name for each in exchanges for name in each.replies])
    broadcasts: dict[str, str] = {}
    for number, before, replies, _ in exchanges:
        sent = read_state_dict(before)
        for name, path in replies.items():
            key = CaptureKey(round=number, client=numbers[name])
            broadcast = digest(str(before.relative_to(folder)).encode())
            _save(fresh, key, (sent, read_state_dict(path)), kind, broadcast, broadcasts)
    clients = {str(number): name for name, number in numbers.items()}
    write_json(fresh.root / marker.name, {"files": seal, "clients": clients})
    for exchange in exchanges:
        say(exchange, error=True)
    shutil.rmtree(store.root, ignore_errors=True)
    fresh.root.rename(store.root)
    return store.root


def _exchanges(folder: Path) -> Iterator[Exchange]:
    """All that files of tensors tell, by round."""
    by_place: dict[Path, list[Path]] = {}
    for path in _files(folder):
        by_place.setdefault(path.parent, []).append(path)
    numbers = _round_numbers(folder, sorted(by_place))
    for place, here in sorted(by_place.items()):
        for before, replies, by in _told_apart(place, here):
            if replies:
                yield Exchange(numbers[place], before, replies, by)


def _told_apart(place: Path, here: Sequence[Path]) -> Iterator[tuple[Path, dict[str, Path], str]]:
    """What was sent, the replies by client, and what tells them apart, in one folder."""
    for name in _SENT:
        sent = [path for path in here if path.stem == name]
        if len(sent) > 1:
            raise ConfigError(f"{place}: holds {sent[0].name} and {sent[1].name}. Remove one.")
        if sent:
            yield sent[0], {path.stem: path for path in here if path not in sent}, "name"
            return
    if noted := _own_pairs(here):
        yield from noted
    elif len(here) == 2:
        yield here[0], {here[1].stem: here[1]}, "order"
    elif len(here) > 2:
        names = ", ".join(path.name for path in here[:4])
        raise ConfigError(
            f"{place}: none of {names} is named as what the server sent. Rename it to "
            f"{_BEFORE}{here[0].suffix}."
        )


def _own_pairs(here: Sequence[Path]) -> list[tuple[Path, dict[str, Path], str]]:
    """Each client's own state before and after; empty unless all files are such."""
    pairs: dict[str, dict[str, Path]] = {}
    for path in here:
        match = _OWN.search(path.stem.lower())
        if match is None:
            return []
        client = (path.stem[: match.start()] + path.stem[match.end() :]).strip("-_. ")
        pairs.setdefault(client, {})[str(match.lastgroup)] = path
    if any(pair.keys() != {"before", "after"} for pair in pairs.values()):
        return []
    return [
        (pair["before"], {client or pair["after"].stem: pair["after"]}, "name")
        for client, pair in pairs.items()
    ]


def _round_numbers(folder: Path, places: Sequence[Path]) -> dict[Path, int]:
    inside = _numbers([place.name for place in places if place != folder], first=1)
    return {place: 1 if place == folder else inside[place.name] for place in places}


def _files(folder: Path) -> list[Path]:
    """Files of tensors in the folder and one level below, but for its captures."""
    below = [path for path in folder.glob("*/*") if path.parent.name not in ("captures", _FRESH)]
    files = [path for path in (*folder.glob("*"), *below) if path.suffix in SUFFIXES]
    return sorted(path for path in files if path.is_file())


def _numbers(names: Sequence[str], first: int = 0) -> dict[str, int]:
    """A number for each name: that at its end if these differ, else its place in order."""
    each = sorted(set(names))
    ends = [int(match[0]) for match in map(_NUMBER.search, each) if match]
    if len(set(ends)) == len(each) and min(ends, default=first) >= first:
        return dict(zip(each, ends, strict=True))
    return {name: place for place, name in enumerate(each, first)}


def _save(
    store: CaptureStore,
    key: CaptureKey,
    exchanged: tuple[Tensors, Tensors],
    kind: Kind | None,
    broadcast: str,
    broadcasts: dict[str, str],
) -> None:
    sent, reply = exchanged
    arrays = [{k: v.float().numpy() for k, v in tensors.items()} for tensors in (sent, reply)]
    read = kind or kind_of(*arrays)
    record = CaptureRecord(
        key=key,
        kind=read,
        order=(),
        sha256="",
        bytes=0,
        sent_sha256=broadcast,
        sent_order=(),
        knowledge=Knowledge(),
        sign_open=kind is None and read == "gradient" and hides_its_sign(arrays[1]),
    )
    save_capture(store, Observation(key, sent, reply, read, Knowledge()), record, broadcasts)


def truth_in(folder: Path, captures: Path, out: Path) -> Path:
    """The truth in the form of ``fedsim.store.truth``, from files named as the replies.

    Each holds ``inputs``, ``labels`` and for texts ``mask``. A folder that ``truth_mod`` wrote is
    returned as it is.

    Args:
        folder: the files.
        captures: of ``captures_in``.
        out: where to write.

    Raises:
        ConfigError: a file holds something else.
    """
    clients = read_json(captures / "run.json").get("clients", {})
    numbers = {name: int(number) for number, name in clients.items()}
    paths = [path for path in _files(folder) if path.stem in numbers] if folder.is_dir() else []
    rounds = _round_numbers(folder, [path.parent for path in paths])
    for path in paths:
        tensors = read_state_dict(path)
        if not {"inputs", "labels"} <= tensors.keys():
            raise ConfigError(f"{path}: holds no inputs and labels. Write both by these names.")
        batch = Batch(tensors["inputs"], tensors["labels"], tensors.get("mask"))
        key = CaptureKey(round=rounds[path.parent], client=numbers[path.stem])
        every = tuple(range(len(batch)))
        TruthStore(out).save(key, batch, every, (every,))
    return out if paths else folder
