"""Growth of a causal model's sentences from adapters that show few combinations of all inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attacks.base import Job
from attacks.tokens.cuts import CUTS
from attacks.tokens.first_layers import FirstLayers, Layer
from attacks.tokens.pursuit import Pursuit
from attacks.tokens.subspace import Subspace
from fedsim.tasks.text import TextTask

_FACTORS = (1.0, 0.5, 2.0, 4.0)
"""Of ``CUTS.pursued_trust``, until a sentence explains all; the last for several sentences."""


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
        return all(own.done for own in self.bare)


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
        kinds, bare = list(spaces), tuple(Pursuit.of(own.basis) for own in spaces.values())
        bag = torch.cat(list(places)).unique()
        edges = task.tokens([""])[0]
        modelled = task.spec.kind == "language-modelling"
        drawn = torch.randint(len(bag), (CUTS.pursued_contexts, len(places) // 2), generator=rng)
        contexts = bag[drawn.to(bag.device)]
        contexts[:, 0] = places[0][0]
        made = layers.of_extensions(kinds, contexts, bag)
        usual = tuple(own.plus(x.mean(0)) for own, x in zip(bare, made, strict=True))
        writes = layers.network if modelled else None
        end = edges[-1] if edges and modelled else None
        return cls(layers, kinds, Prefix((), usual, bare), places, writes, end)

    def sentences(self, count: int, job: Job) -> list[tuple[int, ...]]:
        """As many sentences as the batch has, one by one, each without what others explain."""
        begin, found = self.begin, list[tuple[int, ...]]()
        while len(found) < count and not job.expired:
            for factor in _FACTORS if count == 1 else _FACTORS[-1:]:
                best = self._best(begin, factor * CUTS.pursued_trust, job)
                if best.explains:
                    break
            begin = replace(begin, left=best.left, bare=best.bare)
            found.append(best.ids)
        return found

    def _best(self, begin: Prefix, trust: float, job: Job) -> Prefix:
        """The likeliest sentence, or the first that explains all that is left."""
        beam = [self._grown(begin, word, 0.0) for word in self.places[0].tolist()]
        done: list[Prefix] = []
        for place in range(1, len(self.places) + 1):
            tokens = self.places[place] if place < len(self.places) else self.places[0][:0]
            grown: list[tuple[float, Prefix, int]] = []
            logs = self._written([one.ids for one in beam])
            ratios = self._ratios(beam, tokens, trust)
            for one, log, ratio in zip(beam, logs, ratios, strict=True):
                over = log[self.end] if self.end is not None else log.new_zeros(())
                if float(over) > CUTS.pursued_end or not len(tokens):
                    done.append(replace(one, score=one.score + float(over)))
                gain = (one.score + log[tokens] + ratio).tolist()
                grown += [(t, one, w) for t, w in zip(gain, tokens.tolist(), strict=True)]
            if not grown or job.expired:
                break
            best = sorted(grown, key=lambda each: -each[0])[: CUTS.pursued_prefixes]
            beam = [self._grown(one, word, score) for score, one, word in best]
            if whole := [one for one in beam if one.explains]:
                return whole[0]
        return max(done or beam, key=lambda one: one.score)

    def _grown(self, one: Prefix, word: int, score: float) -> Prefix:
        """The prefix with a further token."""
        ids = (*one.ids, word)
        line = torch.tensor([ids], device=self.places[0].device)
        last = [own[0, -1:] for own in self.layers.of_lines(self.kinds, line)]
        left, bare = (
            tuple(own.plus(x) for own, x in zip(part, last, strict=True))
            for part in (one.left, one.bare)
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
        ids = torch.tensor([one.ids for one in beam], device=tokens.device)
        for index, inputs in enumerate(self.layers.of_extensions(self.kinds, ids, tokens)):
            for row, one in enumerate(beam):
                left = one.left[index]
                share = left.shares(inputs[row], left.directions)
                middle = share.median()
                spread = 1.4826 * (share - middle).abs().median()
                total[row] += trust * (share - middle - 2 * spread).to(total)
        return total
