"""Rows of the clients, the attacker and the evaluation: built-in, from a folder or from the hub."""

from fedsim.data.builtin import Builtin, Sentences, Survey
from fedsim.data.shapes import Shapes

DATASETS: dict[str, type[Builtin]] = {
    "sentences": Sentences,
    "shapes": Shapes,
    "survey": Survey,
}
"""Registry of the built-in data sets."""
