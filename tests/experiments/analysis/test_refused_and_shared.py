"""Score tables on which a mean alone would hide a leak, or rest on what was not shown."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from experiments.analysis.differences import Side
from experiments.analysis.evidence import Verdict
from experiments.analysis.frames import score_frame
from experiments.analysis.membership import inferred
from experiments.analysis.statistics import mean, paired_difference, summary
from experiments.analysis.summary import summarise
from experiments.bounds.records import BudgetLimit
from experiments.plan.entries import allows_for
from experiments.report.brackets import brackets
from experiments.report.details import phrases
from experiments.report.gate import ScoreLimit, broken
from fedsim.config.cell import CandidatesConfig, CellConfig
from fedsim.records import OTHER_CLIENT, PRIOR_ONLY, AttackKey, ScoreRow
from tests.experiments.analysis.cases import cell, only_section, row
from tests.experiments.analysis.membership_rows import row as member

CELLS = {"c0": cell(0), "c2": cell(0, batch_size=4)}
NOISE: dict[str, Any] = {
    "defense": "gaussian_noise",
    "defense_options": '[{"name":"gaussian_noise","std":0.1}]',
}
ADAPTED: dict[str, Any] = {"attack_options": '{"adaptive":true}', "adaptive": True}
PRIOR: dict[str, Any] = {"attack": PRIOR_ONLY, "attack_options": "{}", "adaptive": False}


def near(client: int, turn: int) -> float:
    return random.Random(f"{client},{turn}").uniform(-0.01, 0.01)


def each(clients: int, value: Callable[[int], float], **more: Any) -> list[ScoreRow]:
    fields = {**ADAPTED, **more}
    return [row(**{"row": c, **fields, "client": c, "value": value(c)}) for c in range(clients)]


def tried(clients: int, lead: float, **more: Any) -> list[ScoreRow]:
    """An attack with both null baselines."""
    return [
        *each(clients, lambda c: 10 + lead + near(c, 1), **more),
        *each(clients, lambda c: 10 + near(c, 2), **more, control=OTHER_CLIENT),
        *each(clients, lambda c: 10 + near(c, 3), **more | PRIOR),
    ]


def verdicts(
    rows: Sequence[ScoreRow], others: Mapping[str, CellConfig] | None = None, **more: Any
) -> dict[tuple[str, str], Verdict]:
    known = CELLS | dict(others or {})
    cells = {name: known[name] for name in sorted({row.cell for row in rows})}
    (section,) = summarise(rows, [], cells, **more).sections
    for verdict in section.evidence.verdicts:
        assert len(phrases(section, verdict)) == len(verdict.reasons)
    return {(v.setting, v.defense): v for v in section.evidence.verdicts}


def kinds(verdict: Verdict) -> set[str]:
    return {reason.kind for reason in verdict.reasons}


def refusing(rows: Sequence[ScoreRow], who: range) -> list[ScoreRow]:
    return [
        replace(r, value=None, status="skipped")
        if r.client in who and r.control == "none" and r.attack != PRIOR_ONLY
        else r
        for r in rows
    ]


def test_blind_guesses_at_refused_victims_hide_no_lead() -> None:
    leak = tried(60, 1.4, **NOISE)
    some = verdicts([*tried(8, 20.0), *refusing(leak, range(28))])["", "gaussian_noise"]
    assert (some.word, kinds(some)) == ("not decided", {"answered", "skipped"})
    # Nor where another attack has the other half.
    other = [replace(r, attack="gi") for r in leak if r.attack == "dlg"]
    both = [*refusing(leak, range(29)), *refusing(other, range(29, 58))]
    halves = verdicts([*tried(8, 20.0), *both])["", "gaussian_noise"]
    assert halves.word == "leaks"  # an attacker runs both
    # What was answered without a lead holds, and the share of clients counts those alone.
    quiet = refusing(tried(60, 0.0, **NOISE), range(28))
    none = verdicts([*tried(8, 20.0), *quiet])["", "gaussian_noise"]
    assert none.word == "no leak found"
    assert none.recovered.of == 60
    assert none.recovered.high == pytest.approx(1 - 0.05 ** (1 / 32))


@pytest.mark.slow
def test_a_mean_hides_no_seed_and_no_best_example() -> None:
    seeds = [replace(r, cell="c1", seed=1) for r in tried(16, 1.6, **NOISE)]
    cells = {"c1": cell(1)}
    mixed = verdicts([*tried(8, 20.0), *tried(16, 0.0, **NOISE), *seeds], cells)
    assert (mixed["", "gaussian_noise"].word, kinds(mixed["", "gaussian_noise"])) == (
        "not decided",
        {"seed"},
    )
    batches = [
        replace(r, example=e, row=20 * r.client + e, value=(r.value or 0) + lead)
        for r in tried(12, 0.0, **NOISE)
        for e in range(16)
        for lead in [14.0 * (e == 0 and r.attack != PRIOR_ONLY and r.control == "none")]
    ]
    best = verdicts([*tried(8, 20.0), *batches])["", "gaussian_noise"]
    assert (best.word, best.grade) == ("leaks", "better than guessing")
    # A control that is as good at another example of the batch is no worse.
    swapped = [
        replace(r, value=(r.value or 0) + 14.0 * (r.control != "none" and r.example == 1))
        for r in batches
    ]
    blind = verdicts([*tried(8, 20.0), *swapped])["", "gaussian_noise"]
    assert blind.word == "no leak found"


def test_a_gate_is_not_passed_by_refused_victims() -> None:
    rows = [*tried(8, 20.0), *refusing(tried(60, 1.4, **NOISE), range(28))]
    side = Side(only_section(rows), score_frame(rows, {"c0": ""}))
    for most, lines in ((11.5, 0), (11.2, 1)):
        limit = ScoreLimit("psnr", most, most=True)
        over = list(broken([side], [limit], defense="gaussian_noise"))
        assert ["is at most 11.4 at 95 %" in line for line in over] == [True] * lines


def test_a_control_of_another_setting_counts_only_where_none_was_run() -> None:
    large: dict[str, Any] = {"cell": "c2", "batch_size": 4}
    known = [*tried(8, 20.0), *tried(8, 0.0, **NOISE, **large)]
    alone = verdicts(known)["batch_size=4", "gaussian_noise"]
    assert alone.word == "no leak found"
    assert kinds(alone) == {"foreign_control", "power_unmeasured"}
    assert alone.reasons[0].setting == "batch_size=1"
    here = verdicts([*known, *tried(8, 0.0, **large)])
    for defense in ("none", "gaussian_noise"):
        verdict = here["batch_size=4", defense]
        assert (verdict.word, kinds(verdict)) == ("not decided", {"no_control"})
    works = verdicts([*known, *tried(8, 20.0, **large)])["batch_size=4", "gaussian_noise"]
    assert (works.word, kinds(works)) == ("no leak found", {"power_unmeasured"})


@pytest.mark.parametrize(("attack", "word"), [("dlg", "no leak found"), ("spear", "not decided")])
def test_an_attack_is_adapted_to_what_it_uses(attack: str, word: str) -> None:
    """``spear`` turns changed images back, and uses no noise that it is told."""
    rows = [*tried(8, 20.0, attack=attack), *tried(8, 0.0, attack=attack, **NOISE)]
    verdict = verdicts(rows)["", "gaussian_noise"]
    assert verdict.word == word
    assert ("no_adaptive" in kinds(verdict)) == (word == "not decided")


@pytest.mark.parametrize(
    ("attack", "defense", "uses"),
    [
        ("spear", {"name": "mixup"}, True),
        ("span", {"name": "ghost"}, True),
        ("span", {"name": "gaussian_noise", "std": 0.1}, True),  # which it measures
        ("embedding_rows", {"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 1.0}, True),
        ("embedding_rows", {"name": "prune", "fraction": 0.9}, False),
        ("not_installed", {"name": "prune", "fraction": 0.9}, True),
    ],
)
def test_what_an_adaptive_attack_uses(attack: str, defense: dict[str, Any], uses: bool) -> None:
    key = AttackKey(attack, ADAPTED["attack_options"], adaptive=True)
    assert allows_for(key, json.dumps([defense])) == uses


def test_clients_that_hold_one_row_are_one() -> None:
    rows = tried(8, 3.0, **NOISE)
    assert verdicts(rows)["", "gaussian_noise"].word == "leaks"
    same = verdicts([replace(r, row=7) for r in rows])["", "gaussian_noise"]
    assert same.word == "not decided"
    assert kinds(same) == {"few_clients", "beyond", "no_control"}
    # Recovered images of one row are one hit, of eight rows eight.
    seen = [replace(r, row=7) for r in tried(8, 16.0, **NOISE)]
    assert verdicts(seen)["", "gaussian_noise"].word == "not decided"
    assert verdicts(tried(8, 16.0, **NOISE))["", "gaussian_noise"].word == "leaks"


def test_intervals_are_the_outer_ones_over_clients_and_rows() -> None:
    values = [0.2, 0.9] * 6 + [0.3, 0.4, 0.5, 0.35, 0.45, 0.25]
    clients = [c for c in range(6) for _ in range(2)] + [6, 7, 8, 9, 10, 11]
    shared = [0, 1] * 6 + [2, 3, 4, 5, 6, 7]
    alone, crossed = (mean(values, clients, rows=rows) for rows in (range(18), shared))
    assert alone == mean(values, clients)
    assert (alone.clusters, crossed.clusters) == (12, 8)
    assert alone.low is not None
    assert crossed.low is not None
    assert crossed.low < alone.low
    lead = paired_difference(values, [0.0] * 18, clients, rows=shared)
    assert lead.low is not None
    assert lead.low < (paired_difference(values, [0.0] * 18, clients).low or 0.0)
    share = summary(values, clients, better="higher", threshold=0.8, rows=shared).share
    wider = summary(values, clients, better="higher", threshold=0.8).share
    assert share is not None
    assert wider is not None
    assert share.high - share.low > wider.high - wider.low
    # One client: a row in six rounds is one row.
    assert mean(values[:12], [0] * 12, rows=[3] * 12).low is None


def test_a_leak_beyond_a_bound_is_a_contradiction() -> None:
    leak = verdicts(tried(8, 20.0, **NOISE), bounded=lambda *_: True)["", "gaussian_noise"]
    assert leak.word == "leaks"
    assert "contradiction" in kinds(leak)


@pytest.mark.parametrize(("other", "contradictory"), [(0.3, False), (0.1, True)])
def test_no_bracket_has_its_least_above_its_most(other: float, contradictory: bool) -> None:
    """A bound is on the gain over the best blind guess, be it from another client's update."""
    text: dict[str, Any] = {"task": "text-classification", "metric": "rougeL", "unit": "1", **NOISE}
    rows = [
        *each(8, lambda c: 0.3 + near(c, 1), **text),
        *each(8, lambda c: other + near(c, 2), **text, control=OTHER_CLIENT),
        *each(8, lambda c: 0.1 + near(c, 3), **text | PRIOR),
    ]
    (section,) = summarise(rows, [], {"c0": CELLS["c0"]}).sections
    limit = BudgetLimit(
        run="r",
        cell="c0",
        defense="gaussian_noise",
        defense_options=NOISE["defense_options"],
        source="clipping and noise",
        nats=0.001,
        all=0.001,
    )
    (both,) = brackets(section, {"c0": limit}).values()
    assert both.contradictory == contradictory
    assert both.holds != contradictory
    assert both.said.startswith("CONTRADICTION" if contradictory else "at least 0.29, at most 0.32")


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("clients", "fresh", "tells"), [(2, 4, False), (3, 4, False), (5, 50, True), (7, 50, True)]
)
def test_members_all_ranked_first_are_told_by_an_exact_test(
    clients: int, fresh: int, tells: bool
) -> None:
    """One of C(F + k, k) orders puts the members of k clients before F fresh rows."""
    candidates = CandidatesConfig(fresh=fresh)
    cells = {"c": CELLS["c0"].model_copy(update={"candidates": candidates})}
    rows = [member(1.0, c, example=e, row=8 * c + e) for c in range(clients) for e in range(8)]
    assert inferred(rows, {"c": ""}, cells)[0].tells == tells
    same = [replace(r, row=r.example) for r in rows[:8]]  # eight rows of one client
    assert not inferred(same, {"c": ""}, cells)[0].tells or fresh == 50
    # No word of holding stands beside members that are ranked first, told or not.
    here = [replace(r, cell="c0", dataset="shapes", model="lenet", **NOISE) for r in rows]
    scores = [*tried(8, 20.0), *tried(8, 0.0, **NOISE)]
    cells = {"c0": cells["c"]}
    (section,) = summarise(scores, [], cells, membership=here).sections
    word = section.evidence.verdicts[1].word
    assert word == ("members leak" if tells else "not decided")


def test_members_of_lost_jobs_are_counted_as_such() -> None:
    rows = [member(0.9, c, status="exhausted") for c in range(4)]
    rows += [member(0.9, c) for c in range(4, 6)]
    (finding,) = inferred(rows, {"c": ""}, {"c": CELLS["c0"]})
    assert finding.lost == 4
    assert "4 of jobs that failed or were cut short" in finding.text()
