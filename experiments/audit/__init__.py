"""Audits of updates from elsewhere: a gradient in a notebook, the captures of another Flower app.

The names below are offered as ``fedsim.Update``, ``fedsim.attack`` and so on.
"""

from experiments.audit.attacking import attack
from experiments.audit.captured import Captured, captured
from experiments.audit.guess import Guess
from experiments.audit.runs import Frames, load
from experiments.audit.scoring import Scores, score
from experiments.audit.suitability import Suitability, suited
from experiments.audit.update import Update

__all__ = [
    "Captured",
    "Frames",
    "Guess",
    "Scores",
    "Suitability",
    "Update",
    "attack",
    "captured",
    "load",
    "score",
    "suited",
]
