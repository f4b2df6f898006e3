"""The distance follows what optimiser and clipping leave of a gradient."""

from typing import Any

import pytest

from attacks.texts.matching import TextObjective, stepped
from fedsim.knowledge import Knowledge
from fedsim.store.capture import CaptureKey, Kind, Observation

CLIPPED = {"training": {"max_grad_norm": 1.0}}


@pytest.mark.parametrize(
    ("kind", "known", "distance", "form"),
    [
        ("weights", {"optimizer": "sgd"}, "l2", "plain"),
        ("weights", {"optimizer": "adamw", "num_examples": 4}, "l2", "tanh"),
        ("weights", {"optimizer": "adafactor", "num_examples": 4}, "l2", "tanh"),
        ("weights", {"optimizer": "adam", "num_examples": 1}, "cosine", "plain"),
        ("weights", {"optimizer": "sgd", **CLIPPED}, "cosine", "plain"),
        ("weights", {"training": {"max_grad_norm": 0.0}}, "l2", "plain"),
        ("gradient", {"optimizer": "adamw", **CLIPPED}, "l2", "plain"),
    ],
)
def test_unknown_lengths_and_signs(
    kind: Kind, known: dict[str, Any], distance: str, form: str
) -> None:
    seen = Observation(CaptureKey(round=1, client=0), {}, {}, kind, Knowledge(**known))
    text_objective = stepped(TextObjective("l2"), seen)
    assert (text_objective.distance, text_objective.form) == (distance, form)
    cosine = TextObjective()
    assert stepped(cosine, seen) == cosine
