"""``fedsim diff``: which numbers moved between two runs, or between the attacks of one."""

import json
from pathlib import Path
from typing import Annotated

import typer

from experiments.commands.parameters import Json, RunFolder
from fedsim.api.run import check_version
from fedsim.errors import ConfigError
from fedsim.visible import say


def diff(
    before: RunFolder,
    after: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="another one", show_default=False)
    ] = None,
    attacks: Annotated[
        list[str] | None,
        typer.Option("--attack", metavar="NAME", help="of one run: compare these; repeat it"),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="show what did not move as well")] = False,
    as_json: Json = False,
) -> None:
    """Compare two runs, or the attacks of one: what differs beyond its 95 % interval.

    The same private examples are compared with each other; where two runs attacked different ones,
    nothing is sure. The intervals hold together, over all numbers that are compared. Exit code 1
    says that a number of two runs moved, or a verdict changed.
    """
    from experiments.analysis.differences import compare, compare_attacks

    if after is not None and attacks:
        raise ConfigError("fedsim diff: --attack compares attacks of one run; two runs are given.")
    for run in filter(None, (before, after)):
        check_version(run)
    comparison = compare(before, after) if after else compare_attacks(before, attacks or ())
    say(json.dumps(comparison.model_dump(mode="json")) if as_json else comparison.text(every=every))
    raise typer.Exit(1 if after and comparison.moved else 0)
