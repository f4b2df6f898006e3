"""A causal language model over the target's vocabulary, which rates the order of tokens."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fedsim.errors import CannotAttack, ConfigError
from fedsim.models import transformer
from fedsim.tasks.text import TextTask

_CPU_LOGITS = 2**21  # most logits held on a CPU; more leave the cache and take twice as long
_GPU_LOGITS = 2**26  # most logits held on a GPU
_HIDDEN = 2**23  # most values of one hidden layer in a forward pass


@dataclass(frozen=True, eq=False)
class LanguagePrior:
    """The language model of LAMP (2022), with frozen weights.

    Attributes:
        name: as the experiment names it.
        network: a causal language model of transformers whose logits are linear in what its body
            returns.
    """

    name: str
    network: Any  # transformers has no types

    @torch.no_grad()
    def loss(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Mean cross-entropy of a row's tokens given those before, in nats a token, ``(row,)``.

        Special tokens count, as in LAMP. The first token is not predicted, so a row of one token
        has the loss 0.

        Candidate orders of one sentence mostly begin alike, and the softmax over the vocabulary is
        most of the cost, so it is computed once for each distinct beginning.

        Args:
            ids: int64 ``(row, token)``, padded on the right.
            mask: 0 where a token is padding, of the same shape.
        """
        longest = int(mask.sum(1).max())
        ids, mask = ids[:, :longest], mask[:, :longest]
        lines, back = ids.masked_fill(mask == 0, -1).unique(dim=0, return_inverse=True)
        step = max(1, _HIDDEN // (lines.shape[1] * self.network.config.hidden_size))
        return torch.cat([self._sorted(part) for part in lines.split(step)])[back]

    @torch.no_grad()
    def following(self, ids: Tensor) -> Tensor:
        """Log-probability of each token after each of these, ``(row, token, vocabulary)``."""
        body, head = self.network.base_model, self.network.get_output_embeddings()
        hidden = body(input_ids=ids, use_cache=False).last_hidden_state
        logs: Tensor = head(hidden).log_softmax(-1)
        return logs

    def _sorted(self, lines: Tensor) -> Tensor:
        """``loss`` of distinct rows in lexicographic order, padded with -1."""
        body = self.network.base_model
        hidden = body(input_ids=lines.clamp(min=0), use_cache=False).last_hidden_state
        head = self.network.get_output_embeddings()
        predicted = lines[:, 1:] >= 0
        row, place = predicted.nonzero(as_tuple=True)
        # Rows that begin alike are neighbours: the first of them stands for all.
        start = first_alike(lines)[row, place] * lines.shape[1] + place
        distinct, which = start.unique(return_inverse=True)
        states, targets = hidden.flatten(0, 1)[distinct], lines[row, place + 1]
        logits = (states[which] * head.weight[targets]).sum(1)
        if head.bias is not None:
            logits += head.bias[targets]
        most = _CPU_LOGITS if states.device.type == "cpu" else _GPU_LOGITS
        parts = states.split(max(1, most // len(head.weight)))
        normaliser = torch.cat([head(part).logsumexp(1) for part in parts])
        losses = torch.zeros_like(predicted, dtype=hidden.dtype)
        losses[row, place] = normaliser[which] - logits
        return losses.sum(1) / predicted.sum(1).clamp(min=1)


def first_alike(lines: Tensor) -> Tensor:
    """``[i, p]``: the first of the sorted rows whose tokens 0 to ``p`` are those of row ``i``."""
    differs = torch.ones_like(lines, dtype=torch.bool)
    differs[1:] = (lines[1:] != lines[:-1]).cumsum(1) > 0
    numbers = torch.arange(len(lines), device=lines.device)[:, None]
    return numbers.where(differs, 0).cummax(0).values


def load_prior(name: str, task: TextTask, device: torch.device) -> LanguagePrior:
    """The causal language model of a hub id or folder, over the vocabulary of the task.

    Raises:
        CannotAttack: it is not there, is broken, is no causal language model, has another
            vocabulary or takes fewer tokens than the task.
    """
    try:
        source = transformer.locate(name)
        transformer.model_type(name)  # says quickly if a hub id is not there
        known = _vocabulary(source)
    except ConfigError as error:
        fault = str(error).removeprefix("task.model: ")
        raise CannotAttack(
            f"prior: {fault.removesuffix('.')}", "fedsim prior EXPERIMENT trains one."
        ) from None
    vocab = task.tokenizer.get_vocab()
    if differing := known.items() ^ vocab.items():
        number = min(number for _, number in differing)
        there, here = (
            {number: token for token, number in vocabulary.items()} for vocabulary in (known, vocab)
        )
        raise CannotAttack(
            f"prior: the vocabulary of {name!r} ({len(known)} tokens) is not that of "
            f"{task.spec.model!r} ({len(vocab)}): token {number} is {there.get(number)!r} in the "
            f"one and {here.get(number)!r} in the other",
            "Train a prior that matches with fedsim prior EXPERIMENT.",
        )
    network = _network(source, device)
    rows, needed = network.get_output_embeddings().out_features, max(vocab.values()) + 1
    if rows < needed:
        raise CannotAttack(
            f"prior: {name!r} predicts {rows} tokens, and its tokenizer has {needed}",
            "Use the tokenizer it was trained with.",
        )
    positions = getattr(network.config, "max_position_embeddings", task.max_length)
    if positions < task.max_length:
        raise CannotAttack(
            f"prior: {name!r} takes at most {positions} tokens, and task.max_length is "
            f"{task.max_length}",
            "Lower task.max_length, or train a longer prior with fedsim prior EXPERIMENT.",
        )
    return LanguagePrior(name, network)


@lru_cache(maxsize=4)
def _vocabulary(source: str) -> dict[str, int]:
    return dict(transformer.tokenizer(source).get_vocab())


# The jobs of one worker process share it.
@lru_cache(maxsize=2)
def _network(source: str, device: torch.device) -> Any:  # noqa: ANN401
    from transformers import AutoModelForCausalLM

    try:
        with transformer.quiet():
            network, report = AutoModelForCausalLM.from_pretrained(
                source,
                attn_implementation="eager",
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        first = str(error).strip().splitlines()[0]
        raise CannotAttack(
            f"prior: {source!r} cannot be loaded as a causal language model ({first})",
            "Name a folder or hub id that holds safetensors weights of one.",
        ) from None
    if lost := sorted(report["missing_keys"]):
        raise CannotAttack(
            f"prior: {source!r} has no weights for {lost[0]!r} ({len(lost)} in all)",
            "Name a language model with its head.",
        )
    network.float().eval().requires_grad_(False).to(device)
    _check(network, source, device)
    return network


@torch.no_grad()
def _check(network: Any, source: str, device: torch.device) -> None:  # noqa: ANN401
    """Refuse a network whose loss ``LanguagePrior`` would get wrong."""
    head = network.get_output_embeddings()
    ids = torch.arange(6, device=device).reshape(2, 3) % network.config.vocab_size
    ids[1, :2] = ids[0, :2]
    hidden = network.base_model(input_ids=ids).last_hidden_state
    if not torch.allclose(hidden[0, :2], hidden[1, :2], atol=1e-4):
        raise CannotAttack(
            f"prior: {source!r} looks at the tokens that it should predict",
            "Name a causal language model, for example one of the GPT-2 type.",
        )
    if not isinstance(head, nn.Linear) or not torch.allclose(
        head(hidden), network(input_ids=ids).logits, atol=1e-3
    ):
        raise CannotAttack(
            f"prior: the logits of {source!r} are not linear in its last hidden states",
            "Name another language model, for example one of the GPT-2 type.",
        )
