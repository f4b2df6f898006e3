"""Sentences decoded from an update whose span noise, pruning, signs or steps have blurred."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attacks.base import Job, Reconstruction
from attacks.observed.prior import prior_lines
from attacks.proofs.certificate import batch_of
from attacks.proofs.consistency import support
from attacks.span.causal import decoder as causal
from attacks.span.encoder import decoder as encoder
from attacks.tokens.adapters import first_round
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.evidence import adapter_evidence
from attacks.tokens.soft_traces import SoftTraces, soft_traces
from attacks.tokens.table_rows import TableRows, table_rows
from attacks.tokens.word_posterior import likely_words, note_of
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.models.lora import is_adapter
from fedsim.records import Certificate

_HIDDEN = (
    "neither the first two blocks nor the embedding tables stand out of the update's noise; the "
    "most frequent words"
)


def decodable(model: AttackedModel) -> bool:
    """Whether a layer before any attention, or its adapters, sent a gradient that can be read."""
    if model.task.spec.target != "class":
        return False
    try:
        layer = model.layers.tokens
    except CannotAttack:
        return False
    names = layer.weights(model.observation.received)
    if not names or not is_adapter(names[0]):
        return bool(names)
    return adapter_evidence(model, layer, model.task.max_length) is not None


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
        rows: exclude words whose embedding row is zero, if an untied table is sent.
    """

    model: AttackedModel
    rng: torch.Generator
    job: Job
    rows: bool

    def run(self) -> Reconstruction | None:
        """The sentences; None where nothing tells.

        Raises:
            CannotAttack: the network has no attention over linear layers.
        """
        observation, task = self.model.observation, self.model.task
        if task.spec.target != "class":  # a guess needs one, to compare its gradient
            return None
        traces = soft_traces(self.model, rows=self.rows)
        tables = None if traces.layers.causal else table_rows(self.model)
        if not traces.shown and tables is None:
            return None
        count, public = observation.knowledge.num_examples or 1, observation.knowledge.auxiliary
        hidden = bool(public) and not _tells(traces, tables, observation)
        lines, labels = self._sentences(traces, tables, hidden=hidden)
        hidden = hidden and not lines
        read = len(lines)
        if not read and not public:
            return None
        level: Certificate = "guess"
        if read < count and public:
            usual, their_labels = prior_lines(observation, task, self.job)
            lines, labels = lines + usual[read:], labels + their_labels[read:]
        if read == count and not self.job.expired:
            level = support(observation, task, self.model.network, lines, labels)
        note = _HIDDEN if hidden else _few(read, count)
        if level == "guess" and not hidden:
            note = "; ".join(filter(None, (note, note_of(likely_words(traces, count), task))))
        return Reconstruction(
            batch_of(lines, task, labels),
            confidence=(level,) * len(lines),
            expired=self.job.expired,
            note="; ".join(filter(None, (note, first_round(observation)))),
        )

    def _sentences(
        self, traces: SoftTraces, tables: TableRows | None, *, hidden: bool
    ) -> tuple[list[list[int]], list[int]]:
        """The likeliest sentences with their classes, -1 where the model has none."""
        if traces.layers.causal:
            sure = bool(self.model.observation.knowledge.auxiliary)
            lines = causal.decode(self.model, traces, self.rng, self.job, sure=sure)
            return lines, [-1] * len(lines)
        return ([], []) if hidden else encoder.decode(self.model, traces, tables, self.job)


def _few(read: int, count: int) -> str:
    """Says that sentences are missing, one clause."""
    return f"the update tells {read} of {count} sentences" if read < count else ""


def _tells(traces: SoftTraces, tables: TableRows | None, observation: Observation) -> bool:
    """Whether a layer, or a row of the embedding tables, stands out of the noise.

    Adapters of a causal model are read together, however little each of them shows.
    """
    names = traces.layers.tokens.weights(observation.received)
    if traces.layers.causal and any(is_adapter(name) for name in names):
        return True
    if traces.first is not None or traces.near or traces.later:
        return True
    return tables is not None and tables.tells
