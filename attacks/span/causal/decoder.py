"""Sentences of a causal model decoded from an update whose span a defense has blurred."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.base import Job
from attacks.proofs.consistency import Consistency
from attacks.proofs.gradient_match import GradientMatcher
from attacks.proofs.gradient_pursuit import GradientPursuit, choose
from attacks.span.causal.matched_growth import MatchedGrowth
from attacks.span.causal.prefix_fit import PrefixFit
from attacks.span.causal.tree import Tree, spread
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.cuts import CUTS
from attacks.tokens.next_token_shift import DirectionalShift
from attacks.tokens.prefix_search import ScoredPrefix
from attacks.tokens.pursuit import noisy_rows
from attacks.tokens.soft_traces import SoftTraces
from fedsim.models.lora import is_adapter

_ADAPTIVE = {"adam", "adamw", "adafactor"}


def decode(
    model: AttackedModel, traces: SoftTraces, rng: torch.Generator, job: Job
) -> list[list[int]]:
    """The likeliest sentences of a causal model.

    Args:
        model: a language model, or a classifier with causal attention.
        traces: of the update.
        rng: draws the words that each layer is fitted to.
        job: ends the search when its time is up.
    """
    observation, task = model.observation, model.task
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
    match = GradientMatcher.of(observation, task, traces.words.device, signs=traces.signs)
    adapters = [name for name in traces.layers.tokens.weights(observation.sent) if is_adapter(name)]
    adaptive = observation.kind != "gradient" and observation.knowledge.optimizer in _ADAPTIVE
    if start and (adapters or adaptive):
        shown = traces.ratios
        if adapters:
            shown = _shown_words(traces, [match.update[name] for name in adapters])
        grown = MatchedGrowth.of(count, tree, match, shown, rng, adapters=bool(adapters))
        return grown.sentences()
    update = {name: value.float() for name, value in observation.update().items()}
    told = DirectionalShift.of(traces.layers.network, update, count * task.max_length)
    test = Consistency.of(observation, task, traces.layers.network)
    fit = None
    if count > 1:
        fit = PrefixFit(match, observation, count * task.max_length, end, task.max_length)
    return Decoder(tree, traces, told, match, fit, test, count, rng).run()


def _shown_words(traces: SoftTraces, updates: Sequence[Tensor]) -> Tensor:
    """What the adapters before any attention say of each word ``(position, vocabulary)``, in nats.

    Where positions are learned, words differ by their place; elsewhere a pursuit finds the words.
    """
    if not traces.layers.everywhere:
        return traces.ratios
    inputs = traces.layers.of_tokens(traces.words, 0)
    found = torch.zeros_like(traces.statistics)
    rows = noisy_rows(torch.cat([*updates]), inputs, int(CUTS.pursued_rows * inputs.shape[1]))
    found[:, traces.words[rows]] = CUTS.matched_words
    return found


@dataclass(frozen=True)
class Decoder:
    """Searches the sentences of a language model, and ends as soon as they explain the update."""

    tree: Tree
    traces: SoftTraces
    told: DirectionalShift
    match: GradientMatcher
    fit: PrefixFit | None
    test: Consistency | None
    count: int
    rng: torch.Generator

    def run(self) -> list[list[int]]:
        """The sentences."""
        found = self.tree.search(self.traces, self.told, self.count)
        if self.fit is not None and self.fit.tells:
            self.fit.add(self.tree.leaves(found))
            lines = self._finished(self._extended(self.fit, found), found)
        else:
            lines = self._chosen(found)
        ids = [line.tolist() for line in lines]
        if self.count > 1 or self.tree.job.expired or self._explains(ids):
            return ids
        end, job = self.tree.end, self.tree.job
        return [refined(line, self.traces, self.told, self.match, end, job) for line in lines]

    def _chosen(self, found: list[ScoredPrefix]) -> list[Tensor]:
        """Those that explain most of the update, of two searches unless the first explains all."""
        lines = self.tree.lines(found, self.count, self.traces.words)
        best = choose(self.match, lines, self.count)
        if self._explains(best.ids):
            return best.lines
        found += self.tree.again(self.traces, self.told, found, self.count, self.rng)
        lines = self.tree.lines(found, self.count, self.traces.words)
        return choose(self.match, lines, self.count).lines or lines[: self.count]

    def _extended(self, fit: PrefixFit, found: list[ScoredPrefix]) -> GradientPursuit:
        """The beginnings of sentences that the update supports, or all of them, if they explain it.

        Each is searched anew from where its support ends, and from its least certain token.
        """
        tried: Counter[tuple[int, ...]] = Counter()
        best = GradientPursuit(self.match, self.match.update)
        for _ in range(CUTS.fit_rounds):
            fit.add([self.tree.ended(one.ids) for one in fit.chosen(self.count)])
            chosen = fit.chosen(self.count)
            lines = [torch.tensor(one.ids, device=self.traces.words.device) for one in chosen]
            ended = [self.tree.ended(one.ids) for one in chosen]
            if done := self._explains(ended):
                lines = [line.new_tensor(own) for line, own in zip(lines, ended, strict=True)]
            whole = len(lines) == self.count and all(one.whole for one in chosen)
            settled = whole and {one.ids for one in chosen} == set(best.ids)
            best = GradientPursuit.of(self.match, lines)
            if done or settled:
                break
            if self.traces.first is not None and lines:
                self.traces.fit([one.ids for one in chosen], self.rng)
            more: list[ScoredPrefix] = []
            for index, one in enumerate(chosen):
                for begin in one.open:
                    if tried[begin] < CUTS.tries and not self.tree.job.expired:
                        more += self._again(best, index, len(begin), anew=tried[begin] > 0)
                        tried[begin] += 1
            if len(chosen) < self.count and not self.tree.job.expired:
                more += self._missing(best)
            if not more:
                break
            found += more
            fit.add(self.tree.leaves(more))
        return best

    def _explains(self, lines: Sequence[Sequence[int]]) -> bool:
        """Whether noise explains what the sentences leave of the update."""
        if self.test is None or len(lines) < self.count:
            return False
        return self.test.p_value(lines, [-1] * self.count) >= CUTS.consistency_level

    def _again(
        self,
        best: GradientPursuit,
        index: int,
        size: int,
        *,
        anew: bool,
        ahead: int | None = CUTS.ahead,
    ) -> list[ScoredPrefix]:
        """Lines with the beginning of one; ``anew`` from what the others leave of the update."""
        longest, line = self.tree.longest, best.lines[index]
        traces, told = self.traces, self.told
        if anew:
            traces = traces.without(best.part(index), best.part(), self.count * longest)
            traces.fit([line.tolist()], self.rng)
            told = DirectionalShift.of(
                traces.layers.network, best.left(index), self.count * longest
            )
        return self.tree.search(traces, told, 1, line[:size], ahead)

    def _missing(self, best: GradientPursuit) -> list[ScoredPrefix]:
        """Further sentences, from what those found leave of the update."""
        count = self.count - len(best.lines)
        traces = self.traces.without(best.part(), best.part(), self.count * self.tree.longest)
        if traces.first is not None:
            traces.grow(self.tree.start, count, self.rng)
        told = DirectionalShift.of(
            traces.layers.network, best.left(), self.count * self.tree.longest
        )
        return self.tree.search(traces, told, count)

    def _finished(self, best: GradientPursuit, found: list[ScoredPrefix]) -> list[Tensor]:
        """As many sentences as the batch has, with the likeliest ends of those without support."""
        for index, line in enumerate(best.lines):
            ids = tuple(line.tolist())
            if len(ids) >= self.tree.longest or ids[-1] == self.tree.end:
                continue
            found += self._again(best, index, len(ids), anew=True, ahead=None)
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


def refined(
    line: Tensor,
    traces: SoftTraces,
    told: DirectionalShift | None,
    match: GradientMatcher,
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
