"""Commands that look up what experiments can name."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from experiments.options import Json
from fedsim.build import suggest
from fedsim.errors import ConfigError


def list_(
    what: Annotated[str, typer.Argument(metavar="WHAT", show_default=False)] = "",
    as_json: Json = False,
) -> None:
    """List attacks, defenses, metrics, models, datasets or experiments, or count each."""
    from experiments.preview.catalog import CATALOGS, counts

    if what and what not in CATALOGS:
        raise ConfigError(f"list {what!r}: there is no such list. {suggest(what, CATALOGS)}")
    entries = CATALOGS[what]() if what else counts()
    if as_json:
        print(json.dumps(entries))
        return
    width = max(len(name) for name in entries)
    for name, sentence in entries.items():
        print(f"{name:<{width}}  {sentence}")


def describe_(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="e.g. lamp, dp_sgd, psnr or federation")
    ],
    as_json: Json = False,
) -> None:
    """Explain an attack, defense, metric or section of an experiment, with its options."""
    from experiments.preview.describe import manual

    found = manual(name)
    print(json.dumps(found.table()) if as_json else found.text())
