"""``fedsim doctor``: captures held against the private rows."""

import json

import typer

from experiments.commands.captures import is_captures
from experiments.commands.parameters import Json, Target
from experiments.invocation import Invocation
from fedsim.errors import ConfigError
from fedsim.visible import say


def doctor(experiment: Target, as_json: Json = False) -> None:
    """Check captures by replaying each client's training on its true data."""
    if is_captures(experiment):
        raise ConfigError(
            f"{experiment}: holds captures, whose clients' training is not known. fedsim score "
            f"{experiment} --truth FOLDER says whether a truth explains its own update best."
        )
    folder = Invocation(experiment).run(())
    from experiments.checks.capture_check import examine

    checkup = examine(folder)
    say(json.dumps(checkup.table()) if as_json else checkup.text())
    raise typer.Exit(1 if checkup.faults else 0)
