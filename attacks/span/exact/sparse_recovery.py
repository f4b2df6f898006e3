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
_PURSUED_CONTEXTS = 6  # random prefixes that a word's usual input is the mean of
_PURSUED_PREFIXES = 16  # prefixes kept in the growth of a sentence
_PURSUED_END = -3.0  # least log-probability of a sentence's end that nothing else shows
_PURSUED_TRUST = 15.0  # nats that a token's whole input in the space speaks for it

_FACTORS = (1.0, 0.5, 2.0, 4.0)
"""Of ``_PURSUED_TRUST``, until a sentence explains all; the last for several sentences."""

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
        lines = self._lines()
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
