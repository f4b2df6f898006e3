"""The rows of clients, of the attacker and of the evaluation: built in, local or from the hub."""

from fedsim.data.builtin import Builtin
from fedsim.data.sentences import Sentences
from fedsim.data.shapes import Shapes

DATASETS: dict[str, type[Builtin]] = {
    "sentences": Sentences,
    "shapes": Shapes,
}
"""The built-in data sets by name."""
