"""Captures of a cell with their private examples; within a run only scoring reads ``truth/``."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, TypeVar

from fedsim.api.cell import CellFolder
from fedsim.errors import StoreError
from fedsim.metrics.base import Examples
from fedsim.store.capture import CaptureKey
from fedsim.store.truth import TruthRecord, pooled
from fedsim.tasks import from_elsewhere, load_task
from fedsim.tasks.base import Task
from fedsim.types import Batch, joined

C = TypeVar("C", bound=CellFolder)


@dataclass(frozen=True)
class Victims(Generic[C]):
    """The captures of one cell, each with the private examples that it is about."""

    cell: C

    @cached_property
    def task(self) -> Task:
        """The cell's task, from its captures, to compare examples with."""
        return load_task(self.cell.captures.root, network=False)

    @property
    def foreign(self) -> bool:
        """Whether the captures are another application's."""
        return from_elsewhere(self.cell.captures.root)

    @cached_property
    def keys(self) -> list[CaptureKey]:
        """The captures, by round and client; of another application's, those whose truth is known.

        Raises:
            StoreError: their folder is missing.
        """
        captures = self.cell.captures
        if not captures.root.is_dir():
            raise StoreError(f"{captures.root}: the folder is missing. Restore it.")
        known = self._known if self.foreign else None
        return [key for key in captures.keys() if known is None or key in known]

    @cached_property
    def records(self) -> dict[CaptureKey, TruthRecord]:
        """By capture, its rows, its steps, and whether it is a probe."""
        return {key: pooled(key, members) for key, members in self._members.items()}

    def batch(self, key: CaptureKey) -> Batch:
        """The private examples as the clients used them."""
        return joined([self.cell.truth.batch(member) for member in self._members[key]])

    def examples(self, key: CaptureKey) -> Examples:
        """The private examples as the metrics see them."""
        return self.seen(self.batch(key))

    def seen(self, batch: Batch) -> Examples:
        """Rows of victims, or guesses at them, as the metrics see them, which cut to [0, 1]."""
        low, high = self._range
        inputs = batch.inputs if (low, high) == (0, 1) else (batch.inputs - low) / (high - low)
        return self.task.examples(replace(batch, inputs=inputs))

    @cached_property
    def _range(self) -> tuple[float, float]:
        if not self.foreign or self.task.modality != "image":
            return 0.0, 1.0
        ends = [self.batch(key).inputs.aminmax() for key in self.keys]
        low, high = min(float(end.min) for end in ends), max(float(end.max) for end in ends)
        return (0.0, 1.0) if (low >= 0 and high <= 1) or low == high else (low, high)

    @cached_property
    def _members(self) -> dict[CaptureKey, list[TruthRecord]]:
        return {k: self._known.get(k) or self.cell.truth.members(k) for k in self.keys}

    @cached_property
    def _known(self) -> dict[CaptureKey, list[TruthRecord]]:
        return self.cell.truth.by_capture()
