"""Language modelling: prediction of each next token, of texts alone or packed into blocks."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsim.errors import ConfigError
from fedsim.tasks.base import Network
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Rows

IGNORED = -100


class LanguageModelling(TextTask):
    """Language modelling by cross-entropy of each next token; padding is masked everywhere.

    The loss is ``-(1 / N) sum log p(token t + 1 | tokens 1 to t)`` over the N real tokens that have
    a predecessor, so longer texts have more weight. Padding is masked in attention and in labels.
    """

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text between the tokenizer's start and end tokens, if it has them."""
        start, end = self._edges()
        return [start + ids + end for ids in self.pieces(texts)]

    def pieces(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text without start and end, cut to ``room``."""
        encoded = self.tokenizer(
            list(texts), add_special_tokens=False, truncation=True, max_length=self.room
        )
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    @property
    def room(self) -> int:
        """Most tokens between start and end."""
        return self.max_length - sum(map(len, self._edges()))

    def _edges(self) -> tuple[list[int], list[int]]:
        """The tokenizer's start and end token, each if it has one."""
        ids = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id)
        start, end = ([] if token is None else [token] for token in ids)
        return start, end

    def labels(self, rows: Rows, inputs: Tensor, mask: Tensor) -> Tensor:
        """The inputs themselves ``(batch, token)``, -100 on padding; the loss shifts them."""
        del rows
        return inputs.masked_fill(mask == 0, IGNORED)

    def loss(self, network: Network, batch: Batch) -> Tensor:
        """Mean cross-entropy over all predicted tokens of the batch.

        Labels may also be weights of tokens at each position, float32 ``(batch, token, token id)``.
        """
        logits, targets = self._predictions(network, batch)
        if batch.labels.is_floating_point():
            return -(targets * logits.log_softmax(1)).sum() / targets.sum()
        return F.cross_entropy(logits, targets, ignore_index=IGNORED)

    def _predictions(self, network: Network, batch: Batch) -> tuple[Tensor, Tensor]:
        logits: Tensor = network(input_ids=batch.inputs, attention_mask=batch.mask).logits
        return logits[:, :-1].flatten(0, 1), batch.labels[:, 1:].flatten(0, 1)

    @torch.no_grad()
    def evaluate(self, network: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """Mean loss over all predicted tokens, and its exponential, the perplexity."""
        device = next(network.parameters()).device
        training = network.training
        network.eval()
        total, count = torch.zeros((), dtype=torch.float64), 0
        for batch in batches:
            logits, targets = self._predictions(network, batch.to(device))
            summed = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
            total += summed.cpu()
            count += int((targets != IGNORED).sum())
        network.train(training)
        loss = total / count
        return {"loss": loss.item(), "perplexity": loss.exp().item()}


def packed(task: LanguageModelling, rows: Rows) -> Rows:
    """Neighbouring texts joined by the end token, as many as a block has room for.

    A block is one example: its texts see one another in the attention, as where documents are not
    masked. No text is split; one that is longer than a block is cut. A block has the number of its
    first text.

    Args:
        task: defines the tokens and the room.
        rows: texts.

    Raises:
        ConfigError: the tokenizer has no end token.
    """
    between = task.tokenizer.eos_token
    if between is None:
        raise ConfigError(
            f"task.packed: the tokenizer of {task.spec.model!r} has no end token to set between "
            "texts. Leave it out."
        )
    assert isinstance(rows.inputs, tuple)
    texts = rows.inputs
    blocks = _blocks([len(line) for line in task.pieces(texts)], task.room)
    joined = tuple(str(between).join(texts[i] for i in block) for block in blocks)
    return Rows(
        joined,
        rows.labels[[block[0] for block in blocks]],
        tuple(rows.numbers[block[0]] for block in blocks),
        rows.class_names,
    )


def _blocks(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Positions of neighbours that fit together, with one token between two."""
    blocks: list[list[int]] = []
    free = -1
    for position, length in enumerate(lengths):
        if length + 1 <= free:
            blocks[-1].append(position)
            free -= length + 1
        else:
            blocks.append([position])
            free = room - length
    return blocks
