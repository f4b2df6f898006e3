"""A scored run as pandas frames."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedsim.errors import StoreError
from fedsim.plain_files import check_folder

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Frames:
    """The tables of a run; their columns are the fields of ``fedsim.records``.

    Attributes:
        scores: one row for each attack, private example and metric (``ScoreRow``), and for each
            control if asked for.
        utility: one row for each round and utility metric (``UtilityRow``).
    """

    scores: pd.DataFrame
    utility: pd.DataFrame


def load(folder: Path | str, *, controls: bool = False) -> Frames:
    """Read the tables of a run folder.

    Args:
        folder: the run.
        controls: keep the scores of controls and of probes as well, which no mean of an attack may
            hold; see the columns ``control`` and ``probe``.

    Raises:
        StoreError: the folder is no run, it is not scored, or a table is cut.
        ConfigError: ``check_folder`` refuses it.
    """
    root = Path(folder)
    if not os.path.lexists(root / "experiment.toml"):
        raise StoreError(f"{root}: no run folder (experiment.toml is missing). Correct the path.")
    check_folder(root)
    if not (root / "scores.parquet").exists():
        raise StoreError(f"{root}: nothing is scored. Run fedsim score {root} first.")
    scores, utility = (_table(root / f"{name}.parquet") for name in ("scores", "utility"))
    if not controls:
        scores = scores[(scores.control == "none") & (scores.probe == "none")]
    return Frames(scores.reset_index(drop=True), utility)


def _table(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:  # of which pyarrow's are
        fault = str(error).splitlines()[0].rstrip(".")
        raise StoreError(
            f"{path}: not a whole table ({fault}). Run fedsim score {path.parent} again."
        ) from None
