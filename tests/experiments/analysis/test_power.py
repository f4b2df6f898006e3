"""No word of holding without attacks that would have found a leak."""

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest

from attacks import ATTACKS
from attacks.base import Attack
from experiments.analysis.keys import VictimKey
from experiments.analysis.paired import Scored
from experiments.analysis.power import Search
from experiments.analysis.verdicts import judge
from experiments.plan.entries import allows_for
from fedsim.defenses import DEFENSES, build_chain
from fedsim.defenses.base import Distortion
from fedsim.records import AttackKey
from tests.experiments.analysis.broken import ATTACK, NO_ROWS, PLACE, images, scores


@pytest.mark.parametrize(("errors", "word"), [(0, "no leak found"), (3, "not decided")])
def test_a_search_that_missed_the_private_rows_keeps_the_word_open(errors: int, word: str) -> None:
    known = {name: scores(*parts) for name, parts in images(60, 0).items()}
    searches = {ATTACK: Search(updates=24, errors=errors, excess=28_460.0, unit="nats")}
    verdict = judge(PLACE, NO_ROWS, known, "image", working={ATTACK: ""}, searches=searches)
    assert verdict.word == word
    if errors:
        (reason,) = verdict.reasons
        assert (reason.kind, reason.attack, reason.metric) == ("search_errors", ATTACK, "nats")
        assert reason.numbers == {"errors": 3.0, "updates": 24.0, "excess": 28_460.0}
    else:
        assert verdict.reasons == ()  # power was measured


@pytest.mark.parametrize(("planted", "said"), [(20.0, True), (10.0, False)])
def test_an_attack_that_reads_planted_rows_alone_keeps_the_word_open(
    planted: float, said: bool
) -> None:
    known = {name: scores(*parts) for name, parts in images(60, 0).items()}
    values = {
        VictimKey(0, 100 + client, 1, 0, 900 + client): planted + client % 3 for client in range(8)
    }
    beside = [Scored(PLACE, ATTACK, "none", values)]
    verdict = judge(PLACE, NO_ROWS, known, "image", working={ATTACK: ""}, planted=beside)
    told = [reason for reason in verdict.reasons if reason.kind == "planted"]
    assert verdict.word == ("not decided" if said else "no leak found")
    assert [reason.numbers["planted"] > planted for reason in told] == [True] * said


@dataclass(frozen=True)
class Plain(Attack):
    """Says nothing of what it models."""

    adaptive: bool = True


@dataclass(frozen=True)
class Noisy(Plain):
    """Has noise in its likelihood."""

    uses: ClassVar[frozenset[Distortion] | None] = frozenset({"noise"})


@pytest.mark.parametrize(
    ("attack", "defense", "models"),
    [
        ("plain", {"name": "gaussian_noise", "std": 0.1}, False),
        ("noisy", {"name": "gaussian_noise", "std": 0.1}, True),
        ("noisy", {"name": "prune", "fraction": 0.9}, False),
        ("bayes", {"name": "percentile_privacy"}, False),
        ("bayes", {"name": "svt_privacy"}, False),
        ("ridge", {"name": "percentile_privacy"}, True),
        ("lti", {"name": "svt_privacy"}, True),
        ("dlg", {"name": "percentile_privacy"}, True),
    ],
)
def test_an_attack_models_what_it_declares(
    attack: str, defense: dict[str, object], models: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ATTACKS, "plain", Plain)
    monkeypatch.setitem(ATTACKS, "noisy", Noisy)
    key = AttackKey(attack, '{"adaptive":true}', adaptive=True)
    allows_for.cache_clear()
    assert allows_for(key, json.dumps([defense])) == models


@pytest.mark.parametrize("name", ["percentile_privacy", "svt_privacy"])
def test_filters_that_cap_say_so(name: str) -> None:
    assert "truncation" in build_chain(({"name": name},), "defense").distortions
    assert name in DEFENSES
