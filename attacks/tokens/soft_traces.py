"""The likelihood of tokens in the first two blocks of a model, fitted to one update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.observed.readings import Reading, read
from attacks.observed.spectrum import completed
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.evidence import (
    Evidence,
    Normal,
    Samples,
    read_layer,
    spikes,
)
from attacks.tokens.first_layers import FirstLayers, Layer
from fedsim.knowledge import MULTIPLES
from fedsim.models.adapters import is_adapter, second_factor
from fedsim.store.capture import Observation
from fedsim.types import Tensors

_GROWN_PLACES = 7  # places of the greedy growth that fits the layers first
_GROWN_STARTS = 6  # first tokens that it tries in excess of the sentences
_RESIDUAL_ROUNDS = 8  # rounds of imputation of what found sentences leave of an update
_RESIDUAL_WORDS = 1024  # words tried at each position in it, the likeliest in the whole update

_CHUNK = 4096  # tokens in one forward pass


@dataclass(frozen=True)
class SoftTraces:
    """What each layer of the first two blocks says of tokens.

    Attributes:
        layers: the network's first two blocks.
        first: evidence before any attention; None if that gradient says nothing.
        near: evidence of a causal model's layers behind the first attention.
        later: evidence of those of its second block.
        words: token ids that may occur.
        statistics: of ``first`` for each position and token, infinite for ids that may not occur,
            ``(position, vocabulary)``.
        readings: of each layer's gradient, with entries that were not sent imputed.
        signs: whether the update arrived as signs.
        weights: names of the weights before any attention that were sent.
        shown: whether these have changed, and the update is finite.
    """

    layers: FirstLayers
    first: Evidence | None
    near: Sequence[Evidence]
    later: Sequence[Evidence]
    words: Tensor
    statistics: Tensor
    readings: Mapping[Layer, Reading]
    signs: bool
    weights: Sequence[str]
    shown: bool

    @property
    def adapters(self) -> list[str]:
        """Names of the adapters before any attention that were sent."""
        return [name for name in self.weights if is_adapter(name)]

    @property
    def silent(self) -> bool:
        """Whether no layer of the first two blocks stands out of the noise."""
        return self.first is None and not self.near and not self.later

    @property
    def foreign(self) -> bool:
        """Whether the first span holds no token's input, and no noise explains that.

        Weights into which adapters were merged move along the random rows of these.
        """
        if self.first is None or self.first.full:
            return False
        return self.first.exact and bool((self.statistics > 0).all())

    @property
    def ratios(self) -> Tensor:
        """Log-likelihood ratio before any attention ``(position, vocabulary)``."""
        if self.first is None:
            return self.statistics.masked_fill(self.statistics.isfinite(), 0).neg()
        ratios = self.first.ratio(self.statistics.clamp(max=1e4))
        return ratios.masked_fill(~self.statistics.isfinite(), -torch.inf)

    def grow(self, start: Sequence[int], count: int, rng: torch.Generator) -> None:
        """Fit every layer by a few greedy steps from the likeliest first tokens, the best of them.

        Without any fit, the sum over the layers of the distance from random words, in their spread,
        finds most next tokens of a causal model.

        Args:
            start: first tokens of each sentence.
            count: sentences of the batch.
            rng: draws random words.
        """
        every = self._every
        kinds = [evidence.layer for evidence in every]
        places = range(len(start), min(len(start) + _GROWN_PLACES, len(self.statistics) - 1))
        tried = min(count + _GROWN_STARTS, self.statistics.shape[1])
        first = self.statistics[places[0]].topk(tried, largest=False).indices
        ids = torch.tensor(start, dtype=torch.int64, device=first.device).expand(tried, len(start))
        prefixes = torch.cat([ids, first[:, None]], 1)
        grown: list[list[tuple[Tensor, Tensor, Tensor]]] = []
        total = torch.zeros(tried, device=first.device)
        for place in places[1:]:
            few = self.statistics[place].topk(2 * count + 6, largest=False).indices
            tokens = torch.cat([few, self._draws(rng)])
            inputs = self.layers.of_extensions(kinds, prefixes, tokens)
            statistics = [
                evidence.statistic(values) for evidence, values in zip(every, inputs, strict=True)
            ]
            far = [Normal.around(values[:, len(few) :].flatten()) for values in statistics]
            apart = sum(
                (evidence.mean - values[:, : len(few)]) / evidence.width
                for evidence, values in zip(far, statistics, strict=True)
            )
            assert isinstance(apart, Tensor)
            most, best = apart.max(1)
            total += most
            false = torch.ones_like(apart, dtype=torch.bool).scatter_(1, best[:, None], False)
            near = [values[:, : len(few)] for values in statistics]
            draws = [values[:, len(few) :] for values in statistics]
            grown.append(
                [
                    (values[~false], values[false].view(tried, -1), random)
                    for values, random in zip(near, draws, strict=True)
                ]
            )
            prefixes = torch.cat([prefixes, few[best][:, None]], 1)
        best_rows = total.topk(count).indices
        samples = Samples(len(every))
        for step in grown:
            for index, parts in enumerate(step):
                samples.add(index, *(part[best_rows].flatten() for part in parts))
        samples.fit(every)

    def fit(self, lines: Sequence[Sequence[int]], rng: torch.Generator) -> None:
        """Fit every layer to the guessed sentences of a causal model, of which some may be false.

        Behind the attention, the tokens of other sentences at the same place are false ones too,
        and the hardest to tell.
        """
        every = self._every
        kinds = [evidence.layer for evidence in every]
        samples = Samples(len(every))
        ratios = self.ratios
        for line in lines:
            ids = torch.tensor(line, device=self.words.device)
            true = self.layers.of_lines(kinds, ids[None])
            nothing = ids.new_zeros(0, dtype=torch.float32)
            for index, (evidence, inputs) in enumerate(zip(every, true, strict=True)):
                samples.add(index, evidence.statistic(inputs)[0, 1:], nothing, nothing)
            for place in range(1, len(line), max(1, len(line) * len(lines) // 6)):
                others = ids[1:].unique()
                others = others[others != ids[place]][:16]
                near = ratios[place].topk(2 * len(lines) - 1).indices
                near = near[near != ids[place]][: 2 * len(lines) - 2]
                tokens = torch.cat([others, near, self._draws(rng)])
                tried = self.layers.of_extensions(kinds, ids[None, :place], tokens)
                for index, (evidence, candidates) in enumerate(zip(every, tried, strict=True)):
                    values, few = evidence.statistic(candidates)[0], len(others) + len(near)
                    false = values[: len(others)] if evidence is self.first else values[:few]
                    samples.add(index, nothing, false, values[few:])
        samples.fit(every)

    def without(self, others: Tensors, every: Tensors, most: int) -> SoftTraces:
        """What is left without some sentences, to be fitted anew.

        Args:
            others: part of the update that those sentences explain.
            every: part of it that all sentences explain, as known so far.
            most: tokens of the rest.
        """
        evidence = {}
        for layer, reading in self.readings.items():
            part, whole = (layer.side(item).to(reading.value) for item in (others, every))
            scale = 1.0
            if not reading.complete:  # imputed values have a scale of their own
                scale = float((whole * reading.value).sum() / whole.square().sum().clamp(min=1e-30))
            residual = reading.less(scale * part)
            evidence[layer] = spikes(completed(residual, most, _RESIDUAL_ROUNDS), layer, most)
        first = evidence.get(self.layers.tokens)
        size = min(_RESIDUAL_WORDS, self.statistics.shape[1])
        near = self.statistics.topk(size, dim=1, largest=False)
        statistics = torch.full_like(self.statistics, torch.inf)
        for position, (ids, values) in enumerate(zip(near.indices, near.values, strict=True)):
            ids = ids[values.isfinite()]
            statistics[position, ids] = 0
            if first is not None:
                inputs = self.layers.of_tokens(ids, position)
                statistics[position, ids] = first.statistic(inputs)
        return replace(
            self,
            first=first,
            near=[item for layer in self.layers.contexts if (item := evidence.get(layer))],
            later=[item for layer in self.layers.later if (item := evidence.get(layer))],
            statistics=statistics,
        )

    @property
    def _every(self) -> list[Evidence]:
        return [
            evidence for evidence in (self.first, *self.near, *self.later) if evidence is not None
        ]

    def _draws(self, rng: torch.Generator) -> Tensor:
        draws = torch.randint(len(self.words), (24,), generator=rng)
        return self.words[draws.to(self.words.device)]


def soft_traces(model: AttackedModel) -> SoftTraces:
    """Read the update of a model under attack, of any optimizer and defense.

    Raises:
        CannotAttack: the network has no attention over linear layers.
    """
    observation, task, network = model.observation, model.task, model.network
    words = model.vocabulary()
    count = observation.knowledge.num_examples or 1
    most = count * task.max_length
    if (pruned := model.words_of_pruned(2 * count, most)) is not None:
        pruned = torch.cat([pruned.to(words), words.new_tensor(task.spec.special_ids)])
        words = words[torch.isin(words, pruned)]
    layers = model.usual_layers
    # An encoder's layers behind the attention say nothing of a token without its sentence.
    behind = (*layers.contexts, *layers.later) if layers.causal else ()
    readings: dict[Layer, Reading] = {}
    evidence: dict[Layer, Evidence | None] = {}
    for layer in (layers.tokens, *behind):
        reading, evidence[layer] = read_layer(model, layer, most)
        if reading is not None:
            readings[layer] = reading
    first, weights = evidence[layers.tokens], layers.tokens.weights(observation.received)
    size = network.get_input_embeddings().num_embeddings  # type: ignore[operator]
    statistics = words.new_full((task.max_length, size), torch.inf, dtype=torch.float32)
    for position in range(task.max_length):
        if first is None:
            statistics[position, words] = 0
            continue
        if position and layers.everywhere:
            statistics[position] = statistics[0]
            continue
        for part in words.split(_CHUNK):
            statistics[position, part] = first.statistic(layers.of_tokens(part, position))
    return SoftTraces(
        layers,
        first,
        [kind for layer in layers.contexts if (kind := evidence.get(layer))],
        [kind for layer in layers.later if (kind := evidence.get(layer))],
        words,
        statistics,
        readings,
        are_signs(observation),
        weights,
        _is_shown(observation, weights),
    )


def _is_shown(observation: Observation, weights: Sequence[str]) -> bool:
    """Whether any of the weights, or their second factors, has changed, and all is finite."""
    update = observation.update()
    names = [*weights, *(second_factor(name) for name in weights if is_adapter(name))]
    return all(bool(v.isfinite().all()) for v in update.values()) and any(
        bool(update[name].any()) for name in names if name in update
    )


def are_signs(observation: Observation) -> bool:
    """Whether the matrices of the update are signs, or stem from Adam."""
    known = observation.knowledge
    if observation.kind != "gradient" and known.optimizer not in MULTIPLES:
        return True
    sides = sorted((v for v in observation.update().values() if v.dim() == 2 and v.any()), key=len)
    return bool(sides) and all(read(side).signs for side in sides[:8])
