"""Rows of local folders and built-ins: columns found by type, numbers kept, mistakes explained."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsim.data import DATASETS
from fedsim.data.rows import load_rows, split_sizes
from fedsim.errors import ConfigError


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written to the user's own cache, and no hub is asked."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.delenv("FEDSIM_HUB", raising=False)


def _save(folder: Path, columns: dict[str, Any], **features: Any) -> str:
    """Write ``columns`` as the split ``train`` of a folder; returns its path."""
    import datasets

    kinds = datasets.Features(features) if features else None
    folder.mkdir(parents=True)
    datasets.Dataset.from_dict(columns, features=kinds).to_parquet(folder / "train.parquet")
    return str(folder)


def _save_images(folder: Path, arrays: list[np.ndarray[Any, Any]]) -> str:
    import datasets

    classes = datasets.ClassLabel(names=["cat", "dog"])
    labels = [row % 2 for row in range(len(arrays))]
    columns = {"y": labels, "scan": arrays}
    return _save(folder, columns, y=classes, scan=datasets.Image())


def _grey(size: int, value: int) -> np.ndarray[Any, Any]:
    return np.full((size, size), value, np.uint8)


TEXTS = ["", " = Title = \n", " First line . \n", "Second line", "   ", "Third"]


def test_blank_texts_and_headings_are_dropped_and_numbers_kept(tmp_path: Path) -> None:
    folder = _save(tmp_path / "wiki", {"text": TEXTS})
    rows = load_rows(folder, "train", modality="text")
    assert rows.inputs == ("First line .", "Second line", "Third")
    assert rows.numbers == (2, 3, 5)
    assert rows.labels.tolist() == [0, 0, 0]
    assert rows.class_names == ()
    assert load_rows(folder, "train[3:]", modality="text").numbers == (3, 5)
    assert load_rows(folder, "train[:50%]", modality="text").numbers == (2,)


def test_text_and_label_columns_are_found(tmp_path: Path) -> None:
    columns = {"id": ["a", "b"], "sentence": ["One", "Two"], "label": [1, 0], "other": [5, 6]}
    folder = _save(tmp_path / "named", columns)
    rows = load_rows(folder, "train", modality="text")
    assert (rows.inputs, rows.labels.tolist()) == (("One", "Two"), [1, 0])
    chosen = load_rows(folder, "train", modality="text", input_column="id", label_column="other")
    assert (chosen.inputs, chosen.labels.tolist()) == (("a", "b"), [5, 6])


def test_texts_are_classes_in_their_order_over_all_splits(tmp_path: Path) -> None:
    import datasets

    folder = _save(tmp_path / "texts", {"text": ["One", "Two"], "kind": ["spam", "ham"]})
    other = {"text": ["Three", "Four"], "kind": ["eggs", None]}
    datasets.Dataset.from_dict(other).to_parquet(tmp_path / "texts" / "test.parquet")
    rows = load_rows(folder, "train", modality="text", label_column="kind")
    assert rows.class_names == ("eggs", "ham", "spam")
    assert rows.labels.tolist() == [2, 1]
    with pytest.raises(ConfigError, match=r"row 1 has no label \(its value is None\)"):
        load_rows(folder, "test", modality="text", label_column="kind")
    assert load_rows(folder, "test", modality="text").class_names == ()
    many = {"text": ["a"] * 1001, "kind": [str(number) for number in range(1001)]}
    many_folder = _save(tmp_path / "many", many)
    with pytest.raises(ConfigError, match=r"'kind' holds 1001 different texts, too many for clas"):
        load_rows(many_folder, "train", modality="text", label_column="kind")


def test_grey_images_have_one_channel(tmp_path: Path) -> None:
    folder = _save_images(tmp_path / "grey", [_grey(5, value) for value in (0, 100, 255)])
    rows = load_rows(folder, "train[1:]", modality="image")
    assert isinstance(rows.inputs, Tensor)
    assert rows.inputs.shape == (2, 1, 5, 5)
    assert rows.inputs.dtype == torch.uint8
    assert rows.inputs.flatten(1)[:, 3].tolist() == [100, 255]
    assert rows.labels.tolist() == [1, 0]
    assert rows.numbers == (1, 2)
    assert rows.class_names == ("cat", "dog")


def test_colours_keep_their_channels_and_grey_rows_among_them_get_three(tmp_path: Path) -> None:
    red = np.zeros((4, 6, 3), np.uint8)
    red[..., 0] = 200
    folder = _save_images(tmp_path / "colour", [red, _grey(6, 9)[:4]])
    pixels = load_rows(folder, "train", modality="image").inputs
    assert isinstance(pixels, Tensor)
    assert pixels.shape == (2, 3, 4, 6)
    assert pixels[0, :, 3, 5].tolist() == [200, 0, 0]
    assert set(pixels[1].flatten().tolist()) == {9}


def test_images_of_two_sizes_are_refused(tmp_path: Path) -> None:
    folder = _save_images(tmp_path / "sizes", [_grey(5, 0), _grey(5, 1), _grey(6, 2)])
    with pytest.raises(ConfigError) as error:
        load_rows(folder, "train", modality="image")
    assert str(error.value) == (
        f"{folder}: the images differ in size, 5x5 in row 0 and 6x6 in row 2. "
        "Set image_size to resize them all."
    )
    assert len(load_rows(folder, "train[:2]", modality="image")) == 2


def test_a_row_without_image_or_label_is_named(tmp_path: Path) -> None:
    import datasets

    columns = {"scan": [_grey(3, 1), None], "label": [0, -1]}
    folder = _save(tmp_path / "a", columns, scan=datasets.Image(), label=datasets.Value("int64"))
    with pytest.raises(ConfigError, match=r"row 1 has no label \(its value is -1\)"):
        load_rows(folder, "train", modality="image")
    other = _save(tmp_path / "b", {"scan": columns["scan"]}, scan=datasets.Image())
    with pytest.raises(ConfigError, match=r"the image of row 1 cannot be read \(it is empty\)"):
        load_rows(other, "train", modality="image")


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("dev", {}, "there is no split 'dev'. Its splits are train."),
    ("train", {"modality": "image"}, "there is no image column among text, label, score. "),
    ("train", {"input_column": "txt"}, "there is no column 'txt'. Its columns are text, label, "),
    ("train", {"input_column": "label"}, "the column 'label' does not hold texts. Its columns "),
    ("train", {"label_column": "lab"}, "there is no column 'lab'. Its columns are text, label, "),
    ("train", {"label_column": "score"}, "the column 'score' does not hold classes. Its columns "),
    ("train[9:]", {}, "'train[9:]' holds no row. 'train' has the rows 0 to 5; "),
    ("train[:2]", {}, "the texts of the rows 0 to 1 are all blank. Choose a longer slice."),
    ("train[::2]", {}, "'train[::2]' is not a split. Write it like "),
]


@pytest.mark.parametrize(("split", "options", "message"), MISTAKES)
def test_a_mistake_is_named(
    tmp_path: Path, split: str, options: dict[str, Any], message: str
) -> None:
    columns = {"text": TEXTS, "label": [0] * 6, "score": [0.5] * 6}
    folder = _save(tmp_path / "table", columns)
    with pytest.raises(ConfigError, match=re.escape(f"{folder}: {message}")):
        load_rows(folder, split, **{"modality": "text", **options})


def test_configurations_are_listed(tmp_path: Path) -> None:
    folder = tmp_path / "clone"
    _save(folder / "one", {"text": ["First"]})
    _save(folder / "two", {"text": ["Second"]})
    (folder / "README.md").write_text(
        "---\nconfigs:\n"
        "- config_name: one\n  data_files: one/train*\n"
        "- config_name: two\n  data_files: two/train*\n---\n"
    )
    assert load_rows(f"{folder}:two", "train", modality="text").inputs == ("Second",)
    for wrong, message in [("", "a configuration is missing"), (":x", "no configuration 'x'")]:
        with pytest.raises(ConfigError, match=message) as error:
            load_rows(f"{folder}{wrong}", "train", modality="text")
        assert str(error.value).endswith(f"Write '{folder}:one' or '{folder}:two'.")


def test_the_folder_of_the_hub_comes_first_and_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("red", "blue"):
        _save(tmp_path / name / "datasets" / "some" / "words", {"text": [name]})
        monkeypatch.setenv("FEDSIM_HUB", str(tmp_path / name))
        assert load_rows("some/words", "train", modality="text").inputs == (name,)


def test_a_folder_without_data_or_with_broken_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there are no data files in"):
        load_rows(str(tmp_path), "train", modality="text")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "train.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(ConfigError, match=rf"{broken}: the files cannot be read \(.*Parquet"):
        load_rows(str(broken), "train", modality="text")


@pytest.mark.parametrize("reply", ["missing", "unreachable"])
def test_an_unknown_data_set_is_one_line(reply: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError

    def dataset_info(*args: object, **options: object) -> None:
        del args, options
        raise HFValidationError("no") if reply == "missing" else TimeoutError("too slow")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    with pytest.raises(ConfigError) as error:
        load_rows("nobody/nothing", "train", modality="text")
    message = {
        "missing": "nobody/nothing: the hub has no such data set, or it needs a login. Correct",
        "unreachable": "nobody/nothing: it is neither a built-in nor a folder, and the hub "
        "cannot be reached (too slow). Correct the name, put a clone under "
        "$FEDSIM_HUB/datasets, or set HF_HUB_OFFLINE=1 if",
    }[reply]
    assert str(error.value).startswith(message)


def test_built_ins_are_loaded_by_name() -> None:
    for name, kind in DATASETS.items():
        assert split_sizes(name) == kind.sizes
        assert set(kind.sizes) == {"train", "test", "public"}
        rows = load_rows(name, "train[3:9]", modality=kind.modality)
        assert rows.numbers == (3, 4, 5, 6, 7, 8)
        assert rows is load_rows(name, "train[3:9]", modality=kind.modality)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modality": "text"}, "shapes: it holds images, but the task needs texts. "),
        ({"split": "dev"}, "shapes: there is no split 'dev'. Its splits are train, test, public."),
        (
            {"label_column": "hue"},
            "shapes: there is no column 'hue', since a built-in data set has no columns. Leave ",
        ),
    ],
)
def test_built_ins_refuse_what_they_do_not_have(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_rows("shapes", **{"split": "train", "modality": "image", **options})


def test_images_are_resized_on_request() -> None:
    full = load_rows("shapes", "train[:3]", modality="image").inputs
    small = load_rows("shapes", "train[:3]", modality="image", image_size=16).inputs
    assert isinstance(full, torch.Tensor)
    assert isinstance(small, torch.Tensor)
    assert small.shape == (3, 3, 16, 16)
    assert small.dtype == torch.uint8
    blocks = full.double().unflatten(3, (16, 2)).unflatten(2, (16, 2)).mean((3, 5))
    assert (small.double() - blocks).abs().mean() < 6
