"""Captures of a tiny network with jobs of the fake attacks, and single victims in memory."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attacks.scheduling.jobs import Demand, JobSpec, plan
from fedsim.knowledge import Knowledge
from fedsim.models import IMAGE_MODELS
from fedsim.store.capture import CaptureKey, CaptureRecord, CaptureStore, Observation
from fedsim.store.files import save_tensors, write_json
from fedsim.tasks.base import Task, TaskSpec, state
from fedsim.tasks.images import ImageClassification
from fedsim.types import Batch
from tests.attacks.victims import Victim, trained

ROUNDS, CLIENTS = 2, 3


@pytest.fixture(scope="session")
def bert() -> Victim:
    """A classifier of sentences."""
    return trained("tiny-bert", 30)


@pytest.fixture(scope="session")
def gpt2() -> Victim:
    """A language model."""
    return trained("tiny-gpt2", 60)


@pytest.fixture
def captures(tmp_path: Path) -> Path:
    """The captures of two rounds and three clients; round 2 broadcasts other weights."""
    root = tmp_path / "run" / "cell" / "captures"
    store = CaptureStore(root)
    task = TaskSpec(
        kind="image-classification",
        model="mlp",
        architecture={"width": 2, "depth": 1},
        num_classes=2,
        input_shape=(1, 8, 8),
    )
    write_json(root / "task.json", task)
    rows = {"inputs": torch.full((4, 1, 8, 8), 0.5), "labels": torch.zeros(4, dtype=torch.int64)}
    save_tensors(root / "auxiliary.safetensors", rows)
    for number in range(1, ROUNDS + 1):
        tensors = {"weight": torch.full((2,), float(number))}
        sent = save_tensors(root / "sent", tensors)
        store.sent_path(sent).parent.mkdir(exist_ok=True)
        (root / "sent").rename(store.sent_path(sent))
        for client in range(CLIENTS):
            key = CaptureKey(round=number, client=client)
            record = CaptureRecord(
                key=key,
                kind="gradient",
                order=("weight",),
                sha256=save_tensors(store.tensors_path(key), tensors),
                bytes=8,
                sent_sha256=sent,
                sent_order=("weight",),
                knowledge=Knowledge(labels=(client % 2,), num_examples=1, auxiliary=True),
            )
            write_json(store.tensors_path(key).with_suffix(".json"), record)
    return root


@pytest.fixture
def jobs(captures: Path, tmp_path: Path, fakes: None) -> Callable[..., list[JobSpec]]:
    """``jobs("fake", act="nan")``: the plan of an attack; logs go to ``tmp_path``."""

    def make(
        name: str = "fake",
        cell: str = "cell",
        round: int | None = None,
        chunk: int = 16,
        demand: Demand | None = None,
        **options: object,
    ) -> list[JobSpec]:
        table = {"name": name, "folder": str(tmp_path), **options}
        guesses = captures.parent.parent / cell / "guesses"
        return plan(captures, guesses, name, table, 0, demand or Demand(), round=round, chunk=chunk)

    return make


@pytest.fixture
def runs(tmp_path: Path) -> Callable[[], int]:
    """How often a fake attack was called so far."""

    def count() -> int:
        log = tmp_path / "runs"
        return len(log.read_text().split()) if log.exists() else 0

    return count


@pytest.fixture
def pictures() -> Callable[..., Batch]:
    """``pictures(2, 3, 5)``: two smooth images with labels 3 and 5."""

    def make(count: int, *labels: int, channels: int = 3, size: int = 16, seed: int = 0) -> Batch:
        rng = torch.Generator().manual_seed(seed)
        grid = torch.linspace(0, 1, size)
        speed = 2 * torch.rand(count, channels, 2, 1, 1, generator=rng)
        phase = 6 * torch.rand(count, channels, 2, 1, 1, generator=rng)
        rows = torch.cos(3 * speed[:, :, 0] * grid[:, None] + phase[:, :, 0])
        columns = torch.cos(3 * speed[:, :, 1] * grid + phase[:, :, 1])
        return Batch(0.5 + 0.2 * (rows + columns), torch.tensor(labels))

    return make


@pytest.fixture
def victim() -> Callable[..., tuple[Task, Observation]]:
    """The task and what the server sees of one client with this batch, weights of seed 1234.

    With ``step_size`` the client sends its weights after one step of SGD, which the server knows.
    """

    def make(
        batch: Batch,
        *,
        model: str = "lenet",
        classes: int = 10,
        client: int = 0,
        step_size: float | None = None,
        **facts: object,
    ) -> tuple[Task, Observation]:
        spec = TaskSpec(
            kind="image-classification",
            model=model,
            architecture=dict(IMAGE_MODELS[model].options),
            num_classes=classes,
            input_shape=tuple(batch.inputs.shape[1:]),
        )
        task = ImageClassification(spec)
        network = task.build()
        network.initialise(torch.Generator().manual_seed(1234))  # type: ignore[operator]
        sent, gradient = state(network), task.gradient(network, batch)
        known = {"num_examples": len(batch), "learning_rate": step_size, "local_steps": 1}
        knowledge = Knowledge.model_validate({**known, **facts})
        key = CaptureKey(round=1, client=client)
        if step_size is None:
            return task, Observation(key, sent, gradient, "gradient", knowledge)
        weights = {name: sent[name] - step_size * value for name, value in gradient.items()}
        return task, Observation(key, sent, weights, "weights", knowledge)

    return make
