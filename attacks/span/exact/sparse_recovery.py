"""Sentences from adapters of a smaller rank than the batch has words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

import torch
from torch import Tensor

from attacks.base import Job, Reconstruction
from attacks.proofs.certificate import Prover, proven
from attacks.proofs.last_tokens import ended
from attacks.tokens.adapters import read_adapters
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.candidates import start_of
from attacks.tokens.cuts import CUTS
from attacks.tokens.first_layers import FirstLayers, Layer
from attacks.tokens.pursuit import Pursuit, few_rows
from attacks.tokens.sentences import SpanSentence
from attacks.tokens.subspace import Subspace
from fedsim.knowledge import MULTIPLES
from fedsim.models.lora import is_adapter
from fedsim.tasks.text import TextTask

_PURSUED_ATOMS = 1 << 17  # most rows of its dictionary, those with the largest share in the space
_PURSUED_CHOICES = 256  # choices of one word for each place that are tried
_PURSUED_CONTEXTS = 3  # random prefixes of each length that a word's usual input is the mean of
_PURSUED_LENGTHS = (4, 8, 16, 24)  # of these, in tokens
_CONTEXT_RIDGE = 0.03  # mean variances that are added to those of contexts
_LEAST_SPREAD = 1e-3  # of shares, as rounding alone may have none
_PURSUED_APART = 10.0  # deviations of a share beyond which it says no more
_PURSUED_STALE = 6  # further tokens that may pass without a likelier sentence
_PURSUED_SWEEPS = 3  # most searches of each sentence of a batch
_PURSUED_PREFIXES = 16  # prefixes kept in the growth of a sentence
_PURSUED_END = -3.0  # least log-probability of a sentence's end that nothing else shows
_PURSUED_TRUST = 1.0  # share of the log-likelihood ratio of normal shares that counts

_FACTORS = (1.0, 0.5, 2.0, 4.0)
"""Of ``_PURSUED_TRUST``, until a sentence explains all; the first for several sentences."""

NOTE = "the adapters have a smaller rank than the batch has words, which a sparse pursuit found."
_CHUNK = 4096  # tokens in one forward pass


@dataclass(frozen=True)
class SparseRecovery:
    """Searches a batch whose words outnumber the rank of the adapters, and proves what it finds.

    The updates of all ``A`` before the attention are few combinations ``D X`` of the inputs ``X``
    of all tokens. These are rows of a known dictionary, and where they are fewer than the model is
    wide, hardly any other rows have the same combinations: a pursuit finds the words
    (``few_rows``). Where positions are learned it finds their places with them; otherwise a causal
    model's sentences are grown by the same test of the layers behind the attention. They are
    certified if their gradient is the observed one.

    Attributes:
        model: under attack; its update has to be a multiple of a gradient.
        rng: draws the prefixes that a word's usual inputs are taken of.
        job: ends the search when its time is up.
        rows: exclude words whose embedding row is zero, if an untied table is sent.
    """

    model: AttackedModel
    rng: torch.Generator
    job: Job
    rows: bool

    def run(self) -> Reconstruction | None:
        """The sentences; None without any."""
        observation, task = self.model.observation, self.model.task
        if observation.knowledge.optimizer not in MULTIPLES:
            return None
        lines = [line for line in self._lines() if len(line) > 1]
        if not lines:
            return None
        first = [name for name in observation.received if is_adapter(name)]
        prover, known = Prover(observation, task, self.model.network, first), None
        if task.spec.kind == "language-modelling":
            _, known = ended([prover], lines)
            lines = known.lines
        for sure in (True, False):
            sentences = [SpanSentence(line, 0.0, sure) for line in lines]
            guess = proven(prover, sentences, known)
            if guess.certified:
                break
        return replace(guess, expired=self.job.expired, note=NOTE)

    def _lines(self) -> list[tuple[int, ...]]:
        layers = self.model.usual_layers
        count = self.model.observation.knowledge.num_examples or 1
        space = self._space(layers.tokens)
        places = None if space is None else self._places(layers, space, count)
        if places is None:
            return []
        if count == 1 and not layers.everywhere:
            whole = all(len(entry) == 1 for entry in places)
            return [tuple(int(entry) for entry in places)] if whole else []
        if not layers.causal:
            return []
        spaces = {entry: self._space(entry) for entry in (*layers.contexts, *layers.later)}
        behind = {layer: entry for layer, entry in spaces.items() if entry is not None}
        growth = Growth.of(layers, behind, places, self.model.task, self.rng)
        return growth.sentences(count, self.job)

    def _space(self, layer: Layer) -> Subspace | None:
        """The space of the combinations of a layer's inputs that its adapters show."""
        observation = self.model.observation
        names = layer.weights(observation.received)
        if not names or not is_adapter(names[0]):
            return None
        adapters = read_adapters(observation, names, self.model.device)
        return None if adapters is None else adapters.inputs

    def _places(self, layers: FirstLayers, space: Subspace, count: int) -> list[Tensor] | None:
        """The batch's words at each place that a sentence may have; None if they are too many."""
        task, words, job = self.model.task, self.model.vocabulary(rows=self.rows), self.job
        start = start_of(task)
        longest = task.max_length - (task.spec.kind == "language-modelling")
        tried = range(1 if layers.everywhere else longest)
        ids, places, atoms = [], [], []
        most = max(1, _PURSUED_ATOMS // len(tried))
        for place in tried:
            inputs = torch.cat([layers.of_tokens(part, place) for part in words.split(_CHUNK)])
            near = space.rough_distance(inputs).topk(min(most, len(words)), largest=False).indices
            ids.append(words[near])
            places.append(torch.full_like(near, place))
            atoms.append(inputs[near])
        kinds, dictionary = torch.cat(places), torch.cat(atoms)
        rows = None
        if count == 1 and not layers.everywhere:
            rows = few_rows(space.basis, dictionary, job, kinds)
        if rows is None:
            rows = few_rows(space.basis, dictionary, job)
            if rows and count == 1 and not layers.everywhere:
                rows = _one_each(space.basis, dictionary, rows, kinds)
        if not rows:
            return None
        tokens, at = torch.cat(ids)[rows], kinds[rows]
        first = [] if start is None else [words.new_tensor([start])]
        if layers.everywhere:
            return [*first, *[tokens] * (longest - len(first))]
        last = int(at.max())
        return [*first, *[tokens[at == place] for place in range(len(first), last + 1)]]


def _one_each(basis: Tensor, atoms: Tensor, rows: list[int], kinds: Tensor) -> list[int] | None:
    """One row of each kind among some that explain a space; None if no such choice does.

    Two words at two places are four rows of which one is a sum of the others, up to their norms.
    """
    weights = torch.linalg.lstsq(atoms[rows].T.to(basis), basis).solution.norm(dim=1)
    by_kind: dict[int, list[int]] = {}
    for row, weight in zip(rows, (weights / weights.max()).tolist(), strict=True):
        if weight > CUTS.pursued_room:
            by_kind.setdefault(int(kinds[row]), []).append(row)
    for choice in islice(product(*by_kind.values()), _PURSUED_CHOICES):
        if Pursuit.of(basis).plus(atoms[[*choice]]).done:
            return [*choice]
    return None


@dataclass(frozen=True)
class Prefix:
    """The beginning of a sentence.

    Attributes:
        residuals: what it leaves of each layer beside the usual inputs of all words.
        bare: what it leaves of each layer by itself.
        score: its log-probability.
    """

    ids: tuple[int, ...]
    residuals: tuple[Pursuit, ...]
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
    Contexts are alike as well, so that shares are taken in the metric of their covariance.

    Attributes:
        layers: the network's first two blocks.
        kinds: the layers behind the attention that show anything.
        metrics: of each, the root of the inverse covariance of contexts ``(width, width)``.
        begin: of every sentence, before its first token.
        places: the words of the batch at each place.
        writes: the language model; None for a classifier.
        end: the token that ends a sentence; None if none does.
    """

    layers: FirstLayers
    kinds: Sequence[Layer]
    metrics: Sequence[Tensor]
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
        """Take the usual inputs behind random words of the batch, where these leave room."""
        edges = task.tokens([""])[0]
        modelled = task.spec.kind == "language-modelling"
        end = edges[-1] if edges and modelled else -1
        places = [places[0], *[words[words != end] for words in places[1:]]]
        kinds, bag = list(spaces), torch.cat(places).unique()
        inputs = []
        for size in _PURSUED_LENGTHS:
            drawn = torch.randint(len(bag), (_PURSUED_CONTEXTS, size), generator=rng)
            contexts = bag[drawn.to(bag.device)]
            contexts[:, 0] = places[0][0]
            inputs.append(layers.of_extensions(kinds, contexts, bag))
        metrics, bare, usual = [], [], []
        for space, parts in zip(spaces.values(), zip(*inputs, strict=True), strict=True):
            seen = torch.cat(parts).double()
            mean = seen.mean(0)
            metric = _metric((seen - mean).flatten(0, 1))
            metrics.append(metric)
            bare.append(Pursuit.of(torch.linalg.qr(metric.T @ space.basis.double()).Q))
            roomy = len(bag) + 2 * space.rank <= space.width
            usual.append(bare[-1].plus(mean @ metric) if roomy else bare[-1])
        writes = layers.network if modelled else None
        begin = Prefix((), tuple(usual), tuple(bare))
        return cls(layers, kinds, metrics, begin, places, writes, end if end >= 0 else None)

    def sentences(self, count: int, job: Job) -> list[tuple[int, ...]]:
        """As many sentences as the batch has, one by one, each without what others explain.

        The others of a batch are partly wrong at first, so that each is searched again beside them
        until nothing is left to explain.
        """
        batch = list[Prefix]()
        for index in range(_PURSUED_SWEEPS * count if count > 1 else 1):
            others = [each for i, each in enumerate(batch) if i != index % count]
            begin = self._beside(others)
            factors = _FACTORS if count == 1 else _FACTORS[:1]
            for factor in factors:
                best = self._best(begin, factor * _PURSUED_TRUST, job)
                if best.explains:
                    break
            if job.expired and index >= count:
                break
            batch[index % count :] = [best, *batch[index % count + 1 :]]
            if job.expired or (len(batch) == count and best.explains):
                break
        if not best.explains:
            return [sentence.ids for sentence in batch]
        return [self._trimmed(sentence, batch) for sentence in batch]

    def _trimmed(self, sentence: Prefix, batch: Sequence[Prefix]) -> tuple[int, ...]:
        """The shortest beginning of a sentence that explains all beside the others.

        Before a sure end, the last token has next to no gradient: the model tells it, if any.
        """
        shorter = self._beside([other for other in batch if other is not sentence])
        inputs = self._inputs(self.places[0].new_tensor([sentence.ids]))
        for place, word in enumerate(sentence.ids):
            last = [x[0, place : place + 1] for x in inputs]
            shorter = self._grown(shorter, word, last, sentence.score)
            if place and shorter.explains:
                break
        if self.end is None or len(shorter.ids) == len(self.places):
            return shorter.ids
        (logs,) = self._written([shorter.ids])
        words = self.places[len(shorter.ids)]
        longer = [(*shorter.ids, word) for word in words.tolist()]
        ends = torch.cat([logs[words] + self._written(longer)[:, self.end], logs[self.end][None]])
        return [*longer, shorter.ids][int(ends.argmax())]

    def _beside(self, others: Sequence[Prefix]) -> Prefix:
        """The beginning of a sentence beside others, with what these leave."""
        begin = self.begin
        for other in others:
            inputs = self._inputs(torch.tensor([other.ids], device=self.places[0].device))
            residuals, bare = (
                tuple(pursuit.plus(x[0]) for pursuit, x in zip(part, inputs, strict=True))
                for part in (begin.residuals, begin.bare)
            )
            begin = replace(begin, residuals=residuals, bare=bare)
        return begin

    def _inputs(self, ids: Tensor) -> list[Tensor]:
        """Inputs ``(sentence, token, width)`` of each layer in its metric."""
        inputs = self.layers.of_lines(self.kinds, ids)
        return [x.double() @ metric for x, metric in zip(inputs, self.metrics, strict=True)]

    def _best(self, begin: Prefix, trust: float, job: Job) -> Prefix:
        """The likeliest sentence, or the first that explains all that is left."""
        firsts = self.places[0]
        inputs = self._inputs(firsts[:, None])
        beam = [
            self._grown(begin, word, [x[row] for x in inputs], 0.0)
            for row, word in enumerate(firsts.tolist())
        ]
        best, stale = replace(begin, score=-torch.inf), 0
        for place in range(1, len(self.places) + 1):
            logs = self._written([prefix.ids for prefix in beam])
            over = torch.zeros(len(beam)) if self.end is None else logs[:, self.end]
            ended = [
                replace(prefix, score=prefix.score + nats)
                for prefix, nats in zip(beam, over.tolist(), strict=True)
            ]
            likeliest = max(ended, key=lambda prefix: prefix.score)
            best, stale = (likeliest, 0) if likeliest.score > best.score else (best, stale + 1)
            if place == len(self.places) or stale > _PURSUED_STALE or job.expired:
                break
            beam = self._extended(beam, self.places[place], logs, trust)
            if whole := [prefix for prefix in beam if prefix.explains]:
                return whole[0]
        return best

    def _extended(
        self, beam: Sequence[Prefix], tokens: Tensor, logs: Tensor, trust: float
    ) -> list[Prefix]:
        """The likeliest prefixes with a further token."""
        ratios, inputs = self._ratios(beam, tokens, trust)
        scores = ratios.new_tensor([prefix.score for prefix in beam])[:, None] + ratios
        scores = (scores + logs[:, tokens]).flatten()
        grown = []
        for index in scores.topk(min(_PURSUED_PREFIXES, len(scores))).indices.tolist():
            row, at = divmod(index, len(tokens))
            last = [x[row, at][None] for x in inputs]
            grown.append(self._grown(beam[row], int(tokens[at]), last, float(scores[index])))
        return grown

    def _grown(self, prefix: Prefix, word: int, last: Sequence[Tensor], score: float) -> Prefix:
        """The prefix with a further token, whose inputs are ``(1, width)`` at each layer."""
        residuals, bare = (
            tuple(pursuit.plus(x) for pursuit, x in zip(part, last, strict=True))
            for part in (prefix.residuals, prefix.bare)
        )
        return Prefix((*prefix.ids, word), residuals, bare, score)

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

    def _ratios(
        self, beam: Sequence[Prefix], tokens: Tensor, trust: float
    ) -> tuple[Tensor, list[Tensor]]:
        """What speaks for each next token behind each prefix ``(prefix, token)``, in nats.

        And their inputs to each layer ``(prefix, token, width)``.
        """
        ids = torch.tensor([prefix.ids for prefix in beam], device=tokens.device)
        total = torch.zeros(len(beam), len(tokens), device=tokens.device)
        inputs = [
            x.double() @ metric
            for x, metric in zip(
                self.layers.of_extensions(self.kinds, ids, tokens), self.metrics, strict=True
            )
        ]
        for index, candidates in enumerate(inputs):
            for row, prefix in enumerate(beam):
                residual = prefix.residuals[index]
                share = residual.shares(candidates[row], residual.directions)
                apart = share - share.median()
                apart = apart / (1.4826 * apart.abs().median()).clamp(min=_LEAST_SPREAD)
                total[row] += trust * (apart.clamp(0, _PURSUED_APART).square() / 2 - 0.5).to(total)
        return total, inputs


def _metric(contexts: Tensor) -> Tensor:
    """The root of the inverse covariance ``(width, width)`` of rows, with a ridge."""
    values, basis = torch.linalg.eigh(contexts.T @ contexts)
    metric: Tensor = basis * (values + _CONTEXT_RIDGE * values.mean()).rsqrt()
    return metric
