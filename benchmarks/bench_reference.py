"""The public code of a paper and ours, in turn, on the same weights, rows and update.

Both run on one thread; see ``benchmarks.stopwatch``. The client's own step is in
neither's time.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from attacks.base import Job, Reconstruction
from attacks.images.inverting import DEVIATION, Inverting
from attacks.span.span import Span
from attacks.texts.lamp import LAMP
from attacks.texts.language_prior import load_prior
from benchmarks.bench_text import SCHEDULE, cola_sentences, reconstructed
from benchmarks.measure import Measure
from benchmarks.public_code import PublicDAGER, PublicInverting, project_of
from benchmarks.public_lamp import PROPOSALS, PublicLAMP
from benchmarks.stopwatch import timed
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.knowledge import Knowledge
from fedsim.metrics import METRICS
from fedsim.process import one_thread
from fedsim.seeds import generator
from fedsim.store.capture import CaptureKey, Observation
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask
from fedsim.types import Batch

PICTURES = TaskConfig(model="lenet", dataset="shapes", split="train[:8]")
SENTENCES = TaskConfig(
    model="fedsim/gpt2-8k", dataset="film/enron-sentences", split="validation[:200]"
)
STEPS = 300
BATCHES = {1: 5, 4: 3, 8: 1}
"""Size of a batch of sentences -> number of batches."""
ALONE_GOAL, TOGETHER_GOAL = ">= 1.5", ">= 5"
SENTENCE_GOAL = ">= 6"
SPAN_GOALS = {1: ">= 4", 4: ">= 5", 8: ">= 20"}
_SPARE = 24  # dimensions that DAGER needs beside those of the tokens


def reference_speed(checkout: Path) -> Iterator[Measure]:
    """The measurements that the project of the checkout allows.

    Raises:
        ConfigError: it is no checkout of a project that can be measured.
    """
    checkout = checkout.resolve()
    measured: dict[str, Callable[[Path], Iterator[Measure]]]
    measured = {
        "invertinggradients": inverting_speed,
        "dager-gradient-inversion": span_speed,
        "lamp": lamp_speed,
    }
    with one_thread():
        yield from measured[project_of(checkout)](checkout)


@dataclass(frozen=True)
class Client:
    """One client's rows, and the gradient that it sends."""

    batch: Batch
    seen: Observation


def _client(task: Task, batch: Batch, config: TaskConfig, number: int) -> Client:
    sent = initial_weights(task, config, seed=0)
    count = len(batch.labels)
    knowledge = Knowledge(num_examples=count, batch_size=count, local_steps=1, train_mode=False)
    if task.modality == "image":
        knowledge = knowledge.model_copy(update={"labels": tuple(batch.labels.tolist())})
    gradient = task.gradient(task.model(sent), batch)
    key = CaptureKey(round=1, client=number)
    return Client(batch, Observation(key, sent, gradient, "gradient", knowledge))


def inverting_speed(
    checkout: Path, steps: int = STEPS, config: TaskConfig = PICTURES
) -> Iterator[Measure]:
    """Seconds of a picture by both, and what they recover."""
    rows = load_rows(config.dataset, config.split, modality="image")
    task = make_task(config, rows)
    pictures = task.encode(rows)
    clients = [_client(task, pictures[i], config, i) for i in range(len(pictures))]
    attack = Inverting(steps=steps, restarts=1)
    network = task.model(clients[0].seen.sent)
    public = PublicInverting(
        checkout,
        network,
        mean=0.5,
        deviation=DEVIATION,
        steps=steps,
        total_variation=attack.pixel_variation * DEVIATION,
    )
    names = [name for name, _ in network.named_parameters()]

    def theirs(client: Client) -> Batch:
        gradient = [client.seen.received[name] for name in names]
        found = public.reconstruct(gradient, client.batch.labels, task.spec.input_shape)
        return Batch(found, client.batch.labels)

    def ours(chosen: Sequence[Client]) -> list[Reconstruction]:
        rngs = [generator(0, "reference", one.seen.key.client) for one in chosen]
        return attack.reconstruct([one.seen for one in chosen], task, rngs, Job())

    torch.manual_seed(0)  # of the public code's starts
    slow, alone, found, made = [], [], [], []
    for client in clients:
        seconds, guess = timed(partial(theirs, client))
        slow.append(seconds)
        found.append(guess)
        seconds, own = timed(partial(ours, [client]))
        alone.append(seconds)
        made.append(own[0].guess)
    together, _ = timed(partial(ours, clients))
    label = f"Inverting Gradients, LeNet, {steps} steps:"
    yield Measure(f"{label} the public code's picture", statistics.median(slow), "s", "-")
    yield Measure.of(
        f"{label} ours alone", [a / b for a, b in zip(slow, alone, strict=True)], "x", ALONE_GOAL
    )
    gain = len(clients) * statistics.median(slow) / together  # its first picture includes imports
    yield Measure(f"{label} each of {len(clients)} together", gain, "x", TOGETHER_GOAL)
    truths = [one.batch for one in clients]
    their_psnr, our_psnr = (_scores("psnr", task, guesses, truths) for guesses in (found, made))
    gains = [own - public for own, public in zip(our_psnr, their_psnr, strict=True)]
    yield Measure.of(f"{label} the public code's PSNR", their_psnr, "dB", "-")
    yield Measure.of(f"{label} our PSNR", our_psnr, "dB", "-")
    yield Measure.of(f"{label} our PSNR less the public code's", gains, "dB", ">= 0")


def span_speed(
    checkout: Path, config: TaskConfig = SENTENCES, batches: Mapping[int, int] = BATCHES
) -> Iterator[Measure]:
    """Seconds of a batch of sentences by both, and how many they recover whole.

    Starts and ends do not count: of a language model's last token no gradient tells.
    """
    rows = load_rows(config.dataset, config.split, modality="text")
    task = make_task(config, rows)
    assert isinstance(task, TextTask)
    special, encoded = set(task.tokenizer.all_special_ids), task.encode(rows)

    def words(found: Sequence[Sequence[int]]) -> set[tuple[int, ...]]:
        return {tuple(token for token in row if token not in special) for row in found}

    for size, count in batches.items():
        network: Any = task.model(initial_weights(task, config, seed=0))
        public = PublicDAGER(checkout, network, size)
        slow, fast, theirs, ours = list[float](), list[float](), 0, 0
        for batch in _batches(encoded, size, network.config.n_embd - _SPARE, count):
            client = _client(task, batch, config, len(slow))
            truth = words(sentences(batch))
            seconds, found = timed(partial(public.reconstruct, client.seen.received))
            slow.append(seconds)
            theirs += len(truth & words(found))
            rngs = [generator(0, "reference", len(slow))]
            seconds, made = timed(partial(Span().reconstruct, [client.seen], task, rngs, Job()))
            fast.append(seconds)
            ours += len(truth & words(sentences(made[0].guess)))
        label = f"span, {network.config.n_embd} wide, batches of {size}:"
        yield Measure(f"{label} the public code's batch", statistics.mean(slow), "s", "-")
        yield Measure(f"{label} ours", sum(slow) / sum(fast), "x", SPAN_GOALS.get(size, "-"))
        total = size * len(slow)
        yield Measure(f"{label} whole sentences, the public code", theirs, f"of {total}", "-")
        yield Measure(f"{label} whole sentences, ours", ours, f"of {total}", "-")


def lamp_speed(checkout: Path, options: LAMP = SCHEDULE) -> Iterator[Measure]:
    """Seconds of a sentence of CoLA by both, and what they recover; needs the hub."""
    options = replace(options, proposals=PROPOSALS)
    task, victims = cola_sentences()
    prior = load_prior(options.prior, task, torch.device("cpu"))
    network = task.model(victims[0].seen.sent)
    public = PublicLAMP(checkout, task, network, prior.network, options)
    slow, theirs = list[float](), list[Batch]()
    for victim in victims:
        search = partial(public.reconstruct, victim.seen.received, victim.batch)
        seconds, found = timed(search)
        slow.append(seconds)
        theirs.append(found)
    together, ours = timed(partial(reconstructed, task, victims, options))
    label = f"LAMP-cos, MiniLM, {options.steps} steps:"
    yield Measure(f"{label} the public code's sentence", statistics.median(slow), "s", "-")
    gain = len(victims) * statistics.median(slow) / together
    yield Measure(f"{label} each of {len(victims)} together", gain, "x", SENTENCE_GOAL)
    truths = [victim.batch for victim in victims]
    for whose, guesses in (("the public code's", theirs), ("our", ours)):
        yield Measure.of(
            f"{label} {whose} ROUGE-1", _scores("rouge1", task, guesses, truths), "", "-"
        )


def _scores(
    metric: str, task: Task, guesses: Sequence[Batch], truths: Sequence[Batch]
) -> list[float]:
    """How good the guesses are, each one beside its truth."""
    return [
        float(METRICS[metric]().score(task.examples(guess), task.examples(truth)))
        for guess, truth in zip(guesses, truths, strict=True)
    ]


def _batches(rows: Batch, size: int, room: int, count: int) -> Iterator[Batch]:
    """Batches of consecutive rows whose tokens fit into the width."""
    found = 0
    for start in range(0, len(rows.labels) - size + 1, size):
        batch = rows[list(range(start, start + size))]
        if sum(map(len, sentences(batch))) <= room:
            yield batch
            found += 1
        if found == count:
            return


def sentences(batch: Batch) -> list[list[int]]:
    """The ids of each sentence, without padding."""
    assert batch.mask is not None
    pairs = zip(batch.inputs, batch.mask.bool(), strict=True)
    return [ids[mask].tolist() for ids, mask in pairs]
