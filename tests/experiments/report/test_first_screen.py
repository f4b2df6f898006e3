"""The worst victim, and what would change the answer."""

import pytest

from experiments.analysis.evidence import Reason, Word
from experiments.bounds.records import BudgetLimit
from experiments.report.brackets import Bracket
from experiments.report.first_screen import changes, worst
from experiments.report.pareto import pictures
from experiments.report.statements import answers
from experiments.report.tables import Number
from experiments.stages.gallery import Shown
from experiments.wording.catalogue import say, sentence
from fedsim.records import AttackKey
from tests.experiments.report.cases import NOISE, section, verdict

LIMIT = BudgetLimit(
    run="r",
    cell="c",
    defense="gaussian_noise",
    defense_options=NOISE,
    source="clipping and noise",
    nats=2.0,
    all=2.0,
)
LOW, HIGH = Number(12.0, "dB"), Number(18.6, "dB")
WHERE = "under Gaussian noise (std=0.01)"


def test_what_is_open_says_what_would_decide_it() -> None:
    wide = Reason(kind="wide", numbers={"needed": 40.0, "mean": 1.0, "low": -1.0, "high": 3.0})
    never = Reason(kind="wide", numbers={"needed": float("inf")})
    alone = Reason(kind="no_null", baseline="other_client")
    reasons = (Reason(kind="no_adaptive"), wide, never, alone)
    open_ = verdict("not decided", "gaussian_noise", NOISE, reasons=reasons)
    findings = section(verdict("leaks"), open_)
    both = Bracket(LIMIT, "DLG", LOW, LOW, LOW, HIGH, None, None, False)
    assert list(changes(findings, {open_.place: both})) == [
        say("decide.no_adaptive", where=WHERE, attack="dlg"),
        say("decide.no_null.other_client", where=WHERE, attack="dlg"),
        say("change.clients", most=40, where=WHERE, now="8"),
        say("change.bound", where=WHERE, bracket=both.said),
    ]
    over = Bracket(LIMIT, "DLG", HIGH, HIGH, LOW, LOW, None, None, False)
    assert list(changes(findings, {open_.place: over}))[-1].reason == "change.contradiction"


@pytest.mark.parametrize("word", ["leaks", "holds by bound"])
def test_nothing_changes_what_is_decided(word: Word) -> None:
    assert list(changes(section(verdict(word)), {})) == []


def shown(defense: str, client: int, value: float) -> Shown:
    return Shown(
        cell=defense,
        attack="dlg",
        attack_options="{}",
        round=1,
        client=client,
        example=0,
        rank=1,
        total=8,
        value=value,
        certified=None,
        original=b"",
        guess=None,
    )


def test_the_worst_victim_is_the_one_of_whom_most_came_back() -> None:
    found = section(verdict("leaks"), verdict("leaks", "gaussian_noise", NOISE))
    named = [result.model_copy(update={"cells": (result.defense,)}) for result in found.results]
    found = found.model_copy(update={"results": tuple(named)})
    examples = [shown("none", 3, 30.0), shown("none", 5, 31.0), shown("gaussian_noise", 2, 14.0)]
    said = worst(found, examples)
    assert said is not None
    assert said.reason == "victim.both"
    assert "client 5 in round 1: 31.0 dB" in str(said.facts["victim"])
    assert "client 2 in round 1: 14.0 dB" in str(said.facts["least"])
    assert worst(found, []) is None
    # A guess at the prior's mean comes as near as one that never saw the update.
    grey = [example.model_copy(update={"blind": True}) for example in examples]
    assert worst(found, grey) == say("victim.none")
    assert "client 3" in str(worst(found, [examples[0], *grey[1:]]))


@pytest.mark.parametrize(
    "word", ["leaks", "not decided", "not attacked", "no leak found", "labels leak"]
)
def test_a_foreign_federation_is_not_without_a_defense(word: Word) -> None:
    """Nobody knows what its clients did, and no sentence says that they did nothing."""
    known = section(verdict(word)).model_copy(update={"foreign": True})
    (answer,) = answers(known)
    said = f"{answer.brief[0].lead} {answer.statements[0].name}"
    assert "without a defense" not in said
    assert "no defense" not in said
    assert sentence("defense.as_it_ran") in said


def test_the_picture_names_each_defense_and_the_front() -> None:
    seeds = {"none": {0: 0.5}, "gaussian_noise": {0: 0.3}}
    two = [verdict("leaks"), verdict("leaks", "gaussian_noise", NOISE)]
    (picture,) = pictures(section(*two, seeds=seeds), "p")
    names = ("no defense", "Gaussian noise (std=0.01)", "Pareto front", "blind guess: prior only")
    for label in names:
        assert f">{label}</text>" in picture.svg
    assert pictures(section(two[0], seeds=seeds), "p") == []
    lost = section(*two, seeds=seeds | {"gaussian_noise": {0: float("nan")}})
    assert pictures(lost, "p") == []


def test_the_attack_that_is_advised_models_the_defense() -> None:
    open_ = verdict("not decided", "gaussian_noise", NOISE, reasons=(Reason(kind="no_adaptive"),))
    assert open_.strongest is not None
    exact = AttackKey("spear", "{}", adaptive=False)  # told of noise it knows nothing of it
    strongest = open_.strongest.model_copy(update={"attacker": exact})
    (said,) = changes(section(open_.model_copy(update={"strongest": strongest})), {})
    assert (said.reason, said.facts["attack"]) == ("decide.no_adaptive", "dlg")
