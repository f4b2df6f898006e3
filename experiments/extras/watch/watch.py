"""``fedsim watch``: a run while it goes on, in a browser on this machine."""

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedsim.api import Run


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder")],
    port: Annotated[
        int, typer.Option(help="port of this machine; 0 takes a free one", max=65535)
    ] = 0,
    beside: Annotated[
        bool, typer.Option("--beside", hidden=True, help="end with the standard input")
    ] = False,
) -> None:
    """Follow a run in a browser: cells, jobs, guesses as they form, and at its end the report."""
    opened = Run.open(run)
    from experiments.extras.watch.server import serve

    if beside:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run takes it, and ends this one
    serve(opened, port, sys.stdin.buffer if beside else None)
