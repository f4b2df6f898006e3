"""The rows of a run's Parquet files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from fedsim.errors import StoreError
from fedsim.files import Record, write_bytes

R = TypeVar("R", bound=Record)

_TYPES: dict[object, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    str | None: pa.string(),
    int | None: pa.int64(),
    float | None: pa.float64(),
    bool | None: pa.bool_(),
    bytes: pa.binary(),
    bytes | None: pa.binary(),
}


def read_rows(path: Path, kind: type[R]) -> list[R]:
    """Read the rows of a Parquet file.

    Raises:
        StoreError: the file is missing, cut, or holds other columns.
    """
    if not path.is_file():
        raise StoreError(f"{path}: the file is missing. Run the stage before again.")
    try:
        return [kind.model_validate(row) for row in _read(path)]
    except (pa.ArrowInvalid, OSError, ValidationError) as error:
        what = str(error).splitlines()[0]
        raise StoreError(
            f"{path}: not a table of {kind.__name__} ({what}). Run the stage that wrote it again."
        ) from None


def _read(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path, page_checksum_verification=True).to_pylist()
    return rows


def write_rows(path: Path, kind: type[Record], rows: Sequence[Record]) -> None:
    """Write rows of one kind as a Parquet file; no rows make an empty table."""
    hints = {k: v for k, v in get_type_hints(kind).items() if k in kind.model_fields}
    schema = pa.schema([(name, _TYPES[hint]) for name, hint in hints.items()])
    table = pa.Table.from_pylist([row.model_dump() for row in rows], schema=schema)
    data = io.BytesIO()
    pq.write_table(table, data, write_page_checksum=True)
    write_bytes(path, data.getbuffer())
