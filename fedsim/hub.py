"""Location of models and data sets: the folder ``FEDSIM_HUB``, a local folder, or the hub."""

import os
from pathlib import Path
from typing import Literal

from fedsim.errors import ConfigError

TABLES = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".json": "json", ".jsonl": "json"}
"""Endings of a file that is a data set by itself, and the reader of the datasets library."""


def resolve(identifier: str, kind: Literal["models", "datasets"]) -> str:
    """Path of the local folder or table, else the identifier itself for the hub libraries.

    The order is ``$FEDSIM_HUB/<kind>/<identifier>``, ``identifier`` as a path, then the hub.

    Raises:
        ConfigError: ``FEDSIM_HUB`` is set but is not a folder, or a path is none.
    """
    if root := os.environ.get("FEDSIM_HUB"):
        if not Path(root).is_dir():
            raise ConfigError(f"FEDSIM_HUB: {root!r} is not a folder. Correct it or unset it.")
        local = Path(root) / kind / identifier
        if local.is_dir():
            return str(local.resolve())
    if Path(identifier).is_dir():
        return str(Path(identifier).resolve())
    if kind == "datasets" and Path(identifier).suffix in TABLES and Path(identifier).is_file():
        return str(Path(identifier).resolve())
    if Path(identifier).is_file():
        raise ConfigError(f"{identifier}: it is a file. Name the folder that holds it.")
    if identifier.startswith((".", "/", "~")):
        raise ConfigError(f"{identifier}: there is no such folder. Correct the path.")
    return identifier
