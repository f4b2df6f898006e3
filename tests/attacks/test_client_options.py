"""An option of local training that is added later is replayed, or refused by name."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import fedsim.local.client
from attacks import ATTACKS
from attacks.base import Attack, Job
from attacks.observed.declared import declared_training
from attacks.observed.first_linear import find_first_linear
from attacks.proofs.replayed_steps import Unrolled, prove
from clients.train import LocalTrainer
from experiments.bounds.audit import Planted
from experiments.checks.capture_check import Examiner
from fedsim.config.cell import TaskConfig
from fedsim.config.federation import FederationConfig
from fedsim.data.rows import load_rows
from fedsim.defenses import build_chain
from fedsim.defenses.chain import Chain
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.store.capture import CaptureKey, Observation
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Tensors
from tests.apps.cases import IMAGES, Make, simulate
from tests.contract_cases import ATTACK_CASES

KEY = CaptureKey(round=1, client=0)
MODELS = {"linear": "mlp", "image": "lenet", "patches": "vit", "normalised": "resnet20"}
TEXTS = {"text": "tiny-bert", "language": "tiny-gpt2"}
NO_REPLAY = {"embedding_rows", "statistics", "prior_only", "membership"}
"""They read an update, or nothing of it, and put no guess through a client's step."""
NO_REPLAY |= {"film"}  # where it proves a text, it does so as span does
REPLAYING = sorted(ATTACKS.keys() - NO_REPLAY - {"spear", "disaggregate"})
"""``spear``, which ``disaggregate`` hands over to, replays all that ``fedsim.local`` does."""


class Later(FederationConfig):
    """``[federation]`` of a later version, whose clients may send roots of their gradients."""

    rooted: bool = False


@pytest.fixture(autouse=True)
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of the later version."""
    plain = fedsim.local.client._gradient

    def gradient(
        task: Task, config: FederationConfig, model: nn.Module, batch: Batch
    ) -> tuple[Tensors, float]:
        found, loss = plain(task, config, model, batch)
        if not getattr(config, "rooted", False):
            return found, loss
        return {k: v.sign() * v.abs().sqrt() for k, v in found.items()}, loss

    monkeypatch.setattr(fedsim.local.client, "_gradient", gradient)


@pytest.fixture
def updated(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attacker who has that version, too."""
    for module in ("declared", "replay"):
        monkeypatch.setattr(f"attacks.observed.{module}.FederationConfig", Later)


def captured(model: str, count: int = 1, **options: Any) -> tuple[Observation, Task, Batch]:
    name = "shapes" if model in MODELS.values() else "sentences"
    rows = load_rows(name, "train", modality="image" if name == "shapes" else "text")
    config = TaskConfig(model=model, dataset=name)
    task = make_task(config, rows)
    sent = initial_weights(task, config, 0)
    federation = Later(rooted=True, **options)
    trainer = LocalTrainer(task, federation, Chain(), 0, torch.device("cpu"))
    update = trainer.run(sent, rows.take(range(count)), 1, 0)
    known = Knowledge(
        num_examples=count,
        labels=None if update.batch.labels.dim() > 1 else tuple(update.batch.labels.tolist()),
        batch_size=federation.batch_size,
        local_steps=len(update.steps),
        learning_rate=update.learning_rate,
        optimizer=federation.optimizer,
        train_mode=False,
        training=federation.training,
        defense=(),
        auxiliary=True,
    )
    return Observation(KEY, sent, update.tensors, update.kind, known), task, update.batch


@pytest.mark.some(3)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", REPLAYING)
def test_attacks_that_replay_gradients_refuse_it_by_name(
    name: str, known: bool, request: pytest.FixtureRequest
) -> None:
    if known:
        request.getfixturevalue("updated")
    case = ATTACK_CASES[name]
    seen, task, truth = captured({**MODELS, **TEXTS}[case.cells[0]])
    attack: Attack = ATTACKS[name](**case.options)
    job = Job(auxiliary=lambda: truth, candidates=lambda: truth)

    def run() -> None:
        attack.prepare(seen, task, job, 0)
        attack.reconstruct([seen], task, [torch.Generator()], job)

    with pytest.raises(CannotAttack, match="rooted = True, which this attack does not replay"):
        run()


def test_local_steps_are_replayed_with_it(updated: None) -> None:
    options = {"protocol": "fedavg", "local_steps": 2, "optimizer": "adam", "learning_rate": 0.01}
    seen, task, truth = captured("tiny-gpt2", count=2, **options)
    assert isinstance(task, TextTask)
    test = Unrolled.of(seen, task, task.model(seen.sent))
    assert test is not None
    assert truth.mask is not None
    own = [ids[: int(n)].tolist() for ids, n in zip(truth.inputs, truth.mask.sum(1), strict=True)]
    assert test.proof(own).error < 1e-4
    usual = seen.knowledge.model_copy(update={"training": FederationConfig().training})
    plain = Unrolled.of(replace(seen, knowledge=usual), task, task.model(seen.sent))
    assert plain is not None
    assert not plain.proof(own).holds


@pytest.mark.parametrize("protocol", ["fedsgd", "fedavg"])
def test_images_are_proven_with_it(protocol: str, updated: None) -> None:
    seen, task, truth = captured("mlp", protocol=protocol, local_steps=3, learning_rate=0.01)
    network = task.model(seen.sent).double()
    layer = find_first_linear(network, task, torch.Generator())
    parts = [(layer.weight, layer.bias)]
    batch = Batch(truth.inputs.double(), truth.labels)
    assert prove(seen, task, batch, parts).holds
    usual = seen.knowledge.model_copy(update={"training": FederationConfig().training})
    plain = replace(seen, knowledge=usual)
    assert not prove(plain, task, batch, parts).holds


def test_an_attacker_without_it_refuses_by_name() -> None:
    seen, task, truth = captured("tiny-gpt2", protocol="fedavg", local_steps=1)
    del truth
    with pytest.raises(CannotAttack, match="rooted = True, which this attack does not replay"):
        declared_training(seen)
    assert isinstance(task, TextTask)
    with pytest.raises(CannotAttack, match="rooted"):
        Unrolled.of(seen, task, task.model(seen.sent))


def test_the_doctor_replays_it(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(FederationConfig, "rooted", True, raising=False)
        run = make_run(IMAGES)
        simulate(run)
    (cell,) = run.cells
    examiner = Examiner.of(cell)
    (key, *_) = cell.captures.keys()
    assert examiner.examine(key).relative_error > 0.1
    config = Later(rooted=True, **cell.config.federation.model_dump())
    found = replace(examiner, trainer=replace(examiner.trainer, config=config)).examine(key)
    assert found.relative_error < 1e-5
    assert not found.faults


def test_canaries_are_planted_among_gradients_that_have_it() -> None:
    seen, task, truth = captured("mlp")
    chain = build_chain(({"name": "dp_sgd", "clip": 1e6, "noise_multiplier": 0.0},), "defense")
    client = LocalTrainer(task, Later(rooted=True), chain, 0, torch.device("cpu"))
    canary = {name: torch.ones_like(value) for name, value in seen.received.items()}
    host = Planted(**vars(client), canaries=(canary,))
    sent = host.defend(seen.sent, truth, [], 1, 0).tensors
    for name, value in seen.received.items():
        assert torch.allclose(2 * sent[name] - 1, value, atol=1e-6)
