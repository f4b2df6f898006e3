"""Progress on a narrow terminal."""

import io
import sys

import pytest

from experiments.console import Console


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
