"""The union of a client's recovered rows grows over rounds and counts each row once."""

from dataclasses import replace
from typing import Any

import pytest

from experiments.stages.coverage import Coverage, coverage, is_exact
from fedsim.records import ScoreRow
from tests.experiments.analysis.cases import ROW

EXACT, WRONG = 1e-9, 0.02
NUMBERS = {(1, 0): (7, 8), (5, 0): (8, 9), (1, 1): (20, 21)}
"""Round and client -> the rows of the two examples."""


def row(
    round: int,
    example: int,
    value: float | None,
    certified: bool | None,
    client: int = 0,
    **more: Any,
) -> ScoreRow:
    number = NUMBERS[round, client][example]
    place = {"round": round, "client": client, "example": example, "row": number}
    own: dict[str, Any] = {"metric": "mse", "value": value, "certified": certified}
    return replace(ROW, **{**place, **own, **more})


def counts(found: list[Coverage]) -> list[tuple[int, int, int, int, int]]:
    return [(one.client, one.round, one.used, one.recovered, one.false) for one in found]


def test_union_over_rounds() -> None:
    rows = [
        *(row(5, 0, EXACT, True), row(5, 1, EXACT, True)),
        *(row(1, 0, WRONG, False), row(1, 1, EXACT, True)),
        *(row(1, 0, EXACT, True, client=1), row(1, 1, WRONG, True, client=1)),
    ]
    expected = [(0, 1, 2, 1, 0), (0, 5, 3, 2, 0), (1, 1, 2, 1, 1)]
    assert counts(coverage(rows)) == expected
    assert counts(coverage(rows[::-1])) == expected


def test_sums_over_clients_have_one_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    # Cohorts 0 and 1 of round 5 hold rows that the others held in round 1.
    monkeypatch.setitem(NUMBERS, (5, 0), (7, 20))
    monkeypatch.setitem(NUMBERS, (5, 1), (8, 21))
    rows = [
        row(round_, example, EXACT, None, client=cohort)
        for round_ in (1, 5)
        for cohort in (0, 1)
        for example in (0, 1)
    ]
    assert counts(coverage(rows, {"c0"})) == [(-1, 1, 4, 0, 0), (-1, 5, 4, 0, 0)]
    assert sum(one.used for one in coverage(rows) if one.round == 5) == 6


def test_what_does_not_count() -> None:
    rows = [row(1, 0, EXACT, None), row(1, 1, None, True)]
    noise = [
        row(1, 0, 100.0, True, metric="psnr"),
        row(1, 0, EXACT, True, control="other_client"),
    ]
    # A certificate without a value is one that was not kept.
    assert counts(coverage(rows + noise)) == [(0, 1, 2, 0, 1)]
    assert coverage(noise) == []


def test_exact_guesses_count_without_a_certificate_and_once() -> None:
    rows = [
        *(row(1, 0, EXACT, None), row(1, 1, WRONG, None)),
        *(row(5, 0, WRONG, None), row(5, 1, EXACT, None)),
    ]
    assert [one.exact for one in coverage(rows)] == [1, 2]
    again = [row(1, 1, EXACT, None), row(5, 0, EXACT, None)]  # row 8, twice
    assert [one.exact for one in coverage(again)] == [1, 1]
    assert [one.recovered for one in coverage(again)] == [0, 0]


def test_attacks_and_cells_are_apart() -> None:
    rows = [row(1, 0, EXACT, True), row(1, 0, WRONG, False, attack="ratio")]
    coverages = coverage(rows)
    assert [(one.attack, one.recovered) for one in coverages] == [("dlg", 1), ("ratio", 0)]


@pytest.mark.parametrize(
    ("metric", "value", "exact"),
    [
        ("mse", 0.0, True),
        ("mse", (0.4 / 255) ** 2, True),
        ("mse", (0.6 / 255) ** 2, False),
        ("exact_match", 1.0, True),
        ("exact_match", 0.0, False),
        ("mse", None, False),
    ],
)
def test_exact_is_half_a_byte_or_every_token(metric: str, value: float | None, exact: bool) -> None:
    assert is_exact(row(1, 0, value, True, metric=metric)) is exact
