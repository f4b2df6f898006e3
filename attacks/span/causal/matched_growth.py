"""Sentences of a language model grown by the update of all its weights, or all its adapters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attacks.proofs.gradient_match import GradientMatcher
from attacks.span.causal.suffix_swaps import swap_suffixes
from attacks.span.causal.tree import Tree
from attacks.span.causal.whitening import Whitening
from attacks.tokens.cuts import CUTS
from attacks.tokens.next_token_shift import DirectionalShift, head_weight, next_word_weights
from fedsim.models.embeddings import embedding_names
from fedsim.types import Tensors

_SAMPLED = (24, 20)  # sentences of the model, strangers to an update, and their tokens


class Grown(NamedTuple):
    """A sentence, ordered by what the update says for it.

    Attributes:
        pays: whether the update says more for it than its text costs.
        nats: by how much; all that the update says for it where it does not pay.
    """

    pays: bool
    nats: float
    ids: tuple[int, ...]


class _Found(NamedTuple):
    ids: tuple[int, ...]
    gradient: Tensors


@dataclass(frozen=True)
class MatchedGrowth:
    """A beam search whose every prefix is compared with the whole update.

    The gradient of a causal model's prefix is the part of the sentence's gradient that its tokens
    make, so a prefix is told by how much of the update its own gradient explains. The few outputs
    of adapters say little of a word in a single layer, but much in all of them together, and so do
    full weights after steps of Adam, which no longer span the inputs of a layer. The update is
    evened before (``Whitening``). The likeness is counted from the mean of sentences drawn from the
    model, in their standard deviations: half its square is the log-likelihood ratio of Gaussian
    noise, and adds to the log-probability of the text. Further sentences are grown from what those
    found leave, and each once more from what all others leave.

    Attributes:
        count: sentences of the batch.
        tree: edges and greatest length of a sentence, which has a token before its first word.
        match: compares with the evened update.
        evening: of it.
        bonus: nats that the first layer speaks for each word, ``(position, vocabulary)``.
        strangers: sentences drawn from the model ``(line, token)``.
        told: names of the tensors that tell next words.
        head: name of the head, if its update tells them too.
        shift: weight of what they tell.
        trust: share of the log-likelihood ratio that counts.
        words: first words that short prefixes are spread over.
    """

    count: int
    tree: Tree
    match: GradientMatcher
    evening: Whitening
    bonus: Tensor
    strangers: Tensor
    told: Collection[str]
    head: str | None
    shift: float
    trust: float
    words: int

    @classmethod
    def of(
        cls,
        count: int,
        tree: Tree,
        match: GradientMatcher,
        bonus: Tensor,
        rng: torch.Generator,
        *,
        adapters: bool,
    ) -> MatchedGrowth:
        """Draw the sentences of the model that give the unit.

        All ``adapters`` are asked for next words. Of full weights, those from the hidden units of
        feed-forward layers are, as their inputs are the widest and overlap least, and the head.
        """
        network = match.model.network
        shift, trust, words = CUTS.adapters_shift, CUTS.matched_trust, 1
        update, head = match.update, None
        told: Collection[str] = update
        if not adapters:
            shift, trust = CUTS.weights_shift, CUTS.weights_trust
            words = CUTS.spread_words if count > 1 else 1
            tables, head = embedding_names(network), head_weight(network)
            left_out = {tables.word, tables.position} - {head}
            update = {n: v for n, v in update.items() if v.dim() == 2 and n not in left_out}
            told = next_word_weights(network) & update.keys() or update.keys() - {head}
        evening = Whitening.of(update, CUTS.evened)
        if not adapters:
            telling = {name: update[name] for name in update if name in told or name == head}
            evening |= Whitening.of(telling, CUTS.evened_telling)
        match = match.each_of(evening(update))
        strangers = _sampled(network, tree.start, rng)
        return cls(count, tree, match, evening, bonus, strangers, told, head, shift, trust, words)

    def sentences(self) -> list[list[int]]:
        """The sentences of the batch, fewer where the update shows no more or the time is up."""
        match, found, barred = self.match, list[_Found](), self._tensor([])
        while len(found) < self.count and len(barred) < CUTS.barred_words:
            line, begun = self._best(match, self._unused(found), barred)
            if self.tree.job.expired and found:
                break
            if not line.pays and self.count > 1:
                barred = torch.cat([barred, begun])
                continue
            found.append(self._found(match, line.ids))
            barred = barred[:0]
            match = self._without(found)
        return [[*one.ids] for one in self._uncrossed(self._again(self._uncrossed(found)))]

    def _uncrossed(self, found: list[_Found]) -> list[_Found]:
        if len(found) < 2:
            return found
        lines = [self._tensor(one.ids) for one in found]
        lines = swap_suffixes(lines, self._told(self.match), self.tree.longest, self.tree.job)
        return [self._found(self.match, tuple(line.tolist())) for line in lines]

    def _again(self, found: list[_Found]) -> list[_Found]:
        """Each sentence grown from what all others leave, until none changes or the time is up."""
        grown: dict[int, tuple[tuple[int, ...], ...]] = {}
        for index in cycle(range(len(found))):
            others = [one for one in found if one is not found[index]]
            words = tuple(one.ids for one in others)
            if not others or self.tree.job.expired or grown.get(index) == words:
                break
            grown[index] = words
            match = self._without(others)
            line, _ = self._best(match, self._unused(others), self._tensor([]))
            own = [self._tensor(ids) for ids in (found[index].ids, line.ids)]
            before, after = match.similarities(own).tolist()
            if after > before:
                found[index] = self._found(match, line.ids)
        return found

    def _without(self, found: Sequence[_Found]) -> GradientMatcher:
        left = self.evening.without(self.match.update, [one.gradient for one in found])
        return self.match.each_of(left)

    def _found(self, match: GradientMatcher, ids: tuple[int, ...]) -> _Found:
        return _Found(ids, match.gradient(self._tensor(ids)))

    def _unused(self, found: Sequence[_Found]) -> Tensor:
        """The bonus of each word where no sentence holds it yet."""
        bonus = self.bonus.clone()
        for one in found:
            places, ids = torch.arange(len(one.ids)), self._tensor(one.ids)
            bonus[places, ids] = bonus[places, ids].clamp(max=0)
        return bonus

    def _best(self, match: GradientMatcher, bonus: Tensor, barred: Tensor) -> tuple[Grown, Tensor]:
        """The likeliest sentence that begins with no barred word, and the words that were tried."""
        end, begin = self.tree.end, len(self.tree.start)
        told, null = self._told(match), self._null(match)
        prefixes, score = self._tensor(self.tree.start)[None], self.bonus.new_zeros(1)
        best, stale, ratio = Grown(False, -torch.inf, ()), 0, score
        for place in range(begin, self.tree.longest - (end is not None)):
            logs = (told.next_tokens(prefixes) + bonus[place]).log_softmax(-1)
            if end is not None:
                logs[:, end] = -torch.inf
            if len(prefixes) == 1:
                logs[:, barred] = -torch.inf
            room = CUTS.matched_room // (place + 1)
            few = room if len(prefixes) == 1 else CUTS.matched_tokens
            tokens = logs.topk(min(few, logs.shape[1]), dim=1).indices
            lines = torch.cat(
                [prefixes.repeat_interleave(tokens.shape[1], 0), tokens.reshape(-1, 1)], 1
            )
            total = (score[:, None] + logs.gather(1, tokens)).flatten()
            before = total + ratio.repeat_interleave(tokens.shape[1])
            tried = self._kept(before, lines, min(room, len(before)))
            lines, total = lines[tried], total[tried]
            ratio = self._ratio(match, lines, null)
            kept = self._kept(total + ratio, lines, (len(lines) + 1) // 2)
            prefixes, score, ratio = lines[kept], total[kept], ratio[kept]
            ended, said = prefixes, ratio
            if end is not None:
                ended = torch.cat([prefixes, prefixes.new_full((len(prefixes), 1), end)], 1)
                said = self._ratio(match, ended, null)
            top = int((score + said).argmax())
            pays = float(score[top] + said[top] / self.trust) > 0
            nats = float((score + said)[top] if pays else said.max())
            one = Grown(pays, nats, tuple(ended[top if pays else int(said.argmax())].tolist()))
            best, stale = (one, 0) if one > best else (best, stale + 1)
            if stale > CUTS.matched_stale or self.tree.job.expired:
                break
        return best, prefixes[:, begin].unique()

    def _kept(self, score: Tensor, lines: Tensor, count: int) -> Tensor:
        """The best ``count`` lines, short ones spread over their first words."""
        order = score.argsort(descending=True)
        begin = len(self.tree.start)
        if not 1 < lines.shape[1] - begin <= CUTS.spread_tokens:
            return order[:count]
        alike, room, crowded = Counter[int](), max(1, count // self.words), []
        for word in lines[order, begin].tolist():
            alike[word] += 1
            crowded.append(alike[word] > room)
        return order[torch.tensor(crowded).argsort(stable=True)[:count]]

    def _told(self, match: GradientMatcher) -> DirectionalShift:
        moves = {name: match.update[name] for name in self.told}
        head = match.update.get(self.head or "")
        return DirectionalShift(match.model.network, moves, self.shift, 1.0, head)

    def _ratio(self, match: GradientMatcher, lines: Tensor, null: tuple[float, float]) -> Tensor:
        """What the update says for each line ``(line,)``, in nats."""
        likeness = (match.similarity(lines, lines) - null[0]) / null[1]
        return self.trust * likeness * likeness.abs() / 2

    def _null(self, match: GradientMatcher) -> tuple[float, float]:
        """Mean and standard deviation of the strangers' likeness to an update."""
        likeness = match.similarity(self.strangers, self.strangers)
        return float(likeness.mean()), max(float(likeness.std()), 1e-30)

    def _tensor(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.int64, device=self.bonus.device)


@torch.no_grad()
def _sampled(network: nn.Module, start: Sequence[int], rng: torch.Generator) -> Tensor:
    count, length = _SAMPLED
    device = next(network.parameters()).device
    ids = torch.tensor([[*start]] * count, device=device)
    while ids.shape[1] < length:
        logits = network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, -1]
        drawn = torch.multinomial(logits.softmax(-1).cpu(), 1, generator=rng)
        ids = torch.cat([ids, drawn.to(device)], 1)
    return ids
