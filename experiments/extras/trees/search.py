"""The leaf of each row in each tree, from the sums of the leaves.

Rows that nothing tells apart yet are one kind: a label, a box of values, and the prediction that
follows from both. Before the first tree there is a kind for each label. A tree sends the rows of
each kind to its leaves, in numbers whose sums of gradients and hessians are those of the leaves:
subset sums, which are met in the middle (Horowitz and Sahni 1974) leaf by leaf. Float32 holds more
of a sum than there are ways to reach it by some tens of rows, so that few answers fit, and later
trees leave one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from experiments.extras.trees.clients import Victim
from experiments.extras.trees.forest import Array, Cells
from experiments.extras.trees.sums import Facts, Leaves, leaves_of

_HALF = 1 << 21
"""Sums of one half of a leaf's kinds; memory grows with it, and what can be solved with its log."""
_MATCHES = 1 << 14
"""Subsets of one leaf that are tried."""
_MIX = 0.6180339887
"""Share of the hessian in the key by which the halves of a sum are matched."""


class _TooManyError(Exception):
    """A leaf has more subsets than can be searched."""


@dataclass(frozen=True, eq=False)
class Kinds:
    """Rows that nothing tells apart are one kind.

    Attributes:
        low: first bin of each feature, ``(kind, feature)``; bins as in ``Cells``.
        high: last bin.
        label: ``(kind,)``.
        margin: prediction before the link function.
        count: rows of the kind.
    """

    low: Array
    high: Array
    label: Array
    margin: Array
    count: Array

    def at(self, leaves: Leaves, kind: Array, leaf: Array, count: Array) -> Kinds:
        """Those rows of kinds that fell into leaves; each argument ``(part,)``."""
        low = np.maximum(self.low[kind], leaves.low[leaf])
        high = np.minimum(self.high[kind], leaves.high[leaf])
        return Kinds(low, high, self.label[kind], self.margin[kind], count)

    def meet(self, leaves: Leaves) -> Array:
        """Whether a box meets a leaf, ``(kind, leaf)``."""
        above = self.high[:, None] >= leaves.low
        return np.asarray((above & (self.low[:, None] <= leaves.high)).all(2))

    @property
    def key(self) -> bytes:
        """Equal for equal tables, in whatever order."""
        table = np.column_stack([self.low, self.high, self.label, self.count])
        return np.ascontiguousarray(table[np.lexsort(table.T)]).tobytes()


@dataclass(frozen=True, eq=False)
class Guess:
    """Rows in any order.

    Attributes:
        low: first bin of each feature that a row's leaves allow, ``(row, feature)``.
        high: last bin.
        labels: ``(row,)``.
        trees: of the client, whose sums these rows have.
        proven: whether no other rows have these sums, by an exhaustive search.
        seconds: of CPU.
    """

    low: Array
    high: Array
    labels: Array
    trees: int
    proven: bool
    seconds: float


def search(victim: Victim, facts: Facts, seconds: float) -> Guess:
    """Follow answers tree by tree, depth first, until all are tried or the CPU time is over.

    A second answer that has the sums of all trees ends the search, too.
    """
    start = time.process_time()
    cells, before = victim.cells(), np.diff(victim.before, axis=0, prepend=0)
    pairs = list(zip(victim.grown, before, strict=True))

    @cache
    def step(depth: int) -> _Step:
        grown, added = pairs[depth]
        return _Step(victim, facts, cells, int(grown), added, start + seconds)

    kinds = _start(facts, cells, victim.head.is_logistic)
    reached = [{kinds.key: kinds}, *({} for _ in pairs)]
    stack, looked_through = [step(0).answers(kinds)], len(pairs)
    while stack and len(reached[-1]) < 2:
        depth = len(stack)
        try:
            kinds = next(stack[-1])
        except StopIteration:
            stack.pop()
            continue
        except _TooManyError:
            looked_through = min(looked_through, depth - 1)
            stack.pop()
            continue
        if kinds.key not in reached[depth]:
            reached[depth][kinds.key] = kinds
            if depth < len(pairs):
                stack.append(step(depth).answers(kinds))
    trees = max(depth for depth, tables in enumerate(reached) if tables)
    best, spent = next(iter(reached[trees].values())), time.process_time() - start
    row = np.repeat(np.arange(len(best.count)), best.count)
    proven = 0 < trees <= looked_through and len(reached[trees]) == 1
    return Guess(best.low[row], best.high[row], best.label[row], trees, proven, spent)


def _start(facts: Facts, cells: Cells, is_logistic: bool) -> Kinds:
    last = np.array([len(cuts) for cuts in cells.thresholds])
    base, rows = facts.base_score, facts.rows or 1
    counted = len(facts.leaf_positive) > 0  # else the share that XGBoost takes as its base score
    positive = int(facts.leaf_positive.sum()) if counted else round(base * rows)
    margin = float(np.log(base / (1 - base))) if is_logistic else base
    label = np.array([0.0, 1.0] if is_logistic else [base])
    count = np.array([rows - positive, positive] if is_logistic else [rows])
    ends = np.zeros((len(label), len(last)), np.int64)
    return Kinds(ends, ends + last, label, np.full(len(label), margin), count)


class _Step:
    """One tree of the client, and those that were added before it."""

    def __init__(
        self,
        victim: Victim,
        facts: Facts,
        cells: Cells,
        grown: int,
        added: Array,
        deadline: float,
    ) -> None:
        rates, self.is_logistic = (facts.eta, facts.penalty), victim.head.is_logistic
        self.grown = leaves_of(cells, victim, grown, rates, facts.rows or 1)
        self.deadline = deadline
        self.added = [
            (added[tree], leaves_of(cells, victim, int(tree), rates, facts.rows or 1))
            for tree in np.flatnonzero(added)
        ]

    def answers(self, kinds: Kinds) -> Iterator[Kinds]:
        """Kinds after the tree, one table for each way in which the sums can come about.

        Raises:
            _TooManyError: there are too many, or too many to look through.
        """
        kinds = self._predicted(kinds)
        if self.is_logistic:
            chance = 1 / (1 + np.exp(-kinds.margin))
            gradient, hessian = chance - kinds.label, chance * (1 - chance)
        else:
            gradient, hessian = kinds.margin - kinds.label, np.ones(len(kinds.count))
        sums = _Sums(gradient, hessian, kinds.meet(self.grown), self.grown, self.deadline)
        for counts in sums.solved(kinds.count):
            kind, leaf = np.nonzero(counts)
            yield kinds.at(self.grown, kind, leaf, counts[kind, leaf])

    def _predicted(self, kinds: Kinds) -> Kinds:
        """Kinds with their predictions by the trees that were added.

        A row's leaf in a tree of its own client is known, in one of another client not always.
        """
        margin = kinds.margin
        for times, leaves in self.added:
            meets = kinds.meet(leaves)
            if (meets.sum(1) > 1).any():
                raise _TooManyError
            margin = margin + times * (meets @ leaves.value)
        return replace(kinds, margin=margin)


@dataclass(frozen=True, eq=False)
class _Sums:
    """The numbers of rows of each kind in each leaf.

    Attributes:
        gradient: of one row of a kind, ``(kind,)``.
        hessian: as well.
        meets: whether a kind's rows may be in a leaf, ``(kind, leaf)``.
        leaves: whose sums are to come about.
        deadline: CPU time of the process at which the search ends.
    """

    gradient: Array
    hessian: Array
    meets: Array
    leaves: Leaves
    deadline: float

    def solved(self, count: Array) -> Iterator[Array]:
        """Tables ``(kind, leaf)`` whose sums are those of the leaves.

        Args:
            count: rows of each kind.
        """
        leaves, stack = range(len(self.leaves.value)), [iter([(count, dict[int, Array]())])]
        while stack:
            state = next(stack[-1], None)
            if state is None:
                stack.pop()
                continue
            remaining, filled = state
            if open_ := [leaf for leaf in leaves if leaf not in filled]:
                stack.append(self._branches(remaining, filled, open_))
            elif not remaining.any():
                yield np.stack([filled[leaf] for leaf in leaves], 1)

    def _branches(
        self, count: Array, filled: dict[int, Array], open_: list[int]
    ) -> Iterator[tuple[Array, dict[int, Array]]]:
        """Rows that are in no leaf yet, and those of each filled leaf, after one more."""
        if time.process_time() > self.deadline:
            raise _TooManyError
        leaf, subsets = self._easiest(count, open_)
        for counts in subsets:
            yield count - counts, {**filled, leaf: counts}

    def _easiest(self, count: Array, open_: list[int]) -> tuple[int, Array]:
        """The open leaf with the fewest ways, of those that can be searched, and its subsets."""
        meets = self.meets[:, open_]
        others = meets.sum(1)[:, None] - meets
        bits = np.log2(count + 1) @ (meets & (others > 0))
        for at in np.argsort(bits):
            least = np.where(others[:, at] > 0, 0, count)  # no other leaf can hold these
            most = np.where(meets[:, at], count, 0)
            if (least > most).any():
                return open_[at], count[:0, None]
            try:
                return open_[at], self._subsets(least, most, open_[at])
            except _TooManyError:
                continue
        raise _TooManyError

    def _subsets(self, least: Array, most: Array, leaf: int) -> Array:
        """Numbers of rows of each kind whose sums are the leaf's, ``(subset, kind)``."""
        kinds = np.flatnonzero(most)
        kinds = kinds[np.argsort(least[kinds] - most[kinds], kind="stable")]
        halves = kinds[::2], kinds[1::2]
        left, right = (self._partial(half, least, most, leaf) for half in halves)
        pairs = _matched(left, right, self.leaves, leaf)
        counts = np.zeros((len(pairs[0]), len(most)), np.int64)
        for half, code in zip(halves, pairs, strict=True):
            for kind in half:
                code, rows = np.divmod(code, most[kind] - least[kind] + 1)
                counts[:, kind] = least[kind] + rows
        return counts

    def _partial(
        self, kinds: Array, least: Array, most: Array, leaf: int
    ) -> tuple[Array, Array, Array]:
        """Every sum ``g + w h``, sum of hessians and code of a half's ways."""
        weighted, hessian, code, base = np.zeros(1), np.zeros(1), np.zeros(1, np.int64), 1
        limit = self.leaves.hessian[leaf] + self.leaves.hessian_slack[leaf]
        for kind in kinds:
            rows = np.arange(least[kind], most[kind] + 1)
            h = rows * self.hessian[kind]
            g = rows * self.gradient[kind] + self.leaves.weight[leaf] * h
            if len(code) * len(rows) > 4 * _HALF or base * len(rows) > 1 << 62:
                raise _TooManyError
            code = (code[:, None] + base * np.arange(len(rows))).ravel()
            weighted = (weighted[:, None] + g).ravel()
            hessian = (hessian[:, None] + h).ravel()
            kept, base = ~(hessian > limit), base * len(rows)
            code, weighted, hessian = code[kept], weighted[kept], hessian[kept]
        return weighted, hessian, code


def _matched(
    a: tuple[Array, Array, Array], b: tuple[Array, Array, Array], leaves: Leaves, leaf: int
) -> tuple[Array, Array]:
    """Codes of the halves that together have the sums of a leaf."""
    goals = leaves.weighted[leaf], leaves.hessian[leaf]
    slacks = leaves.weighted_slack[leaf], leaves.hessian_slack[leaf]
    known = [at for at in (0, 1) if np.isfinite(slacks[at])]
    mix = dict(zip(known, (1, _MIX), strict=False))
    key = np.sum([mix[at] * a[at] for at in known], 0)
    goal = np.sum([mix[at] * (goals[at] - b[at]) for at in known], 0)
    width = sum(mix[at] * slacks[at] for at in known)
    order = np.argsort(key)
    first = np.searchsorted(key[order], goal - width)
    size = np.searchsorted(key[order], goal + width) - first
    if size.sum() > 16 * _HALF:
        raise _TooManyError
    right = np.repeat(np.arange(len(size)), size)
    left = order[np.arange(len(right)) - np.repeat(np.cumsum(size) - size, size) + first[right]]
    apart = [np.abs(a[at][left] + b[at][right] - goals[at]) < slacks[at] for at in known]
    fits = np.logical_and.reduce(apart)
    if fits.sum() > _MATCHES:
        raise _TooManyError
    return a[2][left[fits]], b[2][right[fits]]
