"""The classes of a batch, inferred from the gradient of the last linear layer."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.observed.calls import noted
from attacks.observed.replay import observed_gradient
from fedsim.errors import CannotAttack
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.tasks.targets import last_linear, output_slopes
from fedsim.types import Batch, Tensors

DUMMIES = 256
"""Random inputs that estimate the mean prediction of the broadcast model; rows of one pass."""
TRIED = 200
"""Scales tried for an update whose length was cut, about 1 % apart."""
MOSTLY = 0.65
"""Share of the bias gradient that is 0 where pruning left hardly more of it than the classes."""


@dataclass(frozen=True, slots=True)
class Head:
    """Parameter names of the last linear layer; ``bias`` is None where it has none."""

    layer: str
    weight: str
    bias: str | None


def find_head(network: nn.Module) -> Head:
    """``last_linear``; the loss does not read those that are marked."""
    name = last_linear(network)
    if name is None:
        raise CannotAttack(
            "the model has no linear layer",
            missing=("labels",),
        )
    layer = network.get_submodule(name)
    prefix = f"{name}." if name else ""
    return Head(name, f"{prefix}weight", None if layer.bias is None else f"{prefix}bias")


def infer_label(update: Tensors, head: Head) -> int:
    """The class of a single example (iDLG, Zhao et al. 2020); any positive scale of ``update``.

    The bias gradient is ``softmax - one_hot``, negative at the class only; of a single output it is
    ``sigmoid - class``. Without a bias: the one
    row of the weight gradient with a negative inner product with every other row. Unlike the
    shortcut by row sums this needs no positive features.

    Raises:
        CannotAttack: the layer was not sent, or has two classes and no bias.
    """
    if head.bias in update:
        bias = update[head.bias]
        return int(bias.argmin() if len(bias) > 1 else bias[0] < 0)
    if head.weight not in update:
        raise CannotAttack(
            f"{head.weight!r} was not sent, so its gradient cannot tell the label",
            missing=("labels",),
        )
    rows = update[head.weight]
    if len(rows) < 3:
        raise CannotAttack(
            f"{len(rows)} weight rows without a bias are opposite whatever the label is",
            missing=("labels",),
        )
    products = rows @ rows.T
    products.fill_diagonal_(-torch.inf)
    return int(products.max(dim=1).values.argmin())


def count_labels(
    observation: Observation,
    task: Task,
    num_examples: int,
    rng: torch.Generator,
    auxiliary: Batch | None = None,
    *,
    scaled: bool = False,
    ranked: bool = False,
    predicted: dict[int, Tensor] | None = None,
) -> Tensor:
    """How often each class occurs in the batch: int64 ``(class,)``, summing to ``num_examples``.

    ``n_c = B (mean softmax_c - bias gradient_c)`` is exact for the mean cross-entropy. The mean
    softmax over the unknown batch is taken from random inputs (Geng et al. 2021), or, where
    ``auxiliary`` rows are given, solved for with each class's mean softmax: exact on random
    weights, and a third as many errors on a trained model. Reads a gradient, or a FedAvg update as
    ``observed_gradient`` does; where it is ``scaled``, as by clipping, up to a factor, which is
    estimated first; where it is ``ranked``, as by keeping the largest coordinates of each example,
    a class occurs only where its bias gradient was kept, the largest of its examples'. Where few
    others were, it is ``n_c (softmax_c - 1) / B`` alone. ``predicted`` keeps the softmax of the
    auxiliary rows for other observations of the very same weights, which it knows by their ``id``.

    Raises:
        CannotAttack: the bias gradient or its scale is not known.
    """
    network = task.model(observation.sent)
    head = find_head(network)
    _check_bias(observation, head, task, num_examples)
    gradient = observed_gradient(observation, "Granting the labels does as well.")
    bias_gradient = _of_bias(gradient, network, head, task, num_examples)
    if auxiliary is None:
        batch = _dummies(network, task, rng)
        mean, change = _softmax(network, head, task, batch).mean(0), -bias_gradient
    else:
        known, weights = {} if predicted is None else predicted, id(observation.sent)
        if weights not in known:
            parts = (auxiliary[at : at + DUMMIES] for at in range(0, len(auxiliary), DUMMIES))
            known[weights] = torch.cat([_softmax(network, head, task, part) for part in parts])
        softmax = known[weights]
        mean, change = _solve(softmax, auxiliary.labels, bias_gradient)
    if scaled:
        change = change / _scale(mean, change, num_examples)
    counts = num_examples * (mean + change)
    if ranked and bool((bias_gradient == 0).any()):
        counts = counts.where(bias_gradient != 0, 0)
        if (bias_gradient == 0).double().mean() > MOSTLY:
            counts = -bias_gradient.clamp(max=0) / (1 - mean).clamp(min=0.01)
    return round_counts(counts, num_examples)


def told_length(observation: Observation, task: Task, rng: torch.Generator) -> float:
    """By what an update is longer than the mean gradient, as the head's bias tells it.

    What is left of a step's length where the server knows neither learning rate nor steps. On
    LeNet-like networks of ten classes it was within 2 % for a step of up to 8 examples, and
    between .6 and 1.25 of the truth in 8 of 10 trials for one or four steps of 32, which cost one
    label in 40 (20 trials of each case).

    Raises:
        CannotAttack: the bias gradient is not known.
    """
    network, count = task.model(observation.sent), observation.knowledge.num_examples
    assert count is not None
    head = find_head(network)
    _check_bias(observation, head, task, count)
    change = -_of_bias(observation.update(), network, head, task, count)
    mean = _softmax(network, head, task, _dummies(network, task, rng)).mean(0)
    return float(_scale(mean, change, count))


def _check_bias(observation: Observation, head: Head, task: Task, count: int) -> None:
    if head.bias is None or head.bias not in observation.received:
        raise CannotAttack(
            f"counting {count} labels needs the bias of {head.layer!r}, which was not sent",
            missing=("labels",),
        )
    outputs, classes = observation.received[head.bias].numel(), task.spec.num_classes
    if outputs not in {1, classes}:
        raise CannotAttack(
            f"counting {count} labels needs a bias for each of the {classes} classes, and "
            f"{head.layer!r}, the last linear layer, has {outputs} outputs",
            missing=("labels",),
        )


def _of_bias(gradient: Tensors, network: nn.Module, head: Head, task: Task, count: int) -> Tensor:
    """The bias gradient as that of the mean cross-entropy, ``(class,)``."""
    bias = gradient[str(head.bias)]
    if len(bias) == 1:  # sigmoid - class: a sigmoid is the softmax of (0, output)
        bias = torch.cat([-bias, bias])
    return bias / _slope(network, head, task, count)


def round_counts(counts: Tensor, total: int) -> Tensor:
    """Largest-remainder rounding to non-negative integers that sum to ``total``.

    Where none is positive, as in a mean of signs that is read as a gradient, by their softmax.
    """
    positive = counts.clamp(min=0) if bool((counts > 0).any()) else counts.softmax(0)
    positive = positive * (total / positive.sum())
    whole = positive.floor()
    missing = total - int(whole.sum())
    whole[(positive - whole).argsort(descending=True, stable=True)[:missing]] += 1
    return whole.to(torch.int64)


def _solve(softmax: Tensor, classes: Tensor, bias_gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Least squares for ``(Q^T - I) p = g`` and ``sum p = 1``; ``Q_k``: class k's softmax.

    The shares ``p`` of the classes are the sum of the two: those at ``g = 0``, and what ``g`` adds.
    """
    size = len(bias_gradient)
    # A class without auxiliary rows gets the mean over all rows.
    means = softmax.mean(0).repeat(size, 1)
    for label in set(classes.tolist()):
        means[label] = softmax[classes == label].mean(0)
    system = torch.cat([torch.ones(1, size), means.T - torch.eye(size)]).double()
    right = torch.zeros(size + 1, 2, dtype=torch.float64)
    right[0, 0], right[1:, 1] = 1, bias_gradient
    still, change = torch.linalg.lstsq(system, right, driver="gelsd").solution.unbind(1)
    return still, change


def _scale(mean: Tensor, change: Tensor, total: int) -> Tensor:
    """What ``change`` was multiplied by, if the shares were ``mean + change`` before; a scalar.

    Shares of ``total`` draws with equal chances are so far from ``mean`` on average; that alone is
    taken where every class may occur. Where some cannot, only few directions lead from ``mean`` to
    whole counts, and the scale is the one that comes nearest to such.
    """
    chance = 1 / len(mean)
    spread = (mean - chance).square().sum() + (1 - chance) / total
    likely: Tensor = (change.norm() / spread.sqrt()).clamp(min=torch.finfo(change.dtype).tiny)
    if len(mean) <= total:
        return likely

    def miss(scale: Tensor) -> float:
        counts = total * (mean + change / scale)
        return float((counts - round_counts(counts, total)).norm())

    # The lower end is that of a single class, whose shares are the farthest from the mean.
    lowest = -0.5 * math.log2(total)
    tried = likely * torch.linspace(lowest, 1, TRIED, dtype=torch.float64).exp2()
    return min(tried.unbind(), key=miss)


def _softmax(network: nn.Module, head: Head, task: Task, batch: Batch) -> Tensor:
    """Softmax in float64 ``(batch, class)`` at the head, whatever the network's signature is."""
    with torch.no_grad(), noted({head.layer: network.get_submodule(head.layer)}) as calls:
        task.loss(network, batch)
    outputs = calls[-1].output.double()
    if outputs.shape[-1] == 1:
        outputs = torch.cat([torch.zeros_like(outputs), outputs], -1)
    return outputs.softmax(-1)


def _slope(network: nn.Module, head: Head, task: Task, total: int) -> float:
    """A class's slope at outputs of 0 in a batch, by that of the mean cross-entropy.

    It is the number of examples for a sum, and what smoothing leaves for smoothed labels.
    """
    if task.modality == "text":
        return 1.0
    images = torch.full((total, *task.spec.input_shape), 0.5)
    width = network.get_parameter(head.weight).shape[0]
    batch = Batch(images, torch.zeros(total, dtype=torch.int64))
    outputs = torch.zeros(total, width)
    slope = output_slopes(task.loss, network, head.layer, outputs, batch)[0]
    usual = 0.5 if width == 1 else (1 - width) / width
    return float(slope[0]) * total / usual or 1.0


def _dummies(network: nn.Module, task: Task, rng: torch.Generator) -> Batch:
    """Uniform random pixels, or random token ids of full length."""
    labels = torch.zeros(DUMMIES, dtype=torch.int64)
    shape = (DUMMIES, *task.spec.input_shape)
    if task.modality == "image":
        return Batch(torch.rand(shape, generator=rng), labels)
    vocabulary = next(m.num_embeddings for m in network.modules() if isinstance(m, nn.Embedding))
    ids = torch.randint(vocabulary, shape, generator=rng)
    return Batch(ids, labels, torch.ones_like(ids))
