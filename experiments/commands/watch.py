"""``fedsim watch``: a run while it goes on, in a browser on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from experiments.commands.parameters import RunFolder
from experiments.plan.folder import Run

Port = Annotated[int, typer.Option(help="port of this machine; 0 takes a free one", max=65535)]


def watch(run: RunFolder, port: Port = 0) -> None:
    """Follow a run in a browser: cells, jobs, guesses as they form, and at its end the report."""
    opened = Run.open(run)
    from experiments.extras.watch.serving import serve

    serve(opened, port)
