"""Number of classes and utility of classifiers, for images and texts."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsim.types import Batch, Rows


def count_classes(rows: Rows) -> int:
    """Number of classes that are named or occur, at least two."""
    largest = int(rows.labels.max()) if len(rows) else 0
    return max(len(rows.class_names), largest + 1, 2)


@torch.no_grad()
def utility(
    network: nn.Module, batches: Iterable[Batch], logits_of: Callable[[Batch], Tensor]
) -> dict[str, float]:
    """Mean loss and accuracy over all examples in eval mode; also ``mcc`` for two classes."""
    device = next(network.parameters()).device
    training = network.training
    network.eval()
    pairs = [(logits_of(batch), batch.labels) for batch in (b.to(device) for b in batches)]
    network.train(training)
    logits, labels = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    guesses = logits.argmax(dim=1)
    values = {
        "loss": F.cross_entropy(logits, labels).item(),
        "accuracy": (guesses == labels).double().mean().item(),
    }
    return values | {"mcc": matthews(guesses, labels)} if logits.shape[1] == 2 else values


def matthews(guesses: Tensor, labels: Tensor) -> float:
    """Matthews' correlation of two binary vectors, in [-1, 1]; 0 if one of them is constant."""
    table = torch.bincount(2 * labels + guesses, minlength=4).tolist()
    true_negative, false_positive, false_negative, true_positive = table
    sides = (
        (true_positive + false_positive)
        * (true_positive + false_negative)
        * (true_negative + false_positive)
        * (true_negative + false_negative)
    )
    if sides == 0:
        return 0.0
    product = true_positive * true_negative - false_positive * false_negative
    return float(product / math.sqrt(sides))
