"""One definition of ``certified``: true batches are proven, batches with one change never are."""

import ast
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import attacks
from attacks.observed.first_linear import find_first_linear
from attacks.proofs.certificate import Prover
from attacks.proofs.replayed_steps import prove
from attacks.proofs.verdict import (
    FLOAT_SUMS,
    LOOSEST,
    NO_PROOF,
    Proof,
    bound,
    certificate,
    compare,
    support,
)
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

ROOT = Path(attacks.__file__).parent
KEY = CaptureKey(round=1, client=0)
ZEROS = torch.zeros(3)


@dataclass(frozen=True)
class Draw:
    """A random client: its batch, training, defense, wire and the factor of its loss."""

    seed: int

    def observe(self, model: str) -> tuple[Observation, Task, Batch]:
        rng = random.Random(self.seed)
        task, rows, sent = victim(model)
        count = rng.choice((1, 2, 3))
        options: dict[str, Any] = {"batch_size": count}
        if rng.random() < 0.4:
            options |= {"protocol": "fedavg", "local_steps": 1, "learning_rate": 0.1}
        defense = rng.choice([(), (), ({"name": "clip", "norm": 0.1},)])
        trainer = LocalTrainer(
            task,
            FederationConfig(**options),
            build_chain(defense, "defense"),
            self.seed,
            torch.device("cpu"),
        )
        chosen = rows.take(rng.sample(range(len(rows)), count))
        update = trainer.run(sent, chosen, 1, 0)
        factor = rng.choice((1.0, float(count), 0.5)) if update.kind == "gradient" else 1.0
        wire = rng.choice((torch.float32, torch.float32, torch.bfloat16))
        if update.kind == "weights":  # a coarser wire hides an update beside its weights
            wire = torch.float32
        received = {name: (factor * value).to(wire) for name, value in update.tensors.items()}
        known = Knowledge(
            num_examples=count, learning_rate=0.1, batch_size=count, local_steps=1, optimizer="sgd"
        )
        return Observation(KEY, sent, received, update.kind, known), task, update.batch


@cache
def victim(model: str) -> tuple[Task, Rows, Tensors]:
    name = "shapes" if model == "mlp" else "sentences"
    rows = load_rows(name, "train", modality="image" if model == "mlp" else "text")
    config = TaskConfig(model=model, dataset=name)
    task = make_task(config, rows)
    return task, rows, initial_weights(task, config, 0)


@pytest.mark.some(7)
@pytest.mark.parametrize("seed", range(24))
def test_images(seed: int) -> None:
    seen, task, truth = Draw(seed).observe("mlp")
    layer = find_first_linear(task.model(seen.sent), task, torch.Generator().manual_seed(0))
    parts = [(layer.weight, layer.bias)]
    images, labels = truth.inputs.double(), truth.labels
    assert prove(seen, task, Batch(images, labels), parts).holds
    place = random.Random(seed).randrange(images[0].numel())
    pixel = images.clone()
    pixel[0].view(-1)[place] += 0.25 if pixel[0].view(-1)[place] < 0.5 else -0.25
    assert not prove(seen, task, Batch(pixel, labels), parts).holds
    label = labels.clone()
    label[0] = (label[0] + 1) % task.spec.num_classes
    assert not prove(seen, task, Batch(images, label), parts).holds


@pytest.mark.some(7)
@pytest.mark.parametrize("model", ["tiny-bert", "tiny-gpt2"])
@pytest.mark.parametrize("seed", range(12))
def test_texts(seed: int, model: str) -> None:
    seen, task, truth = Draw(seed).observe(model)
    assert isinstance(task, TextTask)
    network = task.model(seen.sent)
    first = [name for name in seen.received if name.endswith(("value.weight", "c_attn.weight"))]
    prover = Prover(seen, task, network, first[:1])
    assert truth.mask is not None
    lines = [
        tuple(ids[mask.bool()].tolist()) for ids, mask in zip(truth.inputs, truth.mask, strict=True)
    ]
    labels = truth.labels.tolist() if task.spec.num_classes else [-1] * len(lines)
    proof = prover.compare(lines, labels).proof
    assert proof.error <= proof.bound
    assert proof.holds == (proof.bound <= LOOSEST)
    rng = random.Random(seed)
    row = rng.randrange(len(lines))
    place = rng.randrange(1, len(lines[row]) - 1)
    token = (
        lines[row][place] + rng.randrange(1, 50)
    ) % network.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    other = [*lines]
    other[row] = (*lines[row][:place], token, *lines[row][place + 1 :])
    assert not prover.compare(other, labels).proof.holds
    if task.spec.num_classes:
        labels[row] = (labels[row] + 1) % task.spec.num_classes
        assert not prover.compare(lines, labels).proof.holds


@pytest.mark.parametrize("decay", [0.01, 1.0, 100.0])
def test_weight_decay_proves_nothing(decay: float) -> None:
    task, rows, sent = victim("mlp")
    options: dict[str, Any] = {"protocol": "fedavg", "local_steps": 1, "weight_decay": decay}
    config = FederationConfig(batch_size=1, learning_rate=0.01, **options)
    chain = build_chain((), "defense")
    trainer = LocalTrainer(task, config, chain, 0, torch.device("cpu"))
    update = trainer.run(sent, rows.take([3]), 1, 0)
    known = Knowledge(
        num_examples=1,
        learning_rate=0.01,
        batch_size=1,
        local_steps=1,
        optimizer="sgd",
        training=config.training,
    )
    seen = Observation(KEY, sent, update.tensors, update.kind, known)
    wrong = Batch(1 - update.batch.inputs.double(), update.batch.labels)
    assert not prove(seen, task, wrong).holds


def test_the_worst_part_decides() -> None:
    known = Knowledge(num_examples=1)
    received = {"first": torch.ones(4), "last": 1e3 * torch.ones(4)}
    seen = Observation(KEY, received, received, "gradient", known)
    made = {"first": torch.tensor([1.0, 1.0, 1.0, 1.1]), "last": 1e3 * torch.ones(4)}
    assert compare(seen, made).holds
    proof = compare(seen, made, [("first",)])
    assert not proof.holds
    assert proof.error == pytest.approx(0.042, abs=0.001)
    tripled = {name: value / 3 for name, value in received.items()}
    assert compare(seen, tripled).factor == pytest.approx(3)
    against = {name: -value for name, value in received.items()}
    assert compare(seen, against, [("first",)]) == NO_PROOF


def test_a_tensor_alone_tells_what_all_together_do_not() -> None:
    known = Knowledge(num_examples=1)
    received = {"small": torch.tensor([1.0, 2.0]), "large": torch.full((4,), 1e5), "still": ZEROS}
    seen = Observation(KEY, received, received, "gradient", known)
    swapped = {**received, "small": torch.tensor([2.0, 1.0])}
    assert compare(seen, swapped, [tuple(received)]).holds
    assert not compare(seen, swapped, alone=("small",)).holds
    assert compare(seen, received, alone=tuple(received)).holds  # what is still shows nothing


def test_what_underflows_speaks_neither_against_a_guess_nor_for_it() -> None:
    step = 2.0**-24  # of float16, whose smallest normal number is 2^-14
    made = {"low": 1.4 * step * torch.ones(4), "high": torch.ones(4)}
    received = {name: value.half() for name, value in made.items()}
    made["low"][0] *= 0.7
    seen = Observation(KEY, received, received, "gradient", Knowledge(num_examples=1))
    assert compare(seen, made, alone=tuple(made)).holds
    assert not compare(seen, made, [("low",)]).holds


@pytest.mark.parametrize(
    ("proof", "sharp", "level"),
    [
        (Proof(FLOAT_SUMS, bound(0.0)), True, "certified"),
        (Proof(1.01 * FLOAT_SUMS, bound(0.0)), True, "in_span"),
        (Proof(1.01 * FLOAT_SUMS, bound(1e-3)), True, "certified"),
        (Proof(0.0, bound(LOOSEST)), True, "in_span"),
        (Proof(0.0, bound(0.0)), False, "in_span"),
        (Proof(float("nan"), bound(0.0)), True, "in_span"),
        (NO_PROOF, True, "in_span"),
    ],
)
def test_rounding_alone_is_allowed(proof: Proof, sharp: bool, level: str) -> None:
    assert certificate(proof, "in_span", sharp=sharp) == level


@pytest.mark.parametrize(
    ("guess", "rivals", "level"),
    [
        (0.5, [1e-9, 1e-12], "consistent"),
        (0.5, [1e-9, 1e-3], "guess"),
        (0.5, [], "guess"),
        (1e-3, [1e-9], "guess"),
    ],
)
def test_noise_explains_the_guess_and_no_rival(
    guess: float, rivals: list[float], level: str
) -> None:
    assert support(guess, rivals) == level


def test_nothing_else_decides() -> None:
    places = {
        (path.relative_to(ROOT).as_posix(), node.value)
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in ("certified", "consistent")
    }
    assert places == {
        ("proofs/verdict.py", "certified"),
        ("proofs/verdict.py", "consistent"),
        ("base.py", "certified"),  # Reconstruction.certified reads what was decided
    }
