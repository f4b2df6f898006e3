"""Local steps taken again on guessed sentences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from attacks.proofs.unrolled import Unrolled
from fedsim.capture import Observation
from fedsim.federation import FederationConfig
from fedsim.knowledge import Knowledge
from fedsim.tasks.text import TextTask
from fedsim.types import Batch
from tests.attacks.solved.test_embedding_rows import Victim, lines, trained

_FACTS = ("batch_size", "local_steps", "learning_rate", "optimizer", "training")


@pytest.fixture(scope="module")
def gpt2() -> Victim:
    return trained("tiny-gpt2", 20)


def unrolled(gpt2: Victim, seen: Observation) -> Unrolled | None:
    assert isinstance(gpt2.task, TextTask)
    network = gpt2.task.model(seen.sent, device="cpu")
    return Unrolled.of(seen, gpt2.task, network.eval())


def captured(gpt2: Victim, rows: list[int], **options: Any) -> tuple[Observation, Batch]:
    """A reply, with all that its client's local training is described by."""
    config = FederationConfig(protocol="fedavg", learning_rate=1e-3, **options)
    seen, truth = gpt2.capture(rows, **config.model_dump(exclude_unset=True))
    facts = {name: getattr(config, name) for name in _FACTS}
    known = Knowledge(num_examples=len(rows), train_mode=False, defense=(), **facts)
    return replace(seen, knowledge=known), truth


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw", "adafactor"])
@pytest.mark.parametrize(("batch", "steps"), [(1, 3), (3, 1)])
def test_the_steps_prove_the_sentences_in_any_order(
    optimizer: str, batch: int, steps: int, gpt2: Victim
) -> None:
    options = {"optimizer": optimizer, "weight_decay": 0.01}
    seen, truth = captured(gpt2, [3, 7, 5], batch_size=batch, local_steps=steps, **options)
    test = unrolled(gpt2, seen)
    assert test is not None
    own = lines(truth)
    assert test.proves(own[::-1])
    for place in range(3):
        wrong = [[*line] for line in own]
        wrong[place][1] = 9 if wrong[place][1] != 9 else 8
        assert not test.proves(wrong)


@pytest.mark.parametrize(
    "other",
    [
        {"training": None},
        {"training": {**FederationConfig().training, "max_grad_norm": 1.0}},
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
