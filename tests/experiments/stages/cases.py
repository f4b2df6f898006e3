"""The stages of a run, and the scores that they leave."""

from pathlib import Path
from typing import Any

from experiments.plan.folder import RunStage


def scores(root: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.read_table(root / "scores.parquet").to_pylist()
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


STAGES: tuple[RunStage, ...] = ("simulate", "attack", "score")
