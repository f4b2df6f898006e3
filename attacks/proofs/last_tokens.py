"""What each token of a causal model predicts, how much the loss heeds it, and the last of all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attacks.observed.calls import noted
from attacks.proofs.certificate import MatchedBatch, Prover
from attacks.tokens.layout import Layout
from fedsim.tasks.text import TextTask

Line = tuple[int, ...]


def ended(
    prover: Prover, layouts: Iterable[Layout], lines: Sequence[Line]
) -> tuple[Prover, MatchedBatch]:
    """The lines with the token behind each: the end token, if that explains the update.

    Otherwise each line ends with the predicted token whose gradient is nearest to the update, and
    tokens have the weights that the update shows, see ``attacks.proofs.last_tokens``. With
    the prover of the layout that explains it, else of the first.

    Args:
        prover: of a language model.
        layouts: that are tried until one explains it; at least one.
        lines: all tokens of each sentence of the batch but the last one.
    """
    task = prover.task
    assert isinstance(task, TextTask)
    end = task.tokenizer.eos_token_id
    closed = [line if end is None else (*line, int(end)) for line in lines]
    nearest: list[tuple[Prover, MatchedBatch]] = []
    for layout in layouts:
        laid = replace(prover, layout=layout)
        usual = list(lines) if layout.trailing else closed
        nearest.append((laid, laid.compare(usual, [-1] * len(usual))))
        if nearest[-1][1].proof.holds:
            return nearest[-1]
    for row, (laid, _) in enumerate([*nearest]):
        read = None if laid.layout.trailing else predictions(laid, lines)
        if read is None:
            continue
        smoothed = replace(laid, smoothing=read.smoothing)
        for match in _tried(smoothed, read.or_ended_by(end)):
            if match.proof.holds or match.proof.error < nearest[row][1].proof.error:
                nearest[row] = (smoothed, match)
            if match.proof.holds:
                return nearest[row]
    return nearest[0]


def _tried(prover: Prover, read: Predictions) -> Iterator[MatchedBatch]:
    """The lines under the weights that were read, and under equal ones."""
    if not read.uniform and (trimmed := _trimmed(prover, read)) is not None:
        yield _chosen(prover, *trimmed)
    yield _chosen(prover, read.lines, read.likely)


def _trimmed(
    prover: Prover, read: Predictions
) -> tuple[list[Line], list[Sequence[int]], Tensor] | None:
    """Lines up to the last token with a label, what may end each, and the weights of all tokens.

    What follows that token leaves no trace. Where the padding on the right has labels, a text ends
    where it begins. None where a line has no label at all.
    """
    if not bool((read.weights > 0).any(1).all()):
        return None
    lines, likely = list[Line](), list[Sequence[int]]()
    for line, ends, row, mask in zip(read.lines, read.likely, read.weights, read.mask, strict=True):
        heeded, last = row.nonzero()[:, 0].tolist(), int(mask.nonzero()[-1])
        size = len(line) + min(0, heeded[-1] - last)  # columns behind the last label
        lines.append(line[:size])
        if heeded[-1] > last:
            likely.append([])
        else:
            likely.append(ends if size == len(line) else line[size : size + 1])
    return lines, likely, nn.functional.pad(read.weights, (1, 0))


def _chosen(
    prover: Prover,
    lines: Sequence[Line],
    likely: Sequence[Sequence[int]],
    weights: Tensor | None = None,
) -> MatchedBatch:
    """The lines with the tokens behind them that fit best, one line after the other."""

    def compared(tried: list[Line]) -> MatchedBatch:
        return prover.compare(tried, [-1] * len(tried) if weights is None else weights)

    best = compared([(*line, *ends[-1:]) for line, ends in zip(lines, likely, strict=True)])
    if not best.proof.holds:
        first = compared([(*line, *ends[:1]) for line, ends in zip(lines, likely, strict=True)])
        best = min(first, best, key=lambda match: match.proof.error)
    improved = True
    while improved:  # a token chosen beside wrong ones behind other lines may be wrong
        improved = False
        for row, (line, ends) in enumerate(zip(lines, likely, strict=True)):
            for token in ends:
                if best.proof.holds:
                    return best
                new = compared([*best.lines[:row], (*line, token), *best.lines[row + 1 :]])
                if new.proof.error < best.proof.error or new.proof.holds:
                    best, improved = new, True
    return best


_LIKELY = 3
"""Predicted tokens tried among those of the batch, and among all others."""
_HIDDEN = 0.02
"""Weight, as a share of the largest, below which a label counts as hidden."""
_LEVEL = 0.05
"""Spread, as a share of the median, within which weights count as equal."""

_EQUAL = 1e-6
"""Distance, as a share of the longest, below which states are those of equal beginnings."""
_SMOOTHED = 0.25
"""Share of the plain fit's squared error that smoothing has to leave to be believed."""


@dataclass(frozen=True)
class Predictions:
    """What the gradient says of the tokens that a batch of lines predicts.

    Attributes:
        lines: without the last token, which predicts nothing.
        mask: 1 for their tokens and 0 for padding, ``(line, token)``.
        weights: of the prediction behind each place of the batch, ``(line, token)``.
        smoothing: share of each label that is spread over all tokens.
        likely: tokens that may stand behind each line, the likeliest first.
    """

    lines: tuple[Line, ...]
    mask: Tensor
    weights: Tensor
    smoothing: float
    likely: tuple[tuple[int, ...], ...]

    @property
    def uniform(self) -> bool:
        """Whether all tokens have the same weight, padding none, and labels are not smoothed."""
        return not self.smoothing and torch.equal(
            self.weights, self.mask.to(self.weights) * self.weights.max()
        )

    def or_ended_by(self, token: int | None) -> Predictions:
        """With a further token that may stand behind each line, if it is not None."""
        last = () if token is None else (int(token),)
        likely = tuple((*(end for end in ends if end not in last), *last) for ends in self.likely)
        return replace(self, likely=likely)


def predictions(prover: Prover, lines: Sequence[Line]) -> Predictions | None:
    """Read the predictions of lines; None if the head's gradient does not tell.

    That gradient is ``sum_t c_t h_t^T`` over the places ``t`` of the batch, with hidden states
    ``h_t``, which the lines determine, and ``c_t = w_t (p_t - one_hot_t)``, where ``w_t`` is the
    weight of a prediction, 0 if its label is hidden. Least squares yields each ``c_t``, whose most
    negative entry is the token that ``t`` predicts. A tied head holds the rows of the input words
    as well, hence these are ranked apart, and the weight is read off the others. Smoothed labels
    take the same constant off all entries.
    """
    network, observation = prover.network, prover.observation
    head = network.get_output_embeddings()  # type: ignore[operator]
    named = network.named_parameters()
    name = next((name for name, value in named if head is not None and value is head.weight), None)
    if name not in observation.received or not lines:
        return None
    batch, width = prover.batch(lines, []), head.weight.shape[1]
    assert batch.mask is not None
    with torch.no_grad(), prover.layout.applied(network), noted({"head": head}) as calls:
        prover.task.loss(network, batch)
    places = torch.ones_like(batch.mask) if batch.mask.numel() <= width else batch.mask
    places = places.flatten() == 1
    if places.sum() > width:
        return None
    states, logits = (value.flatten(0, 1).double() for value in (calls[-1].input, calls[-1].output))
    update = observation.update((name,))[name].to(states)
    slopes = (update @ torch.linalg.pinv(states[places])).T
    inputs = batch.inputs.unique()
    usable = torch.ones_like(slopes, dtype=torch.bool)
    usable[:, inputs] = False
    usable[:, prover.task.spec.pad_id or 0] = False  # often the end token, which is likely
    usable.scatter_(1, slopes.where(usable, torch.inf).argmin(1, keepdim=True), False)
    chances = logits[places].softmax(1)
    fitted, smoothing = _fitted(slopes * usable, chances * usable, usable)
    weights = fitted.new_zeros(len(places)).masked_scatter(places, fitted).view(batch.mask.shape)
    shared = _shared(states.view(*batch.mask.shape, width))
    slopes = slopes[places.cumsum(0).view(batch.mask.shape)[_last(batch.mask)] - 1]
    inside = inputs[slopes[:, inputs].argsort(1)[:, :_LIKELY]]
    slopes[:, inputs] = torch.inf
    outside = slopes.topk(_LIKELY, largest=False).indices
    likely = torch.cat([outside, inside], 1).tolist()
    return Predictions(
        tuple(lines),
        batch.mask,
        levelled(weights, batch.mask, shared),
        smoothing,
        tuple(map(tuple, likely)),
    )


def _fitted(slopes: Tensor, chances: Tensor, usable: Tensor) -> tuple[Tensor, float]:
    """Weights ``(place,)`` of ``slopes = weight * (chances - smoothing / tokens)``, and smoothing.

    All but the last ``(place, token)``, and 0 where an entry is not ``usable``.
    """
    plain = _ratio(slopes, chances)
    count = usable.sum(1, keepdim=True).clamp(min=1)
    middle = chances.sum(1, keepdim=True) / count
    inner = (chances - middle) * usable
    weights = _ratio(slopes, inner)
    constant = (slopes - weights[:, None] * chances).sum(1, keepdim=True) / count
    residual = (slopes - weights[:, None] * chances - constant * usable).square().sum()
    if residual > _SMOOTHED * (slopes - plain[:, None] * chances).square().sum():
        return plain, 0.0
    heavy = weights > _HIDDEN * weights.max()
    shares = -constant[heavy, 0] * slopes.shape[1] / weights[heavy]
    smoothing = float(shares.median()) if len(shares) else 0.0
    return (weights, smoothing) if 0 < smoothing < 1 else (plain, 0.0)


def _ratio(slopes: Tensor, chances: Tensor) -> Tensor:
    ratio: Tensor = (slopes * chances).sum(1) / chances.square().sum(1).clamp(min=1e-30)
    return ratio


def levelled(weights: Tensor, mask: Tensor, shared: Tensor) -> Tensor:
    """Weights ``(line, token)`` without rounding: equal in all lines, or in each, where they are.

    Padding has the weight of the line before it, or none, as the states of pads are alike. So has
    a place whose state another line shares, as both begin alike: only the sum of theirs is known.
    The largest weight of a token is 1 or near it.
    """
    real = mask == 1
    alone = real & ~shared
    weights = weights / weights[alone].max().clamp(min=1e-30)
    seen = weights.where(alone & (weights > _HIDDEN), 0)
    levels: list[float] = []
    if common := _level(seen[seen > 0]):
        weights, levels = weights / common, [1.0] * len(seen)
    else:
        levels = [share for row in seen if (share := _level(row[row > 0])) is not None]
    if len(levels) < len(seen):
        return weights.where(real & (weights > _HIDDEN), 0)
    level = weights.new_tensor(levels)[:, None]
    heeded = (weights - level).abs() <= _LEVEL * level
    return level.where(heeded | (real & shared & (weights > _HIDDEN)), 0)


def _level(weights: Tensor) -> float | None:
    """The common value of weights, 0 if there are none; None if they differ."""
    if not len(weights):
        return 0.0
    middle = float(weights.median())
    return middle if float((weights - middle).abs().max()) <= _LEVEL * middle else None


def _shared(states: Tensor) -> Tensor:
    """Places ``(line, token)`` whose state is that of another line; none if a line is another's."""
    flat = states.flatten(0, 1)
    alike = torch.cdist(flat, flat) <= _EQUAL * flat.norm(dim=1).max()
    shared = (alike.sum(1) > 1).view(states.shape[:2])
    return torch.zeros_like(shared) if bool(shared.all(1).any()) else shared


def _last(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Row and place of the last token of each text."""
    places = torch.arange(mask.shape[1], device=mask.device)
    return torch.arange(len(mask), device=mask.device), (mask * places).argmax(1)
