"""``fedsim show``: what an experiment would do, and what it would cost."""

import json
from typing import Annotated

import typer

from experiments.commands.parameters import Json, Seed, Sets, Target, Workers
from experiments.invocation import Invocation
from fedsim.visible import say

Every = Annotated[bool, typer.Option("--all", help="with defaults, threat model, memory, tries")]


def show(
    experiment: Target,
    sets: Sets = None,
    seed: Seed = None,
    workers: Workers = None,
    every: Every = False,
    as_json: Json = False,
) -> None:
    """Print an experiment, its cells and jobs, and what such jobs took; run nothing."""
    plan = Invocation(experiment, sets or [], None, seed, workers).resolved()
    if not every and not as_json:
        from experiments.preview.brief import brief

        say(brief(plan))
        return
    from experiments.preview.show import describe

    description = describe(plan)
    say(json.dumps(description.table()) if as_json else description.text())
