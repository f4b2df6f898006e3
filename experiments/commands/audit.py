"""``fedsim audit``: who took part in the updates, and what a claimed epsilon is worth."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from experiments.commands.invocation import Invocation
from experiments.commands.parameters import Json, Target
from fedsim.visible import say


def audit(
    experiment: Target,
    canaries: Annotated[
        int | None,
        typer.Option(help="planted gradients per cell", show_default="what half of epsilon takes"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure inferred membership and properties, and epsilon from below by canary gradients.

    Exit code 1 says that a measured lower bound on epsilon exceeds the accountant's upper bound.
    """
    run = Invocation(experiment).run(())
    from experiments.analysis.membership import inferred
    from experiments.bounds.audit import audit as plant
    from experiments.stages.rows import read_rows
    from experiments.wording.names import settings
    from fedsim.records import ScoreRow

    configs = {cell.name: cell.config for cell in run.cells}
    labels = settings(configs, {cell.name: cell.experiment.name for cell in run.cells})
    found = {}
    for kind in ("membership", "properties"):
        path = run.root / f"{kind}.parquet"
        rows = read_rows(path, ScoreRow) if path.exists() else []
        found[kind] = inferred(rows, labels, configs)
    planted = plant(run, canaries)
    if as_json:
        told = {kind: [one.model_dump() for one in own] for kind, own in found.items()}
        say(json.dumps({**told, "epsilon": planted.model_dump(mode="json", exclude={"seal"})}))
    else:
        lines = [one.text() for own in found.values() for one in own]
        say("\n".join([*lines, planted.text()]))
    raise typer.Exit(1 if planted.refuted else 0)
