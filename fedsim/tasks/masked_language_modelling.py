"""Masked language modelling: prediction of hidden words by a transformer of the BERT type."""

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

_CHOSEN = 0.15  # share of a text's tokens, rounded, at least one token
_HIDDEN, _REPLACED = 0.8, 0.1  # shares of the chosen tokens; the rest stay


class MaskedLanguageModelling(TextTask):
    """Masked language modelling by cross-entropy of the chosen tokens (BERT, Devlin et al. 2019).

    15 % of a text's tokens are chosen; 80 % of these become the mask token, 10 % another token, and
    10 % stay. Special tokens are never chosen and, unlike in the paper, never inserted. The masking
    is static and depends only on the ids of the text: a text is masked alike in every round, on
    every client and under every seed. An attack that exploited this would cheat.

    ``inputs`` is what the model sees. The private text contains the chosen tokens; ``examples``
    restores it from inputs and labels. DLG (Zhu et al. 2019) was the first to attack this task.
    """

    def encode(self, rows: Rows) -> Batch:
        """Token ids with chosen ones masked or replaced, the mask of padding, and labels."""
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
        """Original ids of the chosen tokens ``(batch, token)``, -100 elsewhere."""
        del rows
        labels = torch.full_like(inputs, IGNORED)
        can = torch.isin(inputs, self._words()) & (mask == 1)
        for line, places, targets, real in zip(inputs, can, labels, mask, strict=True):
            candidates = torch.nonzero(places)[:, 0]
            count = max(1, round(_CHOSEN * len(candidates)))
            order = torch.randperm(len(candidates), generator=_generator("choice", line, real))
            chosen = candidates[order[:count]]
            targets[chosen] = line[chosen]
        return labels

    def _words(self) -> Tensor:
        """Ids that can be chosen or inserted, ascending."""
        never = {*self.spec.special_ids, self.tokenizer.mask_token_id}
        return torch.tensor([i for i in range(len(self.tokenizer)) if i not in never])

    def examples(self, batch: Batch) -> Examples:
        """Texts before masking; a token that a guess leaves masked counts as a wrong word."""
        return super().examples(unmasked(batch))

    def loss(self, network: Network, batch: Batch) -> Tensor:
        """Mean cross-entropy over all chosen tokens of the batch; 0 if there are none.

        Labels may also be weights of tokens at each position, float32 ``(batch, token, token id)``.
        """
        logits, targets = self._predictions(network, batch)
        if batch.labels.is_floating_point():
            return -(batch.labels.flatten(0, 1) * logits.log_softmax(1)).sum() / batch.labels.sum()
        summed = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
        return summed / (targets != IGNORED).sum().clamp(min=1)

    def _predictions(self, network: Network, batch: Batch) -> tuple[Tensor, Tensor]:
        logits: Tensor = self.outputs(network, batch).logits
        return logits.flatten(0, 1), batch.labels.flatten()

    @torch.no_grad()
    def evaluate(self, network: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """Mean loss over all chosen tokens, accuracy, and the exponential of the loss.

        The exponential is called perplexity, but it is not comparable with that of a causal model,
        since this model sees both sides of a token.
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
    """The batch with labels in place of masked tokens; unchanged if tokens have no labels.

    A label of -1 in a guess means no label, as -100 does.
    """
    if batch.labels.shape != batch.inputs.shape:
        return batch
    return replace(batch, inputs=batch.labels.where(batch.labels >= 0, batch.inputs))


def _generator(use: str, ids: Tensor, mask: Tensor) -> torch.Generator:
    """Generator that depends on one text and not on its padding."""
    return generator(0, "masking", use, *ids[mask == 1].tolist())
