"""Salted commitments to private rows.

    commitment = SHA-256(salt | name of the capture | place in the batch | tensors of the row)

With 32 random bytes of salt a commitment says nothing about its row, however few rows a data set
has, and no other row can be found that opens it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence

from fedsim.errors import StoreError
from fedsim.store.capture import batch_tensors
from fedsim.store.files import digest
from fedsim.store.truth import TruthRecord, TruthStore
from fedsim.types import Batch

SALT_BYTES = 32


def new_salts(truth: TruthStore) -> dict[str, tuple[str, ...]]:
    """A salt for each private row, by client and round."""
    return {
        str(record.key): tuple(secrets.token_hex(SALT_BYTES) for _ in record.rows)
        for record in truth.clients()
    }


def commitments(truth: TruthStore, salts: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The commitments to all rows of a truth folder, sorted.

    Raises:
        StoreError: the salts are not those of these rows.
    """
    return tuple(sorted(_commit(truth, salts)))


def _commit(truth: TruthStore, salts: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for record in truth.clients():
        of_rows = salts.get(str(record.key), ())
        if len(of_rows) != len(record.rows):
            raise StoreError(
                f"{truth.root}: {record.key} has {len(record.rows)} rows and {len(of_rows)} salts. "
                "Restore the truth that fedsim seal wrote."
            )
        batch = truth.batch(record)
        for place, salt in enumerate(of_rows):
            yield digest(bytes.fromhex(salt), *_parts(record, place, batch))


def _parts(record: TruthRecord, place: int, batch: Batch) -> Iterator[bytes]:
    yield f"{record.key} {place}".encode()
    for name, tensor in sorted(batch_tensors(batch).items()):
        row = tensor[place].contiguous()
        yield f" {name} {row.dtype} {tuple(row.shape)} ".encode()
        yield row.numpy().tobytes()
