"""Data sets of the hub or of a folder, opened by the datasets library, and their columns."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedsim.errors import ConfigError
from fedsim.hub import TABLES, resolve

Tables: TypeAlias = dict[str, Any]
"""Split name -> ``datasets.Dataset``, memory-mapped: rows are read on demand."""


_SAVED = ("dataset_dict.json", "state.json")
"""Files that ``save_to_disk`` of the datasets library writes."""


def locate(dataset: str) -> tuple[str, str]:
    """Folder or hub id, and configuration (may be empty), of ``id[:configuration]``."""
    identifier, _, configuration = dataset.partition(":")
    return resolve(identifier, "datasets"), configuration


@lru_cache(maxsize=16)
def open_tables(path: str, configuration: str, dataset: str) -> Tables:
    """All splits; the library converts the files once into its cache, behind a file lock.

    Args:
        path: the folder, the file of a table, or the hub id.
        configuration: empty for the only or default one.
        dataset: the name that the user wrote, for messages.

    Raises:
        ConfigError: the data set cannot be found or read, or it needs a configuration.
    """
    import datasets

    place = Path(path)
    if not place.exists():
        _check_hub(path)
    datasets.disable_progress_bars()
    try:
        if place.is_file():
            more = {"sep": "\t"} if place.suffix == ".tsv" else {}
            kind = TABLES[place.suffix]
            return dict(datasets.load_dataset(kind, data_files={"train": path}, **more))
        if any((place / name).is_file() for name in _SAVED):
            saved = datasets.load_from_disk(path)
            return {"train": saved} if isinstance(saved, datasets.Dataset) else dict(saved)
        return dict(datasets.load_dataset(path, configuration or None))
    except FileNotFoundError:
        raise ConfigError(
            f"{dataset}: there are no data files in {path!r}. "
            "Name a folder with Parquet, CSV or JSON files, or a clone of a hub repository."
        ) from None
    except ConnectionError:
        raise ConfigError(_no_hub(dataset, "and it is not in the cache")) from None
    except (OSError, RuntimeError, ValueError, datasets.exceptions.DatasetsError) as error:
        identifier, names = dataset.partition(":")[0], _configurations(path)
        if names and (configuration or "default") not in names:
            wrong = f"there is no configuration {configuration!r}"
            raise ConfigError(
                f"{dataset}: {wrong if configuration else 'a configuration is missing'}. "
                f"Write {' or '.join(repr(f'{identifier}:{name}') for name in names)}."
            ) from None
        cause = error.__cause__ or error
        raise ConfigError(
            f"{dataset}: the files cannot be read ({str(cause).splitlines()[0]}). "
            "Repair them, or choose another data set."
        ) from None


def _configurations(path: str) -> list[str]:
    import datasets

    try:
        return list(datasets.get_dataset_config_names(path))
    except (OSError, RuntimeError, ValueError, datasets.exceptions.DatasetsError):
        return []


def _check_hub(identifier: str) -> None:
    """Ask the hub first, so that a wrong name or a missing network is reported at once.

    The datasets library would try six times within 23 seconds.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        HfApi().dataset_info(identifier, timeout=10)
    except OfflineModeIsEnabled:
        return  # The library's cache may hold it.
    except (RepositoryNotFoundError, HFValidationError):
        raise ConfigError(
            f"{identifier}: the hub has no such data set, or it needs a login. "
            "Correct the name, or see `fedsim list datasets` for the built-in ones."
        ) from None
    # The error of a missing network depends on the HTTP library that the hub library uses.
    except Exception as error:
        raise ConfigError(_no_hub(identifier, str(error))) from error


def _no_hub(dataset: str, reason: str) -> str:
    return (
        f"{dataset}: it is neither a built-in nor a folder, and the hub cannot be reached "
        f"({reason}). "
        "Correct the name, put a clone under $FEDSIM_HUB/datasets, or set HF_HUB_OFFLINE=1 if "
        "this machine has downloaded it before."
    )


TEXT_COLUMNS = ("sentence", "text", "content", "review")
LABEL_COLUMNS = ("label", "labels", "fine_label", "target")

_MOST_CLASSES = 1000

_ROWS = {"image": " Of rows of a table, name the classes: label_column.", "text": ""}

_HEADING = re.compile(r"=.*=")


def find_input(
    features: dict[str, Any], modality: Literal["image", "text"], column: str, dataset: str
) -> str:
    """Name of the input column: the one asked for, else the first of the right type.

    For texts, the columns named in ``TEXT_COLUMNS`` come first.

    Raises:
        ConfigError: there is no such column, or it has the wrong type.
    """
    fits = _is_image if modality == "image" else _is_text
    if column:
        _check_exists(features, column, dataset)
        if not fits(features[column]):
            raise ConfigError(
                f"{dataset}: the column {column!r} does not hold {modality}s. "
                f"Its columns are {', '.join(features)}."
            )
        return column
    fitting = [name for name, feature in features.items() if fits(feature)]
    if not fitting:
        raise ConfigError(
            f"{dataset}: there is no {modality} column among {', '.join(features)}. "
            f"Choose a data set of {modality}s, or a model that fits this one.{_ROWS[modality]}"
        )
    return next((name for name in TEXT_COLUMNS if name in fitting), fitting[0])


def has_images(features: Mapping[str, Any], column: str) -> bool:
    """Whether a table holds images, in the column asked for if that is one alone."""
    if column and column in features:
        return _is_image(features[column])
    return any(_is_image(feature) for feature in features.values())


def find_label(features: dict[str, Any], column: str, dataset: str) -> str:
    """Name of the label column; empty if there is none.

    It is the column asked for, which may hold the names of classes, else one of
    ``LABEL_COLUMNS``, else the first with named classes.

    Raises:
        ConfigError: the column asked for does not exist, or holds neither numbers nor texts.
    """
    if column:
        _check_exists(features, column, dataset)
        if column not in label_candidates(features):
            raise ConfigError(
                f"{dataset}: the column {column!r} does not hold classes. "
                f"Its columns are {', '.join(features)}."
            )
        return column
    named = [name for name in LABEL_COLUMNS if name in features and _is_class(features[name])]
    typed = [name for name, feature in features.items() if hasattr(feature, "names")]
    return next(iter(named + typed), "")


def label_candidates(features: dict[str, Any]) -> list[str]:
    """The columns that can be asked for as the label, those of numbers first."""
    candidates = [
        name for name, feature in features.items() if _is_class(feature) or _is_text(feature)
    ]
    return sorted(candidates, key=lambda name: _is_text(features[name]))


def read_class_names(tables: Mapping[str, Any], column: str, dataset: str) -> tuple[str, ...]:
    """Names of the classes of a label column; empty where it only has numbers.

    Those of a column of texts are the values that occur in any of the splits ``tables``, sorted.

    Raises:
        ConfigError: there are so many texts that they are no classes.
    """
    having = [table for table in tables.values() if column in table.features]
    feature = having[0].features[column]
    if not _is_text(feature):
        return tuple(getattr(feature, "names", ()))
    names = {name for table in having for name in table.unique(column)} - {None}
    if len(names) > _MOST_CLASSES:
        raise ConfigError(
            f"{dataset}: the column {column!r} holds {len(names)} different texts, too many for "
            "classes. Name another label_column."
        )
    return tuple(sorted(names))


def read_images(
    images: Iterable[Any], numbers: Sequence[int], dataset: str, size: int = 0
) -> Tensor:
    """PIL images as uint8 ``(row, channel, height, width)``; one channel if all are grey.

    Args:
        images: the images; None stands for an empty cell of the table.
        numbers: their row numbers, for messages.
        dataset: the name that the user wrote, for messages.
        size: height and width in pixels to resize to, with anti-aliasing; 0 keeps their size.

    Raises:
        ConfigError: an image cannot be read, or the images differ in size.
    """
    pictures = []
    try:
        for image in images:
            if image is None:
                raise OSError("it is empty")
            pictures.append(image.resize((size, size)) if size else image)
    except OSError as error:
        raise ConfigError(
            f"{dataset}: the image of row {numbers[len(pictures)]} cannot be read ({error}). "
            "Choose a slice without it."
        ) from None
    for number, picture in zip(numbers, pictures, strict=True):
        if picture.size != pictures[0].size:
            raise ConfigError(
                f"{dataset}: the images differ in size, {'x'.join(map(str, pictures[0].size))} in "
                f"row {numbers[0]} and {'x'.join(map(str, picture.size))} in row {number}. "
                "Set image_size to resize them all."
            )
    mode = "L" if all(picture.mode in ("1", "L") for picture in pictures) else "RGB"
    pixels = torch.from_numpy(np.stack([np.array(picture.convert(mode)) for picture in pictures]))
    return pixels.unsqueeze(1) if mode == "L" else pixels.permute(0, 3, 1, 2).contiguous()


def read_text(text: str | None) -> str:
    """The text without surrounding spaces; empty for a heading like WikiText's `` = Title = ``."""
    stripped = (text or "").strip()
    return "" if _HEADING.fullmatch(stripped) else stripped


def read_labels(
    values: Sequence[int | str | None],
    numbers: Sequence[int],
    dataset: str,
    names: Sequence[str] = (),
) -> Tensor:
    """Classes int64 ``(row,)``; a text is a class by its place in ``names``.

    Raises:
        ConfigError: a row has no label.
    """
    places = {name: place for place, name in enumerate(names)}
    labels = [places[value] if isinstance(value, str) else value for value in values]
    for number, value in zip(numbers, labels, strict=True):
        if value is None or value < 0:
            raise ConfigError(
                f"{dataset}: row {number} has no label (its value is {value}). "
                "Choose a split with labels, or another label_column."
            )
    return torch.tensor(labels, dtype=torch.int64)


def _check_exists(features: dict[str, Any], column: str, dataset: str) -> None:
    if column not in features:
        raise ConfigError(
            f"{dataset}: there is no column {column!r}. Its columns are {', '.join(features)}."
        )


def _is_image(feature: Any) -> bool:  # noqa: ANN401
    return type(feature).__name__ == "Image"


def _is_text(feature: Any) -> bool:  # noqa: ANN401
    return getattr(feature, "dtype", "") in ("string", "large_string")


def _is_class(feature: Any) -> bool:  # noqa: ANN401
    return str(getattr(feature, "dtype", "")).startswith(("int", "uint", "bool"))
