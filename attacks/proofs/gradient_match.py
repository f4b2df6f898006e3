"""A decoded sentence improved word by word, by the gradient of the whole model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from attacks.observed.factored import Factored, Products, Vectors
from attacks.observed.readings import HEAVILY_PRUNED, read
from attacks.observed.replay import Replay, replay
from attacks.observed.word_rows import is_tied
from attacks.proofs.line_gradients import Beside, entries, inner_products, products
from fedsim.models.embeddings import embedding_names
from fedsim.store.capture import Observation
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Tensors

Measure: TypeAlias = Literal["whole", "positive", "each"]

_RIDGE = 1e-6  # of the inner products of lines, which may be alike
_ROUNDING = 1e-6  # relative error of a similarity in float32
_TOKENS = 1024  # in one forward and backward pass


@dataclass(frozen=True)
class GradientMatcher:
    """Compares the gradient of a batch of one sentence with the update.

    Attributes:
        model: the broadcast model.
        factored: its gradient as a function of word embeddings.
        update: as received, in float32.
        measure: "whole" is the root of the part of the update that the gradient explains at its
            best scale; each line of a classifier has its own, as it may have been clipped. With
            "positive" none of them is negative: of two classes, the gradient of the wrong one
            points away from that of the right one. "each" normalises every tensor first, since
            signs have lost their scale.
        sent: masks of the entries that were sent, of tensors that were pruned.
    """

    model: Replay
    factored: Factored
    update: Tensors
    measure: Measure
    sent: Tensors = field(default_factory=dict)

    @classmethod
    def of(
        cls, observation: Observation, task: TextTask, device: torch.device, *, signs: bool
    ) -> GradientMatcher:
        """Of an observation; ``signs`` if the update has lost its scale."""
        update = {name: value.float().to(device) for name, value in observation.update().items()}
        sent = {} if signs else _sent(update)
        model = replay(observation, task, device)
        return cls(model, Factored(model), update, "each" if signs else "whole", sent)

    @cached_property
    def table(self) -> Tensor:
        """The word embeddings."""
        return self.model.network.get_parameter(self._table_name).detach()

    @cached_property
    def norms(self) -> dict[str, float]:
        """Of each tensor of the update."""
        return {name: max(float(value.norm()), 1e-30) for name, value in self.update.items()}

    @cached_property
    def _table_name(self) -> str:
        table = embedding_names(self.model.network).word
        assert table is not None
        return table

    @cached_property
    def _word(self) -> str:
        """The word table's name, if its rows are to be compared."""
        sends = self._table_name in self.update and not is_tied(self.model.network)
        return self._table_name if sends else ""

    def against(self, update: Tensors) -> GradientMatcher:
        """The same comparison, of whole gradients, with another update."""
        return replace(self, update=update, measure="whole")

    def each_of(self, update: Tensors) -> GradientMatcher:
        """The comparison of normalised tensors, with another update."""
        return replace(self, update=update, measure="each")

    def positive(self) -> GradientMatcher:
        """The same comparison without negative scales."""
        return replace(self, measure="positive") if self.measure == "whole" else self

    def gradient(self, line: Tensor, label: int | None = None) -> Tensors:
        """The gradient of a batch of one line, of all received weights.

        ``label`` is its class; None for a language model.
        """
        target = line[None] if label is None else line.new_tensor([label])
        return self._gradient(Batch(line[None], target, torch.ones_like(line[None])))

    def _gradient(self, batch: Batch) -> Tensors:
        network = self.model.network
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name in self.model.parameters)
        gradient = self.model.task.gradient(network, batch)
        network.requires_grad_(False)
        return gradient

    @property
    def _compared(self) -> list[str]:
        """Names of the tensors whose gradient is compared, of texts by their words' table too."""
        names = self.factored.names | {self._table_name if self._writes else self._word}
        return [name for name in self.update if name in names]

    @property
    def _writes(self) -> bool:
        return not self.model.task.spec.num_classes

    @cached_property
    def entries(self) -> int:
        """Number of entries of the update that were sent and are compared."""
        return sum(int(self.update[name].count_nonzero()) for name in self._compared)

    def unexplained(self, batch: Batch) -> float:
        """Share of the square of what was sent that a batch's gradient leaves, at its best scale.

        Each line of a classifier has its own scale where that is better. Where every tensor is
        normalised first it is one less the square of their mean cosine, each weighing as much as
        its square. Where no tensor can be compared, as of DoRA, everything is left.
        """
        if not self._compared:
            return 1.0
        gradient = self.shown(self._gradient(batch))
        both = {n: _product(gradient[n], self.update[n]) for n in self._compared}
        square = {n: _product(gradient[n], gradient[n]) for n in self._compared}
        if self.measure == "each":
            most = sum(self.norms[n] ** 2 for n in both)
            root = sum(both[n] / max(square[n], 1e-30) ** 0.5 * self.norms[n] for n in both)
            return 1 - max(float(root / most), 0.0) ** 2
        scale = max(sum(both.values()), 0) / max(sum(square.values()), 1e-30)
        every = sum(self.norms[n] ** 2 for n in both)
        rests = (self.update[n] - scale * gradient[n] for n in both)
        share = sum(_product(rest, rest) for rest in rests) / every
        if self._writes or len(batch) == 1:
            return share
        assert batch.mask is not None
        root = float(self.of_batches(batch.inputs[None], batch.labels[None], batch.mask[None])[0])
        return min(share, max(1 - root**2 / every, _ROUNDING))

    def classified(self, batch: Batch) -> Batch:
        """With the classes that fit best, one line after the other, where they are -1."""
        if self._writes or bool((batch.labels >= 0).all()):
            return batch
        assert batch.mask is not None
        fixed, labels = self.positive(), batch.labels.clamp(min=0)
        for row in torch.nonzero(batch.labels < 0)[:, 0].tolist():
            ways = labels.repeat(self.model.task.spec.num_classes, 1)
            ways[:, row] = torch.arange(len(ways))
            lines, mask = (part.repeat(len(ways), 1, 1) for part in (batch.inputs, batch.mask))
            labels = ways[int(fixed.of_batches(lines, ways, mask).argmax())]
        return replace(batch, labels=labels)

    def shown(self, gradient: Tensors) -> Tensors:
        """The gradient as far as its entries were sent."""
        return {n: v * self.sent[n] if n in self.sent else v for n, v in gradient.items()}

    def similarities(self, lines: Sequence[Tensor]) -> Tensor:
        """Similarity of lines of a language model of any lengths, ``(line,)``."""
        scores = self.table.new_zeros(len(lines))
        for length in {len(line) for line in lines}:
            places = [i for i, line in enumerate(lines) if len(line) == length]
            lines_of_length = torch.stack([lines[i] for i in places])
            scores[places] = self.similarity(lines_of_length, lines_of_length)
        return scores

    def similarity(self, lines: Tensor, labels: Tensor) -> Tensor:
        """Similarity ``(line,)`` of each line ``(line, token)`` alone in its batch.

        ``labels`` are classes ``(line,)`` or next-token targets ``(line, token)``.
        """
        return self.of_batches(lines[:, None], labels[:, None], torch.ones_like(lines)[:, None])

    def beside(self, gradient: Tensors) -> Beside:
        """Further lines that batches share, by their summed gradient."""
        inner = {name: float((value * self.update[name]).sum()) for name, value in gradient.items()}
        square = {n: float(value.square().sum()) for n, value in self.shown(gradient).items()}
        return Beside(gradient, inner, square)

    def of_batches(
        self, lines: Tensor, labels: Tensor, mask: Tensor, rest: Beside | None = None
    ) -> Tensor:
        """Similarity ``(batch,)`` of each batch ``(batch, line, token)`` with its classes.

        Args:
            lines: token ids.
            labels: a class ``(batch, line)``, or next-token targets, for each line.
            mask: 1 for tokens and 0 for padding.
            rest: further lines that all batches share.
        """
        size = max(1, _TOKENS // lines[0].numel())
        parts = zip(lines.split(size), labels.split(size), mask.split(size), strict=True)
        return torch.cat([self._similarity(*part, rest) for part in parts])

    def _similarity(
        self, lines: Tensor, labels: Tensor, mask: Tensor, rest: Beside | None
    ) -> Tensor:
        batch = Batch(lines.flatten(0, 1), labels.flatten(0, 1), mask.flatten(0, 1))
        # Each line is a lane of its own, unless the loss is a mean over the tokens of all of them.
        lanes = lines.flatten(0, 1)[:, None] if labels.dim() == 2 else lines
        words, table = lanes if self._word else None, self.table[lanes]
        groups = self.factored(table, batch, create_graph=False, words=words)
        return self._similarities(groups, lines, rest, masked=labels.dim() == 2)

    def _similarities(
        self, groups: Sequence[Products | Vectors], lines: Tensor, rest: Beside | None, masked: bool
    ) -> Tensor:
        """Similarity ``(batch,)`` of gradients in factored form, ``masked`` where entries lack."""
        words, batches = lines.unique(), len(lines)
        total, inner, table = lines.new_zeros(batches, dtype=torch.float32), [], []
        for group in groups:
            for index, parameter in enumerate(group.names):
                name, rows = parameter or self._word, slice(None) if parameter else words
                if name not in self.update or (parameter and parameter not in self.factored.names):
                    continue
                part, at, seen = group, index, self.update[name][rows]
                beside = None if rest is None else rest.value.get(name)
                beside = None if beside is None else beside[rows]
                if masked and name in self.sent:
                    where = self.sent[name][rows]
                    part, at = entries(group, index, where), 0
                    seen, beside = seen[where], None if beside is None else beside[where]
                both = inner_products(part, at, seen).view(batches, -1)
                gram = products(part, at, batches)
                if rest is not None and beside is not None:
                    more = inner_products(part, at, beside).view(batches, -1)
                    both, gram = rest.bordered(name, both, more, gram)
                if self.measure == "each":
                    size = gram.sum((1, 2)).clamp(min=1e-30).sqrt()
                    total = total + both.sum(1) / size * self.norms[name]
                inner.append(both)
                table.append(gram)
        if self.measure == "each":
            return total
        both, gram = torch.stack(inner).sum(0).double(), torch.stack(table).sum(0).double()
        return _explained(both, gram, positive=self.measure == "positive").to(total)


def _product(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum(dtype=torch.float64))


def _sent(update: Tensors) -> Tensors:
    """Masks of the entries that were sent, of tensors that were pruned.

    Where hardly any were, a tensor without an entry, or with one in a row, looks like a whole one.
    """
    pruned = {name: value != 0 for name, value in update.items() if not read(value).complete}
    total = sum(value.numel() for value in update.values())
    sent = sum(int(value.count_nonzero()) for value in update.values())
    if not pruned or sent > HEAVILY_PRUNED * total:
        return pruned
    return {name: value != 0 for name, value in update.items()}


def _explained(both: Tensor, gram: Tensor, *, positive: bool) -> Tensor:
    """The root of what lanes at their best scales explain of the update ``(batch,)``.

    Args:
        both: inner products with the update ``(batch, lane)``.
        gram: with each other ``(batch, lane, lane)``.
        positive: leave out lanes whose scale would be negative.
    """
    gram.diagonal(dim1=1, dim2=2).mul_(1 + _RIDGE).add_(1e-30)
    active = torch.ones_like(both, dtype=torch.bool)
    for _ in range(both.shape[1]):
        table = torch.where(active[:, :, None] & active[:, None], gram, 0)
        table.diagonal(dim1=1, dim2=2).add_((~active).double())
        scales = torch.linalg.solve(table, both * active)
        negative = positive & (scales < 0)
        if not negative.any():
            break
        active &= ~negative
    root: Tensor = (both * scales).sum(1).clamp(min=0).sqrt()
    return root
