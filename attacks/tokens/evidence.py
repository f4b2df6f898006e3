"""The likelihood of a token's input to a layer, from the noisy gradient of its weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.observed.readings import Reading, read
from attacks.observed.spectrum import Spectrum, completed, spectrum
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.first_layers import Layer
from fedsim.models.adapters import is_adapter, second_factor

_LEAST_SPREAD = 0.1  # smallest spread of a statistic of false tokens
_LEAST_TRUE_SPREAD = 0.15  # smallest spread of a statistic of true tokens
_MODEL_ERROR = 0.002
"""Share of an input's square that may lie outside the span for other reasons than white noise:
imputation, dropout, steps at other weights."""
_MILD_SHIFT = 2.0  # slope of the likelihood of a layer that does not tell, a spread of the absent
_OUTLIER_SHARE = 0.05  # share of true tokens with a wider spread
_OUTLIER_SPREAD = 3.0  # that spread, as a multiple
_LAYER_TRUST = 0.5  # weight of one layer's log-likelihood ratio, as layers err together
_LEAST_RATIO = -8.0  # most that one layer can say against a token
_LARGEST_RATIO = 6.0  # most that one layer can say for a token
_SEPARATION = 0.4
"""Distance of false from true tokens, in logs, from which a layer tells."""
LEAST_NOISE = 1e-4
"""Least variance of noise, as a share of the mean square of a gradient."""
FEWEST_DIRECTIONS = 3
"""Spikes below which a layer says nothing."""


@dataclass(frozen=True)
class Normal:
    """A normal distribution."""

    mean: float
    width: float

    def log(self, value: Tensor, share: float, wider: float = 1.0) -> Tensor:
        """Log-density ``share`` times that of the distribution, ``wider`` times as wide."""
        width = self.width * wider
        return math.log(share / width) - ((value - self.mean) / width).square() / 2

    @classmethod
    def around(cls, values: Tensor) -> Normal:
        """Median and half the distance between two quantiles, at least ``_LEAST_SPREAD``."""
        middle, *ends = values.quantile(values.new_tensor([0.5, 0.16, 0.84])).tolist()
        return cls(middle, max(_LEAST_SPREAD, (ends[1] - ends[0]) / 2))


@dataclass
class Evidence:
    """Tells a token of the batch from others by its input ``x`` to one layer.

    The gradient ``G = X^T D`` arrives as ``Y = G + sigma Z``. If ``x`` is a row of ``X``, there is
    a ``w`` with ``G w = x``, and the residual of ``x`` outside the estimated span is noise of
    variance ``sigma^2 |w|^2`` in each other dimension, with ``|w|^2 = x^T (G G^T)^+ x``.
    The statistic is the log of the residual over what this predicts, so that a token whose gradient
    is weak may lie further off. Entries that were imputed, dropout and several local steps make it
    larger for all tokens alike, hence its distribution is fitted to the update itself, for tokens
    of the batch at their own place, at another place, and absent ones.

    Attributes:
        layer: the modules whose input it is.
        seen: the span and its noise.
        true: the statistic of tokens of the batch.
        moved: that of tokens of the batch at another place.
        absent: that of other tokens.
    """

    layer: Layer
    seen: Spectrum
    true: Normal = Normal(0.0, 0.3)
    moved: Normal = Normal(2.0, 1.0)
    absent: Normal = Normal(4.0, 1.0)

    def __post_init__(self) -> None:
        """Weights of the squared coordinates in the predicted residual."""
        seen = self.seen
        self._basis = seen.basis.float()
        weights = (seen.width - seen.rank) * seen.noise**2 / (seen.cosines * seen.strengths)
        self._weights = weights.float()

    @property
    def tells(self) -> bool:
        """Whether true tokens are far enough from others for a likelihood ratio."""
        return self.moved.mean - self.true.mean > _SEPARATION and math.isfinite(self.true.mean)

    @property
    def full(self) -> bool:
        """Whether the directions leave no bulk to measure the noise on, as none has room.

        The median of the spectrum is then a direction itself, so that a span of nearly all
        dimensions is cut to half of them, and words of no batch lie as near as its own.
        """
        return 2 * (self.seen.rank + 1) >= self.seen.width

    @property
    def exact(self) -> bool:
        """Whether there is no noise to speak of, so that a true token lies in the span."""
        return self.seen.noise**2 < LEAST_NOISE * float(self.seen.matrix.square().mean())

    def statistic(self, inputs: Tensor) -> Tensor:
        """The log of residual over prediction ``(...)`` of inputs ``(..., width)``."""
        inside = (inputs @ self._basis.to(inputs)).square()
        total = inputs.square().sum(-1)
        residual = (total - inside.sum(-1)).clamp(min=1e-6 * total)
        predicted = inside @ self._weights.to(inputs) + _MODEL_ERROR * total
        return (residual / predicted.clamp(min=1e-30)).log()

    def gram(self) -> Tensor:
        """``Y Y^T``, ``(width, width)``."""
        return self.seen.matrix @ self.seen.matrix.T

    def ratio(self, statistic: Tensor) -> Tensor:
        """Log-likelihood ratio of a token at its place against any other, clamped."""
        if not self.tells:
            # A shift by two spreads of the absent: a mild preference for the nearest.
            score = (self.absent.mean - statistic) / self.absent.width
            return _MILD_SHIFT * score.clamp(-2, 8)
        share = _OUTLIER_SHARE
        # A residual below the prediction speaks less against a token than one above.
        shown = torch.where(statistic < self.true.mean, (statistic + self.true.mean) / 2, statistic)
        true = torch.logaddexp(
            self.true.log(shown, 1 - share), self.true.log(shown, share, _OUTLIER_SPREAD)
        )
        others = [
            self.absent.log(statistic, 0.45),
            self.moved.log(statistic, 0.45),
            torch.full_like(statistic, math.log(0.1 * math.sqrt(2 * math.pi) / 8)),
        ]
        apart = true - torch.stack(others).logsumexp(0)
        return _LAYER_TRUST * apart.clamp(_LEAST_RATIO, _LARGEST_RATIO)

    def fit(self, true: Tensor, moved: Tensor, absent: Tensor, quantile: float) -> None:
        """Fit the three distributions to statistics, where ``true`` may hold false tokens.

        Args:
            true: of a guessed sentence.
            moved: of its words at another place.
            absent: of random words.
            quantile: of the guessed sentence that is taken for the middle of true tokens.
        """
        self.absent, self.moved = Normal.around(absent), Normal.around(moved)
        middle = float(true.quantile(quantile))
        spread = 1.4826 * float((true - middle).abs().median())
        room = max(_LEAST_TRUE_SPREAD, (self.moved.mean - middle) / 2)
        self.true = Normal(middle, min(max(_LEAST_TRUE_SPREAD, spread), room))


def total_ratio(evidence: Sequence[Evidence], inputs: Sequence[Tensor]) -> Tensor | float:
    """Sum over the layers that tell; 0 without any."""
    pairs = zip(evidence, inputs, strict=True)
    return sum(
        (layer.ratio(layer.statistic(part)) for layer, part in pairs if layer.tells), start=0.0
    )


class Samples:
    """Statistics of true, moved and absent tokens, by layer."""

    def __init__(self, layers: int) -> None:
        self._kinds: list[tuple[list[Tensor], ...]] = [([], [], []) for _ in range(layers)]

    def add(self, layer: int, *statistics: Tensor) -> None:
        """Take further statistics of the three kinds."""
        for kind, values in zip(self._kinds[layer], statistics, strict=True):
            kind.append(values)

    def fit(self, evidence: Sequence[Evidence]) -> None:
        """Fit each layer."""
        for layer, kinds in zip(evidence, self._kinds, strict=True):
            true, moved, absent = (torch.cat(kind) for kind in kinds)
            layer.fit(true, moved if len(moved) else absent, absent, 0.5)


def read_layer(
    model: AttackedModel, layer: Layer, most: int
) -> tuple[Reading | None, Evidence | None]:
    """What is known of a layer's gradient, imputed, and what it says of tokens.

    There is no reading of adapters, nor of a gradient that was not sent, is zero or is not finite;
    no evidence of a layer with too few directions.

    Args:
        model: under attack, its update of any optimizer and defense.
        layer: the layer.
        most: most tokens of the batch.
    """
    observation = model.observation
    names = layer.weights(observation.received)
    if names and not is_adapter(names[0]):
        optimizer = observation.knowledge.optimizer if observation.kind != "gradient" else None
        readings = {n: read(v, optimizer) for n, v in observation.update(names).items()}
        value, lower, upper = (
            layer.side({name: getattr(reading, part) for name, reading in readings.items()})
            .double()
            .to(model.device)
            for part in ("value", "lower", "upper")
        )
        if value.isfinite().all() and value.any():
            sent = Reading(value, lower, upper)
            seen = replace(sent, value=completed(sent, most))
            return seen, spikes(seen.value, layer, most)
    return None, adapter_evidence(model, layer, names, most)


def spikes(matrix: Tensor, layer: Layer, most: int) -> Evidence | None:
    """The evidence of a layer's gradient; None if it has too few directions."""
    seen = spectrum(matrix, most)
    return None if seen.rank < FEWEST_DIRECTIONS else Evidence(layer, seen)


@dataclass
class AdapterEvidence(Evidence):
    """Evidence of several spans, of inputs ``x`` or of ``A x``; see ``AdapterSpan``.

    The statistic is the mean of those of the parts. Its distributions are fitted like any others.

    Attributes:
        parts: evidence of each span, with the ``A (rank, width)`` that leads to it; None for ``x``.
    """

    parts: Sequence[tuple[Evidence, Tensor | None]] = ()

    @property
    def full(self) -> bool:
        """Whether none of the spans has room."""
        return all(part.full for part, _ in self.parts)

    def statistic(self, inputs: Tensor) -> Tensor:
        """Mean over the spans of the log of residual over prediction."""
        statistics = [
            part.statistic(inputs if a is None else inputs @ a.to(inputs).T)
            for part, a in self.parts
        ]
        return torch.stack(statistics).mean(0)

    def gram(self) -> Tensor:
        """Sum of those of the parts, in the space of ``x``."""
        parts = ((part.gram(), a) for part, a in self.parts)
        return sum((g if a is None else a.T.to(g) @ g @ a.to(g) for g, a in parts), torch.zeros(()))


def adapter_evidence(
    model: AttackedModel, layer: Layer, names: Sequence[str], most: int
) -> Evidence | None:
    """None if the layer has no adapters, they did not move or show too few directions.

    The updates of all ``A`` of the layer lie side by side, as one gradient of a layer with as many
    outputs as all ranks together. Those of each ``B`` are read where no ``A`` has moved, as in a
    single step from ``B = 0``, whose gradient for ``A`` is 0. Several steps of Adam are read as
    they came, since so few outputs do not tell a gradient from its signs.

    Args:
        model: under attack, its update of any optimizer and defense.
        layer: the layer.
        names: of its weights that were sent.
        most: most tokens of the batch.
    """
    observation, device = model.observation, model.device
    names = [name for name in names if is_adapter(name)]
    update = observation.update([each for a in names for each in (a, second_factor(a))])
    if not all(value.isfinite().all() for value in update.values()):
        return None
    update = {name: value.to(device) for name, value in update.items() if value.any()}
    sides = [read(update[a].T) for a in names if a in update]
    whole = [(_side_by_side(sides), None)] if sides else []
    pairs = [(second_factor(a), observation.sent[a].to(device)) for a in names]
    mapped = [(read(update[b].T), factor) for b, factor in pairs if b in update]
    parts = []
    for reading, a in whole or mapped:
        seen = spectrum(completed(reading, most), most)
        if seen.rank >= FEWEST_DIRECTIONS:
            parts.append((Evidence(layer, seen), a))
    return AdapterEvidence(layer, parts[0][0].seen, parts=parts) if parts else None


def _side_by_side(readings: Sequence[Reading]) -> Reading:
    value, lower, upper = (
        torch.cat([getattr(reading, part) for reading in readings], 1)
        for part in ("value", "lower", "upper")
    )
    return Reading(value, lower, upper)
