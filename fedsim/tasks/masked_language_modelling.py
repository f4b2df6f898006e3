"""Masked language modelling: the hidden words of each text by a transformer of the BERT type."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsim.metrics.base import Examples
from fedsim.seeds import generator
from fedsim.tasks.base import Network
from fedsim.tasks.language_modelling import IGNORED
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Rows

_CHOSEN = 0.15  # of the tokens of a text, rounded, and at least one
_HIDDEN, _REPLACED = 0.8, 0.1  # of the chosen tokens; the rest stay


class MaskedLanguageModelling(TextTask):
    """Cross-entropy of the tokens chosen in each text (BERT, Devlin et al. 2019).

    15 % of the tokens are chosen; 80 % of these become the mask token, 10 % another token, and
    10 % stay. Special tokens are never chosen, and, unlike in the paper, never put in. The masking
    is static and drawn from the ids of the text alone: a text is masked alike in every round, on
    every client and under every seed. An attack that made use of that would cheat.

    ``inputs`` are what the model sees. The private text, which ``examples`` puts together from
    inputs and labels, has the chosen tokens in it. DLG (Zhu et al. 2019) attacked this task first.
    """

    def encode(self, rows: Rows) -> Batch:
        """Ids with the chosen ones hidden or replaced, mask, and labels."""
        batch = super().encode(rows)
        assert batch.mask is not None
        words, inputs = self._words(), batch.inputs.clone()
        for line, labels, mask in zip(inputs, batch.labels, batch.mask, strict=True):
            rng = _generator("replacement", line, mask)
            chosen = torch.nonzero(labels != IGNORED)[:, 0]
            draw = torch.rand(len(chosen), generator=rng)
            others = words[torch.randint(len(words), chosen.shape, generator=rng)]
            shown = others.where(draw < _HIDDEN + _REPLACED, line[chosen])
            line[chosen] = shown.masked_fill(draw < _HIDDEN, self.tokenizer.mask_token_id)
        return replace(batch, inputs=inputs)

    def labels(self, rows: Rows, inputs: Tensor, mask: Tensor) -> Tensor:
        """The chosen tokens' own ids ``(batch, token)``, -100 elsewhere."""
        del rows
        labels = torch.full_like(inputs, IGNORED)
        can = torch.isin(inputs, self._words()) & (mask == 1)
        for line, places, own, real in zip(inputs, can, labels, mask, strict=True):
            candidates = torch.nonzero(places)[:, 0]
            count = max(1, round(_CHOSEN * len(candidates)))
            order = torch.randperm(len(candidates), generator=_generator("choice", line, real))
            chosen = candidates[order[:count]]
            own[chosen] = line[chosen]
        return labels

    def _words(self) -> Tensor:
        """The ids that can be chosen or put in, ascending."""
        never = {*self.spec.special_ids, self.tokenizer.mask_token_id}
        return torch.tensor([i for i in range(len(self.tokenizer)) if i not in never])

    def examples(self, batch: Batch) -> Examples:
        """The texts before the masking; what a guess leaves masked counts as a wrong word."""
        return super().examples(unmasked(batch))

    def loss(self, network: Network, batch: Batch) -> Tensor:
        """Mean cross-entropy over the chosen tokens of the whole batch; 0 where there are none.

        Labels may also be weights of tokens at places, float32 ``(batch, token, token id)``.
        """
        logits, targets = self._predictions(network, batch)
        if batch.labels.is_floating_point():
            return -(batch.labels.flatten(0, 1) * logits.log_softmax(1)).sum() / batch.labels.sum()
        summed = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
        return summed / (targets != IGNORED).sum().clamp(min=1)

    def _predictions(self, network: Network, batch: Batch) -> tuple[Tensor, Tensor]:
        logits: Tensor = network(input_ids=batch.inputs, attention_mask=batch.mask).logits
        return logits.flatten(0, 1), batch.labels.flatten()

    @torch.no_grad()
    def evaluate(self, network: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """Over all chosen tokens: mean loss, accuracy, and the loss's exponential.

        It is called perplexity as that of a causal model is, but the model sees both sides of a
        token: do not compare the two.
        """
        device = next(network.parameters()).device
        training = network.training
        network.eval()
        chosen = []
        for batch in batches:
            logits, targets = self._predictions(network, batch.to(device))
            chosen.append((logits[targets != IGNORED], targets[targets != IGNORED]))
        network.train(training)
        guesses, truths = (torch.cat(parts) for parts in zip(*chosen, strict=True))
        loss = F.cross_entropy(guesses, truths)
        return {
            "loss": loss.item(),
            "accuracy": (guesses.argmax(1) == truths).double().mean().item(),
            "perplexity": loss.exp().item(),
        }


def unmasked(batch: Batch) -> Batch:
    """The batch with its labels in place of what is masked; as it is where no token has a label.

    For a guess ``-1``, as ``-100``, stands for no label.
    """
    if batch.labels.shape != batch.inputs.shape:
        return batch
    return replace(batch, inputs=batch.labels.where(batch.labels >= 0, batch.inputs))


def _generator(use: str, ids: Tensor, mask: Tensor) -> torch.Generator:
    """For one text, whatever the padding."""
    return generator(0, "masking", use, *ids[mask == 1].tolist())
