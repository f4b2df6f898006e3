"""The words of a sentence chosen together, for what their inputs capture of one gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.span.encoder.word_views import RowView, View
from attacks.tokens.soft_traces import SoftTraces
from attacks.tokens.table_rows import TableRows

_NEAREST = 12  # tokens nearest to the span at a place, and as many that stand out
_SWEEPS = 8  # most rounds over the places of a line
_GAIN = 1e-9  # least relative gain of a step


@dataclass(frozen=True)
class JointWords:
    """Sentences by the energy of a gradient within the span of all their inputs.

    The first layer's gradient is ``Y = X^T D`` plus noise, where ``X`` follows from the tokens and
    their places. With ``D`` free, the likelihood of a sentence grows with ``tr(P Y Y^T)``, where
    ``P`` projects on the span of ``X`` (a variable projection, Golub and Pereyra 1973). Alone, a
    token is hardly nearer to the span at its own place than at another; given the others, what it
    adds to the projection singles it out among the vocabulary. The gradients of both embedding
    tables have the same form. Each gradient counts by the inverse of its noise.

    Attributes:
        views: gradients, together of trace 1.
        tokens: ids that are tried, ``(token,)``.
        edges: ids of the first and the last token of every sentence, which are no words.
        known: places and numbers of the tokens of sentences that are already found.
        barred: which tokens are not tried.
    """

    views: tuple[View | RowView, ...]
    tokens: Tensor
    edges: Tensor
    known: tuple[tuple[int, int], ...] = ()
    barred: Tensor = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """Bar the ends if nothing else is."""
        if self.barred is None:
            object.__setattr__(self, "barred", torch.isin(self.tokens, self.edges))

    @classmethod
    def of(
        cls, traces: SoftTraces, edges: Tensor, count: int, rows: TableRows | None = None
    ) -> JointWords:
        """Shortlist the tokens that are near the span of so many sentences, or have a row."""
        near = traces.statistics
        shortlists = _near(near, count)
        if rows is not None:
            shortlists.append(rows.shortlist(count))
        tokens = torch.cat(shortlists).unique()
        tokens = torch.cat([tokens[near[:, tokens].isfinite().any(0)], edges]).unique()
        first, table = None, None
        if traces.first is not None:
            first = traces.first.gram().float() / traces.first.variance
        if rows is not None:
            table = rows.gram(tokens) / rows.noise
        total = sum(float(gram.trace()) for gram in (first, table) if gram is not None)
        views: list[View | RowView] = []
        if first is not None:
            inputs = torch.stack([traces.layers.of_tokens(tokens, i) for i in range(len(near))])
            views.append(View(first.to(inputs) / total, inputs))
        if table is not None:
            views.append(RowView(table / total, len(tokens)))
        return cls(tuple(views), tokens, edges)

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
        gained = torch.stack([view.gains(places, others, place) for view in self.views]).sum(0)
        return gained.masked_fill(self.barred, 0)

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
        return torch.stack([view.energies(which, inputs) for view in self.views]).sum(0)

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
