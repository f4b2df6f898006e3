"""Each sentence says what its verdict says, and no more."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.analysis.evidence import Kind, Reached, Reason, Verdict, Word
from experiments.analysis.findings import Problem
from experiments.report.answers import answers, certainty, names, overall
from experiments.report.costs import cost, costs
from experiments.report.headline import closing_rows, closing_table
from experiments.report.page import attackers
from experiments.report.statements import recovered
from experiments.wording.threat import ThreatModel
from fedsim.records import STATUSES, AttackKey
from tests.experiments.report.cases import (
    ADAPTIVE,
    DLG,
    FROZEN,
    NOISE,
    clients,
    estimate,
    over,
    result,
    section,
    utility,
    verdict,
)

PRUNE = '[{"fraction":0.9,"name":"prune"}]'


def short(*verdicts: Verdict, **given: Any) -> str:
    (answer,) = answers(section(*verdicts, **given))
    return answer.short


@pytest.mark.parametrize(
    ("word", "said", "lead"),
    [
        (
            "leaks",
            "an eavesdropper recovers 6 of 8 images recognisably",
            "Without a defense images are recovered, 6 of 8 clients recognisable, at least 60 % at "
            "95 %.",
        ),
        (
            "labels leak",
            "it is not decided whether the images leak without a defense",
            "Without a defense the labels leak. Whether the images do is not decided.",
        ),
        (
            "no leak found",
            "these attacks recover no images even without a defense",
            "Without a defense these attacks find no leak above 1 dB.",
        ),
        (
            "not decided",
            "it is not decided whether the images leak without a defense",
            "Not decided: whether the images leak without a defense.",
        ),
        (
            "not attacked",
            "no attack could run even without a defense",
            "Whether the images leak without a defense was not tested.",
        ),
    ],
)
def test_no_defense(word: Word, said: str, lead: str) -> None:
    (answer,) = answers(section(verdict(word)))
    assert answer.short == said
    assert [statement.lead for statement in answer.statements] == [lead]
    assert [statement.word for statement in answer.statements] == [word]


@pytest.mark.parametrize(
    ("word", "said", "lead"),
    [
        (
            "leaks",
            "Gaussian noise (std=0.01) does not stop it (recognisable)",
            "Gaussian noise (std=0.01) does not stop the leak: images are recovered, 6 of 8 "
            "clients recognisable, at least 60 % at 95 %.",
        ),
        (
            "no leak found",
            "Gaussian noise (std=0.01) hides the images, as far as these attacks tell",
            "Gaussian noise (std=0.01): no leak above 1 dB, as far as these attacks tell.",
        ),
        (
            "not decided",
            "it is not decided whether Gaussian noise (std=0.01) hides the images (6 of 8 "
            "recovered)",
            "Not decided: whether Gaussian noise (std=0.01) holds.",
        ),
        (
            "members leak",
            "under Gaussian noise (std=0.01) members leak, and the images are not shown to",
            "Gaussian noise (std=0.01) does not hide who took part. Whether the images do is "
            "not decided.",
        ),
        (
            "not attacked",
            "Gaussian noise (std=0.01) was not tested, as no attack could run against it",
            "Gaussian noise (std=0.01) was not tested.",
        ),
    ],
)
def test_a_defense_beside_none(word: Word, said: str, lead: str) -> None:
    (answer,) = answers(section(verdict("leaks"), verdict(word, "gaussian_noise", NOISE)))
    assert answer.short == f"an eavesdropper recovers 6 of 8 images recognisably; {said}"
    assert answer.statements[1].lead == lead
    claims = (
        "as far as these" in answer.statements[1].lead or "hides the images, as" in answer.short
    )
    assert claims == (word == "no leak found")


def test_the_numbers_of_a_leak() -> None:
    (answer,) = answers(section(verdict("leaks")))
    assert answer.statements[0].detail == (
        "DLG recovers 6 of 8 images and reaches a mean PSNR of 20.0 dB, against 12.0 dB for a "
        "blind guess."
    )


def test_a_leak_of_the_mean_alone_recovers_none() -> None:
    assert short(verdict("leaks", grade="better than guessing"), share=0.0) == (
        "an eavesdropper comes closer to the images than a blind guess, but recovers none"
    )
    assert short(verdict("leaks"), share=0.25) == (
        "an eavesdropper recovers 2 of 8 images recognisably, and on average comes closer to them "
        "than a blind guess"
    )


def test_words_leak_without_their_order() -> None:
    words = verdict("leaks", grade="words", over_null=over(-1, 3))
    (answer,) = answers(section(words, modality="text"))
    assert answer.short == (
        "an eavesdropper learns words of the batch, but no whole text is shown to leak"
    )
    assert answer.statements[0].detail == (
        "DLG names 88 % of the words of a batch, and 50 % of those that it names are right."
    )


def test_a_defense_that_holds_where_nothing_leaked_says_so() -> None:
    bare, noise = verdict("no leak found"), verdict("no leak found", "gaussian_noise", NOISE)
    (answer,) = answers(section(bare, noise))
    assert answer.short.endswith(
        "they find no leak above 1 dB under Gaussian noise (std=0.01) either"
    )
    assert answer.statements[1].lead.endswith("but none was shown without a defense either.")


def test_holding_says_how_much_is_not_ruled_out() -> None:
    noise = verdict("no leak found", "gaussian_noise", NOISE)
    detail = answers(section(noise))[0].statements[0].detail
    assert "the mean is at most 0.5 dB above a blind guess, and at most 31 % of clients" in detail
    assert "a stronger attack may still succeed" in detail


def test_severity_is_said_first() -> None:
    exact = verdict("leaks", grade="verbatim", verbatim=clients(3))
    mush = verdict("leaks", "gaussian_noise", NOISE, grade="better than guessing")
    (answer,) = answers(section(exact, mush, share=0.375))
    assert answer.short == (
        "an eavesdropper recovers 3 of 8 images verbatim; under Gaussian noise (std=0.01) guesses "
        "are better than blind ones, and recover none"
    )
    assert [statement.grade for statement in answer.statements] == [
        "verbatim",
        "better than guessing",
    ]
    assert "3 of 8 clients verbatim, at least 30 % at 95 %" in answer.statements[0].lead
    assert overall([section(exact, mush)]) == (
        "No defense was shown to hold. Guesses are better than blind ones, and recover none, under "
        "Gaussian noise (std=0.01)."
    )


def test_false_certificates_come_first() -> None:
    wrong = Reason(kind="false_certificates", attack=DLG, numbers={"false": 2.0, "certified": 9.0})
    (answer,) = answers(section(verdict("leaks", reasons=(wrong,))))
    assert answer.statements[0].detail.startswith(
        "FALSE CERTIFICATES: 2 of the 9 guesses that DLG certified as exact are not."
    )


def test_labels_leak_beside_every_verdict() -> None:
    bare = verdict("leaks")
    cases: tuple[tuple[Word, str], ...] = (
        ("no leak found", "as far as these attacks tell, but the labels leak"),
        ("not decided", "hides the images (6 of 8 recovered), and the labels leak"),
    )
    for word, said in cases:
        noise = verdict(word, "gaussian_noise", NOISE, labels=DLG)
        (answer,) = answers(section(bare, noise))
        assert answer.short.endswith(said)
        assert "The labels leak: DLG infers 75 % of them." in answer.statements[1].detail


def test_refused_victims_count_as_blind_guesses() -> None:
    strongest = Reached(attacker=DLG, leakage=estimate(20), refused=3)
    (answer,) = answers(section(verdict("leaks", strongest=strongest)))
    assert answer.statements[0].detail.endswith(
        "DLG could not attack 3 of 8 victims, which count as blind guesses."
    )


def test_a_defense_that_was_hardly_tested_says_so() -> None:
    strongest = Reached(attacker=DLG, leakage=estimate(20), refused=5)
    bare = verdict("leaks", beating=(DLG,))
    words: tuple[Word, ...] = ("not decided", "no leak found")
    for word in words:
        noise = verdict(word, "gaussian_noise", NOISE, strongest=strongest)
        (answer,) = answers(section(bare, noise))
        detail = answer.statements[1].detail
        assert detail.startswith(
            "Hardly tested: DLG could attack 3 of 8 victims; the other 5 count as blind guesses. "
        )
        assert "could not attack" not in detail  # not said twice
        assert ("(hardly tested" in answer.short) == (word == "not decided")
    half = verdict(
        "not decided",
        "gaussian_noise",
        NOISE,
        strongest=Reached(attacker=DLG, leakage=estimate(20), refused=4),
    )
    (answer,) = answers(section(bare, half))
    assert "ardly" not in answer.short + answer.statements[1].detail
    assert "DLG could not attack 4 of 8 victims" in answer.statements[1].detail


def test_an_attack_that_fails_without_a_defense_tests_none() -> None:
    noise = verdict("not decided", "gaussian_noise", NOISE)
    weak, strong = verdict("leaks", beating=(ADAPTIVE,)), verdict("leaks", beating=(DLG,))
    said = "DLG is not shown to beat a blind guess even without a defense."
    assert said in answers(section(weak, noise))[0].statements[1].detail
    assert said not in answers(section(strong, noise))[0].statements[1].detail


def test_a_skipped_attack_is_no_defense_that_holds() -> None:
    (answer,) = answers(section(verdict("leaks"), verdict("not attacked", "gaussian_noise", NOISE)))
    assert answer.statements[1].detail == (
        f"No attack could run (8 jobs skipped): DLG: {FROZEN}. Another attack may succeed."
    )
    row = next(closing_rows(section(verdict("not attacked"))))
    assert (row.defense, row.verdict) == ("no defense", "no attack could run")
    assert row.refused == f"DLG refused: {FROZEN}"
    some = dict.fromkeys(STATUSES, 0) | {"done": 5, "skipped": 3}
    partly = verdict("no leak found", "gaussian_noise", NOISE, jobs=some)
    assert "3 jobs could not attack." in answers(section(partly))[0].statements[0].detail
    alone = verdict("not attacked", "gaussian_noise", NOISE, jobs=dict.fromkeys(STATUSES, 0))
    assert answers(section(alone))[0].statements[0].detail == "No attack was run."


def test_an_attack_that_refused_everything_is_named_with_its_reason() -> None:
    bare = verdict("leaks")
    lamp = result(verdict("not attacked"), "psnr", 0.0).model_copy(update={"attack": "lamp"})
    known = section(bare)
    both = known.model_copy(update={"results": (*known.results, lamp)})
    assert f"LAMP refused every victim: {FROZEN}." in answers(both)[0].statements[0].detail
    row = next(closing_rows(both))
    assert (row.blind, row.refused) == ("12", f"LAMP refused: {FROZEN}")
    hidden = ThreatModel((), (), (), (), ())
    chapters: Any = [SimpleNamespace(section=both, threat=hidden)]
    assert attackers(chapters).endswith("It ran 1 attack: DLG. LAMP could attack nothing.")


def test_what_an_attack_notes_stands_with_the_verdict() -> None:
    noise = verdict("not decided", "gaussian_noise", NOISE)
    known = section(verdict("leaks"), noise)
    said = "no rows stand out of the noise. What was guessed are the most frequent words"
    bare, open_ = known.results
    noted = open_.model_copy(update={"problems": (Problem(status="done", reason=said, jobs=8),)})
    (answer,) = answers(known.model_copy(update={"results": (bare, noted)}))
    assert answer.statements[1].detail.count(f"DLG notes on 8 jobs: {said}.") == 1


def reason(kind: Kind, attack: AttackKey | None = None, **given: Any) -> Reason:
    numbers = {name: float(value) for name, value in given.items() if name in NUMBERS}
    more = {name: value for name, value in given.items() if name not in NUMBERS}
    return Reason(kind=kind, attack=attack, numbers=numbers, **more)


NUMBERS = ("clients", "needed", "mean", "low", "high", "jobs")
WIDE: dict[str, Any] = {
    **{"baseline": "prior_only", "metric": "psnr", "clients": 8},
    **{"mean": 0.5, "low": -1, "high": 2},
}


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (reason("few_clients", clients=3, needed=5), "3 clients, where a mean takes 5 to decide."),
        (reason("few_clients", clients=1, needed=5), "1 client, where a mean takes 5 to decide."),
        (
            reason("no_null"),
            "there is no blind guess to compare with: add the attack prior_only.",
        ),
        (reason("failed", jobs=1), "1 job failed."),
        (reason("unfinished", jobs=2), "2 jobs unfinished: the clock ended them."),
        (reason("exhausted", jobs=1), "1 job exhausted: a budget of the attack ended them."),
        (
            reason("wide", DLG, needed=72, **WIDE),
            "the lead of DLG over prior only is 0.5 [\N{MINUS SIGN}1.0, 2.0] dB, and about 72 "
            "clients would decide.",
        ),
        (
            reason("wide", DLG, needed=math.inf, **WIDE),
            "dB, and no number of clients is likely to decide.",
        ),
        (
            reason("beats_one", DLG, baseline="prior_only", metric="psnr", clients=8),
            "DLG is above another client's update, not above prior only: it reads something that a "
            "better attack might use.",
        ),
        (
            reason("alike", DLG, baseline="other_client", metric="psnr", clients=6),
            "DLG and another client's update are alike on most of 6 clients, which says little "
            "about others.",
        ),
        (
            reason("recovered", DLG, clients=1),
            "DLG recovers an example of 1 client where blind guesses do not, too few to exclude "
            "chance.",
        ),
        (
            reason("no_control"),
            "no attack that was run is shown to work here without a defense.",
        ),
    ],
)
def test_why_it_is_not_decided(one: Reason, why: str) -> None:
    noise = verdict("not decided", "gaussian_noise", NOISE, reasons=(one,))
    detail = answers(section(noise))[0].statements[0].detail
    assert "Left open: " in detail
    assert why in detail


SAME = {0: 0.5, 1: 0.6}


@pytest.mark.parametrize(
    ("defended", "brief", "said"),
    [
        (
            {0: 0.49},
            " (accuracy \N{MINUS SIGN}0.010 in one training)",
            "changes by \N{MINUS SIGN}0.010 in one training.",
        ),
        ({0: 0.49, 1: 0.61}, " at no measurable cost in accuracy", "does not change measurably:"),
        (
            {0: 0.3, 1: 0.401},
            " at a cost of 0.199 in accuracy",
            "The accuracy falls: \N{MINUS SIGN}0.199 [",
        ),
        ({0: 0.7, 1: 0.801}, " while accuracy improves", "The accuracy rises: +0.201 ["),
        ({0: float("nan")}, "", "The training diverged."),
    ],
)
def test_what_a_defense_that_holds_costs(defended: dict[int, float], brief: str, said: str) -> None:
    noise = verdict("no leak found", "gaussian_noise", NOISE)
    bare = {seed: SAME[seed] for seed in defended}
    findings = section(verdict("leaks"), noise, seeds={"none": bare, "gaussian_noise": defended})
    (answer,) = answers(findings)
    assert f"hides the images{brief}, as far as these attacks tell" in answer.short
    assert said in answer.statements[1].detail
    assert cost(findings, noise) in answer.statements[1].detail
    assert ("no measurable" in answer.short) == (brief == " at no measurable cost in accuracy")


def test_the_costs_at_the_top() -> None:
    noise, prune = (
        verdict("leaks", "gaussian_noise", NOISE),
        verdict("not attacked", "prune", PRUNE),
    )
    one = {"none": {0: 0.5}, "gaussian_noise": {0: 0.3}, "prune": {0: 0.1}}
    findings = section(verdict("leaks"), noise, prune, seeds=one)
    assert costs(findings) == [
        "Gaussian noise (std=0.01) lowers accuracy from 0.500 to 0.300 in one training"
    ]
    start = utility(verdict("leaks"), {0: 0.1}).model_copy(update={"round": 0})
    begun = findings.model_copy(update={"utility": (start, *findings.utility)})
    assert costs(begun)[0].startswith(
        "accuracy rises from 0.100 to 0.500 over 1 round without a defense; Gaussian noise"
    )
    idle = utility(verdict("leaks"), {0: 0.5}).model_copy(update={"round": 0})
    still = findings.model_copy(update={"utility": (idle, *findings.utility)})
    assert costs(still) == [
        "accuracy stays at 0.500 over 1 round without a defense; no cost can be told: without a "
        "defense the model is not surely better than before training"
    ]
    assert cost(still, noise) == (
        "What it costs in accuracy cannot be told: without a defense the model is not surely "
        "better than before training."
    )
    two = {"none": {0: 0.5, 1: 0.6}, "gaussian_noise": {0: 0.49, 1: 0.65}}
    assert costs(section(verdict("leaks"), noise, seeds=two)) == [
        "Gaussian noise (std=0.01) raises accuracy from 0.550 to 0.570, which may be chance"
    ]
    same = {"none": {0: 0.5}, "gaussian_noise": {0: 0.50001}}
    assert costs(section(verdict("leaks"), noise, seeds=same)) == [
        "Gaussian noise (std=0.01) leaves accuracy at 0.500 in one training"
    ]
    lost = {"none": {0: 0.5}, "gaussian_noise": {0: float("nan")}}
    assert costs(section(verdict("leaks"), noise, seeds=lost)) == [
        "under Gaussian noise (std=0.01) the training diverges"
    ]
    assert costs(section(verdict("leaks"), noise)) == []


def test_several_defenses_are_grouped_by_verdict() -> None:
    bare = verdict("leaks")
    noise, prune = (
        verdict("not decided", "gaussian_noise", NOISE),
        verdict("not decided", "prune", PRUNE, labels=DLG),
    )
    assert short(bare, noise, prune).endswith(
        "; it is not decided whether Gaussian noise (std=0.01) and pruning (fraction=0.9) hide the "
        "images, and the labels leak under one of them"
    )
    assert names(list("abcdef")) == "a, b, c and 3 more"
    assert names(list("abcd")) == "a, b, c and d"


def test_each_setting_has_an_answer() -> None:
    here, there = verdict("leaks", setting="batch_size=1"), verdict("not decided", setting="b=2")
    assert [answer.setting for answer in answers(section(here, there))] == ["batch_size=1", "b=2"]
    assert answers(section()) == []


def test_a_defense_is_judged_by_its_worst_task() -> None:
    holds, leaks = (
        verdict("no leak found", "gaussian_noise", NOISE),
        verdict("leaks", "gaussian_noise", NOISE),
    )
    prune = verdict("not attacked", "prune", PRUNE)
    assert overall([section(verdict("leaks"))]) == "No defense was tested."
    assert overall([section(holds), section(prune)]) == (
        "Gaussian noise (std=0.01) held wherever tested, as far as these attacks tell. "
        "Pruning (fraction=0.9) was not tested."
    )
    assert overall([section(holds), section(leaks, prune)]) == (
        "No defense was shown to hold. Private examples leak recognisably under Gaussian noise "
        "(std=0.01). "
        "Pruning (fraction=0.9) was not tested."
    )


def test_a_defense_gets_no_credit_where_nothing_leaked() -> None:
    holds = verdict("no leak found", "gaussian_noise", NOISE)
    words: tuple[Word, ...] = ("no leak found", "not decided", "not attacked")
    for word in words:
        findings = section(verdict(word), holds)
        assert overall([findings]) == (
            "No defense was shown to hold. No leak was found under Gaussian noise (std=0.01), but "
            "none was shown without a defense either."
        )
        assert "hides" not in short(verdict(word), holds)


def test_a_defense_under_which_labels_leak_does_not_hold() -> None:
    open_ = verdict("labels leak", "gaussian_noise", NOISE, rows="no leak found", labels=DLG)
    assert overall([section(verdict("leaks"), open_)]) == (
        "No defense was shown to hold. The labels leak, and rows are not shown to, under Gaussian "
        "noise (std=0.01)."
    )
    assert short(verdict("leaks"), open_).endswith(
        "as far as these attacks tell, but the labels leak"
    )


def test_how_sure() -> None:
    many = certainty([section(verdict("leaks"))], {0})
    assert many.startswith("Each verdict rests on 8 victims of 8 clients, in one training per")
    assert "Fewer than 5 clients" not in many
    assert many.endswith("a stronger one, or one that knows more, may still succeed.")
    holds = verdict("no leak found", "gaussian_noise", NOISE)
    assert "As far as these attacks tell" in certainty([section(holds)], {0})
    few = certainty([section(verdict("leaks"), verdict("leaks", clients=3))], {0, 1})
    assert "8 victims of 3 to 8 clients, in 2 trainings" in few
    assert "Fewer than 5 clients can show that examples came back exactly, but no mean" in few
    assert certainty([section(verdict("not attacked"))], {0}).startswith("No victim was scored")


def test_recovered_counts_over_all_victims() -> None:
    findings = section(verdict("leaks", victims=10))
    assert recovered(findings, findings.evidence.verdicts[0]) == (6, 10)


def test_a_terminal_names_what_leaks_before_the_rest() -> None:
    held = [verdict("no leak found", "gaussian_noise", f'[{{"std":{i}}}]') for i in range(3)]
    known = section(verdict("leaks"), *held, verdict("labels leak", "prune", PRUNE))
    first, second, *_ = rows = list(closing_rows(known))
    assert (first.defense, first.mean, first.blind) == ("no defense", "psnr 20", "12")
    assert (second.defense, second.verdict) == ("pruning (fraction=0.9)", "labels leak")
    lines = closing_table(rows).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["defense", *(row.defense for row in rows)]
    assert len({line.index(row.verdict) for line, row in zip(lines[1:], rows, strict=True)}) == 1
    assert closing_table(rows * 3).splitlines()[-1].startswith("and 3 more")
