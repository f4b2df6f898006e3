"""Data sets of the hub or of a local folder, opened by the datasets library."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

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
