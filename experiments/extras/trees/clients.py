"""What each client sent over the rounds, beside the model that its trees were grown on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.extras.trees.forest import Array, Cells, Forest, Tree, read_forest
from fedsim.api import ConfigError
from fedsim.store.capture import CaptureStore


@dataclass(frozen=True, eq=False)
class Reply:
    """One message of a client.

    Attributes:
        before: the model that it was sent; None in the first round.
        model: its reply, new trees alone (bagging) or after those that it was sent (cyclic).
    """

    client: int
    round: int
    before: Forest | None
    model: Forest

    def grown(self) -> tuple[Tree, ...]:
        """The trees that the client grew, in order."""
        sent = self.before.trees if self.before else ()
        reply = self.model.trees
        alike = all(_key(a) == _key(b) for a, b in zip(sent, reply, strict=False))
        return reply[len(sent) :] if alike and len(reply) > len(sent) else reply


@dataclass(frozen=True, eq=False)
class Victim:
    """A client's own trees, and what its rows' predictions were before each.

    Attributes:
        trees: that count, each once.
        own: positions of the client's trees, in the order in which they were grown.
        before: how often each tree had been added when an own one was grown, ``(own, tree)``.
    """

    client: int
    head: Forest
    trees: tuple[Tree, ...]
    grown: Array
    before: Array

    def cells(self) -> Cells:
        """Of the thresholds of all trees."""
        return Cells(self.trees, len(self.head.names))


def victims(replies: Sequence[Reply]) -> list[Victim]:
    """Each client with all of its rounds.

    Raises:
        ConfigError: models of one federation differ in features or objective.
    """
    heads = {(reply.model.objective, reply.model.names) for reply in replies}
    if len(heads) != 1:
        raise ConfigError("trees: the models differ in features or objective. Read one federation.")
    clients = sorted({reply.client for reply in replies})
    return [_victim([reply for reply in replies if reply.client == client]) for client in clients]


def _victim(replies: Sequence[Reply]) -> Victim:
    number: dict[bytes, int] = {}
    trees: list[Tree] = []

    def add(tree: Tree) -> int:
        number[_key(tree)] = len(trees)
        trees.append(tree)
        return len(trees) - 1

    def find(tree: Tree) -> int:
        place = number.get(_key(tree))
        return add(tree) if place is None else place

    grown, before = [], []
    for reply in sorted(replies, key=lambda reply: reply.round):
        added = [find(tree) for tree in (reply.before.trees if reply.before else ())]
        for tree in reply.grown():
            before.append(list(added))
            added.append(add(tree))
            grown.append(added[-1])
    if not grown:
        raise ConfigError(f"trees: client {replies[0].client} sent no tree. Leave its replies out.")
    counts = np.zeros((len(grown), len(trees)))
    for row, earlier in zip(counts, before, strict=True):
        np.add.at(row, earlier, 1)
    first = min(replies, key=lambda reply: reply.round)
    return Victim(first.client, first.model, tuple(trees), np.array(grown), counts)


def _key(tree: Tree) -> bytes:
    return tree.value.tobytes() + tree.feature.tobytes() + tree.left.tobytes()


def from_captures(folder: Path) -> list[Reply]:
    """The replies that a folder of captures holds.

    Raises:
        ConfigError: it holds none, or one that is no single array of bytes.
    """
    store = CaptureStore(folder)
    replies = []
    for key in store.keys():
        seen = store.load(key)
        model = read_forest(_bytes(seen.received.values(), str(key)), str(key))
        sent = _bytes(seen.sent.values(), f"{key}: what was sent")
        before = read_forest(sent, f"{key}: what was sent") if sent else None
        replies.append(Reply(key.client, key.round, before, model))
    if not replies:
        raise ConfigError(f"{folder}: no captures. Name a folder of captures, or a model.")
    return replies


def _bytes(arrays: object, place: str) -> bytes:
    tensors = [np.asarray(value) for value in arrays]  # type: ignore[attr-defined]
    if [tensor.dtype for tensor in tensors] != [np.uint8]:
        kinds = ", ".join(str(tensor.dtype) for tensor in tensors) or "nothing"
        raise ConfigError(f"{place}: holds {kinds}, and no single array of bytes. Name trees.")
    return tensors[0].tobytes()


def from_files(files: Sequence[Path]) -> list[Reply]:
    """Each file as one client that grew all its trees on its own."""
    return [
        Reply(client, 1, None, read_forest(path.read_bytes(), str(path)))
        for client, path in enumerate(files)
    ]


def read_victims(models: Sequence[Path]) -> list[Victim]:
    """The clients of a folder of captures, or each file as a client.

    Raises:
        ConfigError: a path is not there, or holds no trees.
    """
    if missing := [path for path in models if not path.exists()]:
        raise ConfigError(f"{missing[0]}: no such file. Name captures, or models of XGBoost.")
    folders = [path for path in models if path.is_dir()]
    if folders and len(models) > 1:
        raise ConfigError(f"{folders[0]}: is a folder. Name one folder, or files alone.")
    return victims(from_captures(folders[0]) if folders else from_files(models))
