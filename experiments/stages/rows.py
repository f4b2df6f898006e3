"""The rows of a run's Parquet files."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from fedsim.errors import StoreError
from fedsim.files import Record, write_bytes

R = TypeVar("R")

_AT_ONCE = 65_536
_TYPES: dict[object, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
}


def columns(kind: type[Any]) -> dict[str, Any]:
    """Name -> type of each field of a record or data class."""
    names = kind.model_fields if issubclass(kind, Record) else kind.__dataclass_fields__
    hints = get_type_hints(kind)
    return {name: hints[name] for name in names}


def read_rows(path: Path, kind: type[R]) -> list[R]:
    """Read the rows of a Parquet file; equal texts are one object.

    Raises:
        StoreError: the file is missing, cut, or holds other columns.
    """
    if not path.is_file():
        raise StoreError(f"{path}: the file is missing. Run the stage before again.")
    try:
        return [kind(**row) for row in _read(path, _schema(kind))]
    except (pa.ArrowException, OSError, KeyError, TypeError, ValidationError) as error:
        what = str(error).splitlines()[0]
        raise StoreError(
            f"{path}: not a table of {kind.__name__} ({what}). Run the stage that wrote it again."
        ) from None


def _schema(kind: type[Any]) -> pa.Schema:
    return pa.schema([_field(name, hint) for name, hint in columns(kind).items()])


def _field(name: str, hint: Any) -> pa.Field:  # noqa: ANN401
    plain, *other = get_args(hint) or (hint,)
    return pa.field(name, _TYPES[plain], nullable=bool(other))


def _read(path: Path, schema: pa.Schema) -> Iterator[dict[str, Any]]:
    texts = [field.name for field in schema if field.type == pa.string()]
    known: dict[str, str] = {}
    with pq.ParquetFile(path, read_dictionary=texts, page_checksum_verification=True) as file:
        for batch in file.iter_batches(_AT_ONCE):
            names = batch.schema.names
            values = [_values(batch[name], schema.field(name), known) for name in names]
            for row in zip(*values, strict=True):
                yield dict(zip(names, row, strict=True))


def _values(column: pa.Array, field: pa.Field, known: dict[str, str]) -> list[Any]:
    """The values of a column, each text as the one object that ``known`` holds of it."""
    if column.null_count and not field.nullable:
        raise pa.ArrowInvalid(f"{field.name}: a value is missing")
    if not pa.types.is_dictionary(column.type):
        column = column.cast(field.type)
    if field.type != pa.string():
        return list(column.to_pylist())
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    texts = [known.setdefault(text, text) for text in coded.dictionary.to_pylist()]
    return [None if code is None else texts[code] for code in coded.indices.to_pylist()]


def write_rows(path: Path, kind: type[R], rows: Iterable[R]) -> None:
    """Write rows of one kind as a Parquet file; no rows make an empty table."""
    schema, left, data = _schema(kind), iter(rows), io.BytesIO()
    with pq.ParquetWriter(data, schema, write_page_checksum=True) as file:
        while part := list(islice(left, _AT_ONCE)):
            made = {name: list(map(attrgetter(name), part)) for name in schema.names}
            file.write_batch(pa.RecordBatch.from_pydict(made, schema=schema))
    write_bytes(path, data.getbuffer())
