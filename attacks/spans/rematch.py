"""A decoded sentence improved word by word, by the gradient of the whole model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from attacks.base import Job
from attacks.observed.factored import Factored
from attacks.observed.factors import Products, Vectors
from attacks.observed.readings import read
from attacks.observed.replay import Replay, replay
from fedsim.capture import Observation
from fedsim.models.embeddings import embedding_names
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Tensors

Measure: TypeAlias = Literal["whole", "each"]

_TOKENS = 1024  # in one forward and backward pass


@dataclass(frozen=True)
class Rematch:
    """Compares the gradient of a batch of one sentence with the update.

    Attributes:
        model: the broadcast model.
        update: as received, in float32.
        measure: "whole" is the inner product with the update over the gradient's norm: the root of
            the part of the update that the gradient explains at its best scale. "each" normalises
            every tensor first, since signs have lost their scale.
        sent: masks of the entries that were sent, of tensors that were pruned.
    """

    model: Replay
    update: Tensors
    measure: Measure
    sent: Tensors = field(default_factory=dict)

    @classmethod
    def of(
        cls, observation: Observation, task: TextTask, device: torch.device, *, signs: bool
    ) -> Rematch:
        """Of an observation; ``signs`` if the update has lost its scale."""
        measure: Measure = "each" if signs else "whole"
        update = {name: value.float().to(device) for name, value in observation.update().items()}
        sent = {} if signs else {n: v != 0 for n, v in update.items() if not read(v).complete}
        return cls(replay(observation, task, device), update, measure, sent)

    def __post_init__(self) -> None:
        """Prepare the factored gradient."""
        network = self.model.network
        table = embedding_names(network).word
        assert table is not None
        object.__setattr__(self, "table", network.get_parameter(table).detach())
        object.__setattr__(self, "factored", Factored(self.model))

    table: Tensor = None  # type: ignore[assignment]
    factored: Factored = None  # type: ignore[assignment]

    def against(self, update: Tensors) -> Rematch:
        """The same comparison, of whole gradients, with another update."""
        other = copy.copy(self)
        object.__setattr__(other, "update", update)
        object.__setattr__(other, "measure", "whole")
        return other

    def gradient(self, line: Tensor, label: int | None = None) -> Tensors:
        """The gradient of a batch of one line, of all received weights.

        ``label`` is its class; None for a language model.
        """
        network = self.model.network
        for name, own in network.named_parameters():
            own.requires_grad_(name in self.model.parameters)
        target = line[None] if label is None else line.new_tensor([label])
        batch = Batch(line[None], target, torch.ones_like(line[None]))
        found = self.model.task.gradient(network, batch)
        network.requires_grad_(False)
        return found

    def shown(self, gradient: Tensors) -> Tensors:
        """The gradient as far as its entries were sent."""
        return {n: v * self.sent[n] if n in self.sent else v for n, v in gradient.items()}

    def similarities(self, lines: Sequence[Tensor]) -> Tensor:
        """Similarity of lines of a language model of any lengths, ``(line,)``."""
        found = self.table.new_zeros(len(lines))
        for length in {len(line) for line in lines}:
            places = [i for i, line in enumerate(lines) if len(line) == length]
            own = torch.stack([lines[i] for i in places])
            found[places] = self.similarity(own, own)
        return found

    def similarity(self, lines: Tensor, labels: Tensor) -> Tensor:
        """Similarity ``(line,)`` of each line ``(line, token)`` alone in its batch.

        ``labels`` are classes ``(line,)`` or next-token targets ``(line, token)``.
        """
        mask = torch.ones_like(lines)
        return self.of_batches(lines[:, None], labels[:, None], mask[:, None])

    def of_batches(
        self, lines: Tensor, labels: Tensor, mask: Tensor, rest: Tensors | None = None
    ) -> Tensor:
        """Similarity ``(batch,)`` of each batch ``(batch, line, token)`` with its classes.

        Args:
            lines: token ids.
            labels: a class ``(batch, line)``, or next-token targets, for each line.
            mask: 1 for tokens and 0 for padding.
            rest: the summed gradient of further lines that all batches share.
        """
        size = max(1, _TOKENS // lines[0].numel())
        parts = zip(lines.split(size), labels.split(size), mask.split(size), strict=True)
        return torch.cat([self._similarity(*part, rest or {}) for part in parts])

    def _similarity(self, lines: Tensor, labels: Tensor, mask: Tensor, rest: Tensors) -> Tensor:
        batch = Batch(lines.flatten(0, 1), labels.flatten(0, 1), mask.flatten(0, 1))
        groups = self.factored(self.table[lines], batch, create_graph=False)
        count = lines.shape[1]
        seen, inner, square = [], [], []
        for group in groups:
            for index, name in enumerate(group.names):
                if name not in self.update or name not in self.factored.names:
                    continue
                value = self.update[name]
                seen.append(value)
                both = count * _inner(group, index, value)
                own = count**2 * _square(group, index)
                if name in rest:
                    both = both + (rest[name] * value).sum()
                    more = 2 * count * _inner(group, index, rest[name])
                    own = own + more + rest[name].square().sum()
                inner.append(both)
                square.append(own)
        both, own = torch.stack(inner, 1), torch.stack(square, 1).clamp(min=1e-30)
        if self.measure == "whole":
            return both.sum(1) / own.sum(1).sqrt()
        norms = both.new_tensor([float(value.norm()) for value in seen]).clamp(min=1e-30)
        return (both / own.sqrt() * norms).sum(1)

    def improve(
        self, line: Tensor, label: int | None, rivals: Tensor, sweeps: int, job: Job
    ) -> tuple[Tensor, float]:
        """The line after rounds of exchanging one token, and its similarity.

        Args:
            line: ``(token,)``.
            label: its class; None for a language model.
            rivals: tokens to try at each place ``(token, rival)``, the likeliest first.
            sweeps: most rounds.
            job: ends them when its time is up.
        """

        def measure(lines: Tensor) -> Tensor:
            labels = lines if label is None else lines.new_full((len(lines),), label)
            return self.similarity(lines, labels)

        best = float(measure(line[None])[0])
        for _ in range(sweeps):
            before = line
            for place in range(len(line)):
                tokens = rivals[place][rivals[place] != line[place]]
                tokens = tokens[tokens >= 0]
                if not len(tokens) or job.expired:
                    continue
                lines = line.repeat(len(tokens), 1)
                lines[:, place] = tokens
                scores = measure(lines)
                if float(scores.max()) > best:
                    best, line = float(scores.max()), lines[int(scores.argmax())]
            if torch.equal(before, line):
                break
        return line, best


def _inner(group: Products | Vectors, index: int, value: Tensor) -> Tensor:
    """Inner product ``(lane,)`` of a layer's gradients with a tensor."""
    if isinstance(group, Products):
        return ((group.left[index] @ value) * group.right[index]).sum((1, 2))
    values = group.values[index]
    return values @ value.flatten()[: values.shape[1]]


def _square(group: Products | Vectors, index: int) -> Tensor:
    """Square ``(lane,)`` of a layer's gradients."""
    if isinstance(group, Products):
        left, right = group.left[index], group.right[index]
        return ((left @ left.mT) * (right @ right.mT)).sum((1, 2))
    return group.values[index].square().sum(1)
