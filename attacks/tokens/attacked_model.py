"""The model under attack with the update that one client made of it, each part read once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from attacks.observed.readings import HEAVILY_PRUNED, read
from attacks.observed.word_rows import (
    EmbeddingTables,
    noise_variance,
    read_tables,
    standing_out,
)
from attacks.tokens.first_layers import FirstLayers
from fedsim.errors import CannotAttack
from fedsim.models.adapters import HEADS
from fedsim.models.embeddings import Embeddings, embedding_names
from fedsim.models.layers import is_norm
from fedsim.models.prompts import is_prompt
from fedsim.store.capture import Observation
from fedsim.tasks.text import TextTask
from fedsim.types import Tensors


@dataclass(frozen=True, slots=True)
class ReadOnce(Observation):
    """An observation that turns each tensor of its update into float64 once.

    The tensors are shared by all who ask for them, and must not be changed in place.
    """

    _read: dict[str, Tensor | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def update(self, names: Collection[str | None] | None = None) -> Tensors:
        """As ``Observation.update``."""
        names = self.received if names is None else names
        if missing := [name for name in names if name and name not in self._read]:
            # ``super()`` finds no class in a dataclass with slots.
            self._read.update(dict.fromkeys(missing) | Observation.update(self, missing))
        tensors = {name: self._read[name] for name in self.received if name in names}
        return {name: value for name, value in tensors.items() if value is not None}


@dataclass(frozen=True)
class AttackedModel:
    """What attacks on the first layers read of one observation, handed on from part to part.

    It lives as long as the guess. The update is kept in float64, hence twice the size of what a
    client sends; of a tensor that nobody asks for, nothing is kept.

    Attributes:
        observation: reads each tensor of the update once.
        task: defines the vocabulary, the loss and the longest sentence.
        network: as broadcast, in float32 and eval mode.
    """

    observation: ReadOnce
    task: TextTask
    network: nn.Module = field(repr=False)

    @classmethod
    def of(
        cls, observation: Observation, task: TextTask, network: nn.Module | None = None
    ) -> AttackedModel:
        """Of an observation, on the device of its network; one is built on the CPU if not given."""
        seen = ReadOnce(
            observation.key,
            observation.sent,
            observation.received,
            observation.kind,
            observation.knowledge,
        )
        return cls(seen, task, task.model(seen.sent) if network is None else network)

    @property
    def device(self) -> torch.device:
        """Where the network computes."""
        return next(self.network.parameters()).device

    @cached_property
    def embeddings(self) -> Embeddings:
        """The names of the embedding tables."""
        return embedding_names(self.network)

    @cached_property
    def unspanned(self) -> str:
        """What was sent, if it holds the inputs of no layer; empty if some tensor may."""
        tables = {self.embeddings.word, self.embeddings.position}
        kinds = {
            _kind(name, self.network) for name in self.observation.received if name not in tables
        }
        tells = "" in kinds or tables & self.observation.received.keys()
        return "" if tells else " and ".join(sorted(kinds))

    @cached_property
    def layers(self) -> FirstLayers:
        """The first two blocks, with all places that a text may have.

        Raises:
            CannotAttack: the network has no attention over linear layers, or none was sent.
        """
        if self.unspanned:
            raise CannotAttack(
                f"{self.unspanned} alone were sent, which are sums over all words: they hold the "
                "inputs of no layer",
                "Choose 'lamp', which compares whole gradients.",
            )
        words = self.vocabulary(rows=False)
        learned = self.embeddings.position is not None
        length = self.task.most_tokens if learned else self.task.max_length
        return FirstLayers(self.network, words[-3:].tolist(), length)

    @cached_property
    def usual_layers(self) -> FirstLayers:
        """The same with the places that attacks look for, ``task.max_length``."""
        return self.layers.of_length(self.task.max_length)

    @cached_property
    def tables(self) -> EmbeddingTables:
        """The rows of the embedding tables.

        Raises:
            CannotAttack: the word embeddings were not sent, or are not finite.
        """
        return read_tables(self.observation, self.network, self.device)

    def vocabulary(self, *, rows: bool = True, padding: bool = False) -> Tensor:
        """Token ids that may occur in the batch.

        ``rows`` also excludes words whose embedding row is zero, if an untied table is sent.
        Padding is excluded where a trace is no proof of a token, unless ``padding``.
        """
        name, task = self.embeddings.word, self.task
        if name is None:
            raise CannotAttack(
                f"{type(self.network).__name__} has no word embeddings to try",
                "Choose a model of a supported type.",
            )
        size = len(self.network.get_parameter(name))
        possible = torch.ones(size, dtype=torch.bool)
        if rows and name in self.observation.received:
            table = self.observation.update((name,))[name]
            moved = table.any(1)
            # A tied head, noise or weight decay moves every row; pruning may empty that of a word.
            if 3 <= int(moved.sum()) < size // 2 and shows_absence(table):
                possible = moved
                # Where padding has the id of a start token, its row gets no gradient.
                possible[task.tokens([""])[0]] = True
        if not padding and task.spec.pad_id not in {None, *task.tokens([""])[0]}:
            possible[task.spec.pad_id] = False
        return torch.nonzero(possible)[:, 0].to(self.device)

    def words_of_pruned(self, least: int, most: int) -> Tensor | None:
        """The words whose rows stand out of an update that lost nearly all entries, ids ascending.

        What pruning left of an untied table lies in rows of the batch's words. None where more than
        ``HEAVILY_PRUNED`` of the other entries were sent, or not ``least`` to ``most`` words
        show.
        """
        update, name = self.observation.update(), self.embeddings.word
        others = [value for key, value in update.items() if key != name]
        sent = sum(int(value.count_nonzero()) for value in others)
        total = sum(value.numel() for value in others)
        if name not in update or sent > HEAVILY_PRUNED * total:
            return None
        try:
            words, _ = self.tables.of_inputs(self.observation.knowledge.num_examples)
        except CannotAttack:
            return None
        ids = standing_out(words, noise_variance(words))
        return ids if least <= len(ids) <= most else None


def _kind(name: str, network: nn.Module) -> str:
    """Of a parameter that holds no layer's inputs; empty of one that may."""
    module, _, part = name.rpartition(".")
    if is_prompt(name):
        return "virtual tokens"
    if ".ia3_l." in name:
        return "factors of IA3"
    if module.split(".")[0] in HEADS:
        return "the head"
    owner = dict(network.named_modules()).get(module)
    return "biases" if part == "bias" else "norms" if owner and is_norm(owner) else ""


def shows_absence(table: Tensor) -> bool:
    """Whether a row of zeros proves that its word is absent: nothing was pruned or rounded."""
    seen = read(table)
    return seen.signs or (seen.complete and not seen.step)
