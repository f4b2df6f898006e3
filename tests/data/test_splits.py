"""Slices of splits, against the datasets library's own reading of them."""

import pytest

from fedsim.data.rows import Split
from fedsim.errors import ConfigError


@pytest.mark.parametrize(
    "text",
    [
        *("train", "train[10:20]", "train[:50%]", "train[90%:]", "train[-7:]", "train[33%:67%]"),
        *("train[:99999]", "train[-10%:]", "train[:]", "train[5:-5]"),
    ],
)
@pytest.mark.parametrize("rows", [101, 1000])
def test_numbers_are_those_of_the_datasets_library(text: str, rows: int) -> None:
    from datasets import ReadInstruction

    (expected,) = ReadInstruction.from_spec(text).to_absolute({"train": rows})
    assert Split.parse(text, "d").numbers(rows, "d") == range(expected.from_, expected.to)


@pytest.mark.parametrize("text", ["", "train[a:b]", "train[5:", "train[::2]", "a+b", "train[3]"])
def test_what_is_not_a_split_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        Split.parse(text, "my/data")
    assert str(error.value) == (
        f"my/data: {text!r} is not a split. "
        "Write it like 'train', 'train[100:900]' or 'train[:50%]'."
    )


def test_more_than_all_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"d: 150% in 'train\[150%:\]' is more than 100 %"):
        Split.parse("train[150%:]", "d")


@pytest.mark.parametrize("text", ["train[10:]", "train[3:3]", "train[8:2]"])
def test_an_empty_slice_names_the_rows_that_exist(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        Split.parse(text, "d").numbers(10, "d")
    assert str(error.value) == (
        f"d: {text!r} holds no row. 'train' has the rows 0 to 9; choose a slice within them."
    )


def test_an_empty_split_is_refused() -> None:
    with pytest.raises(ConfigError, match="d: the split 'train' holds no row"):
        Split.parse("train", "d").numbers(0, "d")
