"""``fedsim diff``: which numbers moved between two runs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from experiments.commands.parameters import Json, RunFolder
from experiments.plan.folder import check_version
from fedsim.visible import say


def diff(
    before: RunFolder,
    after: RunFolder,
    every: Annotated[bool, typer.Option("--all", help="show what did not move as well")] = False,
    as_json: Json = False,
) -> None:
    """Compare two runs: which numbers moved beyond their 95 % intervals.

    The same private examples are compared with each other; where the runs attacked different ones,
    the two means' own intervals count. Exit code 1 says that a number moved.
    """
    from experiments.analysis.differences import compare

    for run in (before, after):
        check_version(run)
    found = compare(before, after)
    say(json.dumps(found.model_dump(mode="json")) if as_json else found.text(every=every))
    raise typer.Exit(1 if any(change.moved for change in found.changes) else 0)
