"""Growth of a causal model's sentences from adapters that show few combinations of all inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attacks.base import Job
from attacks.tokens.first_layers import FirstLayers, Layer
from attacks.tokens.pursuit import Pursuit
from attacks.tokens.subspace import Subspace
from fedsim.tasks.text import TextTask

_PURSUED_CONTEXTS = 6  # random prefixes that a word's usual input is the mean of
_PURSUED_PREFIXES = 16  # prefixes kept in the growth of a sentence
_PURSUED_END = -3.0  # least log-probability of a sentence's end that nothing else shows
_PURSUED_TRUST = 15.0  # nats that a token's whole input in the space speaks for it

_FACTORS = (1.0, 0.5, 2.0, 4.0)
"""Of ``_PURSUED_TRUST``, until a sentence explains all; the last for several sentences."""


@dataclass(frozen=True)
class Prefix:
    """The beginning of a sentence.

    Attributes:
        left: what it leaves of each layer beside the usual inputs of all words.
        bare: what it leaves of each layer by itself.
        score: its log-probability.
    """

    ids: tuple[int, ...]
    left: tuple[Pursuit, ...]
    bare: tuple[Pursuit, ...]
    score: float = 0.0

    @property
    def explains(self) -> bool:
        """Whether it leaves nothing."""
        return all(pursuit.done for pursuit in self.bare)


@dataclass(frozen=True)
class Growth:
    """Tells the next token of a prefix by the layers behind the attention.

    A true token's input is one of the rows whose combinations a layer shows, so that a larger share
    of it lies in their space. Rows of the same word at other places are alike, which hides this
    until the usual input of every word of the batch is taken off: what is left is the context.

    Attributes:
        layers: the network's first two blocks.
        kinds: the layers behind the attention that show anything.
        begin: of every sentence, before its first token.
        places: the words of the batch at each place.
        writes: the language model; None for a classifier.
        end: the token that ends a sentence; None if none does.
    """

    layers: FirstLayers
    kinds: Sequence[Layer]
    begin: Prefix
    places: Sequence[Tensor]
    writes: Any
    end: int | None

    @classmethod
    def of(
        cls,
        layers: FirstLayers,
        spaces: Mapping[Layer, Subspace],
        places: Sequence[Tensor],
        task: TextTask,
        rng: torch.Generator,
    ) -> Growth:
        """Take the usual inputs behind random words of the batch."""
        kinds, bare = list(spaces), tuple(Pursuit.of(space.basis) for space in spaces.values())
        bag = torch.cat(list(places)).unique()
        edges = task.tokens([""])[0]
        modelled = task.spec.kind == "language-modelling"
        drawn = torch.randint(len(bag), (_PURSUED_CONTEXTS, len(places) // 2), generator=rng)
        contexts = bag[drawn.to(bag.device)]
        contexts[:, 0] = places[0][0]
        inputs = layers.of_extensions(kinds, contexts, bag)
        usual = tuple(space.plus(x.mean(0)) for space, x in zip(bare, inputs, strict=True))
        writes = layers.network if modelled else None
        end = edges[-1] if edges and modelled else None
        return cls(layers, kinds, Prefix((), usual, bare), places, writes, end)

    def sentences(self, count: int, job: Job) -> list[tuple[int, ...]]:
        """As many sentences as the batch has, one by one, each without what others explain."""
        begin, sentences = self.begin, list[tuple[int, ...]]()
        while len(sentences) < count and not job.expired:
            for factor in _FACTORS if count == 1 else _FACTORS[-1:]:
                best = self._best(begin, factor * _PURSUED_TRUST, job)
                if best.explains:
                    break
            begin = replace(begin, left=best.left, bare=best.bare)
            sentences.append(best.ids)
        return sentences

    def _best(self, begin: Prefix, trust: float, job: Job) -> Prefix:
        """The likeliest sentence, or the first that explains all that is left."""
        beam = [self._grown(begin, word, 0.0) for word in self.places[0].tolist()]
        done: list[Prefix] = []
        for place in range(1, len(self.places) + 1):
            tokens = self.places[place] if place < len(self.places) else self.places[0][:0]
            grown: list[tuple[float, Prefix, int]] = []
            logs = self._written([prefix.ids for prefix in beam])
            ratios = self._ratios(beam, tokens, trust)
            for prefix, log, ratio in zip(beam, logs, ratios, strict=True):
                over = log[self.end] if self.end is not None else log.new_zeros(())
                if float(over) > _PURSUED_END or not len(tokens):
                    done.append(replace(prefix, score=prefix.score + float(over)))
                gain = (prefix.score + log[tokens] + ratio).tolist()
                grown += [(t, prefix, w) for t, w in zip(gain, tokens.tolist(), strict=True)]
            if not grown or job.expired:
                break
            best = sorted(grown, key=lambda each: -each[0])[:_PURSUED_PREFIXES]
            beam = [self._grown(prefix, word, score) for score, prefix, word in best]
            if whole := [prefix for prefix in beam if prefix.explains]:
                return whole[0]
        return max(done or beam, key=lambda prefix: prefix.score)

    def _grown(self, prefix: Prefix, word: int, score: float) -> Prefix:
        """The prefix with a further token."""
        ids = (*prefix.ids, word)
        line = torch.tensor([ids], device=self.places[0].device)
        last = [inputs[0, -1:] for inputs in self.layers.of_lines(self.kinds, line)]
        left, bare = (
            tuple(inputs.plus(x) for inputs, x in zip(part, last, strict=True))
            for part in (prefix.left, prefix.bare)
        )
        return Prefix(ids, left, bare, score)

    @torch.no_grad()
    def _written(self, prefixes: list[tuple[int, ...]]) -> Tensor:
        """Log-probability of each next token, ``(prefix, vocabulary)``; 0 for a classifier."""
        ids = torch.tensor(prefixes, device=self.places[0].device)
        if self.writes is None:
            network: Any = self.layers.network
            size = network.get_input_embeddings().num_embeddings
            return torch.zeros(len(ids), size, device=ids.device)
        logs: Tensor = self.writes(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        return logs[:, -1].log_softmax(-1)

    def _ratios(self, beam: Sequence[Prefix], tokens: Tensor, trust: float) -> Tensor:
        """What speaks for each next token behind each prefix ``(prefix, token)``, in nats."""
        total = torch.zeros(len(beam), len(tokens), device=tokens.device)
        if not len(tokens):
            return total
        ids = torch.tensor([prefix.ids for prefix in beam], device=tokens.device)
        for index, inputs in enumerate(self.layers.of_extensions(self.kinds, ids, tokens)):
            for row, prefix in enumerate(beam):
                left = prefix.left[index]
                share = left.shares(inputs[row], left.directions)
                middle = share.median()
                spread = 1.4826 * (share - middle).abs().median()
                total[row] += trust * (share - middle - 2 * spread).to(total)
        return total
