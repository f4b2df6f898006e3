"""Whether an update bears out examples, beside the update of somebody else as the null."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from experiments.captures.update import Update
from fedsim.tasks.language_modelling import IGNORED, LanguageModelling
from fedsim.types import Batch, Tensors


class Fit(NamedTuple):
    """Cosines of the gradient on examples, at the weights that the server sent.

    Attributes:
        own: with the update that they are said to be behind.
        other: with that of another client, the null; None if there is none.
        whose: whose update the null is.
    """

    own: float
    other: float | None
    whose: str = "another's"

    def __str__(self) -> str:
        null = "no other update" if self.other is None else f"{self.other:.2f} with {self.whose}"
        return f"cosine of its gradient {self.own:.2f} with this update, {null}"


def fit_of(batch: Batch, victim: Update, other: Update | None) -> Fit | None:
    """How well the gradient on examples matches an update; None without a label or any word.

    A guess that says nothing, as that of ``prior_only`` without public rows, is such. The targets
    of a language model are the words of the guess.
    """
    task = victim.task
    if not batch.inputs.numel() or (task.spec.num_classes and batch.labels.min() < 0):
        return None
    if batch.mask is not None and not task.spec.num_classes and batch.labels.dim() < 2:
        if not isinstance(task, LanguageModelling):
            return None
        targets = batch.inputs.masked_fill(batch.mask == 0, IGNORED)
        batch = Batch(batch.inputs, targets, batch.mask)
    gradient = task.gradient(task.model(victim.observation.sent), batch)
    explained = _cosine(gradient, victim.observation.update())
    if other is None:
        return Fit(explained, None)
    alone = other.observation.key.client == victim.observation.key.client
    whose = "another round's" if alone else "another's"
    return Fit(explained, _cosine(gradient, other.observation.update()), whose)


def _cosine(gradient: Tensors, update: Tensors) -> float:
    names = [name for name in gradient if name in update]

    def product(a: Tensors, b: Tensors) -> Tensor:
        return sum((a[n].double() * b[n].double()).sum() for n in names)  # type: ignore[return-value]

    norms = product(gradient, gradient) * product(update, update)
    return float(product(gradient, update) / norms.sqrt().clamp(min=1e-300))
