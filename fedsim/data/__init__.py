"""Rows of the clients, the attacker and the evaluation: built-in, from a folder or from the hub."""

from fedsim.data.builtin import Builtin
from fedsim.data.sentences import Sentences
from fedsim.data.shapes import Shapes

DATASETS: dict[str, type[Builtin]] = {
    "sentences": Sentences,
    "shapes": Shapes,
}
"""Registry of the built-in data sets."""
