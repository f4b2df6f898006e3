"""Whether an update bears out examples, beside the update of somebody else as the null."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from attacks.foreign.readings import MIRRORED
from experiments.captures.reading import cosine
from fedsim.store.capture import CaptureKey, CaptureStore, Observation
from fedsim.tasks.base import Task
from fedsim.tasks.language_modelling import IGNORED, LanguageModelling
from fedsim.types import Batch


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

    @property
    def leads(self) -> bool:
        """Whether the examples explain their update better than the null."""
        return self.own > (self.other or 0.0)

    def __str__(self) -> str:
        null = "no other update" if self.other is None else f"{self.other:.2f} with {self.whose}"
        return f"cosine of its gradient {self.own:.2f} with this update, {null}"


@dataclass(frozen=True)
class Evidence:
    """What the updates of a run folder say of examples.

    Attributes:
        store: captures under the names of the model.
        task: their model.
    """

    store: CaptureStore
    task: Task

    def fit(self, key: CaptureKey, batch: Batch) -> Fit | None:
        """How well the gradient on examples matches an update; None without a label or any word.

        A guess that says nothing, as that of ``prior_only`` without public rows, is such. The
        targets of a language model are the words of the guess. A reply whose sign is open is read
        with the better one.
        """
        stores = [self.store]
        if self.store.record(key).sign_open:
            stores.append(CaptureStore(self.store.root / MIRRORED))
        batch_of_words = _with_targets(batch, self.task)
        if batch_of_words is None:
            return None
        other = self._other(key)
        readings = [store.load(key) for store in stores]
        return max(_compared(self.task, batch_of_words, seen, other) for seen in readings)

    def _other(self, key: CaptureKey) -> Observation | None:
        """An update of another client, of the same round if there is one; None if alone.

        The null of a cohort that is alone in its round is another round's sum.
        """
        pooled = bool(self.store.record(key).nodes)
        others = [k for k in self.store.keys() if k.client != key.client or (pooled and k != key)]
        nearest = min(
            others, key=lambda k: (k.round != key.round, k.client == key.client), default=None
        )
        return None if nearest is None else self.store.load(nearest)


def _with_targets(batch: Batch, task: Task) -> Batch | None:
    if not batch.inputs.numel() or (task.spec.num_classes and batch.labels.min() < 0):
        return None
    if batch.mask is None or task.spec.num_classes or batch.labels.dim() > 1:
        return batch
    if not isinstance(task, LanguageModelling):
        return None
    return Batch(batch.inputs, batch.inputs.masked_fill(batch.mask == 0, IGNORED), batch.mask)


def _compared(task: Task, batch: Batch, seen: Observation, other: Observation | None) -> Fit:
    gradient = task.gradient(task.model(seen.sent), batch)
    explained = cosine(gradient, seen.update())
    if other is None:
        return Fit(explained, None)
    whose = "another round's" if other.key.client == seen.key.client else "another's"
    return Fit(explained, cosine(gradient, other.update()), whose)
