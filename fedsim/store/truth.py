"""The private examples, for the evaluator alone: attacks and server may not import this module."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from fedsim.records import ProbeKind
from fedsim.store.capture import CaptureKey, Keyed, batch_from, batch_tensors, read_keyed
from fedsim.store.files import load_tensors, save_tensors, write_json
from fedsim.store.plain_files import make_private
from fedsim.types import Batch, Tensors, joined


class TruthRecord(Keyed):
    """What belongs to one client's examples in one round.

    Attributes:
        rows: row numbers in the private split, one per example; in the held-out split for a fresh
            probe.
        steps: the examples of each local step, as positions in the batch, in the order used.
        probe: the kind of the probe, or ``none`` for a client.
        host: for a probe the client in whose stead it works, who owns the rows of a member probe.
        cohort: under secure aggregation the number of the client's cohort in the round.
    """

    sha256: str
    rows: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]
    probe: ProbeKind = "none"
    host: int | None = None
    cohort: int | None = None


@dataclass(frozen=True, slots=True)
class TruthStore:
    """The ``truth/`` folder of one cell, readable by its owner alone (mode 0700).

    One file a client and round, and one of what it keeps for its next. Under secure aggregation
    a capture's key names a cohort, and what is read for it is the union of its clients' examples,
    by the clients' numbers.
    """

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
        cohort: int | None = None,
    ) -> None:
        """Write the distinct examples that a client used in a round."""
        make_private(self.root)
        sha256 = save_tensors(self._path(key), batch_tensors(batch))
        record = TruthRecord(
            key=key,
            sha256=sha256,
            rows=rows,
            steps=steps,
            probe=probe,
            host=host,
            cohort=cohort,
        )
        write_json(self._path(key).with_suffix(".json"), record)

    def remember(self, key: CaptureKey, memory: Tensors) -> None:
        """Write what a client keeps after a round; nothing is written of an empty memory."""
        if memory:
            make_private(self.root)
            save_tensors(self._memory(key), memory)

    def memory(self, key: CaptureKey) -> Tensors:
        """What the client of ``key`` kept of the rounds before; empty in its first."""
        before = [self._memory(key.model_copy(update={"round": r})) for r in range(1, key.round)]
        last = next((path for path in reversed(before) if path.exists()), None)
        return {} if last is None else load_tensors(last)

    def _memory(self, key: CaptureKey) -> Path:
        return self.root / f"memory-{key}.safetensors"

    def clients(self) -> list[TruthRecord]:
        """The records of all clients and probes, by round and number."""
        return self._read("*.json")

    def by_capture(self) -> dict[CaptureKey, list[TruthRecord]]:
        """``members`` of every capture, from one reading of the folder."""
        groups: dict[CaptureKey, list[TruthRecord]] = defaultdict(list)
        for record in self.clients():
            client = record.key.client if record.cohort is None else record.cohort
            groups[CaptureKey(round=record.key.round, client=client)].append(record)
        return dict(groups)

    def members(self, key: CaptureKey) -> list[TruthRecord]:
        """The records behind a capture: the client's own, or one for each of its cohort."""
        path = self._path(key).with_suffix(".json")
        if path.exists() and (record := read_keyed(path, TruthRecord, key)).cohort is None:
            return [record]
        records = self._read(f"round-{key.round:04d}-client-*.json")
        return [r for r in records if r.cohort == key.client] or [
            read_keyed(path, TruthRecord, key)
        ]

    def record(self, key: CaptureKey) -> TruthRecord:
        """Row numbers and step order of ``key``."""
        return pooled(key, self.members(key))

    def load(self, key: CaptureKey, nodes: Sequence[int] = ()) -> Batch:
        """The private examples of ``key``, or of the nodes of its cohort, see ``CaptureRecord``."""
        keys = [CaptureKey(round=key.round, client=node) for node in nodes] or [key]
        return joined([self.batch(member) for each in keys for member in self.members(each)])

    def _read(self, pattern: str) -> list[TruthRecord]:
        paths = {CaptureKey.parse(path.stem): path for path in self.root.glob(pattern)}
        return [read_keyed(path, TruthRecord, key) for key, path in sorted(paths.items())]

    def batch(self, record: TruthRecord) -> Batch:
        """The examples of one client's record."""
        return batch_from(load_tensors(self._path(record.key), record.sha256))


def pooled(key: CaptureKey, members: Sequence[TruthRecord]) -> TruthRecord:
    """The one record of a capture, from its ``members``.

    The steps of a cohort are its clients' steps taken side by side; its record has no hash, as no
    file is its own.
    """
    if members[0].cohort is None:
        return members[0]
    rows = tuple(row for member in members for row in member.rows)
    starts = [0, *accumulate(len(member.rows) for member in members)]
    steps = tuple(
        tuple(
            start + example
            for start, member in zip(starts, members, strict=False)
            for example in (member.steps[i] if i < len(member.steps) else ())
        )
        for i in range(max(len(member.steps) for member in members))
    )
    return TruthRecord(key=key, sha256="", rows=rows, steps=steps, cohort=key.client)
