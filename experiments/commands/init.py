"""``fedsim init``: an experiment from the captures of another application."""

from pathlib import Path
from typing import Annotated

import typer

from experiments.commands.captures import captures_of, is_captures
from fedsim.errors import ConfigError
from fedsim.visible import say


def init(
    captures: Annotated[Path, typer.Argument(metavar="CAPTURES", help="captures or state dicts")],
    out: Annotated[
        Path, typer.Option(metavar="FILE.toml", help="the experiment file to write")
    ] = Path("federation.toml"),
    model: Annotated[
        str | None, typer.Option(metavar="MODULE:NAME", help="what makes the network of images")
    ] = None,
) -> None:
    """Write the federation behind captures as an experiment, with defenses to compare.

    What the captures do not say is marked NOT KNOWN and holds an example.
    """
    if not is_captures(str(captures)):
        raise ConfigError(f"{captures}: holds no captures. Name the folder of the eavesdropper.")
    from experiments.captures.federation import experiment_of

    lacking = experiment_of(captures_of(captures), out, model)
    say(f"{out}: fill in {lacking}; then fedsim show {out}, and fedsim run {out}")
