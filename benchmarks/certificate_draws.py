"""Random clients, their messages, and what is certified of right and of wrong guesses of them.

It takes only names that older revisions have, so that ``benchmarks.bench_certificates`` can run it
in one of them:

    python -m benchmarks.certificate_draws 1000

prints a line of JSON for each draw.
"""

import hashlib
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from attacks.proofs.certificate import Prover
from attacks.proofs.replayed_steps import prove
from attacks.proofs.verdict import certificate
from attacks.solved.closed_form import SOLVED_IMAGE
from attacks.tokens.first_layers import FirstLayers
from clients.train import LocalTrainer
from fedsim.config.cell import TaskConfig
from fedsim.config.federation import FederationConfig
from fedsim.data.rows import load_rows
from fedsim.defenses import build_chain
from fedsim.knowledge import Knowledge
from fedsim.store.capture import CaptureKey, Observation
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Rows, Tensors

MODELS: Mapping[str, tuple[str, ...]] = {
    "tiny-gpt2": (),
    "tiny-bert": (),
    "mlp": ("body.1.weight", "body.1.bias"),
    "lenet": ("body.0.weight",),
    "vit": ("embed.weight", "positions"),
}
"""Small models -> what attacks on images name as the weights that show a change best."""
TEXTS = ("word", "order", "sentence", "twice")
IMAGES = ("pixel", "darker", "image", "twice")
TRIED = 2
"""Wrong guesses of a draw: halved and doubled, a draw takes two thirds and five thirds as long."""
_NOISES = (
    1e-6,
    1e-4,
    1e-2,
)  # of the rms of each tensor: below, at and above what rounding explains
_LEAST, _MOST = 1 / 16, 1 / 4  # change of a pixel, and share by which an image is darker


@dataclass(frozen=True)
class DrawnCertificate:
    """What is certified of one draw.

    Attributes:
        seed: of the draw.
        model: under attack.
        batch: examples of the client.
        update: what became of the message on its way.
        right: whether the client's own batch is certified.
        tried: kinds of the wrong guesses.
        wrong: those of them that are certified.
        message: a hash of what the server received, by which revisions are compared.
    """

    seed: int
    model: str
    batch: int
    update: str
    right: bool
    tried: tuple[str, ...]
    wrong: tuple[str, ...]
    message: str


@cache
def victim(model: str) -> tuple[Task, Rows, Tensors]:
    """A task with random weights and its rows."""
    text = model.startswith("tiny")
    name = "sentences" if text else "shapes"
    rows = load_rows(name, "train", modality="text" if text else "image")
    config = TaskConfig(model=model, dataset=name)
    task = make_task(config, rows)
    return task, rows, initial_weights(task, config, 0)


def draw(seed: int) -> DrawnCertificate:
    """One client, what it sends, and the verdicts on its batch and on wrong guesses."""
    rng = random.Random(seed)
    model = [*MODELS][seed % len(MODELS)]
    task, rows, sent = victim(model)
    seen, update, truth = observed(task, rows, sent, seed, rng)
    parts = first_parts(task, seen) if isinstance(task, TextTask) else MODELS[model]
    kinds = [
        *(TEXTS if isinstance(task, TextTask) else IMAGES),
        *(("class",) if task.spec.num_classes else ()),
    ]
    guesses: dict[str, Batch] = {}
    for kind in rng.sample(kinds, len(kinds)):
        guess = _changed(kind, truth, task, rows, rng)
        if len(guesses) < TRIED and guess is not None:
            guesses[kind] = guess
    wrong = tuple(kind for kind, guess in guesses.items() if certified(seen, task, guess, parts))
    received = hashlib.sha256()
    for value in seen.received.values():
        received.update(value.contiguous().view(torch.uint8).numpy().tobytes())
    return DrawnCertificate(
        seed,
        model,
        len(truth.inputs),
        update,
        certified(seen, task, truth, parts),
        tuple(guesses),
        wrong,
        received.hexdigest()[:16],
    )


def certified(seen: Observation, task: Task, guess: Batch, parts: Sequence[str]) -> bool:
    """Whether a batch is certified, by the rule of the attacks that solve for such batches."""
    if not isinstance(task, TextTask):
        double = replace(guess, inputs=guess.inputs.double())
        proof = prove(seen, task, double, [parts])
        # Values are continuous: closed_form and patch_rows ask for this, too.
        return certificate(proof, sharp=proof.error <= SOLVED_IMAGE) == "certified"
    prover = Prover(seen, task, task.model(seen.sent), parts)
    labels = guess.labels.tolist() if task.spec.num_classes else [-1] * len(guess.inputs)
    return certificate(prover.compare(_lines(guess), labels).proof) == "certified"


def first_parts(task: TextTask, seen: Observation) -> list[str]:
    """The weights of a text model's first block, as ``span`` names them."""
    layers = FirstLayers(task.model(seen.sent), (2, 3, 4), task.max_length)
    blocks = (layers.tokens, *layers.contexts)
    return [name for layer in blocks for name in layer.weights(seen.received)]


def observed(
    task: Task, rows: Rows, sent: Tensors, seed: int, rng: random.Random
) -> tuple[Observation, str, Batch]:
    """What the server sees of a random client, what became of it on the way, and the batch."""
    count = rng.randint(1, 4)
    options: dict[str, Any] = {"batch_size": count}
    if rng.random() < 0.4:
        options |= {"protocol": "fedavg", "local_steps": 1, "learning_rate": 0.1}
    clip = rng.random() < 0.3
    chain = build_chain(({"name": "clip", "norm": 0.1},) if clip else (), "defense")
    trainer = LocalTrainer(task, FederationConfig(**options), chain, seed, torch.device("cpu"))
    chosen = rows.take(rng.sample(range(len(rows)), count))
    update = trainer.run(sent, chosen, 1, 0)
    wire, noise = torch.float32, 0.0
    if rng.random() < 0.25:
        wire = rng.choice((torch.bfloat16, torch.float16))
    elif rng.random() < 0.4:
        noise = rng.choice(_NOISES)
    factor = rng.choice((1.0, float(count), 0.5)) if update.kind == "gradient" else 1.0
    generator, received = torch.Generator().manual_seed(seed), {}
    for name, value in update.tensors.items():
        moved = value - sent[name] if update.kind == "weights" else value
        rms = float(moved.square().mean().sqrt())
        added = noise * rms * torch.randn(value.shape, generator=generator)
        received[name] = (factor * (value + added) if noise else factor * value).to(wire)
    known = Knowledge(
        num_examples=count, learning_rate=0.1, batch_size=count, local_steps=1, optimizer="sgd"
    )
    seen = Observation(CaptureKey(round=1, client=0), sent, received, update.kind, known)
    way = f"noise of {noise:g} rms" if noise else str(wire).removeprefix("torch.")
    return seen, way, update.batch


def _changed(kind: str, truth: Batch, task: Task, rows: Rows, rng: random.Random) -> Batch | None:
    """The batch with one change of this kind; None where it has no room for one."""
    row = rng.randrange(len(truth.inputs))
    inputs, labels = truth.inputs.clone(), truth.labels.clone()
    if kind == "class":
        labels[row] = (
            labels[row] + rng.randrange(1, task.spec.num_classes)
        ) % task.spec.num_classes
        return replace(truth, labels=labels)
    if kind == "twice":
        other = (row + 1) % len(inputs)
        return None if _same(truth, row, other) else truth[_twice(len(inputs), row, other)]
    if kind in ("sentence", "image"):
        stranger = task.encode(rows.take([rng.randrange(len(rows))]))
        joined = _beside(truth, stranger)
        return (
            None
            if _same(joined, row, len(inputs))
            else joined[_twice(len(inputs), row, len(inputs))]
        )
    if kind == "darker":
        inputs[row] *= 1 - rng.uniform(_LEAST, _MOST)
    elif kind == "pixel":
        flat = inputs[row].view(-1)
        place, step = rng.randrange(len(flat)), rng.uniform(_LEAST, _MOST)
        flat[place] += step if flat[place] < 0.5 else -step
    else:
        assert truth.mask is not None
        places = range(1, int(truth.mask[row].sum()) - 2)
        place = rng.choice(places)
        if kind == "order":
            inputs[row, [place, place + 1]] = inputs[row, [place + 1, place]]
        else:
            size = int(task.spec.architecture["vocab_size"])
            inputs[row, place] = (inputs[row, place] + rng.randrange(1, size)) % size
        if torch.equal(inputs, truth.inputs):
            return None
    return replace(truth, inputs=inputs)


def _twice(count: int, row: int, other: int) -> Tensor:
    """Numbers of the rows of a batch in which another row has the place of one."""
    return torch.tensor([other if index == row else index for index in range(count)])


def _beside(truth: Batch, more: Batch) -> Batch:
    """Both batches one after the other, texts padded to the same length."""
    if truth.mask is None or more.mask is None:
        parts = (truth.inputs, more.inputs), (truth.labels, more.labels)
        return Batch(*(torch.cat(part) for part in parts))
    width = max(truth.inputs.shape[1], more.inputs.shape[1])
    padded = [
        [torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in (x.inputs, x.mask)]
        for x in (truth, more)
        if x.mask is not None
    ]
    inputs, mask = (torch.cat(part) for part in zip(*padded, strict=True))
    plain = truth.labels.dim() == 1
    labels = torch.cat((truth.labels, more.labels)) if plain else inputs
    return Batch(inputs, labels, mask)


def _same(batch: Batch, row: int, other: int) -> bool:
    return torch.equal(batch.inputs[row], batch.inputs[other])


def _lines(batch: Batch) -> list[tuple[int, ...]]:
    assert batch.mask is not None
    pairs = zip(batch.inputs, batch.mask, strict=True)
    return [tuple(ids[mask.bool()].tolist()) for ids, mask in pairs]


def draws(count: int) -> Iterator[DrawnCertificate]:
    """The first draws, as they come."""
    yield from map(draw, range(count))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for drawn in draws(int(sys.argv[1])):
        print(json.dumps(asdict(drawn)), flush=True)
