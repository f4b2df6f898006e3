"""``fedsim show``: what an experiment would do, and what it would cost."""

from __future__ import annotations

import json

from experiments.commands.parameters import Json, Seed, Sets, Target, Workers
from experiments.invocation import Invocation
from fedsim.visible import say


def show(
    experiment: Target,
    sets: Sets = None,
    seed: Seed = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Print the resolved experiment, its cells, threat model and cost; run nothing."""
    plan = Invocation(experiment, sets or [], None, seed, workers).resolved()
    from experiments.preview.show import describe

    description = describe(plan)
    say(json.dumps(description.table()) if as_json else description.text())
