"""The likelihood of tokens in the first two blocks of a model, fitted to one update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.observed.readings import Reading
from attacks.observed.spectrum import completed
from attacks.observed.word_rows import words_of_pruned
from attacks.tokens.adapter_evidence import adapter_evidence
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.cuts import CUTS
from attacks.tokens.evidence import Evidence, Normal, Samples
from attacks.tokens.first_layers import FirstLayers, Layer
from attacks.tokens.layer_readings import are_signs, is_shown, layer_reading, spikes
from fedsim.types import Tensors

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
        shown: whether the weights before any attention were sent, are finite and have changed.
    """

    layers: FirstLayers
    first: Evidence | None
    near: Sequence[Evidence]
    later: Sequence[Evidence]
    words: Tensor
    statistics: Tensor
    readings: Mapping[Layer, Reading]
    signs: bool
    shown: bool

    @property
    def ratios(self) -> Tensor:
        """Log-likelihood ratio before any attention ``(position, vocabulary)``."""
        if self.first is None:
            return self.statistics.masked_fill(self.statistics.isfinite(), 0).neg()
        found = self.first.ratio(self.statistics.clamp(max=1e4))
        return found.masked_fill(~self.statistics.isfinite(), -torch.inf)

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
        kinds = [one.layer for one in every]
        places = range(len(start), min(len(start) + CUTS.grown_places, len(self.statistics) - 1))
        tried = min(count + CUTS.grown_starts, self.statistics.shape[1])
        first = self.statistics[places[0]].topk(tried, largest=False).indices
        ids = torch.tensor(start, dtype=torch.int64, device=first.device).expand(tried, len(start))
        prefixes = torch.cat([ids, first[:, None]], 1)
        grown: list[list[tuple[Tensor, Tensor, Tensor]]] = []
        total = torch.zeros(tried, device=first.device)
        for place in places[1:]:
            few = self.statistics[place].topk(2 * count + 6, largest=False).indices
            tokens = torch.cat([few, self._draws(rng)])
            inputs = self.layers.of_extensions(kinds, prefixes, tokens)
            found = [one.statistic(own) for one, own in zip(every, inputs, strict=True)]
            far = [Normal.around(own[:, len(few) :].flatten()) for own in found]
            apart = sum(
                (one.mean - own[:, : len(few)]) / one.width
                for one, own in zip(far, found, strict=True)
            )
            assert isinstance(apart, Tensor)
            most, best = apart.max(1)
            total += most
            false = torch.ones_like(apart, dtype=torch.bool).scatter_(1, best[:, None], False)
            near = [own[:, : len(few)] for own in found]
            draws = [own[:, len(few) :] for own in found]
            grown.append(
                [
                    (own[~false], own[false].view(tried, -1), random)
                    for own, random in zip(near, draws, strict=True)
                ]
            )
            prefixes = torch.cat([prefixes, few[best][:, None]], 1)
        kept = total.topk(count).indices
        samples = Samples(len(every))
        for step in grown:
            for index, parts in enumerate(step):
                samples.add(index, *(part[kept].flatten() for part in parts))
        samples.fit(every)

    def fit(self, lines: Sequence[Sequence[int]], rng: torch.Generator) -> None:
        """Fit every layer to the guessed sentences of a causal model, of which some may be false.

        Behind the attention, the tokens of other sentences at the same place are false ones too,
        and the hardest to tell.
        """
        every = self._every
        kinds = [one.layer for one in every]
        samples = Samples(len(every))
        ratios = self.ratios
        for line in lines:
            ids = torch.tensor(line, device=self.words.device)
            true = self.layers.of_lines(kinds, ids[None])
            nothing = ids.new_zeros(0, dtype=torch.float32)
            for index, (one, inputs) in enumerate(zip(every, true, strict=True)):
                samples.add(index, one.statistic(inputs)[0, 1:], nothing, nothing)
            for place in range(1, len(line), max(1, len(line) * len(lines) // 6)):
                own = ids[1:].unique()
                own = own[own != ids[place]][:16]
                near = ratios[place].topk(2 * len(lines) - 1).indices
                near = near[near != ids[place]][: 2 * len(lines) - 2]
                tokens = torch.cat([own, near, self._draws(rng)])
                tried = self.layers.of_extensions(kinds, ids[None, :place], tokens)
                for index, (one, made) in enumerate(zip(every, tried, strict=True)):
                    found, few = one.statistic(made)[0], len(own) + len(near)
                    false = found[: len(own)] if one is self.first else found[:few]
                    samples.add(index, nothing, false, found[few:])
        samples.fit(every)

    def without(self, others: Tensors, every: Tensors, most: int) -> SoftTraces:
        """What is left without some sentences, to be fitted anew.

        Args:
            others: part of the update that those sentences explain.
            every: part of it that all sentences explain, as known so far.
            most: tokens of the rest.
        """
        found = {}
        for layer, reading in self.readings.items():
            part, whole = (
                self.layers.side(layer, one).to(reading.value) for one in (others, every)
            )
            scale = 1.0
            if not reading.complete:  # imputed values have a scale of their own
                scale = float((whole * reading.value).sum() / whole.square().sum().clamp(min=1e-30))
            left = reading.less(scale * part)
            found[layer] = spikes(completed(left, most, CUTS.residual_rounds), layer, most)
        first = found.get(self.layers.tokens)
        size = min(CUTS.residual_words, self.statistics.shape[1])
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
            near=[one for layer in self.layers.contexts if (one := found.get(layer))],
            later=[one for layer in self.layers.later if (one := found.get(layer))],
            statistics=statistics,
        )

    @property
    def _every(self) -> list[Evidence]:
        return [one for one in (self.first, *self.near, *self.later) if one is not None]

    def _draws(self, rng: torch.Generator) -> Tensor:
        draws = torch.randint(len(self.words), (24,), generator=rng)
        return self.words[draws.to(self.words.device)]


def soft_traces(model: AttackedModel, *, rows: bool) -> SoftTraces:
    """Read the update.

    Args:
        model: under attack, its update of any optimizer and defense.
        rows: exclude words whose embedding row is zero, if an untied table is sent.

    Raises:
        CannotAttack: the network has no attention over linear layers.
    """
    observation, task, network = model.observation, model.task, model.network
    words = model.vocabulary(rows=rows)
    count = observation.knowledge.num_examples or 1
    most = count * task.max_length
    shown = words_of_pruned(observation, network, 2 * count, most) if rows else None
    if shown is not None:
        own = torch.cat([shown.to(words), words.new_tensor(task.spec.special_ids)])
        words = words[torch.isin(words, own)]
    layers = model.usual_layers
    # An encoder's layers behind the attention say nothing of a token without its sentence.
    behind = (*layers.contexts, *layers.later) if layers.causal else ()
    readings: dict[Layer, Reading] = {}
    found: dict[Layer, Evidence | None] = {}
    for layer in (layers.tokens, *behind):
        reading = layer_reading(model, layer, most)
        if reading is None:
            found[layer] = adapter_evidence(model, layer, most)
        else:
            readings[layer] = reading
            found[layer] = spikes(reading.value, layer, most)
    first = found[layers.tokens]
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
        [one for layer in layers.contexts if (one := found.get(layer))],
        [one for layer in layers.later if (one := found.get(layer))],
        words,
        statistics,
        readings,
        are_signs(observation),
        is_shown(observation, layers.tokens),
    )
