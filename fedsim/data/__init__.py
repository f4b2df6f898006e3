"""The rows of clients, of the attacker and of the evaluation: built in, local or from the hub."""

from fedsim.data.builtin import Builtin
from fedsim.data.rows import load_rows
from fedsim.data.sentences import Sentences
from fedsim.data.shapes import Shapes

__all__ = ["DATASETS", "Builtin", "load_rows"]

DATASETS: dict[str, type[Builtin]] = {
    "sentences": Sentences,
    "shapes": Shapes,
}
"""The built-in data sets by name."""
