"""Local steps taken again on guessed sentences."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from attacks.proofs.replayed_steps import Unrolled, _whole_steps
from clients.train import LocalTrainer
from fedsim.config.federation import FederationConfig
from fedsim.defenses.chain import Chain
from fedsim.knowledge import Knowledge, Origin
from fedsim.store.capture import Observation
from fedsim.tasks.text import TextTask
from fedsim.types import Batch
from tests.attacks.victims import KEY, Victim, lines, trained


@pytest.fixture(scope="module")
def gpt2() -> Victim:
    return trained("tiny-gpt2", 20)


def unrolled(gpt2: Victim, seen: Observation) -> Unrolled | None:
    assert isinstance(gpt2.task, TextTask)
    network = gpt2.task.model(seen.sent, device="cpu")
    return Unrolled.of(seen, gpt2.task, network.eval())


def captured(gpt2: Victim, rows: list[int], **options: Any) -> tuple[Observation, Batch]:
    """A reply, with all that its client's local training is described by."""
    config = FederationConfig(protocol="fedavg", **{"learning_rate": 1e-3, **options})
    trainer = LocalTrainer(gpt2.task, config, Chain(), 0, torch.device("cpu"))
    update = trainer.run(gpt2.sent, gpt2.rows.take(rows), KEY.round, KEY.client)
    known = Knowledge(
        num_examples=len(rows),
        batch_size=config.batch_size,
        local_steps=len(update.steps),
        learning_rate=update.learning_rate,
        optimizer=config.optimizer,
        train_mode=False,
        training=config.training,
        defense=(),
    )
    return Observation(KEY, gpt2.sent, update.tensors, update.kind, known), update.batch


@pytest.mark.some(6)
@pytest.mark.parametrize(
    ("optimizer", "batch", "steps"),
    [(name, 3, 1) for name in ("sgd", "momentum", "adam", "adafactor")]
    + [(name, 1, 3) for name in ("momentum", "adamw")],
)
def test_the_steps_prove_the_sentences_in_any_order(
    optimizer: str, batch: int, steps: int, gpt2: Victim
) -> None:
    options = {"optimizer": optimizer, "weight_decay": 0.01}
    seen, truth = captured(gpt2, [3, 7, 5], batch_size=batch, local_steps=steps, **options)
    test = unrolled(gpt2, seen)
    assert test is not None
    guessed = lines(truth)
    assert test.proof(guessed[::-1]).holds
    for place in range(3):
        wrong = [[*line] for line in guessed]
        wrong[place][1] = 9 if wrong[place][1] != 9 else 8
        assert not test.proof(wrong).holds


@pytest.mark.some(9)
@pytest.mark.parametrize(
    "options",
    [
        {"max_grad_norm": 0.1},
        {"schedule": "cosine", "warmup_steps": 1},
        {"schedule": "linear", "schedule_over": "rounds", "rounds": 9},
        {"label_smoothing": 0.1},
        {"proximal_mu": 50.0},
        {"optimizer": "momentum", "momentum": 0.5},
        {"precision": "bf16", "learning_rate": 0.1},
    ],
)
def test_every_option_of_local_training_is_replayed(options: Any, gpt2: Victim) -> None:
    seen, truth = captured(gpt2, [3, 7, 5], local_steps=3, **options)
    test = unrolled(gpt2, seen)
    assert test is not None
    assert test.proof(lines(truth)[::-1]).error < 1e-4


@pytest.mark.parametrize(
    "option", [{"max_grad_norm": 0.1}, {"label_smoothing": 0.1}, {"proximal_mu": 50.0}]
)
def test_another_option_than_the_clients_proves_nothing(option: Any, gpt2: Victim) -> None:
    seen, truth = captured(gpt2, [3, 7, 5], local_steps=3, **option)
    usual = seen.knowledge.model_copy(update={"training": FederationConfig().training})
    test = unrolled(gpt2, replace(seen, knowledge=usual))
    assert test is not None
    assert not test.proof(lines(truth)).holds


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "other",
    [
        {"training": None},
        {"train_mode": True},
        {"train_mode": None},
        {"defense": None},
        {"defense": ({"name": "sign"},)},
        {"learning_rate": None},
        {"optimizer": None},
        {"num_examples": 3},
        {"num_examples": 5, "local_steps": 5},
        {"batch_size": 2, "num_examples": 4},
        {"cohort": 2},
    ],
)
def test_steps_that_are_not_told_prove_nothing(other: dict[str, object], gpt2: Victim) -> None:
    seen, _ = captured(gpt2, [3, 7], optimizer="adamw", local_steps=2)
    assert unrolled(gpt2, seen) is not None
    withheld = replace(seen, knowledge=seen.knowledge.model_copy(update=other))
    assert unrolled(gpt2, withheld) is None


@pytest.mark.parametrize(("source", "steps"), [("counted", 3), ("inferred", 1), ("tried", 1)])
def test_a_length_that_was_inferred_stands_in_for_no_stated_one(source: Any, steps: int) -> None:
    stated = Knowledge(num_examples=4, batch_size=4, learning_rate=0.1)
    known = stated.adding({"local_steps": 3}, Origin(source=source))
    seen = Observation(KEY, {}, {}, "weights", known)
    assert _whole_steps(seen) == steps
