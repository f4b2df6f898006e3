"""A folder of state dicts before and after local training, as any framework can write it.

    updates.toml               what they are about
    round-1/before.pt          what the server sent
    round-1/site-1.pt          what each client replied, named as you like
    round-1/site-2.pt

A single round may lie in the folder itself. The folder becomes captures, ``captures/`` inside it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from experiments.captures import MANIFEST
from experiments.captures.saving import save_capture
from experiments.captures.tensor_files import SUFFIXES, read_state_dict
from experiments.plan.toml_source import read_toml
from fedsim.build import explain, suggest
from fedsim.capture import CaptureKey, CaptureRecord, CaptureStore, Kind, Observation
from fedsim.config_section import ConfigSection
from fedsim.errors import ConfigError
from fedsim.files import digest, read_json, write_json
from fedsim.knowledge import FACTS, Knowledge
from fedsim.named_code import is_named
from fedsim.plain_files import check_folder, digest_plain
from fedsim.reply_kind import hides_its_sign, kind_of
from fedsim.truth import TruthStore
from fedsim.types import Batch, Tensors

_BEFORE, _FRESH = "before", ".captures"
_NUMBER = re.compile(r"\d+$")


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
    kind, store = Manifest.read(folder).kind, CaptureStore(folder / "captures")
    rounds = dict(_rounds(folder))
    if not rounds:
        raise ConfigError(
            f"{folder}: holds no pair. Write the weights that the server sent as before.pt, and "
            "what each client replied beside it, as site-1.pt."
        )
    files = [path for paths in rounds.values() for path in paths]
    seal = {str(path.relative_to(folder)): digest_plain(path) for path in files}
    seal["kind"] = str(kind)
    marker = store.root / "run.json"
    if marker.exists() and read_json(marker).get("files") == seal:
        return store.root
    # The earlier captures and what attacks made of them stay until all files could be read.
    fresh = CaptureStore(folder / _FRESH)
    shutil.rmtree(fresh.root, ignore_errors=True)
    numbers = _numbers([path.stem for paths in rounds.values() for path in paths[1:]])
    broadcasts: dict[str, str] = {}
    for number, (before, *replies) in rounds.items():
        sent = read_state_dict(before)
        for path in replies:
            key = CaptureKey(round=number, client=numbers[path.stem])
            _save(fresh, key, sent, read_state_dict(path), kind, broadcasts)
    clients = {str(number): name for name, number in numbers.items()}
    write_json(fresh.root / marker.name, {"files": seal, "clients": clients})
    shutil.rmtree(store.root, ignore_errors=True)
    fresh.root.rename(store.root)
    return store.root


def _rounds(folder: Path) -> Iterator[tuple[int, list[Path]]]:
    """By round, what was sent, then the replies."""
    places = sorted({path.parent for path in _files(folder) if path.stem == _BEFORE})
    numbers = _round_numbers(folder, places)
    for place in places:
        here = [path for path in _files(folder) if path.parent == place]
        sent = [path for path in here if path.stem == _BEFORE]
        if len(sent) > 1:
            raise ConfigError(f"{place}: holds {sent[0].name} and {sent[1].name}. Remove one.")
        replies = [path for path in here if path.stem != _BEFORE]
        if replies:
            yield numbers[place], [*sent, *replies]


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
    sent: Tensors,
    reply: Tensors,
    kind: Kind | None,
    broadcasts: dict[str, str],
) -> None:
    arrays = [{k: v.float().numpy() for k, v in tensors.items()} for tensors in (sent, reply)]
    read = kind or kind_of(*arrays)
    record = CaptureRecord(
        key=key,
        kind=read,
        order=(),
        sha256="",
        bytes=0,
        sent_sha256=digest(str(key.round).encode()),
        sent_order=(),
        knowledge=Knowledge(),
        sign_open=kind is None and read == "gradient" and hides_its_sign(arrays[1]),
    )
    save_capture(store, Observation(key, sent, reply, read, Knowledge()), record, broadcasts)


def truth_in(folder: Path, captures: Path, out: Path) -> Path:
    """The truth in the form of ``fedsim.truth``, from files named as the replies.

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
