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
from fedsim.files import Record, write_bytes

if TYPE_CHECKING:
    import pandas as pd

R = TypeVar("R")

_AT_ONCE = 65_536
_SEAL = b"fedsim.seal"
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


class _Seal:
    """Hash of a table's values, however they are encoded; as in ``Sealed``, it is no signature."""

    def __init__(self, names: Iterable[str]) -> None:
        self._columns = {name: hashlib.sha256() for name in sorted(names)}

    def add(self, name: str, values: list[Any]) -> None:
        """Add the next values of a column."""
        self._columns[name].update("".join(f"{value!r}\n" for value in values).encode())

    def digest(self) -> bytes:
        """The seal of what was added."""
        parts = (f"{name!r} {column.hexdigest()}" for name, column in self._columns.items())
        return hashlib.sha256("\n".join(parts).encode()).hexdigest().encode()

    def check(self, metadata: Mapping[bytes, bytes]) -> None:
        """Compare with the seal in a footer, which tables of older runs do not have.

        Raises:
            ArrowInvalid: it is another, or pandas wrote the table, which keeps no seal.
        """
        digest = self.digest()
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
    written = {*pq.read_schema(path).names}  # an older table lacks what has a default by now
    texts = [f.name for f in schema if f.type == pa.string() and f.name in written]
    known: dict[str, str] = {}
    with pq.ParquetFile(path, read_dictionary=texts, page_checksum_verification=True) as file:
        names = file.schema_arrow.names
        seal = _Seal(names)
        for batch in file.iter_batches(_AT_ONCE):
            values = [_values(batch[name], schema.field(name), known) for name in names]
            for name, column in zip(names, values, strict=True):
                seal.add(name, column)
            for row in zip(*values, strict=True):
                yield dict(zip(names, row, strict=True))
        seal.check(file.metadata.metadata or {})


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
    schema, rest, batches = _schema(kind), iter(rows), []
    seal, data = _Seal(schema.names), io.BytesIO()
    while part := list(islice(rest, _AT_ONCE)):
        batches.append(batch := _batch(kind, part))
        for name in schema.names:
            seal.add(name, batch[name].to_pylist())
    schema = schema.with_metadata({_SEAL: seal.digest()})  # which pyarrow carries on
    with pq.ParquetWriter(data, schema, write_page_checksum=True) as file:
        for batch in batches:
            file.write_batch(batch)
    write_bytes(path, data.getbuffer())
