"""The words of a sentence chosen together, for what their inputs capture of one gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from attacks.tokens.soft_traces import SoftTraces
from attacks.tokens.table_rows import TableRows

_NEAREST = 12  # tokens nearest to the span at a place, and as many that stand out
_SWEEPS = 8  # most rounds over the places of a line
_GAIN = 1e-9  # least relative gain of a step
_INDEPENDENT = 1e-3  # least share of an input's square outside the others' span
_RIDGE = 1e-9  # of the inner products of inputs, which may occur twice


@dataclass(frozen=True)
class View:
    """One gradient ``Y = X^T D`` plus noise, and the rows of ``X`` that tokens would make.

    Attributes:
        gram: ``Y Y^T``, ``(width, width)``.
        inputs: rows of ``X`` for each token at each place, ``(place, token, width)``.
    """

    gram: Tensor
    inputs: Tensor

    @cached_property
    def images(self) -> Tensor:
        """``gram`` times each input, ``(place, token, width)``."""
        return self.inputs @ self.gram

    @cached_property
    def energy(self) -> Tensor:
        """Energy of each input, ``(place, token)``."""
        return (self.images * self.inputs).sum(2)

    @cached_property
    def squares(self) -> Tensor:
        """Squared length of each input, ``(place, token)``."""
        return self.inputs.square().sum(2)

    def gains(self, places: Tensor, others: Tensor, place: int) -> Tensor:
        """What each token at a place adds to the energy of other pairs of both, ``(token,)``."""
        basis = torch.linalg.qr(self.inputs[places, others].T).Q
        inside = self.inputs[place] @ basis
        seen = inside @ (basis.T @ self.gram @ basis) - 2 * self.images[place] @ basis
        added = self.energy[place] + (inside * seen).sum(1)
        outside = self.squares[place] - inside.square().sum(1)
        clear = outside > _INDEPENDENT * self.squares[place]
        gained: Tensor = added / outside.clamp(min=1e-30)
        return gained.where(clear, 0)

    def energies(self, which: Tensor, lines: Tensor) -> Tensor:
        """Energy within the span of each line's inputs ``(line,)``, float64.

        Args:
            which: numbers of places and tokens, ``place * tokens + token``.
            lines: which of them each line has ``(line, token)``.
        """
        inputs, images = (part.flatten(0, 1)[which].double() for part in (self.inputs, self.images))
        return _energies(inputs @ inputs.T, images @ inputs.T, lines)


@dataclass(frozen=True)
class RowView:
    """The same for rows of ``X`` that hold two ones, at the token and at the place.

    Attributes:
        gram: ``Y Y^T``, tokens first, ``(token + place, token + place)``.
        tokens: their number.
    """

    gram: Tensor
    tokens: int

    def gains(self, places: Tensor, others: Tensor, place: int) -> Tensor:
        """What each token at a place adds to the energy of other pairs of both, ``(token,)``."""
        column = self.tokens + place
        used = torch.cat([others, self.tokens + places, places.new_tensor([column])]).unique()
        basis = torch.linalg.qr(self._ones(used, others, places).T).Q
        every = self.gram.new_zeros(self.tokens, basis.shape[1])
        known = used < self.tokens
        every[used[known]] = basis[known]
        inside = every + basis[torch.searchsorted(used, column)]
        images = (self.gram[: self.tokens, used] + self.gram[column, used]) @ basis
        seen = inside @ (basis.T @ self.gram[used][:, used] @ basis) - 2 * images
        diagonal = self.gram.diagonal()
        energy = diagonal[: self.tokens] + 2 * self.gram[column, : self.tokens] + diagonal[column]
        outside = 2 - inside.square().sum(1)
        gained: Tensor = (energy + (inside * seen).sum(1)) / outside.clamp(min=1e-30)
        return gained.where(outside > 2 * _INDEPENDENT, 0)

    def energies(self, which: Tensor, lines: Tensor) -> Tensor:
        """As those of a ``View``."""
        places, tokens = which // self.tokens, which % self.tokens
        used = torch.cat([tokens, self.tokens + places]).unique()
        ones = self._ones(used, tokens, places).double()
        gram = self.gram[used][:, used].double()
        return _energies(ones @ ones.T, ones @ gram @ ones.T, lines)

    def _ones(self, used: Tensor, tokens: Tensor, places: Tensor) -> Tensor:
        """Rows of ``X`` for pairs of both, ``(pair, used)``."""
        rows = self.gram.new_zeros(len(tokens), len(used))
        for ids in (tokens, self.tokens + places):
            rows.scatter_(1, torch.searchsorted(used, ids.contiguous())[:, None], 1.0)
        return rows


@dataclass(frozen=True)
class JointWords:
    """Sentences by the energy of a gradient within the span of all their inputs.

    The first layer's gradient is ``Y = X^T D`` plus noise, where ``X`` follows from the tokens and
    their places. With ``D`` free, the likelihood of a sentence grows with ``tr(P Y Y^T)``, where
    ``P`` projects on the span of ``X`` (a variable projection, Golub and Pereyra 1973). Alone, a
    token is hardly nearer to the span at its own place than at another; given the others, what it
    adds to the projection singles it out among the vocabulary. Where noise hides that gradient,
    those of both embedding tables are taken, which have the same form.

    Attributes:
        view: the gradient.
        tokens: ids that are tried, ``(token,)``.
        edges: ids of the first and the last token of every sentence, which are no words.
        barred: which tokens are not tried.
        known: places and numbers of the tokens of sentences that are already found.
    """

    view: View | RowView
    tokens: Tensor
    edges: Tensor
    barred: Tensor
    known: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(
        cls, traces: SoftTraces, edges: Tensor, count: int, rows: TableRows | None = None
    ) -> JointWords:
        """Shortlist the tokens that are near the span of so many sentences, or have a row.

        The rows count where the first layer says nothing: beside it they have not changed a guess.
        """
        near, first = traces.statistics, traces.first
        shortlists = _near(near, count)
        if first is None and rows is not None:
            shortlists.append(rows.shortlist(count))
        tokens = torch.cat(shortlists).unique()
        tokens = torch.cat([tokens[near[:, tokens].isfinite().any(0)], edges]).unique()
        view: View | RowView
        if first is not None:
            gram = first.gram().float()
            inputs = torch.stack([traces.layers.of_tokens(tokens, i) for i in range(len(near))])
            view = View((gram / gram.trace()).to(inputs), inputs)
        else:
            assert rows is not None
            gram = rows.gram(tokens)
            view = RowView(gram / gram.trace(), len(tokens))
        return cls(view, tokens, edges, torch.isin(tokens, edges))

    def beside(self, lines: Sequence[Tensor]) -> JointWords:
        """The same beside other sentences of the batch."""
        pairs = (pair for line in lines for pair in enumerate(self.index(line).tolist()))
        return replace(self, known=tuple(dict.fromkeys(pairs)))

    def index(self, line: Tensor) -> Tensor:
        """Number of each token of a line among ``tokens``; that of an edge for one not tried."""
        edge = int(torch.searchsorted(self.tokens, self.edges[0]))
        numbers = torch.searchsorted(self.tokens, line.contiguous())
        numbers = numbers.clamp(max=len(self.tokens) - 1)
        return numbers.where(self.tokens[numbers] == line, edge)

    def settled(self, line: Tensor) -> Tensor:
        """The line after rounds of replacing and exchanging words; its ends stay."""
        numbers = self.index(line)
        for _ in range(_SWEEPS):
            before = numbers
            for place in range(1, len(numbers) - 1):
                best = int(self.gains(numbers, place).argmax())
                if best != int(numbers[place]):
                    numbers = numbers.clone()
                    numbers[place] = best
            numbers = self._exchanged(numbers)
            if torch.equal(before, numbers):
                break
        return self.tokens[numbers]

    def rivals(self, line: Tensor, count: int) -> Tensor:
        """The tokens that add most at each place given the others, ``(place, rival)``."""
        numbers = self.index(line)
        gains = torch.stack([self.gains(numbers, place) for place in range(len(numbers))])
        return self.tokens[gains.topk(min(count, gains.shape[1]), dim=1).indices]

    def gains(self, numbers: Tensor, place: int) -> Tensor:
        """What each token at a place adds to the energy of the line's others, ``(token,)``."""
        line = [pair for pair in enumerate(numbers.tolist()) if pair[0] != place]
        places, others = torch.tensor([*dict.fromkeys([*self.known, *line])]).T
        return self.view.gains(places, others, place).masked_fill(self.barred, 0)

    def energies(self, lines: Tensor, places: Tensor | None = None) -> Tensor:
        """Share of the gradient within the span of each line's inputs ``(line,)``, float64.

        Args:
            lines: numbers of tokens ``(line, token)``.
            places: where they stand, if they are those of several sentences one after the other.
        """
        if places is None:
            places = torch.arange(lines.shape[1], device=lines.device).expand_as(lines)
        if self.known:
            known = lines.new_tensor(self.known).expand(len(lines), -1, 2)
            places = torch.cat([known[..., 0], places], 1)
            lines = torch.cat([known[..., 1], lines], 1)
        which, inputs = (places * len(self.tokens) + lines).unique(return_inverse=True)
        return self.view.energies(which, inputs)

    def exchanges(self, line: Tensor, count: int) -> list[Tensor]:
        """The lines with two words exchanged that hold most energy."""
        lines, _ = self._swapped(line)
        return self.best([*lines], count)

    def best(self, lines: Sequence[Tensor], count: int) -> list[Tensor]:
        """The lines, all of one length, that hold most energy, the first one first."""
        return [chosen for (chosen,) in self.best_batches([(line,) for line in lines], count)]

    def best_batches(
        self, batches: Sequence[tuple[Tensor, ...]], count: int
    ) -> list[tuple[Tensor, ...]]:
        """The batches, of equally many tokens, that hold most energy, the first one first."""
        if not batches:
            return []
        lines = torch.stack([torch.cat(batch) for batch in batches])
        places = [torch.cat([torch.arange(len(line)) for line in batch]) for batch in batches]
        scores = self.energies(self.index(lines), torch.stack(places).to(lines.device))
        return [batches[i] for i in scores.topk(min(count, len(batches))).indices.tolist()]

    def _exchanged(self, numbers: Tensor) -> Tensor:
        """The line after the exchanges of two words that gain, those that overlap left out."""
        lines, pairs = self._swapped(numbers)
        if not pairs:
            return numbers
        scores = self.energies(torch.cat([lines, numbers[None]]))
        gain, every, taken = scores[:-1] - (1 + _GAIN) * scores[-1], numbers.clone(), set[int]()
        for row in gain.argsort(descending=True).tolist():
            if float(gain[row]) > 0 and taken.isdisjoint(pairs[row]):
                every[[*pairs[row]]] = numbers[[*pairs[row]][::-1]]
                taken |= set(pairs[row])
        rivals = torch.stack([numbers, lines[int(gain.argmax())], every])
        return rivals[int(self.energies(rivals).argmax())] if taken else numbers

    def _swapped(self, numbers: Tensor) -> tuple[Tensor, list[tuple[int, int]]]:
        """The line with each two different words exchanged, and their places."""
        inner = range(1, len(numbers) - 1)
        words = numbers.tolist()
        pairs = [(i, j) for i in inner for j in inner if i < j and words[i] != words[j]]
        lines = numbers.repeat(len(pairs), 1)
        if pairs:
            rows, (first, second) = torch.arange(len(pairs)), torch.tensor(pairs).T
            lines[rows, first], lines[rows, second] = numbers[second], numbers[first]
        return lines, pairs


def _near(statistics: Tensor, count: int) -> list[Tensor]:
    """The tokens nearest to the span at each place, and those that stand out from other places."""
    apart = statistics - statistics[1:].mean(0)
    apart = apart.where(apart.isfinite(), torch.inf)
    size = _NEAREST * (1 + count)
    few = statistics.topk(min(8 * size, statistics.shape[1]), dim=1, largest=False).indices
    strong = apart.gather(1, few).topk(min(size, few.shape[1]), dim=1, largest=False).indices
    return [few[:, :size].flatten(), few.gather(1, strong).flatten()]


def _energies(table: Tensor, seen: Tensor, lines: Tensor) -> Tensor:
    """``tr(P Y Y^T)`` of each line ``(line,)``.

    Args:
        table: inner products of inputs ``(input, input)``.
        seen: those of their images.
        lines: numbers of the inputs of each line ``(line, token)``.
    """
    rows, columns = lines[:, :, None], lines[:, None, :]
    table, seen = table[rows, columns], seen[rows, columns]
    table.diagonal(dim1=1, dim2=2).mul_(1 + _RIDGE)
    solved: Tensor = torch.linalg.solve(table, seen)
    return solved.diagonal(dim1=1, dim2=2).sum(1)
