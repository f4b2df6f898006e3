"""Ranks of the true tokens among the vocabulary, from the first layer's part of an update.

For each treatment of the update the rank of the true token at each position among the whole
vocabulary, by its distance to the span of the first layer's gradient: of the queries (DAGER's
choice, Petrov et al. 2024), of the values, and of queries, keys and values side by side. Beside it
what the span attack makes of the same observation. A model from the hub is given as

    python -m benchmarks ranks --set task.model=fedsim/gpt2-8k \
        --set task.dataset=film/enron-sentences
    python -m benchmarks ranks --set task.model=sentence-transformers/all-MiniLM-L6-v2 \
        --set task.dataset=nyu-mll/glue:cola

and further as any experiment: ``task.split`` says which sentences, ``federation.batch_size`` how
many of them share a batch, ``defenses`` what every treatment comes on top of; several make several
tables. The embeddings are frozen unless ``'defenses=[{name="none"}]'``. In a batch of several
sentences some false tokens are in the span themselves, those that the batch holds at another place
above all, so that small ranks differ by rounding alone.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from attacks.base import Job
from attacks.span.span import Span
from benchmarks.rank_rows import RankOutcome, RankRow, Subject, rank_row, reason
from benchmarks.ranking import MATRICES, Ranking
from benchmarks.treatments import TREATMENTS, TreatedClient, Treatment
from clients.train import LocalTrainer
from experiments.plan.cells import make_cells
from experiments.plan.config import Plan, parse_experiment
from experiments.plan.overrides import override
from fedsim.config.cell import CellConfig
from fedsim.config.federation import FederationConfig
from fedsim.config.setting import load_setting
from fedsim.data.rows import load_rows
from fedsim.defenses.chain import Chain
from fedsim.errors import CannotAttack, ConfigError
from fedsim.metrics.match import match
from fedsim.models import MODELS
from fedsim.process import one_thread
from fedsim.seeds import generator
from fedsim.store.capture import Observation
from fedsim.tasks import initial_weights
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Rows

SENTENCES = 10
WARM_UP = FederationConfig(
    protocol="fedavg", optimizer="adam", learning_rate=1e-3, batch_size=8, local_steps=60
)
"""Training of a built-in model on public sentences before its updates are examined."""
_BUDGET = 60.0  # seconds of the span attack for one batch


def rank_tables(
    sets: Sequence[str] = (), treatments: Sequence[Treatment] = TREATMENTS
) -> Iterator[Subject | RankRow]:
    """A subject and its rows for each defense, seed and swept value of the experiment.

    Raises:
        ConfigError: an override is wrong, or the model reads no text.
    """
    table = {
        "name": "ranks",
        "task": {
            "model": "tiny-gpt2",
            "dataset": "sentences",
            "split": f"train[:{SENTENCES}]",
            "heldout_rows": 1,
        },
        "federation": {"engine": "in-process"},
        "defenses": [{"name": "freeze_embeddings", "position": True}],
    }
    experiment = parse_experiment(override(table, sets))
    for cell in make_cells(Plan(name="ranks", experiments=(experiment,)), Path("ranks")):
        with one_thread():
            yield from BenchVictims.of(cell.config).measure(treatments)


@dataclass(frozen=True)
class BenchVictims:
    """The batches of one cell, each of a client of its own."""

    client: TreatedClient
    batches: Sequence[Rows]

    @classmethod
    def of(cls, config: CellConfig) -> BenchVictims:
        """Load model and rows; a built-in model is trained a little on public sentences."""
        setting = load_setting(config)
        task, rows, size = setting.task, setting.holdings.private, config.federation.batch_size
        if not isinstance(task, TextTask):
            raise ConfigError(
                f"task.model: {config.task.model!r} reads no text, so it has no tokens to rank. "
                "Choose a text model."
            )
        if len(rows) < size:
            raise ConfigError(
                f"federation.batch_size: {size} is more than the {len(rows)} rows of "
                f"{config.task.split!r}. Lower it, or use a longer task.split."
            )
        sent = initial_weights(task, config.task, config.seed)
        if config.task.model in MODELS and config.task.weights == "auto":
            public = load_rows("sentences", "public", modality="text")
            trainer = LocalTrainer(task, WARM_UP, Chain(), config.seed, torch.device("cpu"))
            sent = sent | trainer.run(sent, public, 0, 0).tensors
        starts = range(0, len(rows) - size + 1, size)
        batches = [rows.take(range(start, start + size)) for start in starts]
        return cls(TreatedClient(config, task, sent), batches)

    def measure(self, treatments: Sequence[Treatment]) -> Iterator[Subject | RankRow]:
        """The subject, then three rows a treatment, as they come."""
        ranking = Ranking(self.client.task, self.client.sent)
        scales, batches = [], []
        for number, rows in enumerate(self.batches):
            seen, batch = self.client.observe(Treatment("none"), rows, number, 0.0)
            scales.append(ranking.rms(seen))
            batches.append(batch)
        rms = torch.stack(scales)
        yield self._subject(ranking, batches, rms.median(0).values.tolist())
        for treatment in treatments:
            spans, outcomes = [], []
            for number, rows in enumerate(self.batches):
                scale = float(rms[number, -1])
                seen, batch = self.client.observe(treatment, rows, number, scale)
                spans.append(ranking.spans(seen, batch))
                outcomes.append(self._attack(seen, batch, number))
            ranks, owners = ranking.ranks(spans, batches)
            for column, matrix in enumerate(MATRICES):
                own = ranks[:, column].tolist()
                yield rank_row(treatment.name, matrix, own, owners, outcomes)

    def _subject(self, ranking: Ranking, batches: Sequence[Batch], rms: list[float]) -> Subject:
        config = self.client.config
        return Subject(
            config.task.model,
            config.task.dataset,
            config.task.split,
            "+".join(str(table["name"]) for table in config.defense),
            sum(map(len, batches)),
            config.federation.batch_size,
            sum(int(ranking.words(batch).sum()) for batch in batches),
            ranking.size,
            ranking.width,
            *rms,
        )

    def _attack(self, seen: Observation, batch: Batch, number: int) -> RankOutcome:
        """Result of the span attack on one observation."""
        task = self.client.task
        truth = Counter(task.examples(batch).tokens)
        rng = generator(self.client.config.seed, "span", number)
        job = Job(deadline=time.monotonic() + _BUDGET)
        begun = time.process_time()
        try:
            (made,) = Span().reconstruct([seen], task, [rng], job)
        except CannotAttack as refusal:
            return RankOutcome(
                len(batch),
                refusal=reason(refusal.reason),
                seconds=time.process_time() - begun,
            )
        guess, private = task.examples(made.guess), task.examples(batch)
        levels = made.confidence or ()
        called = {
            level: Counter(g for g, own in zip(guess.tokens, levels, strict=True) if own == level)
            for level in ("certified", "consistent")
        }
        pairs = zip(match(guess, private, "text"), private.tokens, strict=True)
        return RankOutcome(
            len(batch),
            (Counter(guess.tokens) & truth).total(),
            called["certified"].total(),
            called["consistent"].total(),
            (called["certified"] + called["consistent"] - truth).total(),
            tuple(0.0 if i is None else overlap(guess.tokens[i], real) for i, real in pairs),
            time.process_time() - begun,
            expired=made.expired,
        )


def overlap(guess: Sequence[int], truth: Sequence[int]) -> float:
    """F-measure of the tokens of two sentences, as ROUGE-1."""
    shared = (Counter(guess) & Counter(truth)).total()
    return 2 * shared / max(1, len(guess) + len(truth))
