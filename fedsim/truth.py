"""The private examples, for the evaluator alone: attacks and server may not import this module."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedsim.capture import CaptureKey, batch_from, batch_tensors
from fedsim.files import Record, load_tensors, read_record, save_tensors, write_json
from fedsim.records import ProbeKind
from fedsim.types import Batch


class TruthRecord(Record):
    """What belongs to one client's examples in one round.

    Attributes:
        rows: row numbers in the private split, one per example; in the held-out split for a fresh
            probe.
        steps: the examples of each local step, as positions in the batch, in the order used.
        probe: the kind of the probe, or ``none`` for a client.
        host: for a probe the client in whose stead it works, who owns the rows of a member probe.
    """

    key: CaptureKey
    sha256: str
    rows: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]
    probe: ProbeKind = "none"
    host: int | None = None


@dataclass(frozen=True, slots=True)
class TruthStore:
    """The ``truth/`` folder of one cell, readable by its owner alone (mode 0700)."""

    root: Path

    def _path(self, key: CaptureKey) -> Path:
        return self.root / f"{key}.safetensors"

    def save(
        self,
        key: CaptureKey,
        batch: Batch,
        rows: tuple[int, ...],
        steps: tuple[tuple[int, ...], ...],
        probe: ProbeKind = "none",
        host: int | None = None,
    ) -> None:
        """Write the distinct examples that a client used in a round."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.root.chmod(0o700)
        sha256 = save_tensors(self._path(key), batch_tensors(batch))
        record = TruthRecord(key=key, sha256=sha256, rows=rows, steps=steps, probe=probe, host=host)
        write_json(self._path(key).with_suffix(".json"), record)

    def record(self, key: CaptureKey) -> TruthRecord:
        """Row numbers and step order of ``key``."""
        return read_record(self._path(key).with_suffix(".json"), TruthRecord)

    def load(self, key: CaptureKey) -> Batch:
        """The private examples of ``key``."""
        return batch_from(load_tensors(self._path(key), self.record(key).sha256))
