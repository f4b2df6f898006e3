"""``fedsim seal``: victims for attacks of others, without what their rows follow from."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedsim.api import Run
from fedsim.errors import ConfigError
from fedsim.visible import say


def seal(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_EXPERIMENT",
            help="a run folder, an experiment file, or the name of a shipped experiment",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="folder for bundle/ and truth/")],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="override an option: federation.rounds=5"),
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=0.1, help="CPU minutes that a submission may use")
    ] = 30.0,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="print only errors and the summary line")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="print one JSON object instead of text")
    ] = False,
) -> None:
    """Seal a simulated run: a bundle to publish, and the truth to keep, which grades submissions.

    An experiment is simulated first, under a secret seed. The bundle holds the captures, the rules
    and a salted commitment to each private row.
    """
    from experiments.extras.arena.sealing import seal as write
    from fedsim.api.calls import simulate_secretly

    root = Path(experiment)
    if not root.is_dir():
        root = simulate_secretly(experiment, out / "run", sets or [], quiet=quiet or as_json)
    elif sets:
        raise ConfigError(f"{root}: a run folder has a fixed experiment, so --set does not apply.")
    sealed = write(Run.open(root), out, minutes)
    if as_json:
        say(
            json.dumps({"bundle": str(sealed.bundle), "rows": sealed.rows, "sha256": sealed.sha256})
        )
    else:
        say(
            f"sealed {sealed.rows} rows: publish {sealed.bundle} ({sealed.sha256[:16]}), keep "
            f"{sealed.truth} and the run to yourself"
        )
