"""Verdicts on rows whose answer is known: what leaks, what does not, and what cannot be said."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from experiments.analysis.evidence import Verdict
from experiments.analysis.findings import TaskFindings
from experiments.analysis.frames import score_frame
from experiments.analysis.gaps import oblivious_twin
from experiments.analysis.judgement import null_calls
from experiments.analysis.keys import DefenseInSetting, VictimKey
from experiments.analysis.paired import Scored, difference, portfolio, scored
from experiments.analysis.verdicts import LABELS, WORDS, judge
from fedsim.records import OTHER_CLIENT, PRIOR_ONLY, SECOND_CLIENT, AttackKey, ScoreRow
from tests.experiments.analysis.test_summary import only_section, row

CLIENTS, ROUNDS = 6, 2
PLACE = DefenseInSetting("", "sign", "{}")
NO_ROWS = score_frame([], {})
OBLIVIOUS, ADAPTIVE = '{"adaptive":false,"steps":9}', '{"adaptive":true,"steps":9}'
TEXT = {"task": "text-classification", "metric": "rougeL", "unit": "1", "model": "bert"}


def rows(value: Callable[[int, int], float | None], **more: Any) -> Iterator[ScoreRow]:
    """A row for each client and round, with ``value(client, round)``."""
    for client in range(CLIENTS):
        for round_ in range(ROUNDS):
            known: dict[str, Any] = {"client": client, "round": round_, "row": 10 * client + round_}
            known["value"] = value(client, round_)
            yield row(**{**TEXT, "defense": "sign", "attack": "lamp", **known, **more})


def prior(**more: Any) -> Iterator[ScoreRow]:
    options = {"attack": PRIOR_ONLY, "attack_options": "{}", **more}
    return rows(lambda c, _: 0.1 + c / 100, **options)


def other(**more: Any) -> Iterator[ScoreRow]:
    return rows(lambda c, r: 0.12 + (c + r) % 3 / 100, control=OTHER_CLIENT, **more)


def section_of(*parts: Iterable[ScoreRow]) -> TaskFindings:
    return only_section([one for part in parts for one in part])


def verdict_of(*parts: Iterable[ScoreRow], defense: str = "sign") -> Verdict:
    found = section_of(*parts).evidence.verdicts
    return next(one for one in found if one.defense == defense)


def strong(client: int, round_: int) -> float:
    return 0.7 + client / 100 + round_ / 50


def test_adaptive_better_by_exactly_a_fifth() -> None:
    section = section_of(
        rows(strong, attack_options=OBLIVIOUS),
        rows(lambda c, r: strong(c, r) + 0.2, attack_options=ADAPTIVE, adaptive=True),
        *(other(attack_options=OBLIVIOUS), other(attack_options=ADAPTIVE, adaptive=True), prior()),
    )
    (verdict,), (gap,) = section.evidence.verdicts, section.evidence.gaps
    assert verdict.word == "leaks"
    assert verdict.gain is not None
    assert verdict.gain.mean == pytest.approx(0.2)
    assert (verdict.gain.low, verdict.gain.high) == pytest.approx((0.2, 0.2), abs=1e-9)
    assert (gap.difference.n, gap.difference.clusters) == (CLIENTS * ROUNDS, CLIENTS)
    assert verdict.strongest is not None
    assert verdict.strongest == verdict.adaptive
    assert verdict.strongest.attacker == verdict.gained == gap.attacker
    assert verdict.oblivious is not None
    assert not verdict.oblivious.attacker.adaptive
    assert verdict.adaptive.leakage.mean - verdict.oblivious.leakage.mean == pytest.approx(0.2)
    assert verdict.attacks == 2
    assert verdict.over_null is not None
    assert verdict.over_null.level == pytest.approx(0.975)
    assert verdict.notes == ()


def test_variants_pair_by_all_other_options() -> None:
    adaptive = AttackKey(attack="lamp", attack_options='{"adaptive":true,"steps":9}', adaptive=True)
    same = AttackKey(attack="lamp", attack_options='{"steps":9,"adaptive":false}', adaptive=False)
    other_steps = AttackKey(
        attack="lamp", attack_options='{"adaptive":false,"steps":5}', adaptive=False
    )
    tag = AttackKey(attack="tag", attack_options='{"adaptive":false,"steps":9}', adaptive=False)
    assert oblivious_twin(adaptive, [tag, other_steps, same]) == same
    assert oblivious_twin(adaptive, [tag, other_steps]) is None
    assert oblivious_twin(same, [adaptive, same]) is None


def test_a_leak_has_to_beat_every_baseline() -> None:
    # Far above another client's update, and no better than the prior.
    beaten = verdict_of(rows(strong), other(), prior(), rows(strong, attack="dlg"))
    assert beaten.word == "leaks"
    level = rows(strong, attack=PRIOR_ONLY, attack_options="{}")
    unbeaten = verdict_of(rows(strong), other(), level)
    assert unbeaten.word == "inconclusive"
    assert unbeaten.null == PRIOR_ONLY
    told = "beats another client's update, too few clients, all alike against prior only"
    assert unbeaten.notes[0] == told
    below = rows(lambda c, r: strong(c, r) + 0.1 + c / 100, attack=PRIOR_ONLY, attack_options="{}")
    told = "beats another client's update, not prior only"
    assert verdict_of(rows(strong), other(), below).notes[0] == told
    assert unbeaten.over_null is not None
    assert unbeaten.over_null.mean == 0.0


def test_labels_that_leak_are_said_beside_the_verdict() -> None:
    def near(client: int, round_: int) -> float:
        return 0.11 + (client % 2 + round_) / 1000

    def told(share: float, **more: Any) -> Iterator[ScoreRow]:
        return rows(lambda c, r: float((c + r) % 10 < 10 * share), metric=LABELS, **more)

    whole = [*rows(near), *other(), *prior()]
    options = {"attack": PRIOR_ONLY, "attack_options": "{}"}
    swapped = list(told(0.1, control=OTHER_CLIENT))
    nulls = [*told(0.2, **options), *swapped]
    found = verdict_of(whole, told(1), nulls)
    assert (found.word, found.notes[-1]) == ("no leak found", "labels leak")
    assert found.strongest is not None
    assert found.labels == found.strongest.attacker
    # Granted labels are the baseline's too, and one more hit is within chance.
    granted = verdict_of(whole, told(1), told(1, **options), swapped)
    rare = verdict_of(whole, told(0.3), nulls)
    for silent in (granted, rare):
        assert (silent.word, silent.labels) == ("no leak found", None)
        assert "labels leak" not in silent.notes


def test_no_leak_needs_a_narrow_interval_and_whole_jobs() -> None:
    def near(spread: float) -> Callable[[int, int], float]:
        return lambda c, r: 0.11 + spread * (-1) ** c + r / 1000

    held = verdict_of(rows(near(0.001)), other(), prior())
    assert held.word == "no leak found"
    assert held.notes[0] == "a leak in up to 39 % of clients is not ruled out"
    wide = verdict_of(rows(near(0.09)), other(), prior())
    assert (wide.word, wide.notes[0]) == (
        "inconclusive",
        "the interval over prior only and another client's update is too wide",
    )
    failed = [
        replace(one, status="failed") if one.client == 0 else one for one in rows(near(0.001))
    ]
    broken = verdict_of(failed, other(), prior())
    assert (broken.word, broken.notes[0]) == ("inconclusive", "jobs failed or ran out of time")
    assert broken.jobs == {"done": 10, "skipped": 0, "failed": 2, "timeout": 0, "interrupted": 0}
    lost = [
        replace(one, value=None, status="interrupted") if one.client == 0 else one
        for one in rows(near(0.001))
    ]
    left = verdict_of(lost, other(), prior())
    said = "2 jobs were interrupted: fedsim attack runs them again"
    assert (left.word, left.notes[-1]) == ("inconclusive", said)


def test_what_was_not_attacked_or_has_no_baseline() -> None:
    skipped = [replace(one, status="skipped") for one in rows(lambda *_: None)]
    assert verdict_of(skipped, prior()).word == "not attacked"
    assert verdict_of(skipped, prior()).notes == ("12 skipped",)
    assert verdict_of(prior()).notes == ("no attack was run",)
    unmeasured = verdict_of(rows(strong, metric="rouge1"))
    assert (unmeasured.word, unmeasured.notes) == (
        "inconclusive",
        ("the metric of the verdicts was not measured",),
    )
    bare = verdict_of(rows(strong))
    assert (bare.word, bare.notes) == (
        "inconclusive",
        ("no null baseline was run", "no adaptive attack was run"),
    )


def test_words_leak_where_both_precision_and_recall_do() -> None:
    def words(precision: float, recall: float, **more: Any) -> Iterator[ScoreRow]:
        spread = {"metric": WORDS[0], **more}, {"metric": WORDS[1], **more}
        scatter = 0.0 if more else 0.001  # of the attack alone
        yield from rows(lambda c, r: precision + c / 100 + r / 100 + scatter * (c % 2), **spread[0])
        yield from rows(lambda c, r: recall + c / 100 + r / 100 + scatter * (c % 2), **spread[1])

    floor = words(0.3, 0.1, attack=PRIOR_ONLY, attack_options="{}")
    nulls = [*prior(), *other(), *floor, *words(0.1, 0.1, control=OTHER_CLIENT)]
    low = list(rows(lambda c, r: 0.11 + r / 1000))
    verdict = verdict_of(low, words(0.9, 0.9), nulls)
    assert verdict.word == "leaks"
    assert verdict.notes[0] == "words of the batch, not sentences"
    # A list of all words has more recall than the prior, which is not nothing.
    assert verdict_of(low, words(0.12, 0.9), nulls).word == "inconclusive"
    assert verdict_of(low, words(0.12, 0.12), nulls).word == "no leak found"


def test_clients_that_all_score_alike_are_no_narrow_interval() -> None:
    # Exact attacks hit or miss: six misses do not show that a seventh would be one.
    missed = [rows(lambda *_: 0.0), rows(lambda *_: 0.0, control=OTHER_CLIENT)]
    empty = rows(lambda *_: 0.0, attack=PRIOR_ONLY, attack_options="{}")
    found = verdict_of(*missed, empty)
    assert (found.word, found.notes[0]) == (
        "inconclusive",
        "too few clients, all alike against prior only and another client's update",
    )
    near = [rows(lambda *_: 0.1 + 0.2), rows(lambda *_: 0.3, control=OTHER_CLIENT)]
    level = rows(lambda c, _: 0.3 + 1e-17 * c, attack=PRIOR_ONLY, attack_options="{}")
    assert verdict_of(*near, level).word == "inconclusive"
    # Seventy-three are enough for one in twenty.
    zero = dict.fromkeys((VictimKey(0, client, 0, 0, -1) for client in range(73)), 0.0)
    many = [
        Scored(PLACE, attacker(name), control, zero)
        for name, control in (("a", "none"), ("a", OTHER_CLIENT), (PRIOR_ONLY, "none"))
    ]
    assert judge(PLACE, NO_ROWS, {"rougeL": many}, "text").word == "no leak found"
    fewer = [Scored(PLACE, o.attacker, o.control, dict(list(zero.items())[:72])) for o in many]
    assert judge(PLACE, NO_ROWS, {"rougeL": fewer}, "text").word == "inconclusive"


def test_an_attack_that_refuses_victims_falls_back_to_the_prior() -> None:
    # Exact where it dares, on one client of six; a search gets .4 of everyone.
    daring = [
        one if one.client == 0 else replace(one, value=None, status="skipped")
        for one in rows(lambda *_: 1.0)
    ]
    search = [*rows(lambda c, _: 0.4 + c / 100, attack="tag"), *other(attack="tag")]
    verdict = verdict_of(daring, search, other(), prior())
    assert verdict.strongest is not None
    assert verdict.strongest.attacker.attack == "tag"
    assert (verdict.victims, verdict.strongest.leakage.n) == (12, 12)
    alone = verdict_of(daring, other(), prior())
    assert alone.strongest is not None
    assert (alone.strongest.refused, verdict.strongest.refused) == (10, 0)
    assert alone.strongest.leakage.mean == pytest.approx((1 + 0.11 + 0.12 + 0.13 + 0.14 + 0.15) / 6)
    assert alone.nulls[PRIOR_ONLY] == pytest.approx(0.125)


def test_an_adaptive_attack_that_never_works_proves_nothing() -> None:
    def cell(defense: str, value: float) -> list[ScoreRow]:
        mine = {"attack_options": ADAPTIVE, "adaptive": True, "defense": defense}
        near = rows(lambda c, r: value + c % 2 / 1000 + r / 1000, **mine)
        return [*near, *other(**mine), *prior(defense=defense)]

    note = "no adaptive attack works even without a defense"
    for undefended, told in ((0.11, True), (0.9, False)):
        found = verdict_of(cell("sign", 0.11), cell("none", undefended))
        assert found.word == "no leak found"
        assert (note in found.notes) == told
    assert note not in verdict_of(cell("sign", 0.9), cell("none", 0.11)).notes
    assert note not in verdict_of(cell("sign", 0.11)).notes


def test_a_lone_client_is_said_to_be_alone() -> None:
    alone = [[one for one in part if one.client == 0] for part in (rows(strong), other(), prior())]
    assert "one client: says nothing about others" in verdict_of(*alone).notes
    level = [replace(one, value=0.1) for one in alone[0]]
    found = verdict_of(level, *alone[1:])
    assert (found.word, found.notes[0]) == ("inconclusive", "too few clients")


def test_other_rows_are_other_victims() -> None:
    undefended = rows(lambda c, r: strong(c, r) + 0.1, cell="c1", seed=1, defense="none")
    section = section_of(rows(strong, cell="c1", seed=1), undefended, prior(cell="c1", seed=1))
    (gap,) = section.evidence.against_none
    assert gap.difference.mean == pytest.approx(-0.1)
    assert gap.difference.n == CLIENTS * ROUNDS
    other_rows = rows(lambda *_: 0.8, cell="c1", seed=1, defense="none")
    moved = [replace(one, row=500 + (one.row or 0)) for one in other_rows]
    assert section_of(rows(strong, cell="c1", seed=1), moved).evidence.against_none == ()


def attacker(name: str) -> AttackKey:
    return AttackKey(attack=name, attack_options="{}", adaptive=False)


def simulated(rng: np.random.Generator, clients: int, name: str, control: str) -> Scored:
    effect = rng.normal(size=clients)
    values: dict[VictimKey, float] = {
        VictimKey(0, client, round_, 0, -1): float(effect[client] + rng.normal())
        for client in range(clients)
        for round_ in range(3)
    }
    return Scored(PLACE, attacker(name), control, values)


def test_a_null_attack_leaks_at_the_nominal_rate() -> None:
    # Three attacks share 5 % two-sided: 2.5 % of the sections may be called leaking.
    rng, calls = np.random.default_rng(7), 0
    for _ in range(400):
        found = [
            simulated(rng, 5, name, control)
            for name in ("a", "b", "c")
            for control in ("none", OTHER_CLIENT)
        ]
        calls += judge(PLACE, NO_ROWS, {"rougeL": found}, "text").word == "leaks"
    assert 3 <= calls <= 19


def test_the_portfolio_is_chosen_on_other_clients() -> None:
    def one(name: str, values: list[float]) -> Scored:
        found = {VictimKey(0, client, 0, 0, -1): value for client, value in enumerate(values)}
        return Scored(PLACE, attacker(name), "none", found)

    # Each attack is best on one client; chosen elsewhere, neither is seen at its best.
    lucky, unlucky = one("a", [1.0, 0.0, 0.5]), one("b", [0.0, 1.0, 0.4])
    assert portfolio([lucky, unlucky]) == {
        VictimKey(0, 0, 0, 0, -1): 0.0,
        VictimKey(0, 1, 0, 0, -1): 0.0,
        VictimKey(0, 2, 0, 0, -1): 0.5,
    }
    assert portfolio([one("a", [1.0])]) == {}


def test_the_portfolio_goes_to_the_next_best_where_the_best_refuses() -> None:
    victims: list[VictimKey] = [VictimKey(0, client, 0, 0, -1) for client in range(3)]
    # Exact but where it refuses; the prior has .1, and the search .4.
    exact = Scored(
        *(PLACE, attacker("a"), "none"),
        dict(zip(victims, (0.1, 1.0, 1.0), strict=True)),
        frozenset(victims[:1]),
    )
    search = Scored(PLACE, attacker("b"), "none", dict.fromkeys(victims, 0.4))
    assert list(portfolio([exact, search]).values()) == [0.4, 1.0, 1.0]
    # Where all refuse, the prior is left.
    both = Scored(PLACE, attacker("b"), "none", dict.fromkeys(victims, 0.1), frozenset(victims))
    assert list(portfolio([exact, both]).values()) == [0.1, 1.0, 1.0]


def test_a_portfolio_of_null_attacks_gains_nothing() -> None:
    rng = np.random.default_rng(3)
    chosen, best = [], []
    for _ in range(300):
        attacks = [simulated(rng, 6, name, "none") for name in "abcde"]
        chosen.append(np.mean(list(portfolio(attacks).values())))
        best.append(max(attack.mean for attack in attacks))
    assert np.mean(best) > 0.4
    assert abs(np.mean(chosen)) < 3 * np.std(chosen) / math.sqrt(300) + 0.05


def test_null_calls_are_counted_by_baseline() -> None:
    rng = np.random.default_rng(1)
    wrong = [simulated(rng, 6, f"a{i}", OTHER_CLIENT) for i in range(80)]
    second = [simulated(rng, 6, f"a{i}", SECOND_CLIENT) for i in range(80)]
    (by_chance,) = null_calls([*wrong, *second])
    assert (by_chance.baseline, by_chance.tested) == (SECOND_CLIENT, 80)
    assert by_chance.low < 0.025 < by_chance.high
    weak = simulated(rng, 6, PRIOR_ONLY, "none")
    low = Scored(PLACE, weak.attacker, "none", {v: x - 9 for v, x in weak.values.items()})
    _, beaten = null_calls([*wrong, *second, low])
    assert (beaten.baseline, beaten.called, beaten.low > 0.9) == (PRIOR_ONLY, 80, True)
    assert list(null_calls(wrong)) == []


def test_the_second_wrong_update_is_for_the_null_test_alone() -> None:
    base = [*rows(strong), *other(), *prior()]
    with_second = section_of(base, rows(lambda c, _: 0.5 + c, control=SECOND_CLIENT))
    plain = section_of(base)
    assert with_second.results == plain.results
    assert with_second.evidence.verdicts == plain.evidence.verdicts
    assert [one.baseline for one in with_second.evidence.null_calls] == [SECOND_CLIENT, PRIOR_ONLY]


def test_pairs_are_of_the_same_victims_alone() -> None:
    def by_row(values: dict[int, float]) -> dict[VictimKey, float]:
        return {VictimKey(0, i, 1, 0, row): x for i, (row, x) in enumerate(values.items())}

    one, two = by_row({5: 1.0, 6: 2.0, 7: 3.0}), by_row({5: 0.5, 99: 0.0, 7: 1.0})
    found = difference(one, two)
    assert found is not None
    assert (found.n, found.mean) == (2, 1.25)
    assert difference(one, {}) is None


def test_probes_and_skipped_jobs_are_no_victims() -> None:
    kept = list(rows(strong))
    extra = [
        *rows(lambda *_: 1.0, probe="member"),
        *(replace(one, value=None) for one in rows(strong, seed=9)),
    ]
    (found,) = scored(score_frame(kept + extra, {"c0": ""}), "rougeL")
    assert len(found.values) == CLIENTS * ROUNDS


def test_certificates_are_counted_with_what_is_exact() -> None:
    def exact(value: float, certified: bool | None, client: int, **more: Any) -> ScoreRow:
        base = {**TEXT, "metric": "exact_match", "client": client, "certified": certified}
        return row(**{**base, "value": value, **more})

    section = section_of(
        [exact(1.0, True, 0), exact(0.0, True, 1), exact(1.0, False, 2), exact(1.0, True, 3)],
        [exact(0.0, True, 0, control=OTHER_CLIENT), exact(0.0, True, 5, probe="member")],
        [exact(1.0, None, 0, attack="tag")],
    )
    (found,) = section.evidence.certified
    assert (found.attacker.attack, found.certified, found.exact) == ("dlg", 3, 2)
    assert found.low < 2 / 3 < found.high
