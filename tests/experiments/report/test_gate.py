"""Limits that must not pass, though the attack that breaks them did not end or refused most."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from experiments.analysis.differences import Side
from experiments.analysis.frames import score_frame
from experiments.report.gate import ScoreLimit, broken
from fedsim.records import ScoreRow
from tests.experiments.analysis.cases import only_section, row

LIMIT = ScoreLimit("rougeL", 0.3, most=True)


def rows(
    attack: str, values: Sequence[float | None], status: str = "done", control: str = "none"
) -> list[ScoreRow]:
    """An attack on one text of each client; None where it refused."""
    return [
        row(
            attack=attack,
            task="text-classification",
            control=control,
            client=client,
            metric=metric,
            unit="1",
            value=None if value is None else float(value == 1) if metric != "rougeL" else value,
            status="skipped" if value is None else status,
            certified=attack == "closed" and value == 1,
        )
        for client, value in enumerate(values)
        for metric in ("rougeL", "exact_match")
    ]


def side(known: list[ScoreRow]) -> Side:
    return Side(only_section(known), score_frame(known, {"c0": ""}))


def gate_lines(attacked: list[ScoreRow]) -> list[str]:
    """What the gate says of them, beside an attack that reads an eighth and a blind guess."""
    clients = 1 + max(score.client for score in attacked)
    others = rows("weak", [0.25] * clients) + rows("prior_only", [0.05] * clients)
    others += rows("weak", [0.05] * clients, control="other_client")
    assert list(broken([side(others)], [LIMIT], compare="mean", verbatim=0)) == []
    return list(broken([side(others + attacked)], [LIMIT], compare="mean", verbatim=0))


def test_exact_guesses_of_unfinished_jobs_break_every_limit() -> None:
    lines = gate_lines(rows("lamp", [1.0] * 20, status="timeout"))
    assert lines == [
        "under no defense: 20 jobs unfinished: the clock ended them",
        "lamp under no defense: rougeL 1, above 0.3",
        "under no defense: 20 examples came back verbatim, above 0",
    ]


@pytest.mark.slow
def test_exact_guesses_of_an_attack_that_refused_most_victims_count() -> None:
    lines = gate_lines(rows("closed", [1.0] * 28 + [None] * 32))
    assert lines[-1] == "under no defense: 28 examples came back verbatim, above 0"
    assert lines[0].startswith("closed under no defense: rougeL 0.4")


@pytest.mark.some(4)
@pytest.mark.parametrize("status", ["failed", "timeout", "exhausted"])
def test_jobs_of_which_none_ended_are_reported(status: str) -> None:
    lost = [replace(score, value=0.0) for score in rows("lamp", [0.0] * 20, status)]
    (line,) = gate_lines(lost)
    assert line.startswith("under no defense: 20 jobs ")


@pytest.mark.parametrize(
    ("value", "why"), [(0.02, "no attack that was run is shown to work here"), (0.29, "")]
)
def test_attacks_that_are_not_shown_to_work_hold_no_limit(value: float, why: str) -> None:
    known = rows("span", [value + client / 1000 for client in range(10)])
    known += rows("span", [0.1] * 10, control="other_client") + rows("prior_only", [0.1] * 10)
    for asked in ({"limits": [LIMIT]}, {"limits": [], "verbatim": 0}):
        lines = list(broken([side(known)], compare="mean", **asked))
        assert [why in line for line in lines] == [True] * bool(why), lines


@pytest.mark.parametrize(("value", "over"), [(0.005, True), (0.05, False)])
def test_an_error_has_a_least(value: float, over: bool) -> None:
    known = [
        row(attack=attack, client=client, metric=metric, unit=unit, value=found)
        for attack, error, psnr in (("dlg", value, 20.0), ("prior_only", 0.1, 10.0))
        for client in range(20)
        for metric, unit, found in (("mse", "squared pixel", error), ("psnr", "dB", psnr))
    ]
    known += [
        replace(one, control="other_client", value=10.0)
        for one in known
        if one.metric == "psnr" and one.attack == "dlg"
    ]
    limit = ScoreLimit("mse", 0.01, most=False)
    lines = list(broken([side(known)], [limit], compare="mean"))
    assert lines == [f"dlg under no defense: mse {value:.3g}, below 0.01"] * over
