"""An edited table of a run is named in one line by every command that reads it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedsim
from experiments.stages.coverage import Coverage
from experiments.stages.gallery import Shown
from fedsim.errors import StoreError
from fedsim.records import ScoreRow, UtilityRow
from fedsim.store.rows import frame_of, read_rows, write_rows
from tests.experiments.conftest import Said

TABLES: dict[str, type[Any]] = {
    "scores.parquet": ScoreRow,
    "utility.parquet": UtilityRow,
    "coverage.parquet": Coverage,
    "gallery/examples.parquet": Shown,
}
KINDS = {kind: name for name, kind in TABLES.items()}


def edit(path: Path) -> pa.Table:
    """The table with its last cell's name changed by pandas, without metadata of the file."""
    table = pq.read_table(path)
    rows = table.to_pandas()
    rows.loc[len(rows) - 1, "cell"] += "x"
    return pa.Table.from_pandas(rows, schema=table.schema.remove_metadata())


def keep_metadata(path: Path) -> None:
    pq.write_table(edit(path).replace_schema_metadata(pq.read_schema(path).metadata), path)


def recode(path: Path) -> None:
    pq.write_table(pq.read_table(path), path, use_dictionary=False, compression="none")


def drop_a_row(path: Path) -> None:
    pq.write_table(pq.read_table(path).slice(1), path)


def lose_metadata(path: Path) -> None:
    edit(path).to_pandas().to_parquet(path)


@pytest.mark.some(8)
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("change", [keep_metadata, recode, drop_a_row, lose_metadata])
def test_an_edited_table_is_refused(
    change: Callable[[Path], None], name: str, copied: Path, said: Said
) -> None:
    change(copied / name)
    code, _, line = said("report", copied)
    assert (code, line.count("\n")) == (2, 1)
    assert line.startswith(f"fedsim: {copied / name}: not a table of {TABLES[name].__name__} (")
    assert ("written by pandas" if change is lose_metadata else "differs from its seal") in line
    if name in ("scores.parquet", "utility.parquet"):
        with pytest.raises(StoreError, match=name):
            fedsim.load(copied)
    if name == "scores.parquet":
        code, _, line = said("check", copied, "--max", "rouge1=1")
        assert (code, line.startswith(f"fedsim: {copied / name}: ")) == (2, True), line
    assert f"Run fedsim score {copied} again." in line


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_read_as_it_was_written(name: str, copied: Path) -> None:
    path, kind = copied / name, TABLES[name]
    rows = read_rows(path, kind)
    assert rows
    pd.testing.assert_frame_equal(frame_of(read_rows(path, kind), kind), pd.read_parquet(path))
    before = path.read_bytes()
    write_rows(path, kind, rows)
    assert (path.read_bytes(), read_rows(path, kind)) == (before, rows)


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_have_a_seal_too(kind: type[Any], copied: Path) -> None:
    path = copied / KINDS[kind]
    full = pq.read_schema(path).metadata
    write_rows(path, kind, [])
    assert read_rows(path, kind) == []
    pq.write_table(pq.read_table(path).replace_schema_metadata(full), path)
    with pytest.raises(StoreError, match="differs from its seal"):
        read_rows(path, kind)


def test_tables_of_older_runs_have_no_seal(copied: Path, said: Said) -> None:
    for name in TABLES:
        table = pq.read_table(copied / name)
        pq.write_table(table.replace_schema_metadata(None), copied / name)
    assert said("report", copied)[0] == 0
    assert len(fedsim.load(copied).utility) > 0


@dataclass
class Before:
    """A row as a version wrote it that had no cause."""

    attack: str
    value: float | None


@dataclass
class After(Before):
    """The same of today."""

    cause: str = ""


def test_a_table_of_an_older_version_is_read(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", Before, [Before("span", 1.0), Before("lamp", None)])
    rows = read_rows(tmp_path / "rows.parquet", After)
    assert rows == [After("span", 1.0), After("lamp", None)]
