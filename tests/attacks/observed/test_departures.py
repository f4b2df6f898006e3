"""Sixteen causes and four networks: a cause is named where it is one, and none for another."""

from __future__ import annotations

import pytest

from attacks.observed import departures
from attacks.observed.departures import departure
from benchmarks.cause_draws import CAUSES, NETWORKS, UNPROVEN, drawn_cause, victim
from fedsim.types import Batch


@pytest.mark.some(5)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in ("tanh", "square")))
        for name in NETWORKS
    ],
)
@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_is_named_or_none(cause: str, name: str) -> None:
    """Of 3 clients each, no client's cause is called another."""
    drawn = [drawn_cause(cause, name, seed) for seed in range(3)]
    unseen = cause.startswith("Muon that") and name == "tanh"  # its decay: no unit is silent
    for each in drawn:
        assert not each.wrong
        assert each.near or unseen or not each.said
        assert each.certified == (not each.right and cause not in UNPROVEN)
    named = sum(each.said == (each.right,) for each in drawn)
    # What noise leaves is estimated anew, and that guess does not always pass the test.
    assert named >= 2 or cause == "noise" or unseen or not drawn[0].right


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.5, 2])
@pytest.mark.parametrize("constant", ["_ALIKE", "_OTHER", "_CROSSED", "_LIT", "_SPREAD"])
def test_half_and_double_of_each_threshold_call_no_cause_another(
    constant: str, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = getattr(departures, constant)
    value = 1 + scale * (value - 1) if constant == "_SPREAD" else scale * value
    monkeypatch.setattr(departures, constant, value)
    for cause, right in CAUSES.items():
        update, image, label = victim(cause, "wide square", 1)
        said = departure(update.observation, update.task, Batch(image, label))
        assert not said or (right and right in said)
