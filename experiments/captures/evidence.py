"""Whether an update bears out examples, beside the update of somebody else as the null."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple

from attacks.foreign.readings import MIRRORED
from experiments.analysis.hits import ERROR
from experiments.captures.reading import cosine
from fedsim.store.capture import CaptureKey, CaptureStore, Observation
from fedsim.tasks.base import Task
from fedsim.tasks.language_modelling import IGNORED, LanguageModelling
from fedsim.types import Batch

_OTHERS = 5
"""Most other updates. Halved, a cosine has to stand out 4 times as far; doubled, .8 times."""


class Fit(NamedTuple):
    """Cosines of the gradient on examples, at the weights that the server sent.

    Attributes:
        cosine: with the update that they are said to be behind.
        others: with those of other clients, the null.
    """

    cosine: float
    others: tuple[float, ...]

    @property
    def null(self) -> float | None:
        """Mean over the others; None without any."""
        return fmean(self.others) if self.others else None

    @property
    def leads(self) -> bool | None:
        """Whether they explain their update better than the null; None beside a single one.

        By chance, ``ERROR``, a further cosine like the null ones stands out so far (Student's t).
        """
        from scipy.stats import t

        over, count = self.cosine - (self.null or 0.0), len(self.others)
        if over <= 0 or count < 2:
            return False if over <= 0 else None
        scale = stdev(self.others) * math.sqrt(1 + 1 / count)
        return bool(over > t.isf(ERROR, count - 1) * scale)

    def __str__(self) -> str:
        null = "".join(f"{x:.2f} with another" for x in self.others) or "no other update"
        if len(self.others) > 1:
            null = f"at most {max(self.others):.2f} with {len(self.others)} other updates"
        return f"cosine of its gradient {self.cosine:.2f} with this update, {null}"


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
        others = [self.store.load(other) for other in self._others(key)]
        fits = [_compared(self.task, batch_of_words, each.load(key), others) for each in stores]
        return max(fits, key=lambda fit: fit.cosine)

    def _others(self, key: CaptureKey) -> list[CaptureKey]:
        """Updates of other clients, those of the same round first.

        The null of a cohort that is alone in its round is another round's sum.
        """
        pooled = bool(self.store.record(key).nodes)
        others = [k for k in self.store.keys() if k.client != key.client or (pooled and k != key)]
        others.sort(key=lambda k: (k.round != key.round, k.client == key.client))
        return others[:_OTHERS]


def _with_targets(batch: Batch, task: Task) -> Batch | None:
    if not batch.inputs.numel() or (task.spec.num_classes and batch.labels.min() < 0):
        return None
    if batch.mask is None or task.spec.num_classes or batch.labels.dim() > 1:
        return batch
    if not isinstance(task, LanguageModelling):
        return None
    return Batch(batch.inputs, batch.inputs.masked_fill(batch.mask == 0, IGNORED), batch.mask)


def _compared(task: Task, batch: Batch, seen: Observation, others: Sequence[Observation]) -> Fit:
    gradient = task.gradient(task.model(seen.sent), batch)
    first, *null = (cosine(gradient, each.update()) for each in (seen, *others))
    return Fit(first, tuple(null))
