"""Sentences from adapters of a smaller rank than the batch has words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice, product
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.base import Job, Reconstruction
from attacks.observed.prior import prior_lines
from attacks.proofs.certificate import Prover, proven
from attacks.proofs.last_tokens import ended
from attacks.span.exact.sentence_growth import Growth
from attacks.span.exact.word_gradients import WordGradients, present, solved
from attacks.tokens.adapters import is_personal, read_adapters
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.candidates import start_of
from attacks.tokens.first_layers import FirstLayers, Layer
from attacks.tokens.layout import batch_of
from attacks.tokens.pursuit import PURSUED_ROOM, Pursuit, few_rows
from attacks.tokens.span_membership import SpanSentence
from attacks.tokens.subspace import Subspace
from fedsim.knowledge import MULTIPLES
from fedsim.models.adapters import is_adapter

_PURSUED_ATOMS = 1 << 17  # most rows of its dictionary, those with the largest share in the space
_PURSUED_CHOICES = 256  # choices of one word for each place that are tried
_CHUNK = 4096  # tokens in one forward pass

NOTE = "the adapters have a smaller rank than the batch has words, which a sparse pursuit found."


@dataclass(frozen=True)
class SparseRecovery:
    """Searches a batch whose words outnumber the rank of the adapters, and proves what it finds.

    The updates of all ``A`` before the attention are few combinations ``D X`` of the inputs ``X``
    of all tokens. These are rows of a known dictionary, and where they are fewer than the model is
    wide, hardly any other rows have the same combinations: a pursuit finds the words
    (``few_rows``). Where positions are learned it finds their places with them; otherwise a causal
    model's sentences are grown by the same test of the layers behind the attention, and by the
    gradient that each word is then known to have (``WordGradients``). They are certified if their
    gradient is the observed one.

    Attributes:
        model: under attack; its update has to be a multiple of a gradient.
        rng: draws the prefixes that a word's usual inputs are taken of.
        job: ends the search when its time is up.
    """

    model: AttackedModel
    rng: torch.Generator
    job: Job

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
            _, known = ended(prover, [prover.layout], lines)
            lines = known.lines
        for sure in (True, False):
            sentences = [SpanSentence(line, 0.0, sure) for line in lines]
            guess = proven(prover, sentences, known)
            if guess.certified:
                break
        return replace(self.completed(guess), expired=self.job.expired)

    def completed(self, guess: Reconstruction) -> Reconstruction:
        """The guess with the usual words of the auxiliary rows in place of sentences not read.

        These are what ``PriorOnly`` guesses. Without such rows the guess stays as it is.
        """
        observation, task = self.model.observation, self.model.task
        count, read = observation.knowledge.num_examples or 1, len(guess.guess)
        if read >= count or not observation.knowledge.auxiliary:
            return replace(guess, note=NOTE)
        usual, labels = prior_lines(observation, task, self.job)
        mask = guess.guess.mask
        assert mask is not None
        lines = [
            ids[real == 1].tolist() for ids, real in zip(guess.guess.inputs, mask, strict=True)
        ]
        batch = batch_of([*lines, *usual[read:]], task, [-1] * read + labels[read:])
        levels = [*(guess.confidence or ())]
        levels += ["guess"] * (count - len(levels))
        note = (
            f"{NOTE[:-1]}; {read} of {count} sentences read, the others are the most frequent words"
        )
        return replace(guess, guess=batch, confidence=tuple(levels), note=note)

    def _lines(self) -> list[tuple[int, ...]]:
        layers, space = self.model.usual_layers, self._space(self.model.usual_layers.tokens)
        count = self.model.observation.knowledge.num_examples or 1
        single = count == 1 and not layers.everywhere
        if space is None or not len((words := self._words(layers, space, single=single)).ids):
            return []
        places, gradients = self._places(layers, words)
        if single:
            whole = all(len(entry) == 1 for entry in places)
            return [tuple(int(entry) for entry in places)] if whole else []
        if not layers.causal:
            return []
        spaces = {entry: self._space(entry) for entry in (*layers.contexts, *layers.later)}
        behind = {layer: entry for layer, entry in spaces.items() if entry is not None}
        growth = Growth.of(layers, behind, places, self.model.task, self.rng, gradients)
        return growth.sentences(count, self.job)

    def _space(self, layer: Layer) -> Subspace | None:
        """The space of the combinations of a layer's inputs that its adapters show."""
        observation = self.model.observation
        names = layer.weights(observation.received)
        if not names or not is_adapter(names[0]):
            return None
        adapters = read_adapters(observation, names, self.model.device)
        return None if adapters is None else adapters.inputs

    @property
    def _longest(self) -> int:
        """Tokens of a sentence that leave a trace, at most."""
        task = self.model.task
        return task.max_length - (task.spec.kind == "language-modelling")

    def _words(self, layers: FirstLayers, space: Subspace, *, single: bool) -> _Words:
        """The batch's words where they stand; none if they are too many.

        Of a ``single`` sentence with learned places there is one at each.
        """
        atoms, rows = self._dictionary(layers, space), None
        if single:
            rows = few_rows(space.basis, atoms.inputs, self.job, atoms.places)
        if rows is None:
            rows = few_rows(space.basis, atoms.inputs, self.job)
            if rows and single:
                rows = _one_each(space.basis, atoms.inputs, rows, atoms.places)
        return atoms.take(rows or [])

    def _dictionary(self, layers: FirstLayers, space: Subspace) -> _Words:
        """All words at all places, those nearest to the space where they are too many."""
        words, tried = self.model.vocabulary(), range(1 if layers.everywhere else self._longest)
        most, parts = max(1, _PURSUED_ATOMS // len(tried)), []
        for place in tried:
            inputs = torch.cat([layers.of_tokens(part, place) for part in words.split(_CHUNK)])
            near = space.rough_distance(inputs).topk(min(most, len(words)), largest=False).indices
            parts.append(_Words(words[near], torch.full_like(near, place), inputs[near]))
        return _Words(*map(torch.cat, zip(*parts, strict=True)))

    def _places(
        self, layers: FirstLayers, words: _Words
    ) -> tuple[list[Tensor], WordGradients | None]:
        """The batch's words at each place that a sentence may have, and the words' gradients.

        These are None where nothing behind the adapters can be computed.
        """
        task, observation = self.model.task, self.model.observation
        names = [name for name in layers.tokens.weights(observation.received) if is_adapter(name)]
        update = observation.update(names)
        gradients = solved([update[name].to(words.inputs) for name in names], words.inputs)
        real = present(gradients, words.inputs)
        (tokens, at, _), gradients = words.take(real), [each[real] for each in gradients]
        read, start = None, start_of(task)
        modelled = task.spec.kind == "language-modelling"
        if layers.causal and modelled and not is_personal(observation):
            known = None if layers.everywhere else at
            read = WordGradients.of(layers, names, gradients, tokens, known)
        first = [] if start is None else [tokens.new_tensor([start])]
        if layers.everywhere:
            return [*first, *[tokens] * (self._longest - len(first))], read
        later = [tokens[at == place] for place in range(len(first), int(at.max()) + 1)]
        return [*first, *later], read


class _Words(NamedTuple):
    """Words ``(word,)`` with their places, and their inputs before any attention."""

    ids: Tensor
    places: Tensor
    inputs: Tensor

    def take(self, rows: list[int] | Tensor) -> _Words:
        """Some of them."""
        return _Words(*(part[rows] for part in self))


def _one_each(basis: Tensor, atoms: Tensor, rows: list[int], kinds: Tensor) -> list[int] | None:
    """One row of each kind among some that explain a space; None if no such choice does.

    Two words at two places are four rows of which one is a sum of the others, up to their norms.
    """
    weights = torch.linalg.lstsq(atoms[rows].T.to(basis), basis).solution.norm(dim=1)
    by_kind: dict[int, list[int]] = {}
    for row, weight in zip(rows, (weights / weights.max()).tolist(), strict=True):
        if weight > PURSUED_ROOM:
            by_kind.setdefault(int(kinds[row]), []).append(row)
    for choice in islice(product(*by_kind.values()), _PURSUED_CHOICES):
        if Pursuit.of(basis).plus(atoms[[*choice]]).done:
            return [*choice]
    return None
