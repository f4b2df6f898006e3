"""The worst victim, and what would change the answer."""

from experiments.analysis.evidence import Reason
from experiments.bounds.records import BudgetLimit
from experiments.report.answers import answers, overall
from experiments.report.brackets import Bracket
from experiments.report.first_screen import changes, worst
from experiments.report.tables import Number
from experiments.stages.gallery import Shown
from experiments.wording.catalogue import sentence
from tests.experiments.report.cases import NOISE, section, verdict


def test_what_is_open_says_what_would_decide_it() -> None:
    wide = Reason(kind="wide", numbers={"needed": 40.0, "mean": 1.0, "low": -1.0, "high": 3.0})
    never = Reason(kind="wide", numbers={"needed": float("inf")})
    open_ = verdict(
        "not decided", "gaussian_noise", NOISE, reasons=(Reason(kind="no_adaptive"), wide, never)
    )
    findings = section(verdict("leaks"), open_)
    limit = BudgetLimit(
        run="r",
        cell="c",
        defense="gaussian_noise",
        defense_options=NOISE,
        source="clipping and noise",
        nats=2.0,
        all=2.0,
    )
    low, high = Number(12.0, "dB"), Number(18.6, "dB")
    both = Bracket(limit, "DLG", low, low, low, high, None, None, False)
    assert list(changes(findings, {open_.place: both})) == [
        sentence("decide.no_adaptive", who="Gaussian noise (std=0.01)", attack="dlg"),
        "about 40 clients under Gaussian noise (std=0.01), instead of 8",
        "a stronger attack on Gaussian noise (std=0.01): at least 12.0 dB, at most 18.6 dB",
    ]
    assert list(changes(section(verdict("leaks")), {})) == []
    over = Bracket(limit, "DLG", high, high, low, low, None, None, False)
    assert list(changes(findings, {open_.place: over}))[-1] == (
        "the cause of this on Gaussian noise (std=0.01): CONTRADICTION: DLG reaches 18.6 dB, and "
        "no attack should exceed 12.0 dB: an assumption or a number is wrong"
    )


def test_a_bound_holds_whatever_the_attack() -> None:
    held = verdict("holds by bound", "gaussian_noise", NOISE)
    (answer,) = answers(section(verdict("leaks"), held))
    assert answer.short.endswith("Gaussian noise (std=0.01) hides the images from any attack")
    assert answer.statements[1].lead == (
        "Gaussian noise (std=0.01) holds by bound: no attack can, on average, come closer than the "
        "best blind guess by more than 1 dB."
    )
    assert overall([section(verdict("leaks"), held)]).startswith(
        "Gaussian noise (std=0.01) holds by bound, whatever the attack."
    )
    assert list(changes(section(held), {})) == []


def test_the_worst_victim_is_the_one_of_whom_most_came_back() -> None:
    found = section(verdict("leaks"), verdict("leaks", "gaussian_noise", NOISE))
    named = [result.model_copy(update={"cells": (result.defense,)}) for result in found.results]
    found = found.model_copy(update={"results": tuple(named)})

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

    examples = [shown("none", 3, 30.0), shown("none", 5, 31.0), shown("gaussian_noise", 2, 14.0)]
    assert worst(found, examples) == (
        "Without a defense, client 5 in round 1: 31.0 dB by DLG; where least came back, under "
        "Gaussian noise (std=0.01), client 2 in round 1: 14.0 dB by DLG"
    )
    assert worst(found, []) == ""
    # A guess at the prior's mean comes as near as one that never saw the update.
    grey = [example.model_copy(update={"blind": True}) for example in examples]
    assert worst(found, grey) == sentence("victim.none")
    assert "client 3" in worst(found, [examples[0], *grey[1:]])


def test_a_foreign_federation_is_not_without_a_defense() -> None:
    """Nobody knows what its clients did, and no sentence says that they did nothing."""
    for word in ("leaks", "not decided", "not attacked", "no leak found", "labels leak"):
        known = section(verdict(word)).model_copy(update={"foreign": True})
        (answer,) = answers(known)
        said = f"{answer.short} {answer.statements[0].lead} {answer.statements[0].name}".lower()
        assert "without a defense" not in said
        assert "no defense" not in said
        assert sentence("defense.not_known") in said
