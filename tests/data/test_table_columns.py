"""Anybody's table is a data set: a file, a folder or what ``save_to_disk`` wrote."""

import base64
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
import torch
from torch import Tensor

from experiments.pipeline import execute
from experiments.plan.folder import STAGES
from experiments.report.gallery import data_uri
from experiments.stages.gallery import read_gallery
from fedsim.columns import decoded
from fedsim.data.rows import load_rows
from fedsim.errors import ConfigError
from fedsim.records import ScoreRow
from fedsim.store.rows import read_rows
from tests.apps.cases import Make

ROWS = 60


def frame() -> pd.DataFrame:
    rng = torch.Generator().manual_seed(0)
    return pd.DataFrame(
        {
            "Alter": torch.randint(18, 90, (ROWS,), generator=rng).tolist(),
            "Lohn (EUR)": [
                n / 100 for n in torch.randint(0, 10**6, (ROWS,), generator=rng).tolist()
            ],
            "Ort": [("Bern", "Genf", "Basel")[i % 3] for i in range(ROWS)],
            "Puls": torch.randn(ROWS, generator=rng).tolist(),
            "raucht": [i % 2 == 0 for i in range(ROWS)],
            "Grp Nr": [i % 2 for i in range(ROWS)],
        }
    )


def written(form: str, folder: Path) -> str:
    table = frame()
    if form == "csv":
        table.to_csv(folder / "leute.csv", index=False)
        return str(folder / "leute.csv")
    if form == "tsv":
        table.to_csv(folder / "leute.tsv", index=False, sep="\t")
        return str(folder / "leute.tsv")
    if form == "parquet":
        table.to_parquet(folder / "leute.parquet")
        return str(folder / "leute.parquet")
    if form == "folder":
        (folder / "leute").mkdir()
        table.to_csv(folder / "leute" / "train.csv", index=False)
        return str(folder / "leute")
    saved = datasets.Dataset.from_pandas(table, preserve_index=False)
    whole = datasets.DatasetDict({"train": saved}) if form == "splits" else saved
    whole.save_to_disk(str(folder / "leute"))
    return str(folder / "leute")


@pytest.mark.parametrize("form", ["csv", "tsv", "parquet", "folder", "saved", "splits"])
def test_a_table_of_any_form_is_read(form: str, tmp_path: Path) -> None:
    rows = load_rows(written(form, tmp_path), "train[:50]", modality="image", label_column="Grp Nr")
    assert isinstance(rows.inputs, Tensor)
    assert rows.inputs.shape == (50, 1 + 1 + 3 + 1 + 2, 1, 1)
    assert 0 <= rows.inputs.min() < rows.inputs.max() <= 1
    assert rows.labels.tolist() == [i % 2 for i in range(50)]
    values = decoded(rows.columns, rows.inputs.flatten(1))
    shown = [
        [column.shown(value) for column, value in zip(rows.columns, row, strict=True)]
        for row in values.tolist()
    ]
    table = frame()
    assert [row[0] for row in shown] == [str(age) for age in table.Alter[:50]]
    assert [float(row[1]) for row in shown] == pytest.approx(
        table["Lohn (EUR)"][:50].tolist(), abs=0.05
    )
    assert [row[2] for row in shown] == table.Ort[:50].tolist()
    assert [float(row[3]) for row in shown] == pytest.approx(table.Puls[:50].tolist(), abs=1e-4)
    assert [row[4] for row in shown] == [str(value) for value in table.raucht[:50]]


def test_columns_are_chosen_by_their_names(tmp_path: Path) -> None:
    place = written("csv", tmp_path)
    rows = load_rows(
        place, "train", modality="image", input_column="Alter, Ort", label_column="Grp Nr"
    )
    assert [column.name for column in rows.columns] == ["Alter", "Ort"]


@pytest.mark.parametrize(
    ("change", "options", "fault"),
    [
        ({}, {"label_column": "Grp"}, "there is no column 'Grp'"),
        ({}, {"input_column": "Alter,Lohn", "label_column": "Grp Nr"}, "no column 'Lohn'"),
        ({"Ort": [f"Ort {i}" for i in range(ROWS * 2)]}, {}, "120 different texts"),
        ({"Alter": [1.5, None] * ROWS}, {}, "row 1 has no Alter"),
        ({"Grp Nr": [1.5] * ROWS * 2}, {}, "does not hold classes"),
    ],
)
def test_what_is_no_table_is_said_in_one_line(
    change: dict[str, list[object]], options: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    table = pd.concat([frame(), frame()], ignore_index=True)
    for name, values in change.items():
        table[name] = values
    table.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(ConfigError, match=fault):
        load_rows(
            str(tmp_path / "t.csv"),
            "train",
            modality="image",
            **({"label_column": "Grp Nr"} | options),
        )


def test_a_table_without_a_label_is_asked_for_it(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(ConfigError, match="name the classes: label_column"):
        load_rows(str(tmp_path / "t.csv"), "train", modality="image")


def test_a_table_is_simulated_attacked_and_scored(make_run: Make, tmp_path: Path) -> None:
    place = written("csv", tmp_path)
    task = {"model": "mlp", "dataset": place, "split": "train[:30]", "label_column": "Grp Nr"}
    run = make_run(
        {"name": "table", "defenses": [{"name": "none"}]},
        task={**task, "heldout_split": "train[30:40]"},
        auxiliary={"split": "train[40:]"},
        federation={"clients": 3, "rounds": 1, "batch_size": 1, "engine": "in-process"},
        attacks=[{"name": "closed_form"}, {"name": "prior_only"}],
    )
    outcome = execute(run, STAGES, quiet=True)
    assert outcome.statuses == {"done": 6}
    rows = read_rows(run.root / "scores.parquet", ScoreRow)
    exact = [
        r.value
        for r in rows
        if (r.attack, r.metric, r.control) == ("closed_form", "exact_row", "none")
    ]
    assert exact == [1.0, 1.0, 1.0]
    row = read_gallery(run.root)[0]
    assert row.original == row.guess
    assert row.original.decode().startswith("Alter: ")
    drawn = base64.b64decode(data_uri(row.original).partition("base64,")[2]).decode()
    assert ">Lohn (EUR)</text>" in drawn
    page = (run.root / "report" / "index.html").read_text("utf-8")
    assert data_uri(row.original) in page


def test_a_hostile_cell_is_text_in_a_drawn_row() -> None:
    drawn = base64.b64decode(data_uri(b"<script>: </svg><b>").partition("base64,")[2]).decode()
    assert "<script>" not in drawn
    assert drawn.count("</svg>") == 1
