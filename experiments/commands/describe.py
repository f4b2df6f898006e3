"""``fedsim describe``: the manual of an attack, a defense, a metric or a section."""

import json
from typing import Annotated

import typer

from experiments.commands.parameters import Json
from fedsim.visible import say


def describe(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="e.g. lamp, dp_sgd, psnr or federation")
    ],
    as_json: Json = False,
) -> None:
    """Explain an attack, defense, metric or section of an experiment, with its options."""
    from experiments.preview.describe import manual

    page = manual(name)
    say(json.dumps(page.table()) if as_json else page.text())
