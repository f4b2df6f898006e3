"""Candidate tokens for each position, by their angle to the span of the first layer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.base import Job
from attacks.tokens.first_layers import FirstLayers
from attacks.tokens.subspace import Subspace
from attacks.tokens.summed_inputs import nearest_words
from fedsim.tasks.text import TextTask

_ANYWHERE_TOKENS = 1024  # tokens that stay after the one test for all positions together
_TOKENS_BEYOND_RANK = 32  # tokens measured at each position in excess of the rank

_CHUNK = 1024  # tokens in one forward pass
GAP = 4.0
"""Least ratio of the smallest rejected to the largest accepted sine."""
_TOKEN_SINE = 0.1
"""Largest sine of an accepted token."""
END_SINE = 0.03
"""A position whose every sine is larger lies behind all sentences."""
_END_RATIO = 10
"""The same, as a multiple of the worst position before."""
_LOWEST_LIMIT = 0.003
"""Smallest sine at which a token may be cut off in its sentence."""
_HIGHEST_LIMIT = 0.1
"""Largest sine at which a token may be cut off in its sentence."""


@dataclass(frozen=True)
class Candidates:
    """Token ids by position, nearest first.

    Attributes:
        tokens: for each position int64 ``(token,)``.
        accepted: largest sine of an accepted token.
        rejected: smallest sine of a rejected token.
        clear: whether a gap separates the two; otherwise the tokens are only ranked.
        everywhere: whether they are the same at all positions.
        begin: place of the first position, behind padding on the left.
        public: whether the first token is known, and was not tested.
    """

    tokens: list[Tensor]
    accepted: float
    rejected: float
    clear: bool
    everywhere: bool = False
    begin: int = 0
    public: bool = False

    @property
    def note(self) -> str:
        """What a guess made of them has to say; empty where they are clear."""
        return "" if self.clear else "the nearest words, as no gap sets those of the batch apart"

    @property
    def lowest(self) -> bool:
        """Whether the limit is the lowest one, and tokens may be told apart below it."""
        return self.limit == _LOWEST_LIMIT

    @property
    def limit(self) -> float:
        """Largest sine, behind the attention, of a token within its own sentence."""
        between = float(self.accepted**0.25 * self.rejected**0.75)
        if self.everywhere:  # no word of the batch was rejected for its place
            between = GAP * self.accepted
        return min(max(between, _LOWEST_LIMIT), _HIGHEST_LIMIT)


def start_of(task: TextTask) -> int | None:
    """The token that starts every text, if there is one: it is public, and may leave no trace.

    In a causal model it attends to nothing but itself, and its query has no gradient.
    """
    first = task.tokens(["a"])[0][0]
    return first if first in task.spec.special_ids else None


def candidates(
    layers: FirstLayers,
    subspace: Subspace,
    vocabulary: Tensor,
    places: range,
    start: int | None,
    job: Job,
) -> Candidates:
    """Rank the vocabulary at each position, and cut all positions at one common gap.

    In float32 rounding causes sines of 1e-6; the gap lies a hundred times above.

    Args:
        layers: the network, in float32.
        subspace: the span of its first layer's inputs.
        vocabulary: token ids to try.
        places: where tokens may stand; the sweep ends at the first that no token fits behind one
            that some do.
        start: the token at the first one, which is not tested; None if it is not known.
        job: ends the sweep when its time is up.
    """
    positions, places = len(places), places[start is not None :]
    places = places[:1] if layers.everywhere else places
    count = subspace.rank + _TOKENS_BEYOND_RANK
    ids: list[Tensor] = []
    sines: list[Tensor] = []
    begin, worst = places.start, 0.0
    for place, (near, exact) in enumerate(
        _measured(layers, subspace, vocabulary, places, count), places.start
    ):
        if ids and job.expired:
            break
        order = exact.argsort()
        nearest = float(exact[order[0]])
        if start is None and nearest <= END_SINE < worst:
            begin, worst, ids, sines = place, 0.0, [], []  # what stood before is padding
        if ids and nearest > max(END_SINE, _END_RATIO * worst):
            break
        worst = max(worst, nearest)
        ids.append(near[order])
        sines.append(exact[order])
    first = [] if start is None else [vocabulary.new_tensor([start])]
    if not layers.everywhere:
        cut = _cut(ids, sines)
        begin -= len(first)
        tokens = [*first, *cut.tokens]
        return replace(cut, tokens=tokens, begin=begin, public=start is not None)
    cut = _cut(ids, sines, sines[0].new_ones(1))  # the bag may hold no token to reject
    (words,) = cut.tokens
    # A text of nothing but its start is in the span where a token's place does not show.
    later = [words if start is None else words[words != start]] * (positions - len(first))
    tokens = [*first, *later]
    return replace(cut, tokens=tokens, everywhere=True, public=start is not None)


def joined(parts: Sequence[Candidates]) -> Candidates:
    """Those of several types of tokens, at each place the tokens of all that reach it.

    A type that no gap sets apart at its places leaves all without one.
    """
    begin = min(part.begin for part in parts)
    end = max(part.begin + len(part.tokens) for part in parts)
    tokens = [
        torch.cat(
            [
                part.tokens[place - part.begin]
                for part in parts
                if 0 <= place - part.begin < len(part.tokens)
            ]
            or [parts[0].tokens[0][:0]]
        ).unique()
        for place in range(begin, end)
    ]
    return replace(
        parts[0],
        tokens=tokens,
        accepted=max(part.accepted for part in parts),
        rejected=min(part.rejected for part in parts),
        clear=all(part.clear for part in parts) and all(map(len, tokens)),
        begin=begin,
    )


def _measured(
    layers: FirstLayers, subspace: Subspace, vocabulary: Tensor, places: range, count: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The ``count`` tokens at each place that are nearest to the span, and their sines."""
    near = None
    if not layers.everywhere:
        near = nearest_words(layers, subspace, vocabulary, places.stop, count)
        if near is None:
            vocabulary = _anywhere(layers, subspace, vocabulary, places.stop)
    size = 1 if near is None else max(1, _CHUNK // count)
    for first in places[::size]:
        some = range(first, min(first + size, places.stop))
        if near is None:
            tried = [_nearest(layers, subspace, vocabulary, first, count)]
        else:
            tried = list(near[some.start : some.stop])
        at = torch.tensor(some, device=vocabulary.device).repeat_interleave(len(tried[0]))
        sines = subspace.distance(layers.of_tokens(torch.cat(tried), at))
        yield from zip(tried, sines.split(len(tried[0])), strict=True)


def _anywhere(
    layers: FirstLayers, subspace: Subspace, vocabulary: Tensor, positions: int
) -> Tensor:
    """The tokens that fit at some position, by one sweep instead of one for each position.

    Moving a token from one position to another changes the normalised sum of its embeddings by a
    combination of the inputs of two other words at both positions. Once those inputs are added to
    the span, a token of the batch lies in it at any position. The test is skipped if the added
    inputs would fill the width.
    """
    crowded = subspace.rank + 2 * positions > subspace.width // 2
    if crowded or len(vocabulary) <= _ANYWHERE_TOKENS:
        return vocabulary
    words = vocabulary[[0, len(vocabulary) // 2]]
    shown = torch.cat([layers.of_tokens(words, p) for p in range(positions)])
    wider = subspace.widened(shown)
    return _nearest(layers, wider, vocabulary, 0, _ANYWHERE_TOKENS)


def _nearest(
    layers: FirstLayers, subspace: Subspace, vocabulary: Tensor, position: int, count: int
) -> Tensor:
    """The ``count`` token ids whose inputs are nearest to the span."""
    parts = vocabulary.split(_CHUNK)
    sines = [subspace.rough_distance(layers.of_tokens(part, position)) for part in parts]
    size = min(len(vocabulary), count)
    return vocabulary[torch.cat(sines).topk(size, largest=False).indices]


def _cut(ids: list[Tensor], sines: list[Tensor], *false: Tensor) -> Candidates:
    """Accept the tokens below the highest gap: a superfluous one is better than a missing one.

    ``false`` are sines to reject.
    """
    pooled = torch.cat([*sines, *false]).sort().values.clamp(min=1e-9)
    accepted, rejected = pooled[:-1], pooled[1:]
    is_gap = (rejected >= GAP * accepted) & (accepted <= _TOKEN_SINE)
    gaps = torch.nonzero(is_gap)[:, 0]
    least = max(float(sine[0]) for sine in sines)  # each position has a token
    fitting = gaps[pooled[gaps] >= least].tolist()
    if not fitting:
        return Candidates(ids, 1.0, 1.0, False)
    largest, smallest = pooled[fitting[-1] : fitting[-1] + 2].tolist()
    accepted_ids = [part[sine <= largest] for part, sine in zip(ids, sines, strict=True)]
    return Candidates(accepted_ids, largest, smallest, True)
