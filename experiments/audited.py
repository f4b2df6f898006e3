"""``fedsim audit``: who took part in the updates, and what a claimed epsilon is worth."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from experiments.invocation import Invocation
from experiments.options import Json, Target


def audit(
    experiment: Target,
    canaries: Annotated[int, typer.Option(help="planted gradients per cell")] = 1000,
    as_json: Json = False,
) -> None:
    """Measure membership inference, and the epsilon of dp_sgd and dp_client by canary gradients.

    Exit code 1 says that a measured lower bound on epsilon exceeds the accountant's upper bound.
    """
    run = Invocation(experiment).run(())
    from experiments.analysis.membership import membership
    from experiments.bounds.audit import audit as plant
    from experiments.stages.rows import read_rows
    from fedsim.records import ScoreRow

    path = run.root / "membership.parquet"
    found = membership(read_rows(path, ScoreRow)) if path.exists() else []
    planted = plant(run, canaries)
    if as_json:
        members = [one.model_dump() for one in found]
        print(json.dumps({"membership": members, "epsilon": planted.model_dump(mode="json")}))
    else:
        print("\n".join([*(one.text() for one in found), planted.text()]))
    raise typer.Exit(1 if planted.refuted else 0)
