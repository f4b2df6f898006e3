"""Each sentence says what its verdict says, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.analysis.evidence import Evidence, Reached, Verdict, Word
from experiments.analysis.findings import (
    Leakage,
    Problem,
    Result,
    RoundUtility,
    TaskFindings,
)
from experiments.analysis.statistics import Difference, Estimate, Share
from experiments.report.answers import answers, certainty, names, overall
from experiments.report.costs import cost, costs
from experiments.report.statements import recovered
from fedsim.records import STATUSES, AttackKey, Modality

DLG = AttackKey(attack="dlg", attack_options="{}", adaptive=False)
ADAPTIVE = AttackKey(attack="lamp", attack_options="{}", adaptive=True)
NOISE = '[{"name":"gaussian_noise","stage":"client","std":0.01}]'
PRUNE = '[{"fraction":0.9,"name":"prune"}]'
CLIENTS = 8
FROZEN = "dlg: the client does not send the head (frozen); the reply lacks it. Choose another."


def estimate(mean: float) -> Estimate:
    return Estimate(n=8, clusters=8, mean=mean, low=mean - 1, high=mean + 1, interval_of="clients")


def over(low: float, high: float) -> Difference:
    mean = (low + high) / 2
    return Difference(
        n=8, clusters=8, mean=mean, low=low, high=high, interval_of="clients", level=0.95, p=0.1
    )


def verdict(word: Word, defense: str = "none", options: str = "[]", **given: Any) -> Verdict:
    ran = word != "not attacked"
    interval = {"leaks": over(2, 6), "no leak found": over(-1, 0.5)}.get(word, over(-3, 9))
    jobs = dict.fromkeys(STATUSES, 0) | ({"done": 8} if ran else {"skipped": 8})
    base: dict[str, Any] = {
        "setting": "",
        "defense": defense,
        "defense_options": options,
        "word": word,
        "notes": (),
        "levels": (),
        "attacks": 1,
        "victims": 8 if ran else 0,
        "clients": CLIENTS if ran else 0,
        "jobs": jobs,
        "strongest": Reached(attacker=DLG, leakage=estimate(20), refused=0) if ran else None,
        "labels": None,
        "null": "prior_only" if ran else None,
        "nulls": {"prior_only": 12.0} if ran else {},
        "over_null": interval if ran else None,
        "beating": (DLG,) if word == "leaks" else (),
        "oblivious": None,
        "adaptive": None,
        "gained": None,
        "gain": None,
        "portfolio": None,
    }
    return Verdict(**(base | given))


def leakage(mean: float, share: float | None, unit: str = "dB") -> Leakage:
    part = Share(threshold=25, value=share, low=0, high=1) if share is not None else None
    return Leakage(**estimate(mean).model_dump(), median=mean, worst=mean, share=part, unit=unit)


def result(one: Verdict, main: str, share: float) -> Result:
    ran = one.word != "not attacked"
    found = {
        main: leakage(20, share),
        "label_accuracy": leakage(0.75, None, "1"),
        "batch_token_precision": leakage(0.5, None, "1"),
        "batch_token_recall": leakage(0.875, None, "1"),
    }
    return Result(
        setting=one.setting,
        defense=one.defense,
        defense_options=one.defense_options,
        cells=("cell",),
        attack="dlg",
        attack_options="{}",
        adaptive=False,
        control="none",
        probe="none",
        jobs=one.jobs,
        problems=() if ran else (Problem(status="skipped", reason=FROZEN, jobs=8),),
        leakage=found if ran else {},
        rounds={},
    )


def utility(one: Verdict, by_seed: dict[int, float]) -> RoundUtility:
    return RoundUtility(
        setting=one.setting,
        defense=one.defense,
        defense_options=one.defense_options,
        round=1,
        values={"accuracy": sum(by_seed.values()) / len(by_seed)},
        by_seed={"accuracy": by_seed},
        epsilon=None,
        bytes_up=0,
    )


def section(
    *verdicts: Verdict,
    modality: Modality = "image",
    share: float = 0.75,
    seeds: dict[str, dict[int, float]] | None = None,
) -> TaskFindings:
    main = "psnr" if modality == "image" else "rougeL"
    none: dict[str, Any] = dict.fromkeys(
        ("gaps", "against_none", "certified", "null_calls", "at_loss", "equal_utility"), ()
    )
    return TaskFindings(
        cells=("cell",),
        task=f"{modality}-classification",
        dataset="shapes",
        model="lenet",
        protocol="fedsgd",
        modality=modality,
        victims=8,
        clients=CLIENTS,
        levels=(),
        results=tuple(result(one, main, share) for one in verdicts),
        utility=tuple(utility(one, (seeds or {})[one.defense]) for one in verdicts if seeds),
        evidence=Evidence(verdicts=verdicts, **none),
    )


def short(*verdicts: Verdict, **given: Any) -> str:
    (answer,) = answers(section(*verdicts, **given))
    return answer.short


@pytest.mark.parametrize(
    ("word", "said", "lead"),
    [
        ("leaks", "an eavesdropper recovers 6 of 8 images", "Without a defense the images leak."),
        (
            "no leak found",
            "these attacks recover no images even without a defense",
            "Without a defense these attacks find no leak.",
        ),
        (
            "inconclusive",
            "it remains open whether the images leak without a defense",
            "Inconclusive: whether the images leak without a defense is not settled by "
            "these attacks.",
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
    assert [one.lead for one in answer.statements] == [lead]
    assert [one.word for one in answer.statements] == [word]


@pytest.mark.parametrize(
    ("word", "said", "lead"),
    [
        (
            "leaks",
            "Gaussian noise (std=0.01) does not stop it",
            "Gaussian noise (std=0.01) does not stop the leak.",
        ),
        (
            "no leak found",
            "Gaussian noise (std=0.01) hides the images, as far as these attacks tell",
            "Gaussian noise (std=0.01) holds, as far as these attacks tell.",
        ),
        (
            "inconclusive",
            "it remains open whether Gaussian noise (std=0.01) hides the images (6 of 8 recovered)",
            "Inconclusive: whether Gaussian noise (std=0.01) holds is not settled by these "
            "attacks.",
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
    assert answer.short == f"an eavesdropper recovers 6 of 8 images; {said}"
    assert answer.statements[1].lead == lead
    claims = "holds, as far" in answer.statements[1].lead or "hides the images, as" in answer.short
    assert claims == (word == "no leak found")


def test_the_numbers_of_a_leak() -> None:
    (answer,) = answers(section(verdict("leaks")))
    assert answer.statements[0].detail == (
        "DLG recovers 6 of 8 images and reaches a mean PSNR of 20.0 dB, against 12.0 dB for a "
        "blind guess."
    )


def test_a_leak_of_the_mean_alone_recovers_none() -> None:
    assert short(verdict("leaks"), share=0.0) == (
        "an eavesdropper comes closer to the images than a blind guess, but recovers none"
    )
    assert short(verdict("leaks"), share=0.25) == (
        "an eavesdropper recovers 2 of 8 images, and on average comes closer to them than a "
        "blind guess"
    )


def test_words_leak_without_their_order() -> None:
    words = verdict("leaks", over_null=over(-1, 3))
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
    assert answer.short.endswith("they find no leak under Gaussian noise (std=0.01) either")
    assert answer.statements[1].lead.endswith("but none was shown without a defense either.")


def test_holding_says_that_no_attack_was_adapted() -> None:
    noise = verdict("no leak found", "gaussian_noise", NOISE)
    told = answers(section(noise))[0].statements[0].detail
    assert "but a stronger attack may still succeed" in told
    assert "a leak in up to 32 % of clients is not ruled out" in told  # Wilson, none of 8
    assert "No attack was adapted to this defense." in told
    reached = Reached(attacker=ADAPTIVE, leakage=estimate(20), refused=0)
    adapted = verdict("no leak found", "gaussian_noise", NOISE, adaptive=reached)
    assert "No attack was adapted" not in answers(section(adapted))[0].statements[0].detail


def test_labels_leak_beside_every_verdict() -> None:
    bare = verdict("leaks")
    cases: tuple[tuple[Word, str], ...] = (
        ("no leak found", "as far as these attacks tell, but the labels leak"),
        ("inconclusive", "hides the images (6 of 8 recovered), and the labels leak"),
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
    words: tuple[Word, ...] = ("inconclusive", "no leak found")
    for word in words:
        noise = verdict(word, "gaussian_noise", NOISE, strongest=strongest)
        (answer,) = answers(section(bare, noise))
        told = answer.statements[1].detail
        assert told.startswith(
            "Hardly tested: DLG could attack 3 of 8 victims; the other 5 count as blind guesses. "
        )
        assert "could not attack" not in told  # not said twice
        assert "(hardly tested" in answer.short
    half = verdict(
        "inconclusive",
        "gaussian_noise",
        NOISE,
        strongest=Reached(attacker=DLG, leakage=estimate(20), refused=4),
    )
    (answer,) = answers(section(bare, half))
    assert "ardly" not in answer.short + answer.statements[1].detail
    assert "DLG could not attack 4 of 8 victims" in answer.statements[1].detail


def test_an_attack_that_fails_without_a_defense_tests_none() -> None:
    noise = verdict("inconclusive", "gaussian_noise", NOISE)
    weak, strong = verdict("leaks", beating=(ADAPTIVE,)), verdict("leaks", beating=(DLG,))
    said = "DLG is not shown to beat a blind guess even without a defense."
    assert said in answers(section(weak, noise))[0].statements[1].detail
    assert said not in answers(section(strong, noise))[0].statements[1].detail


def test_a_skipped_attack_is_no_defense_that_holds() -> None:
    (answer,) = answers(section(verdict("leaks"), verdict("not attacked", "gaussian_noise", NOISE)))
    assert answer.statements[1].detail == (
        "No attack could run (8 jobs skipped): dlg: the client does not send the head (frozen). "
        "Another attack may succeed."
    )
    some = dict.fromkeys(STATUSES, 0) | {"done": 5, "skipped": 3}
    partly = verdict("no leak found", "gaussian_noise", NOISE, jobs=some)
    assert "3 jobs could not attack." in answers(section(partly))[0].statements[0].detail
    alone = verdict("not attacked", "gaussian_noise", NOISE, jobs=dict.fromkeys(STATUSES, 0))
    assert answers(section(alone))[0].statements[0].detail == "No attack was run."


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"clients": 3}, "3 clients are too few to tell."),
        ({"clients": 1}, "One client is too few to tell."),
        ({"over_null": None, "null": None}, "There is no blind guess to compare it with."),
        (
            {"jobs": dict.fromkeys(STATUSES, 0) | {"done": 7, "failed": 1}},
            "1 job failed or ran out of time.",
        ),
        (
            {},
            "Its lead over a blind guess is 3.0 [\N{MINUS SIGN}3.0, 9.0] dB: the interval "
            "includes 0.",
        ),
        (
            {"notes": ("DLG: the interval over prior only is too wide", "labels leak")},
            "includes 0. Left open by DLG (the interval over prior only is too wide). No attack",
        ),
        (
            {"over_null": over(2, 6), "notes": ("does not beat prior only", "3 jobs were skipped")},
            "is 4.0 [2.0, 6.0] dB. Left open by the attack (does not beat prior only). No attack",
        ),
    ],
)
def test_why_it_is_inconclusive(given: dict[str, Any], why: str) -> None:
    noise = verdict("inconclusive", "gaussian_noise", NOISE, **given)
    assert why in answers(section(noise))[0].statements[0].detail


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
            {0: 0.3, 1: 0.4},
            " at a cost of 0.200 in accuracy",
            "The accuracy falls: \N{MINUS SIGN}0.200 [",
        ),
        ({0: 0.7, 1: 0.8}, " while accuracy improves", "The accuracy rises: +0.200 ["),
        ({0: float("nan")}, "", "The training diverged."),
    ],
)
def test_what_a_defense_that_holds_costs(defended: dict[int, float], brief: str, said: str) -> None:
    noise = verdict("no leak found", "gaussian_noise", NOISE)
    bare = {seed: SAME[seed] for seed in defended}
    found = section(verdict("leaks"), noise, seeds={"none": bare, "gaussian_noise": defended})
    (answer,) = answers(found)
    assert f"hides the images{brief}, as far as these attacks tell" in answer.short
    assert said in answer.statements[1].detail
    assert cost(found, noise) in answer.statements[1].detail
    assert ("no measurable" in answer.short) == (brief == " at no measurable cost in accuracy")


def test_the_costs_at_the_top() -> None:
    noise, prune = (
        verdict("leaks", "gaussian_noise", NOISE),
        verdict("not attacked", "prune", PRUNE),
    )
    one = {"none": {0: 0.5}, "gaussian_noise": {0: 0.3}, "prune": {0: 0.1}}
    found = section(verdict("leaks"), noise, prune, seeds=one)
    assert costs(found) == [
        "Gaussian noise (std=0.01) lowers accuracy from 0.500 to 0.300 in one training"
    ]
    start = utility(verdict("leaks"), {0: 0.1}).model_copy(update={"round": 0})
    begun = found.model_copy(update={"utility": (start, *found.utility)})
    assert costs(begun)[0].startswith(
        "accuracy rises from 0.100 to 0.500 over 1 round without a defense; Gaussian noise"
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
        verdict("inconclusive", "gaussian_noise", NOISE),
        verdict("inconclusive", "prune", PRUNE, labels=DLG),
    )
    assert short(bare, noise, prune).endswith(
        "; it remains open whether Gaussian noise (std=0.01) and pruning (fraction=0.9) hide the "
        "images, and the labels leak under one of them"
    )
    assert names(list("abcdef")) == "a, b, c and 3 more"
    assert names(list("abcd")) == "a, b, c and d"


def test_each_setting_has_an_answer() -> None:
    here, there = verdict("leaks", setting="batch_size=1"), verdict("inconclusive", setting="b=2")
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
        "No defense was shown to hold. A leak was found under Gaussian noise (std=0.01). "
        "Pruning (fraction=0.9) was not tested."
    )


def test_a_defense_gets_no_credit_where_nothing_leaked() -> None:
    holds = verdict("no leak found", "gaussian_noise", NOISE)
    words: tuple[Word, ...] = ("no leak found", "inconclusive", "not attacked")
    for word in words:
        found = section(verdict(word), holds)
        assert overall([found]) == (
            "No defense was shown to hold. No leak was found under Gaussian noise (std=0.01), but "
            "none was shown without a defense either."
        )
        assert "hides" not in short(verdict(word), holds)


def test_labels_are_named_with_a_defense_that_holds() -> None:
    holds = verdict("no leak found", "gaussian_noise", NOISE, labels=DLG)
    assert overall([section(verdict("leaks"), holds)]) == (
        "Gaussian noise (std=0.01) held wherever tested, as far as these attacks tell. "
        "Labels leak under Gaussian noise (std=0.01) all the same."
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
    assert "Fewer than 5 clients can show that there is a leak, but not that there is none" in few
    assert certainty([section(verdict("not attacked"))], {0}).startswith("No victim was scored")


def test_recovered_counts_over_all_victims() -> None:
    found = section(verdict("leaks", victims=10))
    assert recovered(found, found.evidence.verdicts[0]) == (6, 10)
