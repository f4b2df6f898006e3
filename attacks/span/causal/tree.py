"""Beam searches for the sentences of a batch, unlike ones of these, and strangers to an update."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.base import Job
from attacks.engine.beam import Prefixes, Sentence, Spread, grow
from attacks.tokens.next_token_shift import DirectionalShift
from attacks.tokens.prefix_search import NEXT_TOKENS, PREFIXES, PrefixLikelihood, varied
from attacks.tokens.soft_traces import SoftTraces


@dataclass(frozen=True)
class Tree:
    """Beam searches for sentences between the same edges.

    Attributes:
        start: tokens before every sentence.
        end: token behind every sentence; None if none is.
        longest: most tokens of a sentence with both.
        job: ends a search when its time is up.
    """

    start: Sequence[int]
    end: int | None
    longest: int
    job: Job

    def search(
        self,
        traces: SoftTraces,
        shift: DirectionalShift | None,
        count: int,
        begin: Tensor | None = None,
        ahead: int | None = None,
    ) -> list[Sentence]:
        """Sentences by beam search over the traces as they are fitted.

        Args:
            traces: of the update, or of what is left of it.
            shift: the language model; None for a classifier.
            count: sentences of the batch.
            begin: first tokens of all sentences; None if they may be any.
            ahead: most tokens behind those; None for whole sentences.
        """
        first = traces.ratios
        if begin is not None:
            starts = begin[None]
        elif self.start:
            starts = torch.tensor([self.start], device=first.device)
        else:
            starts = first[0].topk(min(NEXT_TOKENS, first.shape[1])).indices[:, None]
        near = [e for e in traces.near if e.tells]
        later = [e for e in traces.later if e.tells]
        beam = PREFIXES * count
        scorer = PrefixLikelihood(traces.layers, near, later, first, shift, self.end, beam, count)
        prefixes = Prefixes(starts, first.new_zeros(len(starts)))
        longest = min(len(first), starts.shape[1] + (ahead or len(first)))
        spread = Spread(-1, count) if count > 1 else None
        sentences = grow(scorer, prefixes, longest, self.job, spread=spread)
        return sorted(sentences, key=lambda sentence: -sentence.score)

    def again(
        self,
        traces: SoftTraces,
        shift: DirectionalShift | None,
        sentences: list[Sentence],
        count: int,
        rng: torch.Generator,
    ) -> list[Sentence]:
        """A search fitted to the result of another; that result if it is empty."""
        lines = [sentence.ids for sentence in spread(sentences, count) if len(sentence.ids) > 4]
        if self.job.expired or traces.first is None or not lines:
            return sentences
        traces.fit(lines, rng)
        return self.search(traces, shift, count)

    def lines(self, sentences: Sequence[Sentence], count: int, like: Tensor) -> list[Tensor]:
        """Candidates for a batch of a language model, on the device of a tensor."""
        chosen = varied(sentences, len(self.start), count)
        return [torch.tensor(self.ended(sentence.ids), device=like.device) for sentence in chosen]

    def ended(self, ids: Sequence[int]) -> list[int]:
        """A line with its end token, if it has one."""
        if self.end is None or len(ids) >= self.longest or ids[-1] == self.end:
            return [*ids]
        return [*ids, self.end]

    def leaves(self, sentences: Sequence[Sentence]) -> list[list[int]]:
        """The lines that no other continues."""
        begun = {sentence.ids[:-1] for sentence in sentences}
        return [self.ended(sentence.ids) for sentence in sentences if sentence.ids not in begun]


def spread(sentences: Sequence[Sentence], count: int) -> list[Sentence]:
    """The likeliest sentences that are not nearly one another."""
    chosen: list[Sentence] = []
    for sentence in sentences:
        if len(chosen) == count:
            break
        if all(_shared(sentence.ids, other.ids) < 0.7 for other in chosen):
            chosen.append(sentence)
    return (
        chosen
        + [sentence for sentence in sentences if sentence not in chosen][: count - len(chosen)]
    )


def _shared(ids: Sequence[int], other_ids: Sequence[int]) -> float:
    same = sum(a == b for a, b in zip(ids[1:], other_ids[1:], strict=False))
    return same / max(1, min(len(ids), len(other_ids)) - 1)


_SAMPLED = (24, 20)  # sentences and their tokens


@torch.no_grad()
def sampled(network: nn.Module, start: Sequence[int], rng: torch.Generator) -> Tensor:
    """Lines ``(line, token)`` that begin with ``start``; an end token does not end them."""
    count, length = _SAMPLED
    device = next(network.parameters()).device
    ids = torch.tensor([[*start]] * count, device=device)
    while ids.shape[1] < length:
        logits = network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, -1]
        drawn = torch.multinomial(logits.softmax(-1).cpu(), 1, generator=rng)
        ids = torch.cat([ids, drawn.to(device)], 1)
    return ids
