"""``fedsim run``: how it stops, goes on and refuses."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.apps.mistakes import BASE
from tests.experiments.conftest import Said


def test_a_sigterm_says_how_to_continue(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    def terminated(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("experiments.invocation.Invocation.run", terminated)
    code, _, error = said("run", "quickstart")
    assert (code, error) == (
        143,
        "fedsim: terminated. Run the same command again to continue.\n",
    )


@pytest.mark.slow
def test_a_sigterm_while_ray_works_is_one_line(tmp_path: Path) -> None:
    """Ray's own handler prints a stack of C++ and aborts."""
    (tmp_path / "small.toml").write_text(BASE)
    command = [sys.executable, "-m", "experiments.cli", "run", str(tmp_path / "small.toml")]
    changes = ["--set", "attacks=[{name='inverting',steps=100000}]", "--engine", "ray"]
    started = subprocess.Popen(
        [*command, *changes, "--out", str(tmp_path / "run")], stderr=subprocess.PIPE, text=True
    )
    assert started.stderr is not None
    assert any(line.startswith("simulate:") for line in started.stderr)
    started.send_signal(signal.SIGTERM)
    assert started.stderr.read().splitlines()[-1].startswith("fedsim: terminated.")
    assert started.wait(60) == 143


def test_a_dry_run_runs_nothing(
    said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(BASE)
    code, out, _ = said("run", "small.toml", "--dry-run")
    assert code == 0
    assert "prior_only" in out
    assert [path.name for path in tmp_path.iterdir()] == ["small.toml"]


def test_an_interrupt_says_how_to_continue(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("experiments.invocation.Invocation.run", interrupted)
    code, _, error = said("run", "quickstart")
    assert code == 130
    assert "interrupted. Run the same command again" in error


def test_options_of_foreign_captures_do_not_fit_a_run(said: Said) -> None:
    code, _, error = said("attack", "quickstart", "--model", "gpt2")
    assert code == 2
    assert "--model: is for the captures of another application" in error


def test_captures_that_are_nowhere_are_what_is_refused(said: Said, tmp_path: Path) -> None:
    code, _, error = said("score", str(tmp_path / "captures"), "--truth", str(tmp_path))
    assert code == 2
    assert f"{tmp_path / 'captures'}: no such folder" in error
