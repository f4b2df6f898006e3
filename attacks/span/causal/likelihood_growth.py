"""A sentence of a language model grown by its likelihood under noise as strong as the update."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.engine.beam import NextWords, Prefixes, Sentence, grow, improved
from attacks.observed.factored import Products
from attacks.proofs.gradient_match import GradientMatcher
from attacks.span.causal.head_gradient import HeadGradient, Roots
from attacks.span.causal.tree import Tree
from attacks.tokens.next_token_shift import DirectionalShift
from fedsim.types import Tensors

_REST = 1000.0  # variance of texts' gradients at the fitted scale, as the rest of a sentence has it
_REPEATS = 1.0  # further places at which a word of the head's rows is expected
_CAUTION = 0.35  # share of the fitted scale at which words are weighed
_PREFIXES = 32  # kept
_LINES = 64  # of which their gradients choose these
_TOKENS = 32  # tried behind each prefix
# Of ten true words, most of them lost before, 3, 3 and 6 rank in the first ten at .5, 1 and 2.
_HEAVY = 2.0  # factor on the mean squared norm of a word's gradient that the residual proposes
_ENDED = 8  # prefixes of each length that are tried as sentences
_RIVALS = 8  # words tried at each place of a sentence
_STALE = 4  # further lengths without a likelier sentence
_PROBES = 8  # random directions, which give the norms of next words' gradients
_PROBED = 8  # lines at which they do
_STEP = 1e-3  # of the weights' norm, for derivatives
_PASS = 1024  # tokens in one forward and backward pass


@dataclass(frozen=True)
class _Begun(Prefixes):
    """Prefixes with their log-probability, and both parts of their likelihood, ``(prefix,)``.

    The log-likelihood ratio of a prefix's gradient ``g`` at a scale ``c`` is
    ``c <Y, g> - c^2 <g, g> / 2`` in the metric of the noise.
    """

    text: Tensor
    linear: Tensor


@dataclass(frozen=True)
class _Promising(NextWords[Sentence]):
    """Next words with both parts of each ``(prefix, choice)``."""

    text: Tensor
    linear: Tensor


class LikelihoodGrowth:
    """A beam search over the log-probability of a text and the likelihood of its gradient.

    The loss of a causal model is a sum over its next words, and so is the gradient: the inner
    product with the update is a sum of derivatives that two forward passes give for the whole
    vocabulary. Gradients of single words are nearly orthogonal, so that a word is first weighed by
    its own norm, measured along random directions, and then a prefix by the norm of its gradient.
    The rest of the sentence is noise to a prefix, of the covariance of the model's own sentences,
    and counts beside the white noise of the update (``TextCovariance``). Gradients of words are not
    orthogonal to that of their prefix: next words are proposed along what the prefix leaves.
    """

    def __init__(
        self, tree: Tree, network: nn.Module, match: GradientMatcher, lines: Tensor
    ) -> None:
        """Take the edges of the sentence, the model, its update, and lines drawn from the model."""
        self.tree, self.network, self.match = tree, network, match
        update = match.update
        self.head = HeadGradient(match.model.network, update)
        self.covariance = TextCovariance.of(match, self.head, lines)
        self.noise = white_noise(update)
        scale = self.covariance.scale(update, self.noise)
        self.scale = _CAUTION * scale / (lines.shape[1] - 1)
        self.rest = self.covariance.roots(self.noise, _REST * scale**2, _REPEATS * self.scale**2)
        self.white = Roots({}, {}, self.noise)
        self.shift = self._shift({n: self.rest(n, self.rest(n, v)) for n, v in update.items()})
        self.plain = self._shift({n: v / self.noise**2 for n, v in update.items()})
        self.norms = self._norms(lines[:_PROBED])

    def _shift(self, moves: Tensors) -> DirectionalShift:
        return DirectionalShift(self.network, moves, step=_STEP)

    def _norms(self, lines: Tensor) -> Tensor:
        """Mean squared norms of next words' gradients, in the metric of the noise.

        Of first words and of others, ``(2, vocabulary)``.
        """
        total, rng = torch.zeros(()), torch.Generator().manual_seed(0)
        for _ in range(_PROBES):
            moves = {
                name: self.rest(name, torch.randn(value.shape, generator=rng).to(value))
                for name, value in self.match.update.items()
            }
            squares = self._shift(moves).logs(lines[:, :-1])[1].square()
            total = total.to(squares) + torch.stack([squares[0, 0], squares[:, 1:].mean((0, 1))])
        return total / _PROBES

    def squares(self, lines: Tensor, roots: Roots) -> Tensor:
        """Squared norms ``(line,)`` of the summed gradients of lines ``(line, token)``."""
        size = max(1, _PASS // lines.shape[1])
        return torch.cat([self._square(part, roots) for part in lines.split(size)])

    def _square(self, lines: Tensor, roots: Roots) -> Tensor:
        total, slopes = lines.new_zeros(len(lines), dtype=torch.float32), None
        for group in self.head.factors(self.match, lines):
            for index, name in enumerate(group.names):
                if not name:
                    assert isinstance(group, Products)
                    slopes = group.right[index]
                elif name not in self.match.update:
                    continue
                elif isinstance(group, Products):
                    left, right = roots.factors(name, group.left[index], group.right[index])
                    total = total + ((left @ left.mT) * (right @ right.mT)).sum((1, 2))
                else:
                    total = total + (group.values[index] / self.noise).square().sum(1)
        if slopes is not None:
            total = total + self.head.square(lines, slopes, roots)
        return total * (lines.shape[1] - 1) ** 2

    def sentence(self) -> tuple[list[int], bool]:
        """The likeliest sentence, and whether the update says more for it than its text costs."""
        start = torch.tensor([self.tree.start], device=self.norms.device)
        none = self.norms.new_zeros(1)
        begun, nothing = _Begun(start, none, none, none), Sentence(-torch.inf, (*self.tree.start,))
        grown = grow(self, begun, self.tree.longest - 1, self.tree.job, stale=_STALE)
        best = max(grown, default=nothing)
        improved, score = self._improved(start.new_tensor(best.ids), best.score)
        return improved.tolist(), score > 0

    def score(self, prefixes: _Begun) -> _Promising:
        """The words that promise most; the first prefixes are tried as sentences."""
        text, linear = self.shift.next_logs(prefixes.ids)
        ended = self.finish(prefixes)
        text[:, self.tree.end] = -torch.inf
        gain = text + self._promise(prefixes, linear)
        gain, words = gain.topk(_LINES if len(gain) == 1 else _TOKENS, dim=1)
        score = prefixes.score[:, None] + gain
        parts = text.gather(1, words), linear.gather(1, words)
        return _Promising(words, score, ended, _LINES, _PREFIXES, *parts)

    def extend(self, prefixes: _Begun, words: _Promising, rows: Tensor, columns: Tensor) -> _Begun:
        """The prefixes ``rows`` with the words in ``columns``, and the norms of their gradients."""
        ids = prefixes.longer(rows, words.ids[rows, columns])
        text = prefixes.text[rows] + words.text[rows, columns]
        linear = prefixes.linear[rows] + words.linear[rows, columns]
        ratio = self.scale * linear - self.scale**2 * self.squares(ids, self.rest) / 2
        return _Begun(ids, text + ratio, text, linear)

    def finish(self, prefixes: _Begun) -> list[Sentence]:
        """The best of the first prefixes as a sentence."""
        if prefixes.length == len(self.tree.start):
            return []
        assert self.tree.end is not None
        ids = prefixes.ids[:_ENDED]
        ids = torch.cat([ids, ids.new_full((len(ids), 1), self.tree.end)], 1)
        scores = self.scores(ids)
        top = int(scores.argmax())
        return [Sentence(float(scores[top]), tuple(ids[top].tolist()))]

    def _improved(self, line: Tensor, best: float) -> tuple[Tensor, float]:
        """The line and its score after exchanges of single words, place by place."""
        begin = len(self.tree.start)
        text, linear = (part[0, :-1] for part in self._residual(line).logs(line[None]))
        gain = text + self.scale * linear - _HEAVY * self.scale**2 * self.norms[1] / 2
        rivals = line.new_full((len(line), _RIVALS), -1)
        rivals[begin:-1] = gain[begin - 1 : -1].topk(_RIVALS).indices
        rivals[rivals == line[-1]] = -1
        return improved(line, best, self.scores, rivals, 1, self.tree.job)

    def scores(self, lines: Tensor) -> Tensor:
        """Log-probability of whole sentences ``(line,)`` and of the update given each of them."""
        text, linear = (
            part[:, :-1].gather(2, lines[:, 1:, None]).sum((1, 2))
            for part in self.plain.logs(lines)
        )
        return text + linear.clamp(min=0).square() / self.squares(lines, self.white) / 2

    def _promise(self, prefixes: Prefixes, linear: Tensor) -> Tensor:
        """What the likelihood is about to gain by next words ``(prefix, word)``, their texts apart.

        The likeliest prefix is taken out of the update first: prefixes of a beam share most words.
        """
        if prefixes.length == len(self.tree.start):
            return self.scale * linear - self.scale**2 * self.norms[0] / 2
        linear = self._residual(prefixes.ids[0]).next_logs(prefixes.ids)[1]
        return self.scale * linear - _HEAVY * self.scale**2 * self.norms[1] / 2

    def _residual(self, line: Tensor) -> DirectionalShift:
        """Along what a line ``(token,)`` leaves of the update.

        A next word whose gradient is like those of the words before it explains what these explain.
        """
        gradient, share = self.match.gradient(line), self.scale * (len(line) - 1)
        residual = {n: value - share * gradient[n] for n, value in self.match.update.items()}
        return self._shift({n: self.rest(n, self.rest(n, value)) for n, value in residual.items()})


_WIDEST = 4096  # side of a matrix whose moments are taken; a head's are not
_FORMED = 8  # whose gradients are formed at a time
_SCALE_STEPS = 30  # of Fisher scoring
_SCALE_ENTRIES = 200_000  # those that vary most, which the scale is fitted to
_NORMAL_MEDIAN = 0.6745  # median of the absolute value of a standard normal number


@dataclass(frozen=True)
class TextCovariance:
    """Second moments of the rows and the columns of each matrix, over texts drawn from the model.

    The gradient of the log-likelihood has a mean of zero over a model's own texts, and the moments
    of both sides give a matrix normal distribution ``L (x) R / tr L`` of it (the form that K-FAC
    takes for a Fisher matrix, Martens and Grosse 2015).

    Attributes:
        left: of the rows of each matrix; none for the table of words.
        right: of the columns; for the table those of the states below the head, a token.
    """

    left: Tensors
    right: Tensors

    @classmethod
    def of(cls, match: GradientMatcher, head: HeadGradient, lines: Tensor) -> TextCovariance:
        """Of the gradients of lines ``(line, token)``, each a mean over its tokens."""
        left: Tensors = {}
        right: Tensors = {}
        states = []
        for part in lines.split(_FORMED):
            for name, gradient in _matrices(match, head, part):
                rows, columns = (gradient @ gradient.mT).sum(0), (gradient.mT @ gradient).sum(0)
                left[name] = left.get(name, 0) + rows / len(lines)
                right[name] = right.get(name, 0) + columns / len(lines)
            states.append(head.states[:, :-1].flatten(0, 1))
        if head.tied:
            inputs = torch.cat(states)
            right[head.name] = inputs.T @ inputs / len(inputs)
        return cls(left, right)

    def scale(self, update: Tensors, noise: float) -> float:
        """The likeliest multiple of such gradients in an update of white noise."""
        energies, variances = [], []
        for name in self.left:
            (rows, left), (columns, right) = (
                torch.linalg.eigh(side[name]) for side in (self.left, self.right)
            )
            energies.append((left.T @ update[name] @ right).square().flatten())
            variances.append((rows[:, None] * columns / rows.sum()).clamp(min=0).flatten())
        variance, most = torch.cat(variances).sort(descending=True)
        variance = variance[:_SCALE_ENTRIES].double()
        energy = torch.cat(energies)[most[:_SCALE_ENTRIES]].double()
        square = 0.0
        for _ in range(_SCALE_STEPS):
            weight = variance / (noise**2 + square * variance).square()
            square = float((weight * (energy - noise**2)).sum() / (weight * variance).sum())
            square = max(square, 0.0)
        return math.sqrt(square)

    def roots(self, noise: float, rest: float, repeats: float) -> Roots:
        """Inverse roots of both sides' covariance with white noise added.

        The noise is split between the sides by their mean moments, as K-FAC is damped.

        Args:
            noise: standard deviation of an entry.
            rest: variance of the texts' gradients in the update, as a multiple of these moments.
            repeats: the same of the states below the head, in each row of the table.
        """
        left: Tensors = {}
        right: Tensors = {}
        for name, rows in self.left.items():
            columns, total = self.right[name], rows.trace()
            balance = (len(columns) / len(rows)) ** 0.5
            spread = (rest / total.clamp(min=1e-30)) ** 0.5
            left[name] = _inverse_root(spread * rows, noise * balance)
            right[name] = _inverse_root(spread * columns, noise / balance)
        for name in self.right.keys() - self.left.keys():
            right[name] = _inverse_root(repeats * self.right[name], noise**2)
        return Roots(left, right, noise)


def white_noise(update: Tensors) -> float:
    """Standard deviation of noise that most entries of an update consist of."""
    values = torch.cat([value.flatten() for value in update.values()])
    return float(values.abs().median()) / _NORMAL_MEDIAN


def _matrices(
    match: GradientMatcher, head: HeadGradient, lines: Tensor
) -> Iterator[tuple[str, Tensor]]:
    for group in head.factors(match, lines):
        if (
            not isinstance(group, Products)
            or max(group.left.shape[-1], group.right.shape[-1]) > _WIDEST
        ):
            continue
        for index, name in enumerate(group.names):
            if name in match.update and name != head.name:
                yield name, group.left[index].mT @ group.right[index]


def _inverse_root(moments: Tensor, ridge: float) -> Tensor:
    values, basis = torch.linalg.eigh(moments)
    root: Tensor = basis * (values.clamp(min=0) + ridge).rsqrt() @ basis.T
    return root
