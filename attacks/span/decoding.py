"""Sentences decoded from an update whose span noise, pruning, signs or steps have blurred."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from attacks.base import Job, Reconstruction
from attacks.observed.prior import prior_lines
from attacks.proofs.consistency import support
from attacks.span.causal import decoder as causal
from attacks.span.encoder import decoder as encoder
from attacks.tokens.adapters import first_round
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.evidence import adapter_evidence
from attacks.tokens.layout import batch_of
from attacks.tokens.soft_traces import SoftTraces, soft_traces
from attacks.tokens.table_rows import TableRows, table_rows
from attacks.tokens.word_posterior import likely_words, note_of
from fedsim.errors import CannotAttack
from fedsim.models.adapters import is_adapter
from fedsim.records import Certificate

_HIDDEN = (
    "neither the first two blocks nor the embedding tables stand out of the update's noise; the "
    "most frequent words"
)


def _full(traces: SoftTraces) -> str:
    """That the first layer's span tells no word, as it has no room or none of them; else empty."""
    if traces.foreign:
        return (
            f"the update of {traces.layers.tokens.name!r} has few directions, and no word's input "
            "lies in them, as where adapters were merged into the weights"
        )
    if traces.first is None or not traces.first.full:
        return ""
    width = traces.first.seen.width
    return (
        f"the tokens fill most of the {width} dimensions that the gradient of "
        f"{traces.layers.tokens.name!r} shows: their span says nothing of the words"
    )


def decodable(model: AttackedModel) -> bool:
    """Whether a layer before any attention, or its adapters, sent a gradient that can be read."""
    if model.task.spec.target != "class":
        return False
    if model.unspanned:
        return causal.grows(model.task)
    try:
        layer = model.layers.tokens
    except CannotAttack:
        return False
    names = layer.weights(model.observation.received)
    if not names or not is_adapter(names[0]):
        return bool(names)
    return adapter_evidence(model, layer, names, model.task.max_length) is not None


@dataclass(frozen=True)
class LikelihoodSearch:
    """Decodes the likeliest sentences, each token by the likelihood that it is of the batch.

    They are ``consistent`` if their own gradient explains the update up to its noise. The note of
    other guesses names the words that are likely to occur in the batch, and says what the first
    round of adapters withholds. Where noise hides all that tells of words, the guess is that of
    ``PriorOnly``, if auxiliary rows are granted: a search would find the noise's own words.

    Attributes:
        model: under attack, its update of any optimizer and defense; none is declared.
        rng: the only source of randomness.
        job: ends the search when its time is up.
    """

    model: AttackedModel
    rng: torch.Generator
    job: Job

    def run(self) -> Reconstruction | None:
        """The sentences; None where nothing tells.

        Raises:
            CannotAttack: the network has no attention over linear layers.
        """
        observation, task = self.model.observation, self.model.task
        if task.spec.target != "class":  # a guess needs one, to compare its gradient
            return None
        if self.model.unspanned and causal.grows(task):
            return self._grown()
        traces = soft_traces(self.model)
        tables = None if traces.layers.causal else table_rows(self.model)
        if not traces.shown and tables is None:
            return None
        count, public = observation.knowledge.num_examples or 1, observation.knowledge.auxiliary
        # Adapters of a causal model are read together, however little each of them shows.
        tells = not traces.silent or (traces.layers.causal and bool(traces.adapters))
        hidden = public and not (tells or (tables is not None and tables.tells))
        level: Certificate = "guess"
        lines, labels = list[list[int]](), list[int]()
        for lines, labels in self._guesses(traces, tables, hidden=hidden):
            if len(lines) == count and not self.job.expired:
                level = support(observation, task, self.model.network, lines, labels)
            if level != "guess":
                break
        read = len(lines)
        if not read and not public:
            return None
        if read < count and public:
            usual, their_labels = prior_lines(observation, task, self.job)
            lines, labels = lines + usual[read:], labels + their_labels[read:]
        notes = [f"the update tells {read} of {count} sentences" if read < count else ""]
        if hidden and not read:
            notes = [_HIDDEN]
        elif level == "guess":
            if not self.job.expired:
                notes.append(note_of(likely_words(traces, count), task))
            notes.append(_full(traces))
        notes.append(first_round(observation))
        return Reconstruction(
            batch_of(lines, task, labels),
            confidence=(level,) * len(lines),
            expired=self.job.expired,
            note="; ".join(filter(None, notes)),
        )

    def _grown(self) -> Reconstruction:
        """Of an update that holds no layer's inputs: sentences grown by all of it."""
        observation, task = self.model.observation, self.model.task
        lines = causal.grown(self.model, self.rng, self.job)
        level: Certificate = "guess"
        if len(lines) == (observation.knowledge.num_examples or 1) and not self.job.expired:
            level = support(observation, task, self.model.network, lines, [-1] * len(lines))
        return Reconstruction(
            batch_of(lines, task, [-1] * len(lines)),
            confidence=(level,) * len(lines),
            expired=self.job.expired,
            note=f"grown by the whole gradient, of {self.model.unspanned}",
        )

    def _guesses(
        self, traces: SoftTraces, tables: TableRows | None, *, hidden: bool
    ) -> Iterator[tuple[list[list[int]], list[int]]]:
        """Sentences with their classes, -1 where the model has none; the cheaper guess first."""
        if traces.layers.causal:
            sure = self.model.observation.knowledge.auxiliary
            lines = causal.decode(self.model, traces, self.rng, self.job, sure=sure)
            yield lines, [-1] * len(lines)
        elif not hidden:
            yield from encoder.decode(self.model, traces, tables, self.job)
