"""``fedsim seal``: victims for attacks of others, without what their rows follow from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from experiments.commands.invocation import Invocation
from experiments.commands.parameters import Json, Quiet, Sets, Target
from fedsim.visible import say


def seal(
    experiment: Target,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="folder for bundle/ and truth/")],
    sets: Sets = None,
    minutes: Annotated[
        float, typer.Option(min=0.1, help="CPU minutes that a submission may use")
    ] = 30.0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Seal a simulated run: a bundle to publish, and the truth to keep, which grades submissions.

    An experiment is simulated first, under a secret seed. The bundle holds the captures, the rules
    and a salted commitment to each private row.
    """
    from experiments.extras.arena.sealing import seal as write
    from experiments.extras.arena.sealing import secret_settings
    from experiments.pipeline import execute

    if Path(experiment).is_dir():
        run = Invocation(experiment, sets or []).run(())
    else:
        given = Invocation(experiment, (sets or []), out=out / "run")
        given = replace(given, sets=[*given.sets, *secret_settings(given.plan())])
        run = given.run(("simulate",))
        execute(run, ("simulate",), quiet=quiet or as_json)
    sealed = write(run, out, minutes)
    if as_json:
        say(
            json.dumps({"bundle": str(sealed.bundle), "rows": sealed.rows, "sha256": sealed.sha256})
        )
    else:
        say(
            f"sealed {sealed.rows} rows: publish {sealed.bundle} ({sealed.sha256[:16]}), keep "
            f"{sealed.truth} and the run to yourself"
        )
