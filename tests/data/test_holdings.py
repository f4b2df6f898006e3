"""Private rows overlap with no other rows of a cell, neither by number nor by content."""

from pathlib import Path
from typing import Any, Literal

import pytest
from torch import Tensor

from fedsim.config.cell import CellConfig
from fedsim.data.holdings import Filter, Holdings, is_same, load_holdings
from fedsim.data.rows import load_rows
from fedsim.errors import ConfigError
from fedsim.types import Rows


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written to the user's own cache."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.delenv("FEDSIM_HUB", raising=False)


def _config(
    dataset: str,
    split: str = "train",
    auxiliary: dict[str, Any] | None = None,
    seed: int = 0,
    **task: Any,
) -> CellConfig:
    return CellConfig.model_validate(
        {
            "seed": seed,
            "task": {"model": "m", "dataset": dataset, "split": split, **task},
            "auxiliary": auxiliary,
            "federation": {},
            "capture": {},
            "server_knows": {},
            "defense": (),
        }
    )


def _load(*arguments: Any, modality: Literal["image", "text"] = "text", **options: Any) -> Holdings:
    return load_holdings(_config(*arguments, **options), modality)


def _save(folder: Path, **splits: list[str]) -> str:
    import datasets

    folder.mkdir()
    for name, texts in splits.items():
        datasets.Dataset.from_dict({"text": texts}).to_parquet(folder / f"{name}.parquet")
    return str(folder)


def test_built_ins_have_splits_for_all_three() -> None:
    held = _load("shapes", auxiliary={"rows": 30}, modality="image", heldout_rows=20)
    assert held.private is load_rows("shapes", "train", modality="image")
    assert held.auxiliary is not None
    assert (len(held.private), len(held.auxiliary), len(held.heldout)) == (2000, 30, 20)
    public = load_rows("shapes", "public", modality="image")
    assert isinstance(public.inputs, Tensor)
    assert isinstance(held.auxiliary.inputs, Tensor)
    assert held.auxiliary.inputs.equal(public.inputs[list(held.auxiliary.numbers)])


def test_no_auxiliary_table_means_no_auxiliary_rows() -> None:
    assert _load("sentences").auxiliary is None


def test_rows_are_drawn_by_the_seed() -> None:
    draws = [_load("sentences", auxiliary={"rows": 9}, heldout_rows=9, seed=s) for s in (1, 1, 2)]
    auxiliary = [held.auxiliary.numbers for held in draws if held.auxiliary]
    heldout = [held.heldout.numbers for held in draws]
    for numbers in (auxiliary, heldout):
        assert numbers[0] == numbers[1] != numbers[2]
        assert numbers[0] == tuple(sorted(numbers[0]))


@pytest.mark.parametrize(
    ("private", "auxiliary", "row", "fix"),
    [
        ("train[:100]", "train", 0, "Use 'train[100:]'"),
        ("train[50:100]", "train[90:120]", 90, "Use 'train[100:]'"),
        ("train[100:]", "train[:50%]", 100, "Use 'train[:100]'"),
        ("train", "train[-1:]", 239, "Use 'train[50%:]' with task.split = 'train[:50%]'"),
    ],
)
def test_the_same_row_for_client_and_attacker_is_refused(
    private: str, auxiliary: str, row: int, fix: str
) -> None:
    with pytest.raises(ConfigError) as error:
        _load("sentences", private, {"split": auxiliary})
    assert str(error.value) == (
        f"auxiliary.split: row {row} of sentences {auxiliary!r} is private, since task.split is "
        f"{private!r}. {fix}."
    )


def test_the_fix_that_the_message_shows_works() -> None:
    held = _load("sentences", "train[50:100]", {"split": "train[100:]"})
    assert held.auxiliary is not None
    assert held.auxiliary.numbers == tuple(range(100, 240))
    assert not set(held.private.numbers) & set(held.auxiliary.numbers)


def test_held_out_rows_are_never_private() -> None:
    with pytest.raises(ConfigError, match=r"task.heldout_split: row 200 of sentences 'train\[200"):
        _load("sentences", heldout_split="train[200:]")
    held = _load("sentences", "train[:200]", heldout_split="train[200:]")
    assert held.heldout.numbers == tuple(range(200, 240))


def test_auxiliary_rows_with_private_content_are_left_out(tmp_path: Path) -> None:
    own = _save(tmp_path / "own", train=["My secret", "Rain"], test=["Sun"])
    other = _save(tmp_path / "other", train=["MY  secret", "Snow", "rain", "Hail"])
    held = _load(own, auxiliary={"dataset": other})
    assert held.auxiliary is not None
    assert held.auxiliary.inputs == ("Snow", "Hail")
    assert held.auxiliary.numbers == (1, 3)
    assert held.heldout.inputs == ("Sun",)

    copy = _save(tmp_path / "copy", train=["Rain", "My secret"])
    with pytest.raises(ConfigError, match=r"auxiliary: every row of .*copy 'train' equals a priv"):
        _load(own, auxiliary={"dataset": copy})


def test_a_private_sentence_in_a_text_of_another_data_set_is_left_out(tmp_path: Path) -> None:
    own = _save(tmp_path / "own", train=["My secret. Rain fell.", "It is."], test=["Sun set. Yes."])
    other = _save(tmp_path / "other", train=["Snow fell. MY  secret. Hail fell.", "It is."])
    config = _config(own, auxiliary={"dataset": other})
    held = load_holdings(config, "text", Filter(sentences=True))
    assert held.private.inputs == ("My secret.", "Rain fell.", "It is.")
    assert held.private.numbers == (0, 0, 1)
    assert held.heldout.inputs == ("Sun set.", "Yes.")
    assert held.auxiliary is not None
    assert held.auxiliary.inputs == ("Snow fell.", "Hail fell.")
    assert held.auxiliary.numbers == (0, 0)


def test_sentences_of_one_row_are_apart_from_those_of_another(tmp_path: Path) -> None:
    own = _save(tmp_path / "own", train=["One is. Two are.", "Three are. One is.", "Four."])
    config = _config(own, "train[:1]", {"split": "train[1:]"}, heldout_split="train[2:]")
    held = load_holdings(config, "text", Filter(sentences=True))
    assert held.auxiliary is not None
    assert held.auxiliary.inputs == ("Three are.", "Four.")
    with pytest.raises(ConfigError, match=r"auxiliary.split: row 0 of .*Use 'train\[1:\]'"):
        load_holdings(
            _config(own, "train[:1]", {"split": "train"}, heldout_split="train[2:]"),
            "text",
            Filter(sentences=True),
        )


def test_an_auxiliary_split_of_the_own_data_set_must_be_given(tmp_path: Path) -> None:
    own = _save(tmp_path / "own", train=["One", "Two"], test=["Three"])
    with pytest.raises(ConfigError) as error:
        _load(own, auxiliary={})
    assert str(error.value) == (
        f"auxiliary.split: it is empty, but {own} has no public split. "
        "Name rows that no client owns, for example 'train[50%:]'."
    )


def test_a_data_set_without_a_second_split_needs_a_held_out_one(tmp_path: Path) -> None:
    own = _save(tmp_path / "own", train=["One", "Two"])
    with pytest.raises(ConfigError) as error:
        _load(own)
    assert str(error.value) == (
        f"task.heldout_split: {own} has no validation or test split besides 'train', only train. "
        "Name rows that no client owns, for example 'train[90%:]' with split = 'train[:90%]'."
    )


def test_another_name_of_the_same_data_set_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = tmp_path / "datasets"
    hub.mkdir()
    folder = _save(hub / "own", train=["One", "Two"], test=["Three"])
    monkeypatch.setenv("FEDSIM_HUB", str(tmp_path))
    assert is_same("own", folder)
    assert not is_same("own", "sentences")
    with pytest.raises(ConfigError, match=r"auxiliary.split: row 1 of own 'train\[1:\]' is priv"):
        _load("own", auxiliary={"dataset": folder, "split": "train[1:]"})


def test_auxiliary_images_of_another_size_are_refused(tmp_path: Path) -> None:
    import datasets
    import numpy as np

    folder = tmp_path / "small"
    folder.mkdir()
    columns = {"image": [np.zeros((28, 28), np.uint8)]}
    table = datasets.Dataset.from_dict(columns, features=datasets.Features(image=datasets.Image()))
    table.to_parquet(folder / "train.parquet")
    with pytest.raises(ConfigError) as error:
        _load("shapes", "train[:4]", {"dataset": str(folder)}, modality="image")
    assert str(error.value) == (
        f"auxiliary.dataset: the images of {folder} are 1x28x28, but the private ones are 3x32x32 "
        "(channels, height, width). Choose a data set of the same size."
    )


def _labels(rows: Rows | None) -> list[int]:
    assert rows is not None
    return rows.labels.tolist()


def test_classes_of_the_clients_and_of_the_attacker() -> None:
    held = _load(
        "shapes", "train[:400]", {"classes": (2, 3), "rows": 40}, modality="image", classes=(0, 1)
    )
    assert set(_labels(held.private)) == set(_labels(held.heldout)) == {0, 1}
    assert set(_labels(held.auxiliary)) == {2, 3}
    assert len(_labels(held.auxiliary)) == 40
    kept = load_rows("shapes", "train[:400]", modality="image").labels
    assert len(held.private) == int((kept < 2).sum())


@pytest.mark.parametrize("overlap", [0.0, 0.01, 0.3, 1.0])
def test_overlap_is_the_share_of_the_clients_classes(overlap: float) -> None:
    auxiliary = {"classes": (2, 3), "rows": 100, "overlap": overlap}
    held = _load("shapes", "train[:400]", auxiliary, modality="image", classes=(0, 1))
    labels = _labels(held.auxiliary)
    assert len(labels) == 100
    assert sum(label in (0, 1) for label in labels) == round(100 * overlap)
    assert held.auxiliary is not None
    assert list(held.auxiliary.numbers) == sorted(set(held.auxiliary.numbers))


def test_a_larger_overlap_keeps_the_rows_of_a_smaller_one() -> None:
    drawn = []
    for overlap in (0.2, 0.5):
        auxiliary = {"classes": (2, 3), "rows": 100, "overlap": overlap}
        held = _load("shapes", "train[:400]", auxiliary, modality="image", classes=(0, 1))
        assert held.auxiliary is not None
        pairs = zip(held.auxiliary.numbers, _labels(held.auxiliary), strict=True)
        drawn.append({number for number, label in pairs if label < 2})
    assert drawn[0] < drawn[1]


def test_a_share_is_kept_where_rows_are_short(tmp_path: Path) -> None:
    import datasets

    folder = tmp_path / "own"
    folder.mkdir()
    for name, labels in (
        ("train", [0, 1] * 3),
        ("test", [0, 1]),
        ("validation", [0] * 6 + [1] * 30),
    ):
        texts = [f"{name} {i}" for i in range(len(labels))]
        table = datasets.Dataset.from_dict({"text": texts, "label": labels})
        table.to_parquet(folder / f"{name}.parquet")
    auxiliary = {"split": "validation", "classes": (1,), "overlap": 0.25}
    held = _load(str(folder), auxiliary=auxiliary, classes=(0,), heldout_split="test")
    labels = _labels(held.auxiliary)
    assert (len(labels), labels.count(0)) == (24, 6)


@pytest.mark.parametrize(
    ("task", "auxiliary", "message"),
    [
        (
            {"classes": (0, 2)},
            None,
            "task.classes: sentences 'train' has no row of the class 2. "
            "Its classes are 0 everyday, 1 sensitive.",
        ),
        (
            {},
            {"classes": (-1,)},
            "auxiliary.classes: sentences 'public' has no row of the class -1. "
            "Its classes are 0 everyday, 1 sensitive.",
        ),
        (
            {"classes": (0,)},
            {"overlap": 0.5},
            "auxiliary.overlap: 0.5 of the rows belong to task.classes and the others to "
            "auxiliary.classes, but one of the two is empty. Name the classes of both.",
        ),
    ],
)
def test_classes_that_are_not_there(
    task: dict[str, Any], auxiliary: dict[str, Any] | None, message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        _load("sentences", auxiliary=auxiliary, **task)
    assert str(error.value) == message
