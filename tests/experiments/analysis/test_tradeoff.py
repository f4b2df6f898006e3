"""Leakage at a loss of utility, and beside DP-SGD, on lines whose values are known by hand."""

from __future__ import annotations

import json
import math

import pytest

from experiments.analysis.findings import TaskFindings
from experiments.analysis.keys import DefenseInSetting, VictimKey
from experiments.analysis.tradeoff import TradeoffPoint, at_loss, equal_utility, loss_of
from experiments.report.pareto import front, pictures
from experiments.report.result_tables import tradeoff_tables
from experiments.wording.defense_names import short_options
from fedsim.records import ScoreRow, UtilityRow
from tests.experiments.analysis.cases import only_section, row, use

CLIENTS = 5
NONE = ("none", "[]", 0.0, 0.9)


def noise(std: float) -> tuple[str, str]:
    return "gaussian_noise", json.dumps({"std": std})


def dp(noise: float) -> tuple[str, str]:
    return "dp_sgd", json.dumps({"noise_multiplier": noise})


def line(*points: tuple[str, str, float, float]) -> list[TradeoffPoint]:
    """(defense, options, loss, leakage); every client adds a hundredth of its number."""
    return [
        TradeoffPoint(
            DefenseInSetting("", defense, options),
            short_options(defense, options) or defense,
            loss,
            {VictimKey(0, client, 1, 0, client): leak + client / 100 for client in range(CLIENTS)},
        )
        for defense, options, loss, leak in points
    ]


def section_of(*points: tuple[str, str, float, float], **more: str) -> TaskFindings:
    rows: list[ScoreRow] = []
    uses: list[UtilityRow] = []
    text = {"task": "text-classification", "metric": "rougeL", "unit": "1", "attack": "lamp"}
    for defense, options, loss, leak in points:
        place = {"defense": defense, "defense_options": options}
        for client in range(CLIENTS):
            value = leak + client / 100
            rows.append(row(**{**text, **place, "client": client, "row": client, "value": value}))
        uses.append(use(**{**place, "round": 3, "value": 0.8 * (1 - loss), **more}))
        uses[-1] = uses[-1].model_copy(update={"epsilon": 8.0 if defense == "dp_sgd" else None})
    return only_section(rows, uses)


OFFSET = 0.02  # the mean of 0 to 4 hundredths


def test_leakage_is_interpolated_between_the_two_strengths_around_the_loss() -> None:
    found = list(at_loss(line(NONE, (*noise(0.01), 0.01, 0.8), (*noise(0.1), 0.03, 0.4))))
    assert [one.defense for one in found] == ["gaussian_noise"]
    assert found[0].leakage is not None
    assert found[0].leakage.mean == pytest.approx(0.6 + OFFSET)
    assert found[0].how == "between std=0.01 (1.0 %) and std=0.1 (3.0 %)"


def test_no_defense_is_the_weak_end_of_a_family_but_not_of_a_lone_defense() -> None:
    (family,) = at_loss(line(NONE, (*noise(0.1), 0.04, 0.5), (*noise(1.0), 0.5, 0.1)))
    assert family.leakage is not None
    assert family.leakage.mean == pytest.approx(0.7 + OFFSET)
    assert family.how == "between none (0.0 %) and std=0.1 (4.0 %)"
    (lone,) = at_loss(line(NONE, (*noise(0.1), 0.04, 0.5)))
    assert (lone.leakage, lone.how) == (None, "std=0.1 costs 4.0 % already")
    (cheap,) = at_loss(line(NONE, (*noise(0.1), -0.01, 0.5)))
    assert cheap.leakage is not None
    assert cheap.leakage.mean == pytest.approx(0.5 + OFFSET)
    assert cheap.how == "std=0.1 costs \N{MINUS SIGN}1.0 %"


def test_a_family_that_never_costs_so_much_gives_its_member_that_leaks_least() -> None:
    free = (*noise(0.1), -0.01, 0.5)
    (family,) = at_loss(line(NONE, (*noise(0.01), 0.005, 0.8), free))
    assert family.leakage is not None
    assert family.leakage.mean == pytest.approx(0.5 + OFFSET)
    assert family.how == ("std=0.1 costs \N{MINUS SIGN}1.0 %, the least leaky that costs no more")


def test_dp_sgd_of_equal_utility() -> None:
    reference = [(*dp(0.1), 0.01, 0.5), (*dp(1.0), 0.05, 0.1)]
    defended = [(*noise(0.1), 0.03, 0.4), (*noise(1.0), 0.2, 0.2), (*noise(0.01), 0.005, 0.8)]
    found = {one.defense_options: one for one in equal_utility(line(NONE, *reference, *defended))}
    middle = found[noise(0.1)[1]]
    assert middle.difference is not None
    assert middle.dp_sgd == pytest.approx(0.3 + OFFSET)
    assert middle.difference.mean == pytest.approx(0.1)
    assert middle.difference.low is not None  # five clients, all alike: others may differ
    assert middle.difference.low < 0
    weak = found[noise(0.01)[1]]
    assert weak.dp_sgd == pytest.approx(0.7 + OFFSET)  # between no defense and the weakest
    far = found[noise(1.0)[1]]
    assert (far.dp_sgd, far.difference) == (None, None)
    assert far.how == "out of range: leakage is known for losses from 0.0 % to 5.0 %"
    assert list(equal_utility(line(NONE, *defended))) == []


def test_dp_sgd_is_not_tuned_to_a_setting_that_another_beats_in_both() -> None:
    worse = (*dp(0.5), 0.02, 0.8)  # costs more than dp(0.1) and leaks more
    reference = [(*dp(0.1), 0.01, 0.5), worse, (*dp(1.0), 0.05, 0.1)]
    (middle,) = equal_utility(line(NONE, *reference, (*noise(0.1), 0.03, 0.4)))
    assert middle.dp_sgd == pytest.approx(0.3 + OFFSET)
    assert middle.how == "between noise_multiplier=0.1 (1.0 %) and noise_multiplier=1 (5.0 %)"


def test_a_model_that_diverged_trades_nothing() -> None:
    diverged = (*noise(1.0), math.nan, 0.0)
    members = [(*noise(0.01), 0.05, 0.4), (*noise(0.1), 0.3, 0.2), diverged]
    (family,), _ = [
        tradeoff_table.rows for tradeoff_table in tradeoff_tables(section_of(*members, NONE))
    ]
    assert str(family[2]).startswith("0.72 [")  # .02 is two fifths of the way to std=0.01
    assert family[-1] == "between none (0.0 %) and std=0.01 (5.0 %)"
    (picture,) = pictures(section_of(*members, NONE), "p")
    assert ">0.1<" in picture.svg
    assert ">1<" not in picture.svg
    assert pictures(section_of(diverged, NONE), "p") == []


def test_both_sides_of_equal_utility_are_of_the_same_victims() -> None:
    *rest, point = line(
        NONE, (*dp(0.1), 0.01, 0.5), (*dp(1.0), 0.05, 0.1), (*noise(0.1), 0.03, 0.4)
    )
    more = {**point.values, VictimKey(0, 99, 1, 0, 99): 1.0}
    wider = TradeoffPoint(point.place, point.name, point.loss, more)
    (found,) = equal_utility([*rest, wider])
    assert found.difference is not None
    assert found.leakage is not None
    assert found.dp_sgd is not None
    assert found.leakage == pytest.approx(0.4 + OFFSET)
    assert found.leakage - found.dp_sgd == pytest.approx(found.difference.mean)


def test_loss_counts_in_the_direction_of_the_metric() -> None:
    assert loss_of({"accuracy": 0.6}, {"accuracy": 0.8}) == pytest.approx(0.25)
    assert loss_of({"perplexity": 50.0}, {"perplexity": 40.0}) == pytest.approx(0.25)
    assert loss_of({"mcc": 0.3, "accuracy": 0.1}, {"mcc": 0.3, "accuracy": 0.9}) == 0.0
    assert loss_of({"mcc": 0.3}, {"mcc": 0.0}) is None
    assert loss_of({"accuracy": 0.6}, {"mcc": 0.8}) is None


def test_the_front_holds_what_none_beats() -> None:
    assert front([(0.2, 9.0), (0.1, 5.0), (0.2, 7.0), (0.05, 5.0), (0.1, 5.0)]) == [
        *((0.1, 5.0), (0.2, 7.0))
    ]
    assert front([(0.0, 1.0), (0.0, 0.5)]) == [(0.0, 0.5)]


def test_rows_become_tables_and_one_picture() -> None:
    points = [NONE, (*noise(0.1), 0.03, 0.4), (*dp(0.1), 0.01, 0.5), (*dp(1.0), 0.05, 0.1)]
    section = section_of(*points)
    at, beside = tradeoff_tables(section)
    leakage = {row[1]: row[2] for row in at.rows}
    assert str(leakage["DP-SGD"]).startswith("0.42 [")  # a quarter of the way from 0.5 to 0.1
    assert leakage["Gaussian noise"] is None
    (line_,) = beside.rows
    assert line_[1] == "Gaussian noise (std=0.1)"
    assert str(line_[4]).startswith("0.10 [")
    (picture,) = pictures(section, "p")
    assert "ε=8" in picture.svg
    assert ">Pareto front</text>" in picture.svg
    assert "accuracy at the end" in picture.svg
    again = pictures(section_of(*reversed(points)), "p")
    assert [one.svg for one in again] == [picture.svg]
    assert pictures(section_of(NONE), "p") == []
