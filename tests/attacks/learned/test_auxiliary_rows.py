"""Rows of other data get classes of the task."""

from collections.abc import Callable

import pytest
import torch
from scipy.fft import dctn
from scipy.stats import chisquare

from attacks.learned.auxiliary_rows import (
    Source,
    dct_images,
    made_rows,
    unigram_texts,
    with_classes,
)
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.seeds import generator
from fedsim.store.capture import Observation
from fedsim.tasks import make_task
from fedsim.tasks.base import Task
from fedsim.tasks.language_modelling import IGNORED
from fedsim.types import Batch
from tests.attacks.learned.cases import rng

Victim = Callable[..., tuple[Task, Observation]]


@pytest.mark.parametrize(
    ("labels", "kept"),
    [(torch.arange(400) % 4, True), (torch.arange(400) % 5, False), (torch.zeros(400), False)],
)
def test_classes_of_other_data_are_drawn(
    victim: Victim, pictures: Callable[..., Batch], labels: torch.Tensor, kept: bool
) -> None:
    task, _ = victim(pictures(1, 0), classes=4)
    rows = Batch(torch.rand(400, 3, 16, 16), labels.long())
    batch = with_classes(rows, task, 0)
    assert torch.equal(batch.labels, rows.labels) == kept
    assert batch.inputs is rows.inputs
    assert batch.labels.bincount().tolist() == pytest.approx([100] * 4, rel=0.3)
    assert torch.equal(with_classes(rows, task, 0).labels, batch.labels)
    assert torch.equal(with_classes(rows, task, 1).labels, batch.labels) == kept


def images(count: int = 300) -> Batch:
    rows = load_rows("shapes", f"train[:{count}]", modality="image")
    assert isinstance(rows.inputs, torch.Tensor)
    return Batch(rows.inputs.float() / 255, rows.labels)


def faint() -> Batch:
    """Rows so near to grey that no pixel of a pseudo image is clamped."""
    rows = images()
    return Batch(0.5 + 0.05 * (rows.inputs - 0.5), rows.labels)


@pytest.mark.parametrize(("axes", "dimensions"), [("height-width", (2, 3)), ("none", ())])
def test_cosine_coefficients_have_the_moments_of_the_rows(
    axes: str, dimensions: tuple[int, ...]
) -> None:
    rows, count = faint(), 2000
    drawn = dct_images(rows, count, 10, rng(), axes)  # type: ignore[arg-type]
    assert drawn.inputs.min() > 0
    assert drawn.inputs.max() < 1
    given, made = (
        torch.from_numpy(dctn(batch.inputs.double().numpy(), axes=dimensions, norm="ortho"))
        for batch in (rows, drawn)
    )
    std = given.std(0, correction=0)
    off = (made.mean(0) - given.mean(0)) / (std / count**0.5)
    assert off.abs().max() < 5.5  # of 3072 standard normals
    assert off.std() == pytest.approx(1, abs=0.1)
    torch.testing.assert_close(made.std(0), std, rtol=0.1, atol=1e-6)


def test_classes_are_uniform_and_pixels_in_range() -> None:
    drawn = dct_images(images(50), 3000, 10, rng())
    assert drawn.inputs.shape == (3000, 3, 32, 32)
    assert (drawn.inputs.min().item(), drawn.inputs.max().item()) == (0, 1)
    assert chisquare(drawn.labels.bincount(minlength=10).numpy()).pvalue > 1e-3


def encoded(model: str) -> tuple[Task, Batch]:
    rows = load_rows("sentences", "public[:400]", modality="text")
    task = make_task(TaskConfig(model=model, dataset="sentences", max_length=24), rows)
    return task, task.encode(rows)


def texts(model: str) -> tuple[Batch, tuple[int, ...]]:
    task, rows = encoded(model)
    return rows, task.spec.special_ids


@pytest.mark.parametrize("model", ["tiny-bert", "tiny-gpt2"])
def test_tokens_are_as_frequent_as_in_the_rows(model: str) -> None:
    rows, special = texts(model)
    drawn = unigram_texts(rows, 2000, special, rng())
    assert drawn.mask is not None
    assert rows.mask is not None
    kinds = torch.tensor(special)
    given, made = (
        batch.inputs[(batch.mask == 1) & ~torch.isin(batch.inputs, kinds)].bincount(minlength=2000)
        for batch in (rows, drawn)
    )
    assert made[given == 0].sum() == 0
    often = given > 20
    observed = torch.cat([made[often], made[~often].sum()[None]])
    expected = torch.cat([given[often], given[~often].sum()[None]]).double()
    expected *= observed.sum() / expected.sum()
    assert chisquare(observed.numpy(), expected.numpy()).pvalue > 1e-3
    # Each place alike: the first word of a text is no other than the fifth.
    first, fifth = (drawn.inputs[:, place].double().mean().item() for place in (1, 5))
    assert first == pytest.approx(fifth, rel=0.1)


@pytest.mark.parametrize("model", ["tiny-bert", "tiny-gpt2"])
def test_starts_ends_and_padding_stay(model: str) -> None:
    rows, special = texts(model)
    drawn = unigram_texts(rows, 100, special, rng())
    assert drawn.mask is not None
    assert rows.mask is not None
    start, ends = rows.inputs[0, 0], rows.inputs.gather(1, rows.mask.sum(1, keepdim=True) - 1)
    assert len(ends.unique()) == 1
    assert (drawn.inputs[:, 0] == start).all()
    assert (drawn.inputs.gather(1, drawn.mask.sum(1, keepdim=True) - 1) == ends[0]).all()
    inner = drawn.mask.bool() & drawn.mask.roll(-1, 1).bool()
    inner[:, [0, -1]] = False
    assert not torch.isin(drawn.inputs[inner], torch.tensor(special)).any()
    assert set(drawn.mask.sum(1).tolist()) <= set(rows.mask.sum(1).tolist())


def test_labels_of_classes_and_of_tokens() -> None:
    rows, special = texts("tiny-bert")
    skewed = Batch(rows.inputs, (torch.arange(len(rows)) % 10 > 2).long(), rows.mask)
    drawn = unigram_texts(skewed, 3000, special, rng())
    assert drawn.labels.double().mean() == pytest.approx(0.7, abs=0.03)
    rows, special = texts("tiny-gpt2")
    drawn = unigram_texts(rows, 50, special, rng())
    assert drawn.mask is not None
    assert torch.equal(drawn.labels, drawn.inputs.masked_fill(drawn.mask == 0, IGNORED))


@pytest.mark.parametrize(("source", "kept"), [("unigram", 0), ("rows+unigram", 40)])
def test_drawn_texts_stand_beside_the_rows_or_in_their_place(source: Source, kept: int) -> None:
    task, rows = encoded("tiny-gpt2")
    rows = rows[:40]
    batch = made_rows(rows, task, source, 90, "height-width", 3)
    assert len(batch) == kept + 90
    assert torch.equal(batch.inputs[:kept], rows.inputs[:kept])
    drawn = unigram_texts(rows, 90, task.spec.special_ids, generator(3, "pseudo"))
    assert torch.equal(batch.inputs[kept:], drawn.inputs)


def test_draws_depend_on_the_generator_alone() -> None:
    pictures, (lines, special) = images(20), texts("tiny-bert")
    before = lines.inputs.clone()
    for seeds, alike in (((1, 1), True), ((1, 2), False)):
        drawn = [dct_images(pictures, 3, 10, rng(seed)).inputs for seed in seeds]
        assert torch.equal(*drawn) == alike
        drawn = [unigram_texts(lines, 3, special, rng(seed)).inputs for seed in seeds]
        assert torch.equal(*drawn) == alike
    assert torch.equal(lines.inputs, before)
