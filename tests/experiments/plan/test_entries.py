"""Which attacks allow for which defense."""

from __future__ import annotations

import pytest

from experiments.plan.entries import allows_for
from fedsim.defenses import build_chain
from fedsim.records import AttackKey

NOISE = {"name": "gaussian_noise", "std": 0.1}
PRUNING = {"name": "prune", "fraction": 0.9}


@pytest.mark.parametrize(
    ("attack", "adaptive", "defenses", "expected"),
    [
        ("span", False, [NOISE], True),
        ("span", False, [{"name": "clip", "norm": 1.0}, NOISE], True),
        ("span", False, [{"name": "ghost"}], False),  # it cannot see that tokens were exchanged
        ("bayes", False, [NOISE], True),
        ("bayes", False, [PRUNING], False),
        ("bayes", False, [NOISE, PRUNING], False),
        ("bayes", True, [PRUNING], True),
        ("inverting", False, [NOISE], False),
        ("inverting", False, [], False),
        ("attack_of_a_plugin_that_is_gone", False, [NOISE], False),
    ],
)
def test_an_attack_is_told_or_measures_all_that_a_defense_does(
    attack: str, adaptive: bool, defenses: list[dict[str, object]], expected: bool
) -> None:
    options = build_chain(defenses, "defenses").options_json
    assert allows_for(AttackKey(attack, "{}", adaptive), options) is expected


@pytest.mark.parametrize(
    ("attack", "adaptive", "expected"),
    [
        ("bayes", False, False),
        ("bayes", True, True),
        ("span", True, False),  # it uses exchanged tokens alone
    ],
)
def test_a_defense_of_a_foreign_federation_is_allowed_for_by_who_uses_all_it_is_told(
    attack: str, adaptive: bool, expected: bool
) -> None:
    assert allows_for(AttackKey(attack, "{}", adaptive), '[{"name": "theirs"}]') is expected
