"""Rows of the clients, the attacker and the evaluation: built-in, from a folder or from the hub."""

from fedsim.data.builtin import Builtin
from fedsim.data.sentences import Sentences
from fedsim.data.shapes import Shapes
from fedsim.data.survey import Survey

DATASETS: dict[str, type[Builtin]] = {
    "sentences": Sentences,
    "shapes": Shapes,
    "survey": Survey,
}
"""Registry of the built-in data sets."""
