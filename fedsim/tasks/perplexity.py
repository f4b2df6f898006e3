"""Perplexity of many texts under a language model, cached on disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from fedsim.files import digest, write_json
from fedsim.tasks.base import state
from fedsim.tasks.language_modelling import IGNORED, LanguageModelling
from fedsim.threads import one_thread
from fedsim.types import Rows

_TOKENS = 1024
"""Tokens in a batch, padding included; the logits of GPT-2 then take 0.2 GB."""


def perplexities(
    task: LanguageModelling, network: nn.Module, texts: Sequence[str], cache: Path
) -> list[float]:
    """Exponential of the mean cross-entropy of each text's predicted tokens.

    A text is encoded as for training: with start and end tokens, cut to ``max_length``. In a text
    of a single token nothing is predicted, and its perplexity is NaN.

    Every process of a run needs the same values, and thousands of texts take minutes. They are
    therefore stored in the folder ``cache`` under the hash of model, weights and tokens.
    """
    lines = task.tokens(texts)
    weights = (tensor.numpy().tobytes() for tensor in state(network).values())
    name = digest(task.spec.model_dump_json().encode(), json.dumps(lines).encode(), *weights)
    path = cache / f"{name}.json"
    if not path.exists():
        write_json(path, _measure(task, network, texts, [len(line) for line in lines]))
    values: list[float] = json.loads(path.read_text(encoding="utf-8"))
    return values


@torch.inference_mode()
def _measure(
    task: LanguageModelling, network: nn.Module, texts: Sequence[str], lengths: Sequence[int]
) -> list[float]:
    values = [float("nan")] * len(texts)
    order = sorted(range(len(texts)), key=lambda row: lengths[row])
    with one_thread():  # the same bits in every process
        while order:
            count = max(1, _TOKENS // lengths[order[-1]])
            rows, order = order[-count:], order[:-count]
            zeros = torch.zeros(len(rows), dtype=torch.int64)
            batch = task.encode(Rows(tuple(texts[row] for row in rows), zeros, tuple(rows)))
            logits = network(input_ids=batch.inputs, attention_mask=batch.mask).logits
            targets = batch.labels[:, 1:]
            losses = F.cross_entropy(
                logits[:, :-1].flatten(0, 1),
                targets.flatten(),
                ignore_index=IGNORED,
                reduction="none",
            ).reshape(targets.shape)
            means = losses.sum(1, dtype=torch.float64) / (targets != IGNORED).sum(1)
            for row, value in zip(rows, means.exp().tolist(), strict=True):
                values[row] = value
    return values
