"""Training of a small causal language model, from random weights, on the attacker's texts."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence

from attacks.texts.language_prior import LanguagePrior
from experiments.console import Console
from fedsim.cell import AuxiliaryConfig, TaskConfig
from fedsim.files import Record
from fedsim.models import transformer
from fedsim.seeds import derive, generator, seeded
from fedsim.tasks.text import TextTask

HEAD = 32
"""Width of an attention head."""
_PATIENCE = 3  # epochs without a better held-out loss
_BATCH = 16
_DROPOUT = 0.3
_SMOOTHING = 0.1  # of the targets, so that words which the few texts lack stay possible
_LEARNING_RATE = 2e-3
_WEIGHT_DECAY = 0.1


class Recipe(Record):
    """Everything that determines the trained weights.

    Attributes:
        width: of the hidden layers, a multiple of 32.
        epochs: passes over the texts at most.
    """

    seed: int
    task: TaskConfig
    auxiliary: AuxiliaryConfig
    width: int
    layers: int
    epochs: int


def train(
    task: TextTask, lines: list[Tensor], heldout: list[Tensor], recipe: Recipe, console: Console
) -> tuple[Any, int, float]:
    """The network of the epoch with the lowest held-out loss, the epoch and the loss.

    Args:
        task: gives the tokenizer.
        lines: ids of each text.
        heldout: texts that it stops by.
        recipe: sizes and seed.
        console: shows each step.
    """
    network: Any = _build(task, recipe)
    parameters = list(network.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    rng = generator(recipe.seed, "prior", "batches")
    best, least, weights = 0, math.inf, {}
    console.expect("prior", recipe.epochs * math.ceil(len(lines) / _BATCH))
    with seeded(derive(recipe.seed, "prior", "dropout")):
        for epoch in range(1, recipe.epochs + 1):
            network.train()
            order = torch.randperm(len(lines), generator=rng).tolist()
            for ids, mask in _batches([lines[i] for i in order]):
                real = mask[:, 1:] == 1
                states = network.base_model(input_ids=ids).last_hidden_state[:, :-1][real]
                logits, targets = network.lm_head(states), ids[:, 1:][real]
                loss = F.cross_entropy(logits, targets, label_smoothing=_SMOOTHING)
                optimizer.zero_grad()
                loss.backward()
                clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                console.advance("prior", f"perplexity {math.exp(least):.1f}" if best else "")
            network.eval()
            if (now := _loss(network, heldout)) < least:
                best, least, weights = epoch, now, copy.deepcopy(network.state_dict())
            elif epoch - best >= _PATIENCE:
                break
    network.load_state_dict(weights)
    return network, best, least


def _build(task: TextTask, recipe: Recipe) -> torch.nn.Module:
    tokenizer = task.tokenizer
    start = tokenizer.bos_token_id if tokenizer.cls_token_id is None else tokenizer.cls_token_id
    end = tokenizer.eos_token_id if tokenizer.sep_token_id is None else tokenizer.sep_token_id
    architecture = {
        "model_type": "gpt2",
        "vocab_size": max(tokenizer.get_vocab().values()) + 1,
        "n_positions": task.max_length,
        "n_embd": recipe.width,
        "n_layer": recipe.layers,
        "n_head": recipe.width // HEAD,
        "bos_token_id": start,
        "eos_token_id": end,
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), _DROPOUT),
    }
    seed = derive(recipe.seed, "prior", "weights")
    return transformer.build(architecture, "language-modelling", seed)


def _batches(lines: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Ids padded on the right, and the mask."""
    for first in range(0, len(lines), _BATCH):
        part = lines[first : first + _BATCH]
        mask = pad_sequence([torch.ones_like(line) for line in part], batch_first=True)
        yield pad_sequence(list(part), batch_first=True), mask


def _loss(network: Any, lines: Sequence[Tensor]) -> float:  # noqa: ANN401
    """Mean cross-entropy over all predicted tokens."""
    prior = LanguagePrior("prior", network)
    counts = torch.tensor([len(line) - 1 for line in lines])
    means = torch.cat([prior.loss(ids, mask) for ids, mask in _batches(lines)])
    return float((means * counts).sum() / counts.sum())
