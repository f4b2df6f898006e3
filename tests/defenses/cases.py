"""A text task for defenses."""

from fedsim.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors


def text_task(model: str) -> tuple[Task, Tensors, Batch]:
    config = TaskConfig(model=model, dataset="sentences", max_length=16)
    rows = load_rows("sentences", "train[:3]", modality="text")
    task = make_task(config, rows)
    return task, initial_weights(task, config, 0), task.encode(rows)
