"""The files of a round's captures, written while the next round trains."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from fedsim.reply_kind import hides_its_sign, kind_of
from fedsim.store.capture import CaptureKey, CaptureRecord, CaptureStore
from fedsim.store.files import digest, safetensors_parts, sync_file, write_bytes, write_json
from server.replies import Reply, Sent


class CaptureWriter:
    """Writes rounds one after another in a thread of its own, with at most one pending.

    Files are synced at the end, in ``flush``: to wait for the disk after each would take longer
    than a round of a small model.

    Args:
        store: where to.
        on_round: called with each round that is written, in the thread that trains, so that an
            attack on it in this process has the process's generators and switches for itself.
    """

    def __init__(self, store: CaptureStore, on_round: Callable[[int], None] | None) -> None:
        self._store, self._on_round = store, on_round
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="eavesdropper")
        self._pending: tuple[int, Future[None]] | None = None
        self._written: list[Path] = []

    def submit(self, round_: int, replies: Sequence[Reply]) -> None:
        """Write these once the round before is written; raises what the writing of that raised."""
        self.announce()
        self._pending = round_, self._thread.submit(self._write, round_, replies)

    def announce(self, *, wait: bool = True) -> None:
        """Call ``on_round`` with the round that was submitted last, once.

        Args:
            wait: until it is written; otherwise nothing happens while it is not.
        """
        if self._pending is None or not (wait or self._pending[1].done()):
            return
        round_ = self._pending[0]
        self._wait()
        if self._on_round is not None:
            self._on_round(round_)

    def _wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending[1].result()

    def flush(self) -> None:
        """Wait until all is on the disk, and announce no more; raises what the writing raised."""
        self._wait()
        written, self._written = self._written, []
        for path in written:
            sync_file(path)

    def _write(self, round_: int, replies: Sequence[Reply]) -> None:
        hashes: dict[int, str] = {}
        for reply in replies:
            if id(reply.sent) not in hashes:
                hashes[id(reply.sent)] = self._write_sent(reply.sent)
            self._write_reply(round_, reply, hashes[id(reply.sent)])

    def _write_sent(self, sent: Sent) -> str:
        parts = safetensors_parts(sent.beside | sent.arrays)
        sha256 = digest(*parts)
        path = self._store.sent_path(sha256)
        if not path.exists():
            write_bytes(path, *parts, sync=False)
            self._written.append(path)
        return sha256

    def _write_reply(self, round_: int, reply: Reply, sent_sha256: str) -> None:
        key = CaptureKey(round=round_, client=reply.client)
        arrays, beside = reply.arrays, reply.beside
        parts = safetensors_parts(beside | arrays)
        path = self._store.tensors_path(key)
        write_bytes(path, *parts, sync=False)
        kind = reply.kind or kind_of(reply.sent.arrays, reply.arrays)
        unstated = reply.kind is None and kind == "gradient"
        record = CaptureRecord(
            key=key,
            kind=kind,
            order=tuple(arrays),
            sha256=digest(*parts),
            bytes=sum(array.nbytes for array in arrays.values()),
            sent_sha256=sent_sha256,
            sent_order=tuple(reply.sent.arrays),
            knowledge=reply.knowledge,
            claimed_examples=reply.claimed_examples,
            beside=tuple(reply.beside),
            config=reply.sent.config,
            metrics=reply.metrics,
            nodes=reply.nodes,
            sign_open=unstated and hides_its_sign(reply.arrays),
        )
        write_json(path.with_suffix(".json"), record, sync=False, compact=True)
        self._written += [path, path.with_suffix(".json")]
