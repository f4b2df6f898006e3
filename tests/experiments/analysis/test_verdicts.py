"""Verdicts on rows whose answer is known: what leaks, what does not, and what cannot be said."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from experiments.analysis.evidence import Verdict
from experiments.analysis.findings import TaskFindings
from experiments.analysis.frames import score_frame
from experiments.analysis.judgement import oblivious_twin
from experiments.analysis.keys import DefenseInSetting, VictimKey
from experiments.analysis.paired import Scored, difference, portfolio, scored
from experiments.analysis.summary import summarise
from experiments.analysis.verdicts import LABELS, WORDS, judge
from experiments.plan.config import VerdictRule
from fedsim.config.cell import CandidatesConfig
from fedsim.records import OTHER_CLIENT, PRIOR_ONLY, SECOND_CLIENT, AttackKey, ScoreRow
from tests.experiments.analysis.cases import cell, only_section, row

CLIENTS, ROUNDS = 6, 2
PLACE = DefenseInSetting("", "sign", "{}")
NONE = DefenseInSetting("", "none", "[]")
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
    return 0.7 + client * client % 5 / 100 + round_ / 50


def test_adaptive_better_by_exactly_a_fifth() -> None:
    section = section_of(
        rows(strong, attack_options=OBLIVIOUS),
        rows(lambda c, r: strong(c, r) + 0.2, attack_options=ADAPTIVE, adaptive=True),
        *(other(attack_options=OBLIVIOUS), other(attack_options=ADAPTIVE, adaptive=True), prior()),
    )
    (verdict,), (gap,) = section.evidence.verdicts, section.evidence.gaps
    assert verdict.word == "leaks"
    assert gap.difference.mean == pytest.approx(0.2)
    assert gap.difference.low is not None  # six clients, all alike: others may differ
    assert gap.difference.low < 0
    assert (gap.difference.n, gap.difference.clusters) == (CLIENTS * ROUNDS, CLIENTS)
    assert verdict.strongest is not None
    assert verdict.strongest.attacker == gap.attacker
    assert verdict.attacks == 2
    assert verdict.over_null is not None
    assert verdict.over_null.level == pytest.approx(0.95)  # both are one comparison
    assert verdict.reasons == ()


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


def kinds(verdict: Verdict) -> list[str]:
    return [reason.kind for reason in verdict.reasons]


def test_a_leak_has_to_beat_every_baseline() -> None:
    # Far above another client's update, and no better than the prior.
    beaten = verdict_of(rows(strong), other(), prior(), rows(strong, attack="dlg"))
    assert beaten.word == "leaks"

    def level(client: int, round_: int) -> float:
        return strong(client, round_) + 0.001 * client

    prior_too = rows(level, attack=PRIOR_ONLY, attack_options="{}")
    unbeaten = verdict_of(rows(strong), other(), prior_too)
    assert (unbeaten.word, unbeaten.null) == ("not decided", PRIOR_ONLY)
    assert unbeaten.reasons[0].kind == "beats_one"
    assert unbeaten.reasons[0].baseline == PRIOR_ONLY


def near(spread: float) -> Callable[[int, int], float]:
    return lambda c, r: 0.11 + spread * (-1) ** c + r / 1000 + c / 1e4


def works(defense: str = "none", **more: Any) -> list[ScoreRow]:
    """The positive control: the attack on undefended victims of the same setting."""
    given = {"defense": defense, **more}
    return [*rows(strong, **given), *other(**given), *prior(defense=defense)]


ADAPTED: dict[str, Any] = {"attack_options": ADAPTIVE, "adaptive": True}


def tried(spread: float = 0.001) -> list[ScoreRow]:
    """An adaptive attack on the defense, at the level of its baselines."""
    return [*rows(near(spread), **ADAPTED), *other(**ADAPTED), *prior()]


def without(scores: Sequence[ScoreRow], status: str) -> list[ScoreRow]:
    """The rows, those of client 0 by the attack with another status."""
    lost = [row.client == 0 and (row.attack, row.control) == ("lamp", "none") for row in scores]
    return [replace(r, status=status) if no else r for r, no in zip(scores, lost, strict=True)]


@pytest.mark.some(3)
@pytest.mark.parametrize("status", ["failed", "timeout", "exhausted"])
def test_a_null_guess_counts_if_it_ended_as_the_victims_own_did(status: str) -> None:
    high = [*rows(lambda c, r: 0.5 + near(0.001)(c, r), **ADAPTED), *other(**ADAPTED)]
    for cut in (OTHER_CLIENT,), ("none",), ("none", OTHER_CLIENT):
        some = [replace(r, status=status if r.control in cut else "done") for r in high]
        counts = cut == ("none",) if status == "failed" else len(cut) == 2
        assert verdict_of(some, prior()).word == ("leaks" if counts else "not decided")
    blind = verdict_of(high, (replace(row, status=status) for row in prior()))
    assert (blind.word, kinds(blind)[0]) == ("not decided", "no_null")


def test_a_leak_in_one_round_is_not_hidden_by_the_others() -> None:
    """The mean over rounds is below the smallest effect."""
    level = near(0.001)
    first = rows(lambda c, r: level(c, r) + (0.08 if r == 1 else 0.0), **ADAPTED)
    blind = rows(lambda c, r: level(c + 1, r), attack=PRIOR_ONLY, attack_options="{}")
    swapped = rows(lambda c, r: level(c + 3, r), control=OTHER_CLIENT, **ADAPTED)
    verdict = verdict_of(first, blind, swapped, works(**ADAPTED))
    assert (verdict.word, kinds(verdict)) == ("not decided", ["round"])
    assert verdict.reasons[0].numbers["part"] == 1


def test_labels_of_few_clients_keep_a_verdict_open() -> None:
    """All labels right and none by chance; clients who are all alike have a wide interval."""

    def labels(clients: int) -> list[ScoreRow]:
        parts = (
            rows(lambda c, r: 1.0, metric=LABELS, **ADAPTED),
            rows(lambda c, r: 0.0, metric=LABELS, control=OTHER_CLIENT, **ADAPTED),
            rows(lambda c, r: 0.0, metric=LABELS, attack=PRIOR_ONLY, attack_options="{}"),
        )
        return [one for part in parts for one in part if one.client < clients]

    verdict = verdict_of(tried(), works(**ADAPTED), labels(5))
    assert (verdict.word, kinds(verdict)) == ("not decided", ["wide"])
    assert verdict_of(tried(), works(**ADAPTED), labels(6)).word == "labels leak"


@pytest.mark.slow
def test_labels_that_leak_are_a_word_of_their_own() -> None:
    def told(share: float, **more: Any) -> Iterator[ScoreRow]:
        return rows(lambda c, r: float((c + r) % 10 < 10 * share), metric=LABELS, **more)

    options = {"attack": PRIOR_ONLY, "attack_options": "{}"}
    swapped = list(
        rows(lambda c, r: (c % 4 + r) / 10, metric=LABELS, control=OTHER_CLIENT, **ADAPTED)
    )
    nulls = [*rows(lambda c, r: (c % 3 + r) / 10, metric=LABELS, **options), *swapped]
    whole = [*tried(), *works(**ADAPTED)]
    verdict = verdict_of(whole, told(1, **ADAPTED), nulls)
    assert (verdict.word, verdict.rows, verdict.grade) == (
        "labels leak",
        "no leak found",
        "class only",
    )
    assert verdict.strongest is not None
    assert verdict.labels == verdict.strongest.attacker
    # Granted labels are the baseline's too, and one more hit is within chance.
    granted = verdict_of(whole, told(1, **ADAPTED), told(1, **options), swapped)
    rare = verdict_of(whole, told(0.3, **ADAPTED), nulls)
    for silent in (granted, rare):
        assert (silent.word, silent.labels, silent.grade) == ("no leak found", None, None)


@pytest.mark.slow
def test_no_leak_needs_a_narrow_interval_and_whole_jobs() -> None:
    held = verdict_of(tried(), works(**ADAPTED))
    assert (held.word, held.smallest) == ("no leak found", 0.05)
    assert kinds(held) == ["power_unmeasured"]  # none has an objective
    assert held.most is not None
    assert held.most < 0.05
    assert (held.recovered.hit, held.recovered.of) == (0, CLIENTS)
    assert held.recovered.high == pytest.approx(1 - 0.05 ** (1 / 6))  # of six clients, none seen
    wide = verdict_of(tried(0.09), works(**ADAPTED))
    assert (wide.word, kinds(wide)) == ("not decided", ["wide"])
    (reason,) = wide.reasons
    assert reason.numbers["clients"] == CLIENTS
    assert 10 < reason.numbers["needed"] < 500
    failed = without(tried(), "failed")
    broken = verdict_of(failed, works(**ADAPTED))
    assert (broken.word, kinds(broken)) == ("not decided", ["failed"])
    assert broken.jobs == {
        "done": 10,
        "skipped": 0,
        "failed": 2,
        "timeout": 0,
        "exhausted": 0,
        "interrupted": 0,
    }
    for status, kind in (("timeout", "unfinished"), ("exhausted", "exhausted")):
        short = verdict_of(without(tried(), status), works(**ADAPTED))
        assert (short.word, kinds(short)) == ("not decided", [kind])
    lost = [
        replace(one, value=None, status="interrupted")
        if (one.client, one.control, one.attack) == (0, "none", "lamp")
        else one
        for one in tried()
    ]
    verdict = verdict_of(lost, works(**ADAPTED))
    assert (verdict.word, "interrupted" in kinds(verdict)) == ("not decided", True)


def test_no_leak_needs_a_working_attack_that_is_adapted() -> None:
    assert verdict_of(tried(), works(**ADAPTED)).word == "no leak found"
    alone = verdict_of(tried())
    assert (alone.word, kinds(alone)) == ("not decided", ["no_control"])
    weak = verdict_of(tried(), [replace(one, defense="none") for one in tried()])
    assert (weak.word, kinds(weak)) == ("not decided", ["no_control"])
    # That its oblivious twin works shows nothing of it; an oblivious attack alone proves nothing.
    twin: dict[str, Any] = {"attack_options": OBLIVIOUS}
    other_works = verdict_of(tried(), works(**twin))
    assert (other_works.word, kinds(other_works)) == ("not decided", ["no_control"])
    oblivious = [*rows(near(0.001), **twin), *other(**twin), *prior()]
    blunt = verdict_of(oblivious, works(**twin))
    assert (blunt.word, kinds(blunt)) == ("not decided", ["no_adaptive"])
    # An attack that refuses most victims has tried nothing.
    refused = [
        replace(one, value=None, status="skipped")
        if (one.attack, one.control) == ("lamp", "none") and one.client > 1
        else one
        for one in tried()
    ]
    assert "hardly_tested" in kinds(verdict_of(refused, works(**ADAPTED)))


def test_equal_evidence_gives_equal_words() -> None:
    # The same numbers without a defense and under one, from a search that works nowhere.
    weak = [*rows(near(0.001)), *other(), *prior()]
    both = [*weak, *(replace(one, defense="none") for one in weak)]
    words = {defense: verdict_of(both, defense=defense).word for defense in ("none", "sign")}
    assert words == {"none": "not decided", "sign": "not decided"}


@pytest.mark.slow
def test_what_was_not_attacked_or_has_no_baseline() -> None:
    skipped = [replace(row, status="skipped") for row in rows(lambda *_: None)]
    assert verdict_of(skipped, prior()).word == "not attacked"
    assert verdict_of(skipped, prior()).reasons[0].numbers == {"skipped": 12.0}
    assert verdict_of(prior()).reasons[0].numbers == {}
    unmeasured = verdict_of(rows(strong, metric="rouge1"))
    assert (unmeasured.word, kinds(unmeasured)) == ("not decided", ["no_metric"])
    bare = verdict_of(rows(strong))
    assert (bare.word, bare.reasons[0].kind) == ("not decided", "no_null")


@pytest.mark.slow
def test_words_leak_where_both_precision_and_recall_do() -> None:
    def words(precision: float, recall: float, **more: Any) -> Iterator[ScoreRow]:
        spread = {"metric": WORDS[0], **more}, {"metric": WORDS[1], **more}
        scatter = 0.001 if more == ADAPTED else 0.0
        yield from rows(lambda c, r: precision + c / 100 + r / 100 + scatter * c * c, **spread[0])
        yield from rows(lambda c, r: recall + c / 100 + r / 100 + scatter * c * c, **spread[1])

    floor = words(0.3, 0.1, attack=PRIOR_ONLY, attack_options="{}")
    swapped = words(0.1, 0.1, control=OTHER_CLIENT, **ADAPTED)
    low = [*tried(), *works(**ADAPTED), *floor, *swapped]
    verdict = verdict_of(low, words(0.6, 0.6, **ADAPTED))
    assert (verdict.word, verdict.grade) == ("leaks", "words")
    # A list of all words has more recall than the prior, which is not nothing.
    assert verdict_of(low, words(0.12, 0.9, **ADAPTED)).word == "not decided"
    assert verdict_of(low, words(0.1, 0.1, **ADAPTED)).word == "no leak found"


def test_clients_that_all_score_alike_are_no_narrow_interval() -> None:
    # Exact attacks hit or miss: six misses do not show that a seventh would be one.
    missed = [rows(lambda *_: 0.0), rows(lambda *_: 0.0, control=OTHER_CLIENT)]
    empty = rows(lambda *_: 0.0, attack=PRIOR_ONLY, attack_options="{}")
    verdict = verdict_of(*missed, empty)
    assert (verdict.word, verdict.reasons[0].kind) == ("not decided", "alike")
    # Ninety are enough for one in twenty, at an error that gains and losses share.
    zero = dict.fromkeys((VictimKey(0, client, 0, 0, -1) for client in range(90)), 0.0)
    many = [
        Scored(NONE, attacker(name), control, zero)
        for name, control in (("a", "none"), ("a", OTHER_CLIENT), (PRIOR_ONLY, "none"))
    ]
    known = {attacker("a"): ""}
    assert judge(NONE, NO_ROWS, {"rougeL": many}, "text", working=known).word == "no leak found"
    fewer = [Scored(NONE, o.attacker, o.control, dict(list(zero.items())[:80])) for o in many]
    assert judge(NONE, NO_ROWS, {"rougeL": fewer}, "text", working=known).word == "not decided"


def test_an_attack_that_refuses_victims_falls_back_to_the_prior() -> None:
    # Good where it dares, on one client of six; a search gets .4 of everyone.
    daring = [
        row if row.client == 0 else replace(row, value=None, status="skipped")
        for row in rows(lambda *_: 0.85)
    ]
    search = [*rows(lambda c, _: 0.4 + c / 100, attack="tag"), *other(attack="tag")]
    verdict = verdict_of(daring, search, other(), prior())
    assert verdict.strongest is not None
    assert verdict.strongest.attacker.attack == "tag"
    assert (verdict.victims, verdict.strongest.leakage.n) == (12, 12)
    alone = verdict_of(daring, other(), prior())
    assert alone.strongest is not None
    assert (alone.strongest.refused, verdict.strongest.refused) == (10, 0)
    assert alone.strongest.leakage.mean == pytest.approx(
        (0.85 + 0.11 + 0.12 + 0.13 + 0.14 + 0.15) / 6
    )
    assert alone.nulls[PRIOR_ONLY] == pytest.approx(0.125)


@pytest.mark.slow
def test_members_that_leak_are_a_word_of_their_own() -> None:
    def told(auc: float, **more: Any) -> list[ScoreRow]:
        given = {"metric": "membership_auc", "attack": "membership", **more}
        return list(rows(lambda c, _: auc + c / 100, **given))

    fresh = CandidatesConfig(fresh=999)
    cells = {"c0": cell().model_copy(update={"candidates": fresh})}
    known = [*rows(near(0.09)), *other(), *prior()]

    def word_of(members: list[ScoreRow]) -> Verdict:
        (section,) = summarise(known, [], cells, membership=members).sections
        return section.evidence.verdicts[0]

    leaking = word_of(told(0.8))
    assert (leaking.word, leaking.rows, leaking.grade) == ("members leak", "not decided", None)
    assert leaking.members is not None
    assert leaking.members.metric == "membership_auc"
    guessed = word_of(told(0.47))
    assert (guessed.word, guessed.members) == ("not decided", None)
    # A few members that are told for sure leak, whatever the area under the curve.
    rate = word_of([*told(0.47), *told(0.4, metric="membership_tpr_1")])
    assert rate.word == "members leak"
    swapped = word_of(told(0.8, control=OTHER_CLIENT))
    assert swapped.word == "not decided"


@pytest.mark.slow
def test_the_experiment_sets_the_smallest_effect() -> None:
    known = [*rows(lambda c, r: 0.4 + c * c % 5 / 100 + r / 50), *other(), *prior()]
    for rouge, word in ((0.05, "leaks"), (0.5, "not decided")):
        rules = {"r": VerdictRule(rouge=rouge)}
        (section,) = summarise(known, [], {"c0": cell()}, rules=rules).sections
        assert section.evidence.verdicts[0].word == word
    for clients, word in ((6, "leaks"), (7, "not decided")):
        rules = {"r": VerdictRule(clients=clients)}
        (section,) = summarise(known, [], {"c0": cell()}, rules=rules).sections
        assert section.evidence.verdicts[0].word == word
    with pytest.raises(ValidationError):
        VerdictRule(clients=4)


def test_a_lone_client_decides_nothing_by_its_mean() -> None:
    alone = [[one for one in part if one.client == 0] for part in (rows(strong), other(), prior())]
    verdict = verdict_of(*alone)
    assert (verdict.word, verdict.clients) == ("not decided", 1)
    assert verdict.reasons[0].kind == "few_clients"
    assert verdict.reasons[0].numbers == {"clients": 1.0, "needed": 5.0}


def test_a_client_under_eight_seeds_is_one_client() -> None:
    def seeds(part: Iterable[ScoreRow]) -> list[ScoreRow]:
        lone = [one for one in part if one.client == 0]
        return [
            replace(one, cell=f"c{seed % 2}", seed=seed, value=(one.value or 0) + seed / 100)
            for seed in range(8)
            for one in lone
        ]

    section = section_of(seeds(rows(strong)), seeds(other()), seeds(prior()))
    (verdict,) = section.evidence.verdicts
    assert (verdict.word, verdict.clients, section.clients) == ("not decided", 1, 1)


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


@pytest.mark.slow
def test_a_null_attack_leaks_at_most_at_the_nominal_rate() -> None:
    # Three attacks share 5 % two-sided: 2.5 % of the sections may be called leaking. With next to
    # no smallest effect the level is reached.
    rule = VerdictRule(psnr=1e-9)
    rng, calls = np.random.default_rng(7), 0
    for _ in range(200):
        nulls = [simulated(rng, 5, PRIOR_ONLY, "none")]
        nulls += [
            simulated(rng, 5, name, control)
            for name in ("a", "b", "c")
            for control in ("none", OTHER_CLIENT)
        ]
        calls += judge(PLACE, NO_ROWS, {"psnr": nulls}, "image", rule=rule).word == "leaks"
    assert calls <= 12


def test_the_portfolio_is_chosen_on_other_clients() -> None:
    def one(name: str, values: list[float]) -> Scored:
        scores = {VictimKey(0, client, 0, 0, -1): value for client, value in enumerate(values)}
        return Scored(PLACE, attacker(name), "none", scores)

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


def test_a_second_wrong_update_is_a_second_null() -> None:
    base = [*rows(strong), *other(), *prior()]
    with_second = section_of(base, rows(lambda c, _: 0.5 + c, control=SECOND_CLIENT))
    plain = section_of(base)
    assert with_second.results == plain.results
    (both,), (one,) = with_second.evidence.verdicts, plain.evidence.verdicts
    assert (one.word, both.word) == ("leaks", "not decided")


def test_pairs_are_of_the_same_victims_alone() -> None:
    def by_row(values: dict[int, float]) -> dict[VictimKey, float]:
        return {VictimKey(0, i, 1, 0, row): x for i, (row, x) in enumerate(values.items())}

    one, two = by_row({5: 1.0, 6: 2.0, 7: 3.0}), by_row({5: 0.5, 99: 0.0, 7: 1.0})
    gap = difference(one, two)
    assert gap is not None
    assert (gap.n, gap.mean) == (2, 1.25)
    assert difference(one, {}) is None


def test_probes_and_skipped_jobs_are_no_victims() -> None:
    base = list(rows(strong))
    extra = [
        *rows(lambda *_: 1.0, probe="member"),
        *(replace(row, value=None) for row in rows(strong, seed=9)),
    ]
    (attack,) = scored(score_frame(base + extra, {"c0": ""}), "rougeL")
    assert len(attack.values) == CLIENTS * ROUNDS


def test_certificates_are_counted_with_what_is_exact() -> None:
    def exact(value: float, certified: bool | None, client: int, **more: Any) -> ScoreRow:
        base = {**TEXT, "metric": "exact_match", "client": client, "certified": certified}
        return row(**{**base, "value": value, **more})

    section = section_of(
        [exact(1.0, True, 0), exact(0.0, True, 1), exact(1.0, False, 2), exact(1.0, True, 3)],
        [exact(0.0, True, 0, control=OTHER_CLIENT), exact(0.0, True, 5, probe="member")],
        [exact(1.0, None, 0, attack="tag")],
    )
    (hits,) = section.evidence.certified
    assert (hits.attacker.attack, hits.certified, hits.exact) == ("dlg", 3, 2)
    assert hits.low < 2 / 3 < hits.high
