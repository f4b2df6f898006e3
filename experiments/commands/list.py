"""``fedsim list``: the names that an experiment may use."""

import json
from typing import Annotated

import typer

from experiments.commands.parameters import Json
from fedsim.config.build import suggest
from fedsim.errors import ConfigError
from fedsim.visible import say


def list_(
    what: Annotated[str, typer.Argument(metavar="WHAT", show_default=False)] = "",
    as_json: Json = False,
) -> None:
    """List attacks, defenses, metrics, models, datasets or experiments, or count each."""
    from experiments.preview.manuals import CATALOGS, counts

    if what and what not in CATALOGS:
        raise ConfigError(f"list {what!r}: there is no such list. {suggest(what, CATALOGS)}")
    entries = CATALOGS[what]() if what else counts()
    width = max(len(name) for name in entries)
    lines = (f"{name:<{width}}  {sentence}" for name, sentence in entries.items())
    say(json.dumps(entries) if as_json else "\n".join(lines))
