"""``fedsim doctor``: captures held against the private rows."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from experiments.commands.captures import Base, Loss, Model, Truth, examine_foreign, is_captures
from experiments.commands.parameters import Json, Target
from experiments.invocation import Invocation
from fedsim.visible import say


def doctor(
    experiment: Target,
    truth: Truth = None,
    model: Model = None,
    loss: Loss = None,
    base: Base = None,
    as_json: Json = False,
) -> None:
    """Check captures by replaying each client's training on its true data."""
    if is_captures(experiment):
        raise typer.Exit(examine_foreign(Path(experiment), as_json, truth, model, loss, base))
    folder = Invocation(experiment).run(())
    from experiments.checks.capture_check import examine

    checkup = examine(folder)
    say(json.dumps(checkup.table()) if as_json else checkup.text())
    raise typer.Exit(1 if checkup.faults else 0)
