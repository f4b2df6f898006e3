"""Limits that must not pass, though the attack that breaks them did not end or refused most."""

from dataclasses import replace

import pytest

from experiments.analysis.frames import score_frame
from experiments.analysis.gate import ScoreLimit, broken
from experiments.plan.config import VerdictRule
from fedsim.records import ScoreRow
from tests.experiments.analysis.cases import row

LIMIT = ScoreLimit("rougeL", 0.3, most=True)


def rows(attack: str, values: list[float | None], status: str = "done") -> list[ScoreRow]:
    """An attack on one text of each client; None where it refused."""
    return [
        row(
            attack=attack,
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


def gate_lines(attacked: list[ScoreRow]) -> list[str]:
    """What the gate says of them, beside an attack that reaches little and a blind guess."""
    clients = 1 + max(score.client for score in attacked)
    others = rows("weak", [0.1] * clients) + rows("prior_only", [0.05] * clients)
    assert broken(score_frame(others, {"c0": ""}), [LIMIT], compare="mean", verbatim=0) == []
    return broken(score_frame(others + attacked, {"c0": ""}), [LIMIT], compare="mean", verbatim=0)


def test_exact_guesses_of_unfinished_jobs_break_every_limit() -> None:
    lines = gate_lines(rows("lamp", [1.0] * 20, status="timeout"))
    assert lines == [
        "lamp under no defense: 20 of 20 jobs failed or were cut short",
        "lamp under no defense: rougeL 1, above 0.3",
        "under no defense: 20 examples came back verbatim, above 0",
    ]


def test_exact_guesses_of_an_attack_that_refused_most_victims_count() -> None:
    lines = gate_lines(rows("closed", [1.0] * 28 + [None] * 32))
    assert lines[-1] == "under no defense: 28 examples came back verbatim, above 0"
    assert lines[0].startswith("closed under no defense: rougeL 0.4")


@pytest.mark.parametrize("status", ["failed", "timeout", "exhausted"])
def test_jobs_of_which_none_ended_are_reported(status: str) -> None:
    lost = [replace(score, value=0.0) for score in rows("lamp", [0.0] * 5, status)]
    assert gate_lines(lost) == ["lamp under no defense: 5 of 5 jobs failed or were cut short"]


@pytest.mark.parametrize(("value", "tested"), [(0.02, False), (0.17, True)])
def test_attacks_below_the_blind_guess_hold_no_limit(value: float, tested: bool) -> None:
    known = rows("span", [value] * 20) + rows("embedding_rows", [0.0] * 20)
    frame = score_frame(known + rows("prior_only", [0.19] * 20), {"c0": ""})
    line = (
        "under no defense: the attacks return 0.17 less ROUGE-L than a blind guess, so that "
        "nothing was tested"
    )
    assert broken(frame, [LIMIT], compare="mean", verbatim=0) == ([] if tested else [line])
    assert broken(frame, [], verbatim=0) == ([] if tested else [line])
    assert broken(frame, [LIMIT], compare="mean", rule=VerdictRule(rouge=0.2)) == []


@pytest.mark.parametrize(("value", "tested"), [(0.3, False), (0.1, True)])
def test_an_error_above_that_of_the_blind_guess_holds_no_limit(value: float, tested: bool) -> None:
    known = [
        row(attack=attack, client=client, metric="mse", unit="squared pixel", value=error)
        for attack, error in (("dlg", value), ("prior_only", 0.1))
        for client in range(20)
    ]
    limit = ScoreLimit("mse", 0.01, most=False)
    lines = broken(score_frame(known, {"c0": ""}), [limit], compare="mean")
    assert bool(lines) != tested
    assert all("squared pixel more MSE than" in line for line in lines), lines
