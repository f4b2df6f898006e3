"""The guard beside the relative data leakage value, by which a filter of NVFlare decides.

Hatamizadeh et al. 2022 ("Do gradient inversion attacks make federated learning unsafe?") have the
client invert its own update by optimisation and hold the similarity of what comes out against that
of a prior image: ``(s(guess, x) - s(prior, x)) / s(prior, x)``. NVFlare's filter takes the
structural similarity and sends nothing above a threshold of 1.
"""

import time
from collections.abc import Iterator
from typing import Any

import torch

import fedsim
from benchmarks.attest.clients import victim
from experiments.attest.guard import Guard
from experiments.captures.reading import Reading
from experiments.captures.update import Update
from fedsim.defenses import build_chain
from fedsim.knowledge import Knowledge
from fedsim.metrics.base import Examples
from fedsim.metrics.images import StructuralSimilarity
from fedsim.store.capture import CaptureKey, Observation
from fedsim.types import Batch, Tensors

_THRESHOLD, _BUDGET = 1.0, 10.0
TABLES: dict[str, dict[str, Any]] = {
    "no defense": {"name": "none"},
    "DP noise": {"name": "dp_client", "clip": 1.0, "noise_multiplier": 0.484},
}


def compared(network: str, clients: int) -> Iterator[tuple[str, bool, bool, float, float]]:
    """Case, whether the filter and the guard stop a reply, and the seconds of each."""
    task, rows, sent = victim(network)
    prior = task.encode(rows.take(range(clients, clients + 64))).inputs.mean(0, keepdim=True)
    for case, table in TABLES.items():
        for client in range(clients):
            batch, guard, model = task.encode(rows.take([client])), Guard(), task.model(sent)
            with guard.watching():
                task.loss(model, batch).backward()
            named = model.named_parameters()
            gradient: Tensors = {k: p.grad for k, p in named if p.grad is not None}
            rng = torch.Generator().manual_seed(client)
            received = build_chain((table,), "defense").on_update(gradient, rng)
            begun = time.perf_counter()
            stopped = not guard.check(sent, received).passes
            guarded = time.perf_counter() - begun
            known = Knowledge(num_examples=1, batch_size=1, local_steps=1)
            seen = Observation(
                CaptureKey(round=1, client=client), sent, received, "gradient", known
            )
            guess = fedsim.attack(
                Update(Reading(seen), task), "inverting", budget=_BUDGET, quiet=True
            )
            value = leakage_value(guess.images, batch, prior)
            yield case, value > _THRESHOLD, stopped, time.perf_counter() - begun - guarded, guarded


def leakage_value(guess: torch.Tensor | None, truth: Batch, prior: torch.Tensor) -> float:
    """The relative data leakage value of one image; -1 without a guess."""
    if guess is None:
        return -1.0
    metric = StructuralSimilarity()
    found, before = (
        float(metric.score(_examples(images, truth), _examples(truth.inputs, truth))[0])
        for images in (guess[:1].float(), prior)
    )
    return (found - before) / before


def _examples(images: torch.Tensor, truth: Batch) -> Examples:
    return Examples(Batch(images, truth.labels))
