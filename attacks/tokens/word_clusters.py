"""Words of one sentence, told by the gradients of query and key that they leave together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from attacks.base import Job
from attacks.tokens.attention_inputs import heads_of, named
from attacks.tokens.first_layers import FirstLayers
from attacks.tokens.summed_inputs import SummedInputs
from attacks.tokens.word_places import WordPlaces
from fedsim.types import Tensors

_MOST_MEMBERS = 24  # tokens that a word's gradient is explained by at most
_UNEXPLAINED = 0.005  # share of both its gradients at which no further one is needed
_TOGETHER = 64  # words whose gradients are explained in one pass
_NO_ROOM = 1e-5  # square of a node's part outside the chosen ones that rounding leaves
_AGREEMENT = 0.4  # share of a set's words that have to choose a word for it to belong to them
_BARRED = -1e3  # likeness of a word to a place where it can not stand; others are above -1
_PURITY = 0.75  # share of a word's choices that have to be of its set for it to order the set


@dataclass(frozen=True)
class WordCluster:
    """Words of one sentence.

    Attributes:
        anchor: the token id whose choices they are.
        words: token ids, most of the sentence's, without its start and end.
        pure: those of them that chose hardly any others. The gradient of a word of several
            sentences is a sum over them, and orders none.
    """

    anchor: int
    words: frozenset[int]
    pure: tuple[int, ...]


@dataclass(frozen=True)
class WordClusters:
    """The words that share a sentence of the batch, told by whom they attend to.

    A token attends to its own sentence alone. So the gradient of its query is a sum of the keys of
    its sentence, by head with coefficients of its own, and that of its key a sum of the queries:
    ``dL/dq_t = sum_s c_ts k_s``, where the keys of all words at all positions are known. The sum
    over a word's occurrences follows by least squares from ``dL/dW = sum_t (dL/dy_t) x_t^T``, as
    the input ``x_t`` is the normalised sum of a word's and a position's embeddings. Orthogonal
    least squares (Chen et al. 1989) over all heads at once finds which keys a word's gradient is
    made of, and the words of one sentence agree on their company.

    A key is again a sum of a word's part and a position's, with the same coefficient ``c_ts``. So
    the word at a position is the one whose coefficients, over all heads and words of the sentence,
    are those of the position, and that stands there by ``WordPlaces``: an assignment, solved for
    each length.

    Attributes:
        groups: the most coherent first, one for each word.
        gone: numbers of words that known sentences explain.
    """

    groups: list[WordCluster]
    gone: Tensor
    _sides: Sequence[_Side]
    _table: SummedInputs
    _stop: int
    _places: WordPlaces | None

    @classmethod
    def of(
        cls,
        layers: FirstLayers,
        update: Tensors,
        tokens: Sequence[Tensor],
        stop: int,
        job: Job,
        places: WordPlaces | None = None,
    ) -> WordClusters | None:
        """Those of a batch; None where they do not show, or time ran out.

        Args:
            layers: of an encoder with learned absolute positions, and a layer normalisation
                straight before query, key and value.
            update: weight gradients by name.
            tokens: the candidates at each position, the start at the first.
            stop: the token that ends a sentence.
            job: ends the search when its time is up.
            places: where the words stand, if that shows.
        """
        query, key = (named(layers, letter) for letter in "qk")
        heads = heads_of(layers)
        shown = {f"{query}.weight", f"{key}.weight"} <= update.keys() and not layers.everywhere
        narrow = tokens if places is None else places.narrowed(tokens)
        table = SummedInputs.of(layers, narrow) if shown and heads else None
        if heads is None or table is None:
            return None
        sides = [
            _Side.of(update[f"{side}.weight"], layers.network.get_submodule(other), table, heads)
            for side, other in ((query, key), (key, query))
        ]
        inner = {int(word) for part in tokens[1:] for word in part} - {stop}
        words = [word for word, token in enumerate(table.words) if token in inner]
        free = torch.ones_like(table.word, dtype=torch.bool)
        ungrouped = cls([], table.word[:0], sides, table, stop, places)
        return ungrouped._grouped(words, free, job)

    def beside(self, lines: Sequence[Sequence[int]], job: Job) -> WordClusters | None:
        """The groups of what is left where these sentences are known.

        A word whose gradients one of them explains stands in no other, and is no rival any more.
        """
        done = set[int]()
        for line in lines:
            numbers = self._numbers(line)
            pairs = zip(numbers.tolist(), range(len(line)), strict=True)
            nodes = torch.cat([self._table.node(*pair) for pair in pairs])
            done |= {
                word
                for word in numbers[1:-1].tolist()
                if sum(side.unexplained(word, nodes) for side in self._sides) < _UNEXPLAINED
            }
        words = {self._table.words.index(group.anchor) for group in self.groups} - done
        gone = self._table.word.new_tensor([*done])
        free = ~torch.isin(self._table.word, gone)
        return replace(self, gone=gone)._grouped(sorted(words), free, job)

    def _grouped(self, words: Sequence[int], free: Tensor, job: Job) -> WordClusters | None:
        picks: dict[int, set[int]] = {}
        for first in range(0, len(words), _TOGETHER):
            if job.expired:
                return None
            some = words[first : first + _TOGETHER]
            picks |= _explained(self._sides, self._table, some, free)
        return replace(self, groups=_agreed(picks, self._table.words))

    def distinct(self, count: int) -> list[WordCluster]:
        """So many groups at most, the most coherent ones that share less than half their words."""
        chosen: list[WordCluster] = []
        for group in self.groups:
            if all(2 * len(group.words & other.words) < len(group.words) for other in chosen):
                chosen.append(group)
        return chosen[:count]

    @property
    def tokens(self) -> list[list[int]]:
        """Those that may stand at each position, but for what is gone and ends a sentence."""
        allowed = self._table.allowed
        allowed[self.gone.cpu()] = False
        allowed[self._numbers([self._stop])] = False
        ids = torch.tensor(self._table.words)
        return [ids[column].tolist() for column in allowed.T]

    def lines(self, group: WordCluster, lengths: Sequence[int]) -> list[tuple[int, ...]]:
        """Their likeliest order for each length, between a start and an end.

        Not for lengths that leave out more than one of the words that can stand at one place alone.
        """
        words, pure = (self._numbers(ids) for ids in (sorted(group.words), group.pure))
        end, allowed = self._numbers([self._stop]), self._table.allowed[words]
        places = allowed.int().argmax(1)[allowed.sum(1) == 1]
        beyond = [int((places > n - 2).sum()) for n in lengths]
        return [
            self._ordered(words, pure, end, n)
            for n, out in zip(lengths, beyond, strict=True)
            if n > 2 and out <= min(beyond) + 1
        ]

    def _numbers(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor([self._table.words.index(word) for word in ids])

    def _ordered(self, words: Tensor, pure: Tensor, end: Tensor, length: int) -> tuple[int, ...]:
        """A place that no word is left for gets the one that fits it best."""
        table, count = self._table, len(words)
        first = len(table.words)  # the first position is part of the words' atoms
        places = torch.arange(first, first + length - 1)
        start, last = table.word[:1].cpu(), torch.tensor([len(table.atoms) - 1])
        atoms = torch.cat([words, places, start, end, last])
        shares = torch.cat([side.shares(atoms, pure) for side in self._sides], 1)
        shares = shares / shares.norm(dim=1, keepdim=True).clamp(min=1e-30)
        alike = shares[:count] @ shares[count : count + length - 2].T
        if self._places is not None:
            ids = torch.tensor([table.words[word] for word in words.tolist()])
            alike += self._places.of_words(ids)[:, 1 : length - 1]
        alike[~table.allowed[words, 1 : length - 1]] = _BARRED
        line = alike.argmax(0).tolist()
        for word, place in zip(*linear_sum_assignment(-alike.numpy()), strict=True):
            if alike[word, place] > _BARRED:
                line[place] = word
        whole = torch.cat([start, words[line], end])
        return tuple(table.words[word] for word in whole.tolist())


@dataclass(frozen=True)
class _Side:
    """The gradient of query (or key) by word, and the keys (or queries) that it is made of.

    Attributes:
        targets: sums over a word's occurrences ``(word, head, size)``, of length 1; float64, CPU.
        nodes: outputs of the other layer ``(node, head, size)``.
        parts: what each atom contributes to them ``(atom, head, size)``; float64, CPU.
    """

    targets: Tensor
    nodes: Tensor
    parts: Tensor

    @classmethod
    def of(cls, gradient: Tensor, other: nn.Module, table: SummedInputs, heads: int) -> _Side:
        """From the weight's gradient ``(output, width)``, and the other layer."""
        atoms = table.atoms.double().cpu()
        solution = torch.linalg.lstsq(atoms.T, gradient.to(atoms).T, driver="gelsd").solution
        targets = solution[: len(table.words)]
        targets = targets / targets.norm(dim=1, keepdim=True).clamp(min=1e-30)
        with torch.no_grad():
            nodes, bias = other(table.inputs), other(torch.zeros_like(table.inputs[:1]))
            parts = (other(table.atoms) - bias).double().cpu()
            parts[-1] += bias[0].double().cpu()
        split = (heads, -1)
        return cls(
            targets.unflatten(1, split), nodes.unflatten(1, split), parts.unflatten(1, split)
        )

    def shares(self, atoms: Tensor, words: Tensor) -> Tensor:
        """Least-squares coefficients ``(atom, head x word)`` of these words' gradients."""
        keys, seen = self.parts[atoms].permute(1, 2, 0), self.targets[words].permute(1, 2, 0)
        shares: Tensor = torch.linalg.lstsq(keys, seen, driver="gelsd").solution
        return shares.transpose(0, 1).flatten(1)

    def unexplained(self, word: int, nodes: Tensor) -> float:
        """Share of a word's gradients, by their squares, outside the span of these nodes."""
        basis = torch.linalg.qr(self.nodes[nodes].permute(1, 2, 0).double()).Q
        target = self.targets[word][..., None].to(basis)
        return float((target - basis @ (basis.mT @ target)).square().sum())


def _explained(
    sides: Sequence[_Side], table: SummedInputs, targets: Sequence[int], free: Tensor
) -> dict[int, set[int]]:
    """The words that make up most of each word's gradients, one a position, by orthogonal steps."""
    word, place = table.word[free], table.place[free]
    nodes = [side.nodes[free] for side in sides]
    residuals = [
        side.targets[list(targets)].to(node) for side, node in zip(sides, nodes, strict=True)
    ]
    # Squares of what each word's chosen nodes leave of a node ``(target, node, head)``.
    rooms = [node.square().sum(2).expand(len(targets), -1, -1).clone() for node in nodes]
    bases = [rest.new_zeros(*rest.shape, 0) for rest in residuals]
    open_nodes = torch.ones(len(targets), len(word), dtype=torch.bool, device=word.device)
    chosen = {target: set[int]() for target in targets}
    for _ in range(_MOST_MEMBERS):
        unexplained = sum(rest.square().sum((1, 2)) for rest in residuals)
        active = (unexplained >= _UNEXPLAINED) & open_nodes.any(1)
        if not active.any():
            break
        gain = torch.zeros_like(open_nodes, dtype=nodes[0].dtype)
        for node, rest, room in zip(nodes, residuals, rooms, strict=True):
            gain += (_inner(rest, node).square() / room.clamp(min=_NO_ROOM)).sum(2)
        best = gain.masked_fill(~open_nodes, -1).argmax(1)
        open_nodes &= place != place[best][:, None]
        for target, node, more in zip(targets, word[best].tolist(), active.tolist(), strict=True):
            chosen[target] |= {node} if more else set()
        for i, (node, rest, basis) in enumerate(zip(nodes, residuals, bases, strict=True)):
            new = node[best]
            for _ in range(2):  # once more, against rounding
                new = new - (basis @ (basis.mT @ new[..., None]))[..., 0]
            new = _unit(new) * active[:, None, None]
            residuals[i] = rest - (rest * new).sum(2, keepdim=True) * new
            bases[i] = torch.cat([basis, new[..., None]], 3)
            rooms[i] -= _inner(new, node).square()
    return chosen


def _inner(vectors: Tensor, nodes: Tensor) -> Tensor:
    """Products of each vector with each node, by head ``(vector, node, head)``."""
    products: Tensor = (vectors.transpose(0, 1) @ nodes.permute(1, 2, 0)).permute(1, 2, 0)
    return products


def _unit(vectors: Tensor) -> Tensor:
    unit: Tensor = vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    return unit


def _agreed(picks: dict[int, set[int]], ids: Sequence[int]) -> list[WordCluster]:
    """For each word those that most of its choices chose, the most coherent first."""
    clusters = []
    choices = {word: chosen & picks.keys() for word, chosen in picks.items()}
    for word, chosen in choices.items():
        members = chosen | {word}
        votes = Counter(voter for member in members for voter in choices[member])
        bag = {voter for voter, n in votes.items() if n >= _AGREEMENT * len(members)} | {word}
        pure = [
            voter for voter in bag if len(choices[voter] & bag) >= _PURITY * len(choices[voter])
        ]
        cluster = WordCluster(
            ids[word],
            frozenset(ids[voter] for voter in bag),
            tuple(ids[voter] for voter in pure or bag),
        )
        clusters.append(
            (sum(word in choices[member] for member in members) / len(members), cluster)
        )
    return [cluster for _, cluster in sorted(clusters, key=lambda pair: -pair[0])]
