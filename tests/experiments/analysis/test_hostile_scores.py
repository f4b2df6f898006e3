"""Scores that are made up to break a verdict."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.analysis.frames import score_frame
from experiments.analysis.keys import VictimKey
from experiments.analysis.paired import Scored
from experiments.analysis.verdicts import judge
from fedsim.errors import ConfigError
from fedsim.records import OTHER_CLIENT
from tests.experiments.analysis.broken import (
    ATTACK,
    NO_ROWS,
    PLACE,
    PRIOR,
    Floats,
    images,
    in_full_rounds,
    judged,
    scores,
    texts,
)


def noisy(clients: int, mean: float, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(mean, 1.0, clients)


@pytest.mark.parametrize("clients", [2, 5, 200])
def test_equal_scores_are_no_leak(clients: int) -> None:
    # All ties, with and without scatter between clients.
    for blind in (np.full(clients, 12.0), noisy(clients, 12.0)):
        assert judged({"psnr": (blind, blind, blind)}, "image").word == "not decided"
    words = np.full(clients, 0.2)
    found = judged({"rougeL": (words, words, words)}, "text").word
    assert found == ("no leak found" if clients == 200 else "not decided")


@pytest.mark.parametrize(("own", "word"), [(0.1, "not decided"), (0.17, "no leak found")])
def test_an_attack_below_the_blind_guess_is_no_evidence(own: float, word: str) -> None:
    # It is as good on another client's update, and surely no better than the prior.
    attack, blind = np.full(200, own), np.full(200, 0.2)
    verdict = judged({"rougeL": (attack, blind, attack)}, "text")
    assert verdict.word == word
    assert ("below_blind" in {reason.kind for reason in verdict.reasons}) == (own < 0.15)


def test_a_lead_of_0_everywhere_names_no_number_of_clients() -> None:
    words = np.random.default_rng(0).uniform(0, 0.4, 10)
    verdict = judged({"rougeL": (words, np.roll(words, 1), words)}, "text")
    assert verdict.word == "not decided"
    kinds = {reason.kind for reason in verdict.reasons}
    assert "alike" in kinds
    assert not any("needed" in reason.numbers for reason in verdict.reasons)


def test_a_lead_of_just_the_smallest_effect_is_no_leak() -> None:
    base = noisy(200, 12.0)
    lead = 1.0 + 0.05 * (-1.0) ** np.arange(200)
    assert judged({"psnr": (base + lead, base, base)}, "image").word == "not decided"


@pytest.mark.parametrize(("prior", "other"), [(-100.0, 0.0), (0.0, -100.0), (0.0, 0.0)])
def test_a_bad_control_alone_makes_no_leak(prior: float, other: float) -> None:
    guess, base = noisy(100, 12.0, 1), noisy(100, 12.0, 2)
    verdict = judged({"psnr": (guess, base + prior, base + other)}, "image")
    assert verdict.word != "leaks"


def test_a_missing_control_makes_no_leak() -> None:
    own, prior, other = scores(noisy(100, 20.0), noisy(100, 12.0, 1), noisy(100, 12.0, 2))
    for known, kind in (([own], "no_null"), ([own, prior], "no_null"), ([own, other], "no_null")):
        verdict = judge(PLACE, score_frame([], {}), {"psnr": known}, "image", working={ATTACK: ""})
        assert verdict.word == "not decided"
        assert verdict.reasons[0].kind == kind


def test_one_client_under_many_seeds_is_one() -> None:
    whole = texts(8, 8)
    verdict = judged(whole, "text", seeds=8)
    assert (verdict.word, verdict.clients) == ("leaks", 1)
    assert (verdict.verbatim.hit, verdict.verbatim.of, verdict.verbatim.examples) == (1, 1, 8)
    many = {"psnr": (noisy(40, 20.0), noisy(40, 12.0, 1), noisy(40, 12.0, 2))}
    assert judged(many, "image", seeds=10).word == "not decided"  # four clients


def test_one_client_with_most_examples_decides_nothing() -> None:
    # Its guesses lead by 5 dB, those of nine others by nothing: the mean is 4.8 dB.
    victims = [VictimKey(0, 0, i, 0, i) for i in range(200)]
    victims += [VictimKey(0, client, 0, 0, client) for client in range(1, 10)]
    rng = np.random.default_rng(0)

    def known(lead: float) -> dict[VictimKey, float]:
        return {
            victim: 12 + lead * (victim.owner == 0) + float(rng.normal(0, 0.1))
            for victim in victims
        }

    parts = [
        Scored(PLACE, ATTACK, "none", known(5.0)),
        Scored(PLACE, PRIOR, "none", known(0.0)),
        Scored(PLACE, ATTACK, OTHER_CLIENT, known(0.0)),
    ]
    verdict = judge(PLACE, score_frame([], {}), {"psnr": parts}, "image", working={ATTACK: ""})
    assert verdict.word == "not decided"


@pytest.mark.parametrize("clients", [8, 1000])
def test_one_sentence_of_any_number_leaks(clients: int) -> None:
    verdict = judged(in_full_rounds(texts(clients, 1)), "text")
    assert (verdict.word, verdict.grade, verdict.verbatim.hit) == ("leaks", "verbatim", 1)
    assert verdict.verbatim.of == clients
    near = in_full_rounds(texts(clients, 1))
    near["rougeL"][1][0] = 0.7  # a blind guess comes near this sentence
    assert judged(near, "text").grade != "verbatim"
    assert judged(near, "text", sure=[0]).grade == "verbatim"  # and a certificate is a proof
    elsewhere = in_full_rounds(texts(clients, 1))
    elsewhere["rougeL"][1][-1] = 1.0
    assert judged(elsewhere, "text").grade == "verbatim"


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_scores_that_are_no_numbers_are_refused_by_name(wrong: float) -> None:
    parts = images(20, 0)
    psnr = [one.copy() for one in parts["psnr"]]
    psnr[0][3] = wrong
    with pytest.raises(ConfigError, match="Use a metric with finite values"):
        judged({"psnr": psnr}, "image")


@pytest.mark.parametrize(("clients", "exact"), [(64, 1), (300, 2), (600, 5)])
def test_exact_sentences_beside_lucky_guesses_from_other_updates_keep_the_verdict_open(
    clients: int, exact: int
) -> None:
    parts = texts(clients, exact)
    for lucky in (parts["rougeL"][2], parts["exact_match"][2]):
        lucky[-exact:] = 1.0
    verdict = judged(parts, "text")
    assert verdict.word == "not decided"
    assert "exact" in {reason.kind for reason in verdict.reasons}
    assert (verdict.verbatim.hit, verdict.exact.hit) == (0, exact)


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "p"), [(8, 0.02), (16, 0.05), (32, 0.01), (64, 0.01)])
def test_blind_lists_of_phrases_are_called_as_often_as_the_page_says(
    clients: int, p: float
) -> None:
    """Each guess is exact by chance, for its client as for any other."""
    called = alone = 0
    for seed in range(150):
        parts = texts(clients, 0, seed)
        same = np.random.default_rng(1000 + seed).uniform(size=(clients, clients)) < p
        hits, by_next = same.diagonal(), np.roll(same, 1, axis=0).diagonal()
        for values in parts.values():
            values[0][hits] = values[2][by_next] = 1.0
        alone += judged(parts, "text").grade == "verbatim"
        others = (same & ~np.eye(clients, dtype=bool)).any(axis=0).astype(float)
        known = {**parts, "exact_match": (*parts["exact_match"], others)}
        called += judged(known, "text").grade == "verbatim"
    print(f"{clients} clients, p = {p}: {called} of 150 called verbatim, {alone} by one other")
    assert called <= 15


def minority(clients: int, read: int, lead: float) -> tuple[Floats, Floats, Floats]:
    """The first clients are read; nulls are as the blind guess."""
    rng = np.random.default_rng(5)
    blind = rng.normal(12.5, 1, clients)
    own, other = (blind + rng.normal(0, 0.1, clients) for _ in range(2))
    own[:read] += lead
    return own, blind, other


@pytest.mark.parametrize(
    ("clients", "read", "twins", "word"),
    [
        (400, 20, 0, "leaks"),
        (400, 20, 4, "not decided"),
        (400, 80, 20, "leaks"),
        (100, 6, 2, "not decided"),
        (400, 0, 4, "no leak found"),
        (400, 4, 8, "no leak found"),
    ],
)
def test_twins_of_some_rows_hide_no_minority(
    clients: int, read: int, twins: int, word: str
) -> None:
    # A donor with the same picture: the null guess is as good as the best own one.
    own, blind, other = minority(clients, read, 8.0)
    other[clients - twins :] += 11.0
    assert judged({"psnr": (own, blind, other)}, "image").word == word


@pytest.mark.parametrize(
    ("read", "value", "word"),
    [
        (20, 20.5, "not decided"),
        (20, 32.0, "not decided"),
        (303, 32.0, "leaks"),  # three of them beside a null guess
        (0, 12.5, "no leak found"),
    ],
)
def test_victims_without_a_null_guess_hide_no_minority(read: int, value: float, word: str) -> None:
    own, blind, other = scores(*minority(400, read, value - 12.5))
    compared = {victim: x for victim, x in other.values.items() if victim.client >= 300}
    known = [own, blind, replace(other, values=compared)]
    verdict = judge(PLACE, NO_ROWS, {"psnr": known}, "image", working={ATTACK: ""})
    assert verdict.word == word


def test_one_guess_that_went_astray_hides_no_minority() -> None:
    own, blind, other = minority(400, 80, 8.0)
    own[-1] -= 15.0
    assert judged({"psnr": (own, blind, other)}, "image").word == "leaks"


@pytest.mark.slow
@pytest.mark.parametrize("twins", [0, 10])
def test_leads_of_chance_alone_are_no_minority(twins: int) -> None:
    rng, called = np.random.default_rng(8), 0
    for _ in range(60):
        blind = rng.normal(12.5, 1, 200)
        own, other = (blind + rng.standard_t(3, 200) for _ in range(2))
        other[:twins] += 8
        own[:twins] += 8 * rng.integers(0, 2, twins)
        called += judged({"psnr": (own, blind, other)}, "image").grade is not None
    assert called <= 4  # 2.5 % of 60, and three standard deviations
