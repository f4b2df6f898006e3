"""Speed-up of text matching over a literal implementation of its formulas.

Both sides run on one thread, in turn, and are timed by that thread's CPU time: it leaves out what
other programs take of the core, and torch does the work of one thread in the thread that calls. Of
each pair of runs the ratio is taken, and of the ratios the median.
"""

import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast, get_args

import torch
from torch import Tensor

from attacks.base import Job
from attacks.observed.factored import Factored
from attacks.observed.replay import Replay
from attacks.texts.lamp import LAMP
from attacks.texts.language_prior import load_prior
from attacks.texts.matching import Distance, Matching, TextObjective
from benchmarks.measure import Measure
from benchmarks.naive_lamp import NaiveLAMP, NaiveMatching
from benchmarks.stopwatch import in_turn, ratio, timed
from experiments.analysis.statistics import paired_difference
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.knowledge import Knowledge
from fedsim.metrics import METRICS
from fedsim.metrics.base import Metric
from fedsim.process import one_thread
from fedsim.seeds import generator
from fedsim.store.capture import CaptureKey, Observation
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.base import Task, TaskSpec, state
from fedsim.tasks.text import TextTask, texts_of
from fedsim.tasks.text_classification import TextClassification
from fedsim.types import Batch, Tensors

TOKENS = 10  # of a sentence, start and end included: CoLA's mean
RESTARTS, CANDIDATES = 16, 32  # that share a pass
SENTENCES, ALONE = 10, 3
PRIOR = "fedsim/prior-bert-vocab"
SCHEDULE = LAMP(steps=80, starts=25, proposals=50, discrete_every=16, prior=PRIOR)
"""As many candidates a step as in the paper, and fewer of both."""
MINILM = TaskConfig(
    model="sentence-transformers/all-MiniLM-L6-v2", dataset="nyu-mll/glue:cola", split="train[:100]"
)
STEP_GOAL, RESTART_GOAL, CANDIDATE_GOAL, SENTENCE_GOAL = ">= 3", ">= 6", ">= 5", ">= 5"


@dataclass(frozen=True)
class BenchVictim:
    """One sentence, and its client's update."""

    task: Task
    batch: Batch
    seen: Observation


def text_speed() -> Iterator[Measure]:
    """All measurements of this part; those of MiniLM need the hub."""
    with one_thread():
        if "FEDSIM_HUB" in os.environ:
            task, victims = cola_sentences()
            yield from matching_speed("MiniLM", victims[0], repeats=9)
            yield from sentence_speed(task, victims)
        yield from matching_speed("BERT-base", _random_bert(), repeats=3)


def cola_sentences() -> tuple[TextTask, list[BenchVictim]]:
    """The first sentences of CoLA of one length, so that both sides draw the same starts."""
    rows = load_rows(MINILM.dataset, MINILM.split, modality="text")
    task = make_task(MINILM, rows)
    assert isinstance(task, TextTask)
    lengths = map(len, task.tokens(texts_of(rows, MINILM.model)))
    chosen = [number for number, length in enumerate(lengths) if length == TOKENS][:SENTENCES]
    sent = initial_weights(task, MINILM, seed=0)
    return task, [victim_of(task, sent, task.encode(rows.take([i])), i) for i in chosen]


def _random_bert() -> BenchVictim:
    """Random weights in the shape of BERT-base, and random tokens: only the time means anything."""
    spec = TaskSpec(
        kind="text-classification",
        model="BERT-base",
        architecture={"model_type": "bert", "num_labels": 2},
        num_classes=2,
        input_shape=(TOKENS,),
        pad_id=0,
    )
    task = TextClassification(spec, tokenizer=cast(Any, None))
    ids = torch.randint(1000, 30000, (1, TOKENS), generator=generator(0, "tokens"))
    batch = Batch(ids, torch.ones(1, dtype=torch.int64), torch.ones_like(ids))
    return victim_of(task, state(task.build()), batch, 0)


def victim_of(task: Task, sent: Tensors, batch: Batch, client: int) -> BenchVictim:
    """The FedSGD update for one sentence without padding, with its label and length granted."""
    knowledge = Knowledge(
        labels=tuple(batch.labels.tolist()),
        lengths=tuple(batch.inputs.shape[1:]),
        num_examples=1,
        batch_size=1,
        local_steps=1,
        train_mode=False,
    )
    gradient = task.gradient(task.model(sent), batch)
    key = CaptureKey(round=1, client=client)
    return BenchVictim(task, batch, Observation(key, sent, gradient, "gradient", knowledge))


def matching_speed(name: str, victim: BenchVictim, repeats: int) -> Iterator[Measure]:
    """Milliseconds of steps and candidates in the literal implementation, and our speed-up."""
    task, seen = victim.task, victim.seen
    frozen = task.model(seen.sent)
    factored = Factored(Replay(task, frozen, dict(frozen.named_parameters())))
    observed = {k: v for k, v in seen.received.items() if k in factored.names and v.any()}
    network: Any = task.model(seen.sent)
    places = (1, CANDIDATES, *victim.batch.inputs.shape)
    width = network.get_input_embeddings().embedding_dim
    words = torch.randn(*places, width, generator=generator(0, "guesses"))
    for distance in get_args(Distance):
        naive = NaiveMatching(network, observed, victim.batch.labels, distance)
        matching = Matching(factored, [seen.update()], TextObjective(distance), places[-1] + 4)
        fast = _Fast(matching, victim.batch)
        steps = in_turn(
            repeats,
            partial(naive.slope, words[0, 0]),
            partial(fast.slopes, words[:, :1]),
            partial(fast.slopes, words[:, :RESTARTS]),
        )
        candidates = in_turn(
            repeats,
            partial(naive, words[0, 0].requires_grad_(), create_graph=False),
            partial(fast.distances, words),
        )
        label = f"{name}, {distance}:"
        yield Measure(f"{label} naive step", 1e3 * statistics.median(steps[0]), "ms", "-")
        yield Measure(f"{label} step", ratio(*steps[:2]), "x", STEP_GOAL)
        gain = RESTARTS * ratio(steps[0], steps[2])
        yield Measure(f"{label} step of each of {RESTARTS} restarts", gain, "x", RESTART_GOAL)
        yield Measure(f"{label} naive candidate", 1e3 * statistics.median(candidates[0]), "ms", "-")
        gain = CANDIDATES * ratio(*candidates)
        yield Measure(f"{label} each of {CANDIDATES} candidates", gain, "x", CANDIDATE_GOAL)


@dataclass(frozen=True)
class _Fast:
    """The attack's own matching of guesses ``(1, guess, 1, token, width)`` of one victim."""

    matching: Matching
    batch: Batch

    def slopes(self, words: Tensor) -> Tensor:
        point = words.detach().requires_grad_()
        distances = self.matching(point, self._repeated(words.shape[1]))
        (slopes,) = torch.autograd.grad(distances.sum(), point)
        return slopes

    def distances(self, words: Tensor) -> Tensor:
        batch = self._repeated(words.shape[1])
        return self.matching(words.detach(), batch, create_graph=False)

    def _repeated(self, count: int) -> Batch:
        own = self.batch
        assert own.mask is not None
        return Batch(
            own.inputs.repeat(count, 1), own.labels.repeat(count), own.mask.repeat(count, 1)
        )


def sentence_speed(task: TextTask, victims: list[BenchVictim]) -> Iterator[Measure]:
    """LAMP with a short schedule, from the update to the text; and what it recovers."""
    prior = load_prior(PRIOR, task, torch.device("cpu"))
    network = task.model(victims[0].seen.sent)
    names = Factored(Replay(task, network, dict(network.named_parameters()))).names
    compared = [name for name in victims[0].seen.received if name in names]
    naive = NaiveLAMP(SCHEDULE, task, prior, compared)
    together, ours = timed(partial(reconstructed, task, victims))
    slow, alone, theirs = [], [], []
    for number, victim in enumerate(victims):
        seconds, ids = timed(partial(naive.attack, victim.seen, _rng(victim)))
        slow.append(seconds)
        theirs.append(Batch(ids, victim.batch.labels, torch.ones_like(ids)))
        if number < ALONE:
            alone.append(timed(partial(reconstructed, task, [victim]))[0])
    label = "MiniLM, LAMP:"
    yield Measure(f"{label} naive sentence", statistics.median(slow), "s", "-")
    gain = sum(slow) / together
    yield Measure(f"{label} each of {len(victims)} sentences", gain, "x", SENTENCE_GOAL)
    yield Measure(f"{label} a sentence alone", ratio(slow[:ALONE], alone), "x", SENTENCE_GOAL)
    yield from _recovery(task, victims, ours, theirs)


def reconstructed(
    task: TextTask, victims: list[BenchVictim], options: LAMP = SCHEDULE
) -> list[Batch]:
    """The guesses of a group."""
    seen = [victim.seen for victim in victims]
    made = options.reconstruct(seen, task, [_rng(victim) for victim in victims], Job())
    return [each.guess for each in made]


def _rng(victim: BenchVictim) -> torch.Generator:
    return generator(0, "lamp", victim.seen.key.client)


def _recovery(
    task: TextTask, victims: list[BenchVictim], ours: list[Batch], theirs: list[Batch]
) -> Iterator[Measure]:
    truths = [task.examples(victim.batch) for victim in victims]
    for name in ("rouge1", "rouge2", "rougeL"):
        metric = METRICS[name]()

        def score(guesses: list[Batch], metric: Metric = metric) -> list[float]:
            pairs = zip(map(task.examples, guesses), truths, strict=True)
            return [float(metric.score(*pair)) for pair in pairs]

        own = score(ours)
        gain = paired_difference(own, score(theirs), range(len(victims)))
        label = f"MiniLM, LAMP: {name}"
        yield Measure(label, statistics.mean(own), "", "-")
        yield Measure(f"{label}, less the naive one's", gain.mean, "", "-")
        if gain.low is not None and gain.high is not None:
            yield Measure(f"{label}, less the naive one's, 95 % from", gain.low, "", "<= 0")
            yield Measure(f"{label}, less the naive one's, 95 % to", gain.high, "", ">= 0")
