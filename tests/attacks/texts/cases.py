"""Short searches on text models, and what they guess."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from attacks.base import Attack, Job, Reconstruction
from attacks.texts.lamp import LAMP
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.knowledge import Knowledge
from fedsim.store.capture import CaptureKey, Observation
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.base import state
from fedsim.types import Batch
from tests.attacks.victims import Victim, lines

GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 1900,
    "n_positions": 32,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "initializer_range": 0.5,
}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def low(rows: int, columns: int, rank: int, seed: int = 0) -> Tensor:
    return normal(rows, rank, seed=seed) @ normal(rank, columns, seed=seed + 1)


SMALL: dict[str, Any] = {
    "steps": 60,
    "starts": 10,
    "proposals": 20,
    "discrete_every": 12,
    "learning_rate": 0.05,
    "decay_every": 6,
}
"""Options of a search of a fraction of a second."""


LAMP_COS = LAMP(**SMALL)


LAMP_L2L1 = LAMP(**SMALL, distance="l2l1")


DEFENSE = dict[str, object]


def quick(kind: str = "text-classification", steps: int = 15, model: str = "tiny-bert") -> Victim:
    """A model that was trained a little on phrases of three to five words."""
    sentences = load_rows("sentences", "train[:48]", modality="text")
    assert isinstance(sentences.inputs, tuple)
    words = [text.split()[: 3 + i % 3] for i, text in enumerate(sentences.inputs)]
    rows = replace(sentences, inputs=tuple(" ".join(own).rstrip(".,;") for own in words))
    config = TaskConfig.model_validate(
        {"model": model, "dataset": "sentences", "kind": kind, "max_length": 12}
    )
    task = make_task(config, rows)
    network = task.model(initial_weights(task, config, 0))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.001)
    for step in range(steps):
        optimizer.zero_grad()
        batch = task.encode(rows.take([(step * 8 + i) % 48 for i in range(8)]))
        task.loss(network, batch).backward()
        optimizer.step()
    return Victim(task, rows, state(network))


def look(
    victim: Victim, rows: list[int], *defenses: DEFENSE, client: int = 0, **federation: Any
) -> tuple[Observation, Batch]:
    """What the server sees where it is granted lengths and defenses, and the private batch."""
    seen, truth = victim.capture(rows, *defenses, **federation)
    facts: dict[str, Any] = {"lengths": sorted(map(len, lines(truth))), "defense": defenses}
    if "local_steps" in federation:
        facts |= {key: federation[key] for key in ("local_steps", "learning_rate")}
    knowledge = Knowledge(num_examples=len(rows), **facts)
    return replace(seen, key=CaptureKey(round=1, client=client), knowledge=knowledge), truth


def several(
    victim: Victim, batches: Sequence[list[int]], *defenses: DEFENSE, **federation: Any
) -> tuple[list[Observation], list[Batch]]:
    pairs = [
        look(victim, rows, *defenses, client=client, **federation)
        for client, rows in enumerate(batches)
    ]
    return [seen for seen, _ in pairs], [truth for _, truth in pairs]


def attack(
    victim: Victim,
    attack: Attack,
    seen: Sequence[Observation],
    job: Job | None = None,
    seed: int = 0,
) -> list[Reconstruction]:
    rngs = [torch.Generator().manual_seed(100 * seed + each.key.client) for each in seen]
    return attack.reconstruct(seen, victim.task, rngs, job or Job())


def in_place(guess: Batch, truth: Batch) -> float:
    """Share of the words that stand where they stood, under the best pairing of sentences."""
    own, wanted = ([line[1:-1] for line in lines(batch)] for batch in (guess, truth))
    hits = [
        sum(a == b for pair in zip(order, wanted, strict=True) for a, b in zip(*pair, strict=False))
        for order in permutations(own)
    ]
    return max(hits) / sum(map(len, wanted))


def mean(guesses: Sequence[Reconstruction], truths: Sequence[Batch]) -> float:
    found = [in_place(own.guess, truth) for own, truth in zip(guesses, truths, strict=True)]
    return sum(found) / len(found)


SINGLE = [[row] for row in range(6)]
