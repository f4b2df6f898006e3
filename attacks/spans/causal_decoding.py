"""Sentences of a causal model decoded from an update whose span a defense has blurred."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.base import Job
from attacks.spans.consistency import Consistency
from attacks.spans.cuts import CUTS
from attacks.spans.exchange import improved
from attacks.spans.explained import Explained, choose
from attacks.spans.prefix_search import PrefixSearch, Scored
from attacks.spans.rematch import Rematch
from attacks.spans.soft_traces import SoftTraces
from attacks.spans.told import UpdatedModel
from fedsim.capture import Observation
from fedsim.tasks.text import TextTask


def decode(
    observation: Observation, task: TextTask, traces: SoftTraces, rng: torch.Generator, job: Job
) -> list[list[int]]:
    """The likeliest sentences of a causal model.

    Args:
        observation: of any optimizer and defense.
        task: a language model, or a classifier with causal attention.
        traces: of the update.
        rng: draws the words that each layer is fitted to.
        job: ends the search when its time is up.
    """
    count = observation.knowledge.num_examples or 1
    writes = task.spec.kind == "language-modelling"
    edges = task.tokens([""])[0]
    start = edges[:1] if len(edges) > 1 else []
    end = edges[-1] if edges and writes else None
    tree = Tree(start, end, task.max_length, job)
    if traces.first is not None:
        traces.grow(start, count, rng)
    if not writes:  # a classifier, whose labels are not known
        found = tree.search(traces, None, count)
        return [list(one.ids) for one in spread(tree.again(traces, None, found, count, rng), count)]
    update = {name: value.float() for name, value in observation.update().items()}
    told = UpdatedModel(traces.layers.network, update, count * task.max_length)
    match = Rematch.of(observation, task, traces.words.device, signs=traces.signs)
    test = Consistency.of(observation, task, traces.layers.network)
    decoder = Decoder(tree, traces, told, match, test, count, rng)
    return decoder.run()


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

    def search(self, traces: SoftTraces, told: UpdatedModel | None, count: int) -> list[Scored]:
        """Sentences by beam search over the traces as they are fitted."""
        first = traces.ratios
        if self.start:
            starts = torch.tensor([self.start], device=first.device)
        else:
            starts = first[0].topk(min(CUTS.next_tokens, first.shape[1])).indices[:, None]
        near = [e for e in traces.near if e.tells]
        later = [e for e in traces.later if e.tells]
        beam = CUTS.prefixes * count
        tree = PrefixSearch(traces.layers, near, later, first, told, self.end, beam, count)
        return tree.run(starts, self.job)

    def again(
        self,
        traces: SoftTraces,
        told: UpdatedModel | None,
        found: list[Scored],
        count: int,
        rng: torch.Generator,
    ) -> list[Scored]:
        """A search fitted to the result of another; that result if it is empty."""
        lines = [one.ids for one in spread(found, count) if len(one.ids) > 4]
        if self.job.expired or traces.first is None or not lines:
            return found
        traces.fit(lines, rng)
        return self.search(traces, told, count)

    def lines(self, found: Sequence[Scored], count: int, like: Tensor) -> list[Tensor]:
        """Candidates for a batch of a language model, on the device of a tensor."""
        found = varied(found, len(self.start), count)
        own = (list(one.ids) for one in found)
        end = [] if self.end is None else [self.end]
        ended = (line if len(line) >= self.longest else [*line, *end] for line in own)
        return [torch.tensor(line, device=like.device) for line in ended]


@dataclass(frozen=True)
class Decoder:
    """Searches the sentences of a language model, and ends as soon as they explain the update."""

    tree: Tree
    traces: SoftTraces
    told: UpdatedModel
    match: Rematch
    test: Consistency | None
    count: int
    rng: torch.Generator

    def run(self) -> list[list[int]]:
        """The sentences."""
        tree, traces, told, job = self.tree, self.traces, self.told, self.tree.job
        found = tree.search(traces, told, self.count)
        best = choose(self.match, tree.lines(found, self.count, traces.words), self.count)
        if self._explains(best):
            return [line.tolist() for line in best.lines]
        found += tree.again(traces, told, found, self.count, self.rng)
        best = choose(self.match, tree.lines(found, self.count, traces.words), self.count)
        done = self._explains(best)
        if self.count > 1 and not done:
            improved(
                best,
                lambda index: self._again(best, index),
                told.along,
                CUTS.exchanges,
                lambda: self._explains(best),
                job,
            )
            done = self._explains(best)
        if not best.lines:  # the gradient speaks against each
            lines = tree.lines(found, self.count, traces.words)[: self.count]
            return [line.tolist() for line in lines]
        if done or job.expired:
            return [line.tolist() for line in best.lines]
        pairs = enumerate(best.lines)
        left = [(line, self.match.against(best.left(i))) for i, line in pairs]
        if self.count == 1:
            left = [(best.lines[0], self.match)]
        return [rematched(line, traces, told, own, tree.end, job) for line, own in left]

    def _explains(self, best: Explained) -> bool:
        """Whether noise explains what the sentences leave of the update."""
        lines = [line.tolist() for line in best.lines]
        if self.test is None or len(lines) < self.count:
            return False
        return self.test.p_value(lines, [-1] * self.count) >= CUTS.consistency_level

    def _again(self, best: Explained, index: int) -> list[Tensor]:
        """Candidates for one of the sentences, from what the others leave of the update."""
        longest = self.tree.longest
        traces = self.traces.without(best.part(index), best.part(), longest)
        traces.fit([best.lines[index].tolist()], self.rng)
        told = UpdatedModel(traces.layers.network, best.left(index), longest)
        return self.tree.lines(self.tree.search(traces, told, 1), 1, traces.words)


def varied(found: Sequence[Scored], start: int, count: int) -> list[Scored]:
    """The likeliest sentences of each first word, of different lengths, for some first words."""
    kept: dict[int, dict[int, Scored]] = {}
    for one in sorted(found, key=lambda one: -one.score):
        if len(one.ids) > start + 1:
            own = kept.setdefault(one.ids[start], {})
            if len(own) < max(CUTS.fewest_lines, CUTS.lines // count):
                own.setdefault(len(one.ids), one)
    lines = [one for own in list(kept.values())[: 2 * count] for one in own.values()]
    return lines or list(found[:1])


def spread(found: Sequence[Scored], count: int) -> list[Scored]:
    """The likeliest sentences that are not nearly one another."""
    kept: list[Scored] = []
    for one in found:
        if len(kept) == count:
            break
        if all(_shared(one.ids, other.ids) < 0.7 for other in kept):
            kept.append(one)
    return kept + [one for one in found if one not in kept][: count - len(kept)]


def _shared(one: Sequence[int], other: Sequence[int]) -> float:
    same = sum(a == b for a, b in zip(one[1:], other[1:], strict=False))
    return same / max(1, min(len(one), len(other)) - 1)


def rematched(
    line: Tensor,
    traces: SoftTraces,
    told: UpdatedModel | None,
    match: Rematch,
    end: int | None,
    job: Job,
) -> list[int]:
    """The line after exchanging single words for those that the gradient prefers."""
    scores = traces.ratios[: len(line)].clone()
    if told is not None:
        scores[1:] += told.along(line)
    rivals = scores.topk(min(CUTS.rivals, scores.shape[1]), dim=1).indices
    leader = scores.gather(1, line[:, None]).maximum(scores.amax(1, keepdim=True))
    rivals[scores.gather(1, rivals) < leader - CUTS.sure] = -1
    rivals[0] = -1
    if end is not None and int(line[-1]) == end:
        rivals[-1] = -1
    line, _ = match.improve(line, None, rivals, CUTS.sweeps, job)
    found: list[int] = line.tolist()
    return found
