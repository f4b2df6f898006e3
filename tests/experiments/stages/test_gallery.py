"""The page shows examples that are chosen by their rank, and these alone are kept for it."""

import stat
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from experiments.pipeline import execute
from experiments.plan.folder import Run
from experiments.report.gallery import words
from experiments.stages.gallery import FILE, SHOWN, Shown, content, ranks, read_gallery
from experiments.stages.png import png
from fedsim.metrics.base import Examples
from fedsim.records import MAIN, PRIOR_ONLY, ExampleKey, Modality, ScoreRow
from fedsim.store.rows import read_rows
from fedsim.tasks.given import task_of
from fedsim.types import Batch
from tests.apps.cases import IMAGES, TEXT, Make


@pytest.mark.parametrize(
    ("total", "count", "shown"),
    [
        (9, 5, [1, 3, 5, 7, 9]),
        (9, 3, [1, 5, 9]),
        (6, 5, [1, 2, 3, 5, 6]),
        (3, 5, [1, 2, 3]),
        (0, 5, []),
    ],
)
def test_the_choice_is_the_best_the_quartiles_and_the_worst(
    total: int, count: int, shown: list[int]
) -> None:
    assert ranks(total, count) == shown


def scored(run: Run) -> tuple[list[ScoreRow], list[Shown]]:
    execute(run, ("simulate", "attack", "score"), quiet=True)
    return read_rows(run.root / "scores.parquet", ScoreRow), read_gallery(run.root)


def ranked(rows: Sequence[ScoreRow], modality: Modality) -> list[tuple[float, ExampleKey]]:
    """The attacked examples of a run with one attack, the most leaked first."""
    main = [row for row in rows if row.metric == MAIN[modality] and row.control == "none"]
    mine = [row for row in main if row.attack != PRIOR_ONLY and row.probe == "none"]
    return sorted((-(row.value or 0.0), row.example_key) for row in mine)


@pytest.mark.slow
def test_images_of_two_seeds_are_ranked_together(make_run: Make) -> None:
    run = make_run(IMAGES, seeds=[0, 1], probes={"member": 1})
    rows, shown = scored(run)
    order = ranked(rows, "image")
    assert len(order) == 2 * 2 * 3
    assert sorted(example.rank for example in shown) == ranks(12, SHOWN["image"])
    cells = {cell.name: cell for cell in run.cells}
    for example in shown:
        key = ExampleKey(example.cell, example.round, example.client, example.example)
        assert (-(example.value or 0.0), key) == order[example.rank - 1]
        assert example.total == 12
        (capture,) = [
            k for k in cells[example.cell].captures.keys() if (k.round, k.client) == key[1:3]
        ]
        assert example.original == png(
            cells[example.cell].truth.load(capture).inputs[example.example]
        )
        assert example.guess not in (None, example.original)


@pytest.mark.slow
def test_texts_are_shown_and_attacks_that_refuse_are_not(make_run: Make) -> None:
    exact = make_run(TEXT, "exact", attacks=[{"name": "embedding_rows"}])
    rows, shown = scored(exact)
    assert sorted(example.rank for example in shown) == ranks(6, SHOWN["text"])
    order = ranked(rows, "text")
    for example in shown:
        assert example.value == -order[example.rank - 1][0]
        assert len(words(example.original)) > 1
        assert example.guess is not None
        assert {*words(example.guess)} & {*words(example.original)}

    # The attack refuses, so that there is nothing to show.
    frozen = make_run(TEXT, "frozen", defenses=[{"name": "freeze_embeddings"}])
    rows, shown = scored(frozen)
    assert "skipped" in {row.status for row in rows}
    assert shown == []


@pytest.mark.slow
def test_the_main_metric_need_not_be_measured(make_run: Make) -> None:
    rows, shown = scored(make_run(IMAGES, metrics=["mse"]))
    assert {row.metric for row in rows} == {"mse"}
    assert [(example.rank, example.value) for example in shown] == [
        (rank, None) for rank in ranks(6, 5)
    ]


def test_the_gallery_is_its_owners_alone(make_run: Make) -> None:
    run = make_run(TEXT)
    scored(run)
    folder = (run.root / FILE).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [path.name for path in folder.iterdir()] == [FILE.name]


@pytest.mark.slow
def test_a_guess_at_the_priors_mean_has_no_victim(make_run: Make) -> None:
    """Under noise that hides everything a guess is no nearer than one for another client."""
    noise = {"name": "gaussian_noise", "std": 1e6}
    attacks = [{"name": "inverting", "steps": 2}, {"name": "prior_only"}]
    run = make_run(IMAGES, "blind", defenses=[noise], attacks=attacks)
    rows, shown = scored(run)
    nulls: dict[ExampleKey, list[float]] = {}
    for row in rows:
        if row.metric == MAIN["image"] and (row.control != "none" or row.attack == PRIOR_ONLY):
            nulls.setdefault(row.example_key, []).append(row.value or 0.0)
    for example in shown:
        key = ExampleKey(example.cell, example.round, example.client, example.example)
        assert example.blind == ((example.value or 0.0) <= max(nulls[key]) + 1e-3)
    assert any(example.blind for example in shown)


def test_a_row_of_numbers_is_drawn_by_its_columns_in_its_owners_range() -> None:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(model(batch.inputs), batch.labels)

    task = task_of(
        nn.Sequential(nn.Linear(30, 2)), input_shape=(30,), input_range=(-3, 3), loss=loss
    )
    inputs = torch.full((1, *task.spec.input_shape), 0.75)
    shown = content(Examples(Batch(inputs, torch.tensor([0]))), 0, task).decode().split("\n")
    assert shown[0] == "column 1: 1.5"
    assert shown[-1] == "and 6 more: "
