"""Sentences of a causal model decoded from an update whose span a defense has blurred."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.base import Job
from attacks.spans.consistency import Consistency
from attacks.spans.cuts import CUTS
from attacks.spans.explained import Explained, choose
from attacks.spans.prefix_fit import PrefixFit
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
    like = traces.words[:8]
    fit = PrefixFit(match, like, count * task.max_length, end, task.max_length)
    decoder = Decoder(tree, traces, told, match, fit, test, count, rng)
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

    def search(
        self,
        traces: SoftTraces,
        told: UpdatedModel | None,
        count: int,
        starts: Tensor | None = None,
    ) -> list[Scored]:
        """Sentences by beam search over the traces as they are fitted, that begin with starts."""
        first = traces.ratios
        if starts is not None:
            pass
        elif self.start:
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

    def ended(self, ids: Sequence[int]) -> list[int]:
        """A line with its end token, if it has one."""
        closed = self.end is None or len(ids) >= self.longest or ids[-1] == self.end
        return [*ids] if closed else [*ids, self.end]

    def leaves(self, found: Sequence[Scored]) -> list[list[int]]:
        """The lines that no other continues."""
        begun = {one.ids[:-1] for one in found}
        return [self.ended(one.ids) for one in found if one.ids not in begun]


@dataclass(frozen=True)
class Decoder:
    """Searches the sentences of a language model, and ends as soon as they explain the update."""

    tree: Tree
    traces: SoftTraces
    told: UpdatedModel
    match: Rematch
    fit: PrefixFit
    test: Consistency | None
    count: int
    rng: torch.Generator

    def run(self) -> list[list[int]]:
        """The sentences."""
        found = self.tree.search(self.traces, self.told, self.count)
        best = Explained(self.match, self.match.update)
        done = False
        if self.fit.tells:
            self.fit.add(self.tree.leaves(found))
            best, done = self._extended(found)
        else:
            found += self.tree.again(self.traces, self.told, found, self.count, self.rng)
        if done:
            return [line.tolist() for line in best.lines]
        lines = self._finished(best, found)
        if self.count > 1 or self.tree.job.expired:
            return [line.tolist() for line in lines]
        end, job = self.tree.end, self.tree.job
        return [rematched(line, self.traces, self.told, self.match, end, job) for line in lines]

    def _extended(self, found: list[Scored]) -> tuple[Explained, bool]:
        """The beginnings of sentences that the update supports, and whether they explain it.

        Each is searched anew from where its support ends, and from its least certain token.
        """
        tried: Counter[tuple[int, ...]] = Counter()
        for _ in range(CUTS.fit_rounds):
            self.fit.add([self.tree.ended(one.ids) for one in self.fit.chosen(self.count)])
            chosen = self.fit.chosen(self.count)
            lines = [torch.tensor(one.ids, device=self.traces.words.device) for one in chosen]
            ended = [self.tree.ended(one.ids) for one in chosen]
            if self._explains(ended):
                return Explained.of(self.match, [lines[0].new_tensor(line) for line in ended]), True
            best = Explained.of(self.match, lines)
            if self.traces.first is not None and lines:
                self.traces.fit([one.ids for one in chosen], self.rng)
            more: list[Scored] = []
            for index, one in enumerate(chosen):
                for begin in one.open:
                    if tried[begin] < 2 and not self.tree.job.expired:
                        more += self._again(best, index, len(begin), anew=tried[begin] > 0)
                        tried[begin] += 1
            if len(chosen) < self.count and not self.tree.job.expired:
                more += self._missing(best)
            if not more:
                break
            found += more
            self.fit.add(self.tree.leaves(more))
        return best, False

    def _explains(self, lines: Sequence[Sequence[int]]) -> bool:
        """Whether noise explains what the sentences leave of the update."""
        if self.test is None or len(lines) < self.count:
            return False
        return self.test.p_value(lines, [-1] * self.count) >= CUTS.consistency_level

    def _again(self, best: Explained, index: int, size: int, *, anew: bool) -> list[Scored]:
        """Sentences with the beginning of one, from what the others leave of the update."""
        longest, line = self.tree.longest, best.lines[index]
        if not anew:
            return self.tree.search(self.traces, self.told, 1, line[None, :size])
        traces = self.traces.without(best.part(index), best.part(), self.count * longest)
        traces.fit([line.tolist()], self.rng)
        told = UpdatedModel(traces.layers.network, best.left(index), self.count * longest)
        return self.tree.search(traces, told, 1, line[None, :size])

    def _missing(self, best: Explained) -> list[Scored]:
        """Further sentences, from what those found leave of the update."""
        count = self.count - len(best.lines)
        traces = self.traces.without(best.part(), best.part(), self.count * self.tree.longest)
        if traces.first is not None:
            traces.grow(self.tree.start, count, self.rng)
        told = UpdatedModel(traces.layers.network, best.left(), self.count * self.tree.longest)
        return self.tree.search(traces, told, count)

    def _finished(self, best: Explained, found: Sequence[Scored]) -> list[Tensor]:
        """As many sentences as the batch has, with the likeliest ends of those without support."""
        for index, line in enumerate(best.lines):
            ids = tuple(line.tolist())
            more = [one for one in found if one.ids[: len(ids)] == ids and len(one.ids) > len(ids)]
            more = sorted(more, key=lambda one: -one.score)[: CUTS.fewest_lines]
            ended = [line.new_tensor(self.tree.ended(one.ids)) for one in more]
            if ended:
                own = self.match.against(best.left(index))
                best.exchange({index: ended[int(own.similarities(ended).argmax())]})
        lines = self.tree.lines(found, self.count, self.traces.words)
        if len(best.lines) < self.count:
            best = choose(self.match, lines, self.count, best)
        return best.lines or lines[: self.count]


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
