"""Progress on a narrow terminal, what is left, and totals that do not grow."""

import io
import sys
import time

import pytest

from experiments.console import Console
from experiments.pipeline import execute
from experiments.plan.folder import STAGES
from tests.apps.cases import IMAGES, Make


def test_the_counts_survive_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    for name, value in {"COLUMNS": "80", "TERM": "xterm", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    with Console(quiet=False) as console:
        console.expect("attack", 1000)
        console.advance("attack")
        console.note("attack", f"lamp round-0001-client-0000: {'a long sentence ' * 9}")
    line = next(line for line in shown.getvalue().splitlines() if "lamp round-0001" in line)
    assert "   1/1000" in line
    assert line.endswith("…")


def test_the_time_that_is_left_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Console(quiet=False) as console:
        console.expect("score", 4)
        for now[0] in (30.0, 60.0, 90.0, 120.0):
            console.advance("score", "span")
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "score: 1/4, 0:01:30 left span"
    assert said[-1] == "score: 4/4 span"


@pytest.mark.slow
def test_totals_are_known_before_the_first_step(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: dict[str, list[tuple[str, int]]] = {}
    for name in ("expect", "advance"):

        def note(self: Console, work: str, value: object = 1, what: str = name) -> None:
            del self
            steps.setdefault(work, []).append((what, value if isinstance(value, int) else 1))

        monkeypatch.setattr(Console, name, note)
    run = make_run(
        IMAGES,
        seeds=[0, 1],
        attacks=[{"name": "inverting", "steps": 2}, {"name": "prior_only"}],
        federation={"rounds": 1},
    )
    execute(run, STAGES, quiet=True)
    assert set(steps) == set(STAGES)
    for work, calls in steps.items():
        first = [what for what, _ in calls].index("advance")
        total = sum(value for what, value in calls[:first] if what == "expect")
        assert total == sum(what == "advance" for what, _ in calls), work
        assert sum(value for what, value in calls[first:] if what == "expect") == 0, work
