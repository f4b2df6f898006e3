"""The likelihood of tokens in the first two blocks of a model, fitted to one update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.observed.readings import Reading, read
from attacks.observed.spectrum import completed, spectrum
from attacks.spans.candidates import vocabulary
from attacks.spans.cuts import CUTS
from attacks.spans.evidence import Evidence
from attacks.spans.first_layers import FirstLayers, Layer
from fedsim.capture import Observation
from fedsim.models.lora import is_adapter
from fedsim.tasks.text import TextTask

_CHUNK = 4096  # tokens in one forward pass


@dataclass(frozen=True)
class SoftTraces:
    """What each layer of the first two blocks says of tokens.

    Attributes:
        layers: the network's first two blocks.
        first: evidence before any attention; None if that gradient says nothing.
        near: evidence of the layers behind the first attention.
        later: evidence of those of the second block.
        words: token ids that may occur.
        statistics: of ``first`` for each position and token, infinite for ids that may not occur,
            ``(position, vocabulary)``.
        signs: whether the update arrived as signs.
    """

    layers: FirstLayers
    first: Evidence | None
    near: Sequence[Evidence]
    later: Sequence[Evidence]
    words: Tensor
    statistics: Tensor
    signs: bool

    @property
    def ratios(self) -> Tensor:
        """Log-likelihood ratio before any attention ``(position, vocabulary)``."""
        if self.first is None:
            return self.statistics.masked_fill(self.statistics.isfinite(), 0).neg()
        found = self.first.ratio(self.statistics.clamp(max=1e4))
        return found.masked_fill(~self.statistics.isfinite(), -torch.inf)

    def first_line(self, start: Sequence[int]) -> list[int]:
        """The nearest token at each place, up to where the nearest is as far as any.

        The middle of the true tokens' statistics is set by the nearest eight.
        """
        assert self.first is not None
        finite = self.statistics[:, self.words]
        nearest = finite.min(1).values[len(start) :]
        middle = float(nearest.sort().values[:8].median())
        self.first.fit(nearest.sort().values[:8], finite[0], finite.flatten()[::97], 0.5)
        between = (middle + float(finite.median())) / 2
        near = torch.nonzero(nearest < between)[:, 0]
        length = len(start) + max(4, int(near[-1]) + 1 if len(near) else 0)
        line = self.statistics.argmin(1).tolist()
        return [*start, *line[len(start) : length]]

    def fit(self, line: Sequence[int], quantile: float, rng: torch.Generator) -> None:
        """Fit every layer to a guessed sentence of a causal model, of which some may be false."""
        every = [e for e in (self.first, *self.near, *self.later) if e is not None]
        kinds = [e.layer for e in every]
        ids = torch.tensor(line, device=self.words.device)
        true = self.layers.of_lines(kinds, ids[None])
        moved: list[list[Tensor]] = [[] for _ in every]
        absent: list[list[Tensor]] = [[] for _ in every]
        for place in range(1, len(line), max(1, len(line) // 6)):
            own = ids[1:].unique()
            own = own[own != ids[place]][:16]
            draws = torch.randint(len(self.words), (24,), generator=rng).to(self.words.device)
            tokens = torch.cat([own, self.words[draws]])
            inputs = self.layers.of_extensions(kinds, ids[None, :place], tokens)
            for index, (one, own_inputs) in enumerate(zip(every, inputs, strict=True)):
                found = one.statistic(own_inputs)[0]
                moved[index].append(found[: len(own)])
                absent[index].append(found[len(own) :])
        for one, own_inputs, near, far in zip(every, true, moved, absent, strict=True):
            one.fit(one.statistic(own_inputs)[0, 1:], torch.cat(near), torch.cat(far), quantile)


def soft_traces(
    observation: Observation, task: TextTask, network: nn.Module, *, rows: bool
) -> SoftTraces:
    """Read the update.

    Args:
        observation: of any optimizer and defense.
        task: defines the vocabulary and the longest sentence.
        network: as broadcast, in float32 and eval mode.
        rows: exclude words whose embedding row is zero, if an untied table is sent.

    Raises:
        CannotAttack: the network has no attention over linear layers.
    """
    words = vocabulary(observation, task, network, rows=rows)
    layers = FirstLayers(network, words[-3:].tolist(), task.max_length)
    count = observation.knowledge.num_examples or 1
    most = count * task.max_length
    first, *behind = (
        _evidence(observation, layers, layer, most)
        for layer in (layers.tokens, *layers.contexts, *layers.later)
    )
    split = len(layers.contexts)
    size = network.get_input_embeddings().num_embeddings  # type: ignore[operator]
    statistics = words.new_full((task.max_length, size), torch.inf, dtype=torch.float32)
    for position in range(task.max_length):
        if first is None:
            statistics[position, words] = 0
            continue
        for part in words.split(_CHUNK):
            statistics[position, part] = first.statistic(layers.of_tokens(part, position))
    return SoftTraces(
        layers,
        first,
        [one for one in behind[:split] if one is not None],
        [one for one in behind[split:] if one is not None],
        words,
        statistics,
        _are_signs(observation),
    )


def _evidence(
    observation: Observation, layers: FirstLayers, layer: Layer, most: int
) -> Evidence | None:
    """None if the layer's gradient was not sent, is not finite or has too few directions."""
    names = layer.weights(observation.received)
    if not names or is_adapter(names[0]):
        return None
    optimizer = observation.knowledge.optimizer if observation.kind == "weights" else None
    readings = {n: read(v, optimizer) for n, v in observation.update(names).items()}
    parts = [
        layers.side(layer, {name: getattr(one, part) for name, one in readings.items()})
        for part in ("value", "lower", "upper")
    ]
    value = parts[0]
    if not value.isfinite().all() or not value.any():
        return None
    device = next(layers.network.parameters()).device
    whole = completed(Reading(*(part.to(device) for part in parts)), most)
    seen = spectrum(whole, most)
    return None if seen.rank < CUTS.fewest_directions else Evidence(layer, seen)


def _are_signs(observation: Observation) -> bool:
    """Whether every weight of the update has one magnitude, or stems from Adam."""
    known = observation.knowledge
    if observation.kind == "weights" and known.optimizer in {"adam", "adamw"}:
        return True
    sides = [v for v in observation.update().values() if v.dim() == 2 and v.any()]
    return bool(sides) and all(
        bool((read(v).value.abs() <= 1).all()) and not read(v).complete for v in sides[:4]
    )
