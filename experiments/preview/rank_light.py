"""Whether an exact attack can work at all, before any is run: what a reply holds against ranks."""

from __future__ import annotations

from itertools import islice

from experiments.preview.feasibility import Lamp, Light
from experiments.preview.image_lights import image_lights
from experiments.preview.replies import replies
from experiments.preview.text_lights import text_lights
from fedsim.cell import CellConfig
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask
from fedsim.types import Rows, Tensors

_REPLIES = 32  # looked at, the first ones


def lights(config: CellConfig, task: Task, private: Rows, weights: Tensors) -> list[Light]:
    """The lights of the exact attacks on what the model is, at the first weights.

    The attacks' own checks decide on the model, by one sentence's gradient without a defense;
    the counts are those of the private rows. Nothing is attacked.
    """
    some = tuple(islice(replies(config, private.labels), _REPLIES))
    lamp = Lamp(config, task, private, weights, some)
    found = text_lights(lamp) if isinstance(task, TextTask) else image_lights(lamp)
    return [lamp.dimmed(light) for light in found]
