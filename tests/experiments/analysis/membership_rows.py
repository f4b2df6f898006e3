"""Rows of a membership attack."""

from typing import Any

from fedsim.records import ScoreRow

CLIENTS, BATCH = 8, 8


def row(value: float, client: int = 0, **changes: Any) -> ScoreRow:
    columns: dict[str, Any] = {
        **{"run": "r", "cell": "c", "seed": 0, "task": "image-classification", "model": "mlp"},
        **{"dataset": "shapes", "split": "train", "protocol": "fedsgd", "batch_size": BATCH},
        **{"local_steps": 1, "defense": "none", "defense_options": "[]", "attack": "membership"},
        **{"attack_options": '{"statistic":"cosine"}', "adaptive": False, "control": "none"},
        **{"round": 1, "probe": "none", "example": 0, "metric": "membership_auc", "unit": "1"},
        **{"status": "done", "reason": "", "objective": None, "certified": None, "level": None},
    }
    columns |= {"client": client, "value": value, "seconds": 0.0, **changes}
    return ScoreRow(**columns)
