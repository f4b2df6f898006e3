"""The words of a sentence chosen together, for what their inputs capture of one gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.spans.soft_traces import SoftTraces

_NEAREST = 24  # tokens nearest to the span at a place, which are tried at every place
_OUTSTANDING = 24  # and of those nearer there than at most other places
_SWEEPS = 8  # most rounds over the places of a line
_INDEPENDENT = 1e-3  # least share of an input's square outside the others' span
_GAIN = 1e-9  # least relative gain of a step
_RIDGE = 1e-9  # of the inner products of inputs, which may occur twice


@dataclass(frozen=True)
class JointWords:
    """Sentences by the energy of a gradient within the span of all their inputs.

    The first layer's gradient is ``Y = X^T D`` plus noise, where ``X`` follows from the tokens and
    their places. With ``D`` free, the likelihood of a sentence grows with ``tr(P Y Y^T)``, where
    ``P`` projects on the span of ``X`` (a variable projection, Golub and Pereyra 1973). Alone, a
    token is hardly nearer to the span at its own place than at another; given the others, what it
    adds to the projection singles it out among the vocabulary.

    Attributes:
        gram: ``Y Y^T``, ``(width, width)``.
        tokens: ids that are tried, ``(token,)``.
        inputs: of each of them at each place, ``(place, token, width)``.
        known: inputs of sentences that are already found, ``(row, width)``.
    """

    gram: Tensor
    tokens: Tensor
    inputs: Tensor
    known: Tensor

    def __post_init__(self) -> None:
        """Prepare what every sentence needs of each token."""
        images = self.inputs @ self.gram
        object.__setattr__(self, "_images", images)
        object.__setattr__(self, "_energies", (images * self.inputs).sum(2))
        object.__setattr__(self, "_squares", self.inputs.square().sum(2))

    _images: Tensor = None  # type: ignore[assignment]
    _energies: Tensor = None  # type: ignore[assignment]
    _squares: Tensor = None  # type: ignore[assignment]

    @classmethod
    def of(cls, traces: SoftTraces, edges: Sequence[int]) -> JointWords:
        """Shortlist the tokens that are near the span; ``edges`` are those of every sentence."""
        assert traces.first is not None
        near = traces.statistics
        apart = near - near[1:].mean(0)
        apart = apart.where(apart.isfinite(), torch.inf)
        few = near.topk(min(16 * _NEAREST, near.shape[1]), dim=1, largest=False).indices
        strong = apart.gather(1, few).topk(_OUTSTANDING, dim=1, largest=False).indices
        tokens = torch.cat(
            [few[:, :_NEAREST].flatten(), few.gather(1, strong).flatten(), few.new_tensor(edges)]
        ).unique()
        tokens = tokens[near[:, tokens].isfinite().any(0)]
        inputs = torch.stack([traces.layers.of_tokens(tokens, i) for i in range(len(near))])
        gram = traces.first.seen.gram.to(inputs)
        return cls(gram / gram.trace(), tokens, inputs, inputs[0, :0])

    def index(self, line: Tensor) -> Tensor:
        """Number of each token of a line among ``tokens``."""
        return torch.searchsorted(self.tokens, line.contiguous())

    def settled(self, line: Tensor) -> Tensor:
        """The line after rounds of replacing and exchanging words; its ends stay."""
        own = self.index(line)
        for _ in range(_SWEEPS):
            before = own
            for place in range(1, len(own) - 1):
                best = int(self.gains(own, place).argmax())
                if best != int(own[place]):
                    own = own.clone()
                    own[place] = best
            own = self._exchanged(own)
            if torch.equal(before, own):
                break
        return self.tokens[own]

    def rivals(self, line: Tensor, count: int) -> Tensor:
        """The tokens that add most at each place given the others, ``(place, rival)``."""
        own = self.index(line)
        gains = torch.stack([self.gains(own, place) for place in range(len(own))])
        return self.tokens[gains.topk(min(count, gains.shape[1]), dim=1).indices]

    def gains(self, own: Tensor, place: int) -> Tensor:
        """What each token at a place adds to the energy of the line's others, ``(token,)``."""
        others = [self.inputs[i, own[i]][None] for i in range(len(own)) if i != place]
        basis = torch.linalg.qr(torch.cat([self.known, *others]).T).Q
        inside = self.inputs[place] @ basis
        seen = inside @ (basis.T @ self.gram @ basis) - 2 * self._images[place] @ basis
        added = self._energies[place] + (inside * seen).sum(1)
        outside = self._squares[place] - inside.square().sum(1)
        clear = outside > _INDEPENDENT * self._squares[place]
        return (added / outside.clamp(min=1e-30)).where(clear, 0)

    def energies(self, lines: Tensor) -> Tensor:
        """Share of the gradient within the span of each line's inputs ``(line,)``, float64."""
        places = torch.arange(lines.shape[1], device=lines.device)
        inputs, images = self.inputs[places, lines], self._images[places, lines]
        known = self.known.expand(len(lines), *self.known.shape)
        inputs = torch.cat([known, inputs], 1).double()
        images = torch.cat([known @ self.gram, images], 1).double()
        table = inputs @ inputs.mT
        table.diagonal(dim1=1, dim2=2).mul_(1 + _RIDGE)
        solved: Tensor = torch.linalg.solve(table, images @ inputs.mT)
        return solved.diagonal(dim1=1, dim2=2).sum(1)

    def _exchanged(self, own: Tensor) -> Tensor:
        """The line after the best exchange of two words, as long as one gains."""
        inner = range(1, len(own) - 1)
        pairs = [(i, j) for i in inner for j in inner if i < j and own[i] != own[j]]
        for _ in range(len(own)):
            lines = own.repeat(len(pairs) + 1, 1)
            for row, (i, j) in enumerate(pairs):
                lines[row, [i, j]] = own[[j, i]]
            scores = self.energies(lines)
            if float(scores.max()) <= float(scores[-1]) * (1 + _GAIN) or not pairs:
                break
            own = lines[int(scores.argmax())]
        return own
