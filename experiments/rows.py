"""The rows of a run's Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from fedsim.errors import StoreError
from fedsim.files import Record

R = TypeVar("R", bound=Record)


def read_rows(path: Path, kind: type[R]) -> list[R]:
    """Read the rows of a Parquet file.

    Raises:
        StoreError: the file is missing, cut, or holds other columns.
    """
    import pyarrow
    import pyarrow.parquet
    from pydantic import ValidationError

    if not path.exists():
        raise StoreError(f"{path}: the file is missing. Run the stage before again.")
    try:
        return [kind.model_validate(row) for row in pyarrow.parquet.read_table(path).to_pylist()]
    except (pyarrow.ArrowInvalid, OSError, ValidationError) as error:
        what = str(error).splitlines()[0]
        raise StoreError(
            f"{path}: not a table of {kind.__name__} ({what}). Run the stage that wrote it again."
        ) from None
