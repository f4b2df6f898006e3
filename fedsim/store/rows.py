"""The rows of a run's Parquet files."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from fedsim.errors import StoreError
from fedsim.store.files import Record, write_bytes

if TYPE_CHECKING:
    import pandas as pd

R = TypeVar("R")

_AT_ONCE = 65_536
_SEAL = b"fedsim.sha256"
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
        StoreError: the file is missing, cut, differs from its seal, or holds other columns.
    """
    if not path.is_file():
        raise StoreError(f"{path}: the file is missing. Run the stage before again.")
    try:
        return [kind(**row) for row in _read(path, _schema(kind))]
    except (pa.ArrowException, OSError, KeyError, TypeError, ValidationError) as error:
        what = str(error).splitlines()[0]
        run = path.parent if (path.parent / "experiment.toml").exists() else path.parents[1]
        raise StoreError(
            f"{path}: not a table of {kind.__name__} ({what}). Run fedsim score {run} again."
        ) from None


def frame_of(rows: list[R], kind: type[R]) -> pd.DataFrame:
    """Rows as a data frame, a column for each field."""
    return pa.Table.from_batches([_batch(kind, rows)]).to_pandas()


def _batch(kind: type[Any], rows: list[Any]) -> pa.RecordBatch:
    schema = _schema(kind)
    values = {name: list(map(attrgetter(name), rows)) for name in schema.names}
    return pa.RecordBatch.from_pydict(values, schema=schema)


def _check_seal(data: pa.Buffer, metadata: Mapping[bytes, bytes]) -> None:
    """Compare the pages of a table with their hash in its footer; as in ``Sealed``, no signature.

    Raises:
        ArrowInvalid: it is another, or pandas wrote the table, which keeps no seal.
    """
    footer = int.from_bytes(data[-8:-4].to_pybytes(), "little") + 8
    digest = hashlib.sha256(memoryview(data)[:-footer]).hexdigest().encode()
    if metadata.get(_SEAL, digest) != digest:
        raise pa.ArrowInvalid("differs from its seal")
    if _SEAL not in metadata and b"pandas" in metadata:
        raise pa.ArrowInvalid("written by pandas")


def _schema(kind: type[Any]) -> pa.Schema:
    return pa.schema([_field(name, hint) for name, hint in columns(kind).items()])


def _field(name: str, hint: Any) -> pa.Field:  # noqa: ANN401
    plain, *other = get_args(hint) or (hint,)
    return pa.field(name, _TYPES[plain], nullable=bool(other))


def _read(path: Path, schema: pa.Schema) -> Iterator[dict[str, Any]]:
    with pa.memory_map(str(path)) as source:
        data = source.read_buffer()
        written = {*pq.read_schema(data).names}  # an older table lacks what has a default by now
        texts = [f.name for f in schema if f.type == pa.string() and f.name in written]
        known: dict[str, str] = {}
        with pq.ParquetFile(data, read_dictionary=texts, page_checksum_verification=True) as file:
            _check_seal(data, file.metadata.metadata or {})
            names = file.schema_arrow.names
            for batch in file.iter_batches(_AT_ONCE):
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
    """Write rows of one kind as a sealed Parquet file; no rows make an empty table."""
    rest, data = iter(rows), io.BytesIO()
    schema = _schema(kind).with_metadata({_SEAL: b"lost"})  # what a copy by pyarrow carries on
    with pq.ParquetWriter(data, schema, write_page_checksum=True) as file:
        while part := list(islice(rest, _AT_ONCE)):
            file.write_table(pa.Table.from_batches([_batch(kind, part)]).cast(schema))
        file.add_key_value_metadata({_SEAL: hashlib.sha256(data.getbuffer()).hexdigest().encode()})
    write_bytes(path, data.getbuffer())
