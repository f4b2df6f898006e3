"""Which attacks allow for which defense."""

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
    ("attack", "adaptive"),
    [
        ("bayes", False),
        ("bayes", True),
        ("span", True),
    ],
)
def test_no_attack_models_an_unknown_defense_of_a_foreign_federation(
    attack: str, adaptive: bool
) -> None:
    assert not allows_for(AttackKey(attack, "{}", adaptive), '[{"name": "theirs"}]')
