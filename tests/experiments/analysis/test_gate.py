"""Limits that must not pass, though the attack that breaks them did not end or refused most."""

from dataclasses import replace

import pytest

from experiments.analysis.frames import score_frame
from experiments.analysis.gate import ScoreLimit, broken
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
