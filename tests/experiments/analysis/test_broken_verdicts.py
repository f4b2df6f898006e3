"""Verdicts that an earlier rule got wrong, and null runs that must not be called."""

from collections.abc import Callable

import numpy as np
import pytest

from experiments.analysis.evidence import Verdict
from experiments.analysis.frames import score_frame
from experiments.analysis.keys import VictimKey
from experiments.analysis.paired import Scored
from experiments.analysis.verdicts import LABELS, judge
from fedsim.records import OTHER_CLIENT, AttackKey
from tests.experiments.analysis.broken import (
    PLACE,
    PRIOR,
    Floats,
    Parts,
    images,
    in_full_rounds,
    judged,
    scores,
    texts,
)


def even(clients: int, gain: float) -> Parts:
    """Every client gains the same."""
    mean = np.random.default_rng(2).normal(12.5, 1, clients)
    return {"psnr": (mean + gain, mean, mean - 0.01)}


@pytest.mark.some(3)
@pytest.mark.parametrize("clients", [60, 100, 200, 500])
@pytest.mark.parametrize("exact", [1, 2, 3, 5, 8])
def test_sentences_that_came_back_verbatim_leak(clients: int, exact: int) -> None:
    # Before: "no leak found" for 1 of 60, 2 of 100, 3 of 200 and 3 of 500.
    verdict = judged(in_full_rounds(texts(clients, exact)), "text")
    assert (verdict.word, verdict.grade) == ("leaks", "verbatim")
    assert (verdict.verbatim.hit, verdict.verbatim.of) == (exact, clients)
    assert 0 < verdict.verbatim.low < exact / clients
    # Beside a single guess from another update, one or two may be luck.
    alone = judged(texts(clients, exact), "text")
    assert alone.word == ("leaks" if exact > 2 else "not decided")


def test_images_at_100_db_leak_however_few() -> None:
    # Before: "inconclusive".
    verdict = judged(images(1000, 3), "image")
    assert (verdict.word, verdict.grade, verdict.verbatim.hit) == ("leaks", "verbatim", 3)
    # The metric of exactness may not have been scored.
    psnr = {"psnr": images(1000, 3)["psnr"]}
    assert judged(psnr, "image").grade == "verbatim"
    words = {"rougeL": texts(500, 3)["rougeL"]}
    assert judged(words, "text").grade == "verbatim"


CASES: dict[str, tuple[Callable[[], Verdict], str, str | None]] = {
    # name: verdict, word and grade; before, in the comment
    "nothing": (lambda: judged(texts(200, 0), "text"), "no leak found", None),  # the same
    "+0.001 dB, 8 clients": (  # leaks
        lambda: judged(even(8, 0.001), "image"),
        "not decided",
        None,
    ),
    "+0.01 +- 0.01 dB, 32 clients": (  # leaks
        lambda: judged(images(32, 0, 0.01, 1.0), "image"),
        "no leak found",
        None,
    ),
    "+0.9 dB, 200 clients": (  # leaks
        lambda: judged({"psnr": _near(200, 0.9)}, "image"),
        "no leak found",
        None,
    ),
    "+3 dB, 200 clients": (  # leaks, in the same word as 120 exact images
        lambda: judged({"psnr": _near(200, 3.0)}, "image"),
        "leaks",
        "better than guessing",
    ),
    "two clients, equal gain": (  # leaks
        lambda: judged({"rougeL": [np.array([0.3, 0.4]) + x for x in (0.1, 0, 0)]}, "text"),
        "not decided",
        None,
    ),
    "one client under eight seeds": (  # no leak found
        lambda: judged(texts(8, 0), "text", seeds=8),
        "not decided",
        None,
    ),
    "no prior only": (  # leaks, at 9 dB where the mean image has 12.5
        lambda: judge(
            PLACE,
            score_frame([], {}),
            {"psnr": [one for one in scores(*_near(100, -3.5)) if one.attacker != PRIOR]},
            "image",
        ),
        "not decided",
        None,
    ),
    "an eight-step search": (  # no leak found
        lambda: judged(texts(200, 0), "text", works=False),
        "not decided",
        None,
    ),
}


def _near(clients: int, gain: float) -> tuple[Floats, Floats, Floats]:
    rng = np.random.default_rng(4)
    mean = rng.normal(12.5, 1, clients)
    return mean + gain + rng.normal(0, 0.1, clients), mean, mean - 0.1 * rng.random(clients)


@pytest.mark.parametrize("name", CASES)
def test_verdicts_that_were_broken(name: str) -> None:
    found, word, grade = CASES[name]
    verdict = found()
    assert (verdict.word, verdict.grade) == (word, grade), verdict.reasons


def test_labels_that_leak_for_sure_are_the_verdict() -> None:
    # Before: "inconclusive", and a note.
    rng = np.random.default_rng(5)
    labels = np.ones(96), (rng.random(96) < 0.1).astype(float), (rng.random(96) < 0.1).astype(float)
    verdict = judged({**images(96, 0), LABELS: labels}, "image")
    assert (verdict.word, verdict.grade) == ("labels leak", "class only")


def test_a_certificate_is_a_proof_and_a_wrong_one_is_flagged() -> None:
    # Every blind guess is exact now and then, so that an exact example alone proves nothing.
    rng = np.random.default_rng(6)
    hits = [(rng.random(40) < 0.2).astype(float) for _ in range(3)]
    rouge = [np.where(hit > 0, 1.0, 0.2 + 0.1 * rng.random(40)) for hit in hits]
    parts: Parts = {"rougeL": rouge, "exact_match": hits}
    assert judged(parts, "text").grade != "verbatim"
    right = int(np.flatnonzero(hits[0])[0])
    proven = judged(parts, "text", sure=[right])
    assert (proven.word, proven.grade, proven.verbatim.examples) == ("leaks", "verbatim", 1)
    wrong = int(np.flatnonzero(hits[0] == 0)[0])
    false = judged(parts, "text", sure=[right, wrong])
    assert false.reasons[0].kind == "false_certificates"
    assert false.reasons[0].numbers == {"false": 1.0, "certified": 2.0}


def test_more_recovered_clients_than_chance_explains_leak() -> None:
    # 7 of 200 clients at 45 dB are lost in the mean.
    psnr = [x.copy() for x in images(200, 0)["psnr"]]
    psnr[0][:7] = 45.0
    verdict = judged({"psnr": psnr}, "image")
    assert (verdict.word, verdict.grade, verdict.recovered.hit) == ("leaks", "recognisable", 7)
    few = [x.copy() for x in images(200, 0)["psnr"]]
    few[0][:2] = 45.0
    open_ = judged({"psnr": few}, "image")
    assert open_.word == "not decided"
    assert "recovered" in [reason.kind for reason in open_.reasons]


def null(rng: np.random.Generator, kind: str, clients: int, quality: Floats | None) -> Floats:
    """Two victims a client of a guess that did not see them; in client order."""
    size = 2 * clients
    if kind == "skewed":
        return np.asarray(12 + rng.exponential(2.0, size))
    if kind == "rare":
        return np.asarray(np.where(rng.random(size) < 0.02, 26.0, 12.0) + rng.normal(0, 0.5, size))
    base = np.zeros(size) if quality is None else np.repeat(quality, 2)
    return np.asarray(12 + base + rng.normal(0, 1, size))


KINDS = ("noise", "quality", "skewed", "rare")


def called(kind: str, clients: int, attacks: int, runs: int) -> int:
    """How many of these null runs are called leaking."""
    rng, calls = np.random.default_rng(clients), 0
    victims = [VictimKey(0, i // 2, i % 2, 0, -1) for i in range(2 * clients)]
    for _ in range(runs):
        prior = null(rng, kind, clients, None)
        known = [Scored(PLACE, PRIOR, "none", dict(zip(victims, prior.tolist(), strict=True)))]
        for number in range(attacks):
            key = AttackKey(attack=f"a{number}", attack_options="{}", adaptive=False)
            quality = rng.normal(0, 2, clients) if kind == "quality" else None
            turned = None if quality is None else np.roll(quality, -1)
            for control, guess in (("none", quality), (OTHER_CLIENT, turned)):
                values = null(rng, kind, clients, guess).tolist()
                known.append(Scored(PLACE, key, control, dict(zip(victims, values, strict=True))))
        calls += judge(PLACE, score_frame([], {}), {"psnr": known}, "image").word == "leaks"
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_null_runs_are_hardly_called(kind: str) -> None:
    assert called(kind, 8, 2, 30) <= 4  # one is expected; more than 4 have a chance of .001


@pytest.mark.slow
def test_null_runs_are_called_in_2_5_percent_at_most() -> None:
    for kind in KINDS:
        for attacks in (1, 4):
            for clients in (4, 8, 32):
                calls = called(kind, clients, attacks, 200)
                print(f"{kind}, {attacks} attacks, {clients} clients: {calls} of 200 called")
                assert calls <= 11  # 2.5 % are 5; more than 11 have a chance of less than 1 %
