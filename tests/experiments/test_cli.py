"""What the command line prints about itself."""

import json
import sys
from collections.abc import Callable
from importlib.metadata import version

import pytest

from attacks import ATTACKS
from experiments import cli
from experiments.commands.help_page import CHAPTERS
from experiments.plan.config import shipped
from experiments.preview.manuals import CATALOGS
from fedsim.config.build import installed
from fedsim.models import MODELS

Said = Callable[..., str]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    """``said("list", "attacks")``: what a command prints that ends well."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["fedsim", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("command", ["run", "simulate", "attack", "prior", "check", "describe"])
def test_help_escapes_nothing(command: str, said: Said) -> None:
    """Brackets of a help text are for people, not for rich."""
    assert "\\" not in said(command, "--help")


def test_help_names_what_is_needed_and_where_gpus_are_given(said: Said) -> None:
    text = said("attack", "--help")
    assert "[required]" in text
    assert "--gpus" in text
    assert "default: 30" in said("prior", "--help")


def test_a_stage_takes_the_options_that_concern_it(said: Said) -> None:
    own = {"--retry-failed": {"run", "attack"}}
    for command in ("run", "simulate", "attack", "score", "report"):
        text = said(command, "--help")
        assert "--set KEY=VALUE" in text
        assert {name for name in own if name in text} == {k for k, v in own.items() if command in v}


def test_list_alone_says_which_lists_there_are(said: Said) -> None:
    lines = dict(line.split(maxsplit=1) for line in said("list").splitlines())
    assert lines.keys() == CATALOGS.keys()
    counts = {what: int(line.split()[0]) for what, line in lines.items()}
    assert counts["attacks"] == len(ATTACKS)
    assert counts["models"] == len(MODELS)  # a hub id is a place for more, and no model
    assert counts["experiments"] == len(shipped())
    assert all(line.endswith(f"fedsim list {what}") for what, line in lines.items())
    assert json.loads(said("list", "--json")).keys() == lines.keys()


@pytest.mark.parametrize("what", ["attacks", "defenses"])
def test_lists_mark_what_an_installed_package_adds(fakes: None, said: Said, what: str) -> None:
    marked = {line.split()[0] for line in said("list", what).splitlines() if "[added]" in line}
    assert marked == {point.name for point in installed(f"fedsim.{what}")} != set()


def test_help_names_every_command_under_a_heading(said: Said) -> None:
    text = said("--help")
    listed = [name for names in CHAPTERS.values() for name in names]
    assert all(f"\n{chapter}:\n" in text for chapter in CHAPTERS)
    assert all(f"\n  {name} " in text for name in listed)
    assert "..." not in text.partition("Run:")[2]
    assert said() == text


def test_the_version_is_that_of_the_package(said: Said) -> None:
    assert said("--version").split() == ["fedsim", version("fedsim-eavesdropper")]
