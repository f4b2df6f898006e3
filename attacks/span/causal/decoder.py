"""Sentences of a causal model decoded from an update whose span a defense has blurred."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.base import Job
from attacks.engine.beam import Sentence, improved
from attacks.proofs.consistency import Consistency
from attacks.proofs.gradient_match import GradientMatcher
from attacks.proofs.gradient_pursuit import GradientPursuit, choose
from attacks.proofs.verdict import P_VALUE
from attacks.span.causal.likelihood_growth import LikelihoodGrowth
from attacks.span.causal.matched_growth import MatchedGrowth
from attacks.span.causal.prefix_fit import PrefixFit
from attacks.span.causal.tree import Tree, sampled, spread
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.next_token_shift import DirectionalShift
from attacks.tokens.prefix_search import FEWEST_LINES
from attacks.tokens.pursuit import noisy_rows
from attacks.tokens.soft_traces import SoftTraces
from fedsim.knowledge import MULTIPLES
from fedsim.store.capture import Observation
from fedsim.tasks.text import TextTask

_MATCHED_WORDS = 3.0  # nats that a pursuit speaks for the words that it finds
_RIVALS = 8  # tokens tried at each place of a decoded sentence by its gradient
_SURE = 6.0  # lead of a token in nats from which no other is tried
_SWEEPS = 2  # most rounds of that
_FIT_ROUNDS = 12  # most rounds of extending sentences where their support ends
_TRIES = 2  # most searches behind one beginning of a sentence
_AHEAD = 12  # most tokens of such a search
_PURSUED_ROWS = 0.7
"""Most rows where noise blurs them, as a share of the width."""


def decode(
    model: AttackedModel, traces: SoftTraces, rng: torch.Generator, job: Job, *, sure: bool
) -> list[list[int]]:
    """The likeliest sentences of a causal model.

    Args:
        model: a language model, or a classifier with causal attention.
        traces: of the update.
        rng: draws the words that each layer is fitted to.
        job: ends the search when its time is up.
        sure: whether a sentence that no layer shows is returned only where the update says more for
            it than its text costs.
    """
    task, count = model.task, model.observation.knowledge.num_examples or 1
    writes, edges = task.spec.kind == "language-modelling", task.tokens([""])[0]
    start = edges[:1] if len(edges) > 1 else []
    tree = Tree(start, edges[-1] if edges and writes else None, task.max_length, job)
    if traces.silent and not traces.adapters:
        line, pays = _hidden(model, tree, traces, rng) if count == 1 else ([], False)
        if sure or line:
            return [line] if line and (pays or not sure) else []
    if traces.first is not None:
        traces.grow(start, count, rng)
    if not writes:  # a classifier, whose labels are not known
        sentences = tree.again(traces, None, tree.search(traces, None, count), count, rng)
        return [list(sentence.ids) for sentence in spread(sentences, count)]
    match = GradientMatcher.of(model.observation, task, traces.words.device, signs=traces.signs)
    if start and (traces.adapters or _adaptive(model.observation)):
        return _matched(match, tree, traces, count, rng).sentences()
    return _by_layers(model, match, tree, traces, count, rng)


def grows(task: TextTask) -> bool:
    """Whether sentences can be grown by the whole gradient, from a token before the first word."""
    return task.spec.kind == "language-modelling" and len(task.tokens([""])[0]) > 1


def grown(model: AttackedModel, rng: torch.Generator, job: Job) -> list[list[int]]:
    """Sentences grown by the whole gradient alone, which holds the inputs of no layer."""
    task, count = model.task, model.observation.knowledge.num_examples or 1
    start, *_, end = task.tokens([""])[0]
    tree = Tree([start], end, task.max_length, job)
    match = GradientMatcher.of(model.observation, task, model.device, signs=False)
    nothing = torch.zeros(task.max_length, len(match.table), device=model.device)
    return MatchedGrowth.of(count, tree, match, nothing, rng, adapters=True).sentences()


def _adaptive(observation: Observation) -> bool:
    """Whether an optimiser such as Adam made the update, which spans no layer's inputs then."""
    return observation.kind != "gradient" and observation.knowledge.optimizer not in MULTIPLES


def _hidden(
    model: AttackedModel, tree: Tree, traces: SoftTraces, rng: torch.Generator
) -> tuple[list[int], bool]:
    """A sentence grown by the whole gradient, where no layer of the first two blocks shows it.

    And whether the update says more for it than its text costs; nothing where the update is no
    gradient, or not complete.
    """
    if not tree.start or tree.end is None or traces.signs or _adaptive(model.observation):
        return [], False
    device = traces.words.device
    match = GradientMatcher.of(model.observation, model.task, device, signs=False)
    if match.sent:
        return [], False
    drawn = sampled(model.network, tree.start, rng)
    return LikelihoodGrowth(tree, model.network, match, drawn).sentence()


def _matched(
    match: GradientMatcher, tree: Tree, traces: SoftTraces, count: int, rng: torch.Generator
) -> MatchedGrowth:
    """Sentences grown by the whole gradient, of adapters or all weights."""
    shown, adapters = traces.ratios, traces.adapters
    if adapters:
        shown = _shown_words(traces, [match.update[n] for n in adapters if n in match.update])
    return MatchedGrowth.of(count, tree, match, shown, rng, adapters=bool(adapters))


def _by_layers(
    model: AttackedModel,
    match: GradientMatcher,
    tree: Tree,
    traces: SoftTraces,
    count: int,
    rng: torch.Generator,
) -> list[list[int]]:
    """Sentences searched by what each layer shows.

    Where noise does not explain what a single sentence leaves of a complete update, it is grown by
    the whole gradient, too, and the one that explains more of the update is returned.
    """
    observation, most = model.observation, count * tree.longest
    update = {name: value.float() for name, value in observation.update().items()}
    shift = DirectionalShift.of(traces.layers.network, update, most)
    test = Consistency.of(observation, model.task, traces.layers.network)
    fit = PrefixFit(match, observation, most, tree.end, tree.longest) if count > 1 else None
    decoder = Decoder(tree, traces, shift, match, fit, test, count, rng)
    lines = decoder.run()
    if count > 1 or not tree.start or traces.signs or match.sent or decoder.explains(lines):
        return lines
    lines += _matched(match, tree, traces, 1, rng).sentences()
    rivals = [torch.tensor(line, device=traces.words.device) for line in lines]
    return [rivals[int(match.similarities(rivals).argmax())].tolist()]


def _shown_words(traces: SoftTraces, updates: Sequence[Tensor]) -> Tensor:
    """What the adapters before any attention say of each word ``(position, vocabulary)``, in nats.

    Where positions are learned, words differ by their place; elsewhere a pursuit finds the words.
    """
    if not traces.layers.everywhere or not updates:
        return traces.ratios
    inputs = traces.layers.of_tokens(traces.words, 0)
    bonus = torch.zeros_like(traces.statistics)
    rows = noisy_rows(torch.cat([*updates]), inputs, int(_PURSUED_ROWS * inputs.shape[1]))
    bonus[:, traces.words[rows]] = _MATCHED_WORDS
    return bonus


@dataclass(frozen=True)
class Decoder:
    """Searches the sentences of a language model, and ends as soon as they explain the update."""

    tree: Tree
    traces: SoftTraces
    shift: DirectionalShift
    match: GradientMatcher
    fit: PrefixFit | None
    test: Consistency | None
    count: int
    rng: torch.Generator

    def run(self) -> list[list[int]]:
        """The sentences."""
        sentences = self.tree.search(self.traces, self.shift, self.count)
        if self.fit is not None and self.fit.tells:
            self.fit.add(self.tree.leaves(sentences))
            lines = self._finished(self._extended(self.fit, sentences), sentences)
        else:
            lines = self._chosen(sentences)
        ids = [line.tolist() for line in lines]
        if self.count > 1 or self.tree.job.expired or self.explains(ids):
            return ids
        end, job = self.tree.end, self.tree.job
        return [refined(line, self.traces, self.shift, self.match, end, job) for line in lines]

    def _chosen(self, sentences: list[Sentence]) -> list[Tensor]:
        """Those that explain most of the update, of two searches unless the first explains all."""
        lines = self.tree.lines(sentences, self.count, self.traces.words)
        best = choose(self.match, lines, self.count)
        if self.explains(best.ids):
            return best.lines
        sentences += self.tree.again(self.traces, self.shift, sentences, self.count, self.rng)
        lines = self.tree.lines(sentences, self.count, self.traces.words)
        return choose(self.match, lines, self.count).lines or lines[: self.count]

    def _extended(self, fit: PrefixFit, sentences: list[Sentence]) -> GradientPursuit:
        """The beginnings of sentences that the update supports, or all of them, if they explain it.

        Each is searched anew from where its support ends, and from its least certain token.
        """
        tried: Counter[tuple[int, ...]] = Counter()
        best = GradientPursuit(self.match, self.match.update)
        for _ in range(_FIT_ROUNDS):
            fit.add([self.tree.ended(prefix.ids) for prefix in fit.chosen(self.count)])
            chosen = fit.chosen(self.count)
            lines = [torch.tensor(prefix.ids, device=self.traces.words.device) for prefix in chosen]
            ended = [self.tree.ended(prefix.ids) for prefix in chosen]
            if done := self.explains(ended):
                lines = [line.new_tensor(ids) for line, ids in zip(lines, ended, strict=True)]
            whole = len(lines) == self.count and all(prefix.whole for prefix in chosen)
            settled = whole and {prefix.ids for prefix in chosen} == set(best.ids)
            best = GradientPursuit.of(self.match, lines)
            if done or settled:
                break
            if self.traces.first is not None and lines:
                self.traces.fit([prefix.ids for prefix in chosen], self.rng)
            more: list[Sentence] = []
            for index, prefix in enumerate(chosen):
                for begin in prefix.open:
                    if tried[begin] < _TRIES and not self.tree.job.expired:
                        more += self._again(best, index, len(begin), anew=tried[begin] > 0)
                        tried[begin] += 1
            if len(chosen) < self.count and not self.tree.job.expired:
                more += self._missing(best)
            if not more:
                break
            sentences += more
            fit.add(self.tree.leaves(more))
        return best

    def explains(self, lines: Sequence[Sequence[int]]) -> bool:
        """Whether noise explains what the sentences leave of the update."""
        if self.test is None or len(lines) < self.count:
            return False
        return self.test.p_value(lines, [-1] * self.count) >= P_VALUE

    def _again(
        self,
        best: GradientPursuit,
        index: int,
        size: int,
        *,
        anew: bool,
        ahead: int | None = _AHEAD,
    ) -> list[Sentence]:
        """Lines with the beginning of one; ``anew`` from what the others leave of the update."""
        longest, line = self.tree.longest, best.lines[index]
        traces, shift = self.traces, self.shift
        if anew:
            traces = traces.without(best.part(index), best.part(), self.count * longest)
            traces.fit([line.tolist()], self.rng)
            shift = DirectionalShift.of(
                traces.layers.network, best.residual(index), self.count * longest
            )
        return self.tree.search(traces, shift, 1, line[:size], ahead)

    def _missing(self, best: GradientPursuit) -> list[Sentence]:
        """Further sentences, from what those found leave of the update."""
        count = self.count - len(best.lines)
        traces = self.traces.without(best.part(), best.part(), self.count * self.tree.longest)
        if traces.first is not None:
            traces.grow(self.tree.start, count, self.rng)
        shift = DirectionalShift.of(
            traces.layers.network, best.residual(), self.count * self.tree.longest
        )
        return self.tree.search(traces, shift, count)

    def _finished(self, best: GradientPursuit, sentences: list[Sentence]) -> list[Tensor]:
        """As many sentences as the batch has, with the likeliest ends of those without support."""
        for index, line in enumerate(best.lines):
            ids = tuple(line.tolist())
            if len(ids) >= self.tree.longest or ids[-1] == self.tree.end:
                continue
            sentences += self._again(best, index, len(ids), anew=True, ahead=None)
            more = [
                sentence
                for sentence in sentences
                if sentence.ids[: len(ids)] == ids and len(sentence.ids) > len(ids)
            ]
            more = sorted(more, key=lambda sentence: -sentence.score)[:FEWEST_LINES]
            ended = [line.new_tensor(self.tree.ended(sentence.ids)) for sentence in more]
            if ended:
                matcher = self.match.against(best.residual(index))
                best.exchange(index, ended[int(matcher.similarities(ended).argmax())])
        lines = self.tree.lines(sentences, self.count, self.traces.words)
        if len(best.lines) < self.count:
            best = choose(self.match, lines, self.count, best)
        return best.lines or lines[: self.count]


def refined(
    line: Tensor,
    traces: SoftTraces,
    shift: DirectionalShift | None,
    match: GradientMatcher,
    end: int | None,
    job: Job,
) -> list[int]:
    """The line after exchanging single words for those that the gradient prefers."""
    scores = traces.ratios[: len(line)].clone()
    if shift is not None:
        (shifted,) = shift.along([line])
        scores[1:] += shifted
    rivals = scores.topk(min(_RIVALS, scores.shape[1]), dim=1).indices
    leader = scores.gather(1, line[:, None]).maximum(scores.amax(1, keepdim=True))
    rivals[scores.gather(1, rivals) < leader - _SURE] = -1
    rivals[0] = -1
    if end is not None and int(line[-1]) == end:
        rivals[-1] = -1
    best = float(match.similarity(line[None], line[None])[0])
    line, _ = improved(line, best, lambda x: match.similarity(x, x), rivals, _SWEEPS, job)
    words: list[int] = line.tolist()
    return words
