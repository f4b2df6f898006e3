"""What the shell completes."""

from pathlib import Path

import pytest
import typer.main
from click.shell_completion import ShellComplete

from experiments import cli
from tests.experiments.conftest import Said


def test_the_shell_completes_runs_and_experiments(
    said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/mine").mkdir(parents=True)
    Path("runs/mine/experiment.toml").touch()
    Path("quick-look.toml").touch()
    shell = ShellComplete(typer.main.get_command(cli.app), {}, "fedsim", "_FEDSIM_COMPLETE")

    def completed(*words: str) -> set[str]:
        return {item.value for item in shell.get_completions(list(words[:-1]), words[-1])}

    assert completed("ev") == {"evidence"}
    assert {"quickstart", "quick-look.toml"} <= completed("run", "qui")
    assert completed("attack", "runs/") == completed("rm", "r") == {"runs/mine"}
    assert "--install-completion" in said("--help")[1]
