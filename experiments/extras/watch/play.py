"""``fedsim play``: a page on which the guess of one attack forms."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.api import ConfigError, Run, say, show_page, write_bytes


def play(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder")],
    job: Annotated[
        str,
        typer.Argument(
            help="part of a job's name, inverting/round-0001-client-0000", metavar="JOB"
        ),
    ] = "",
    out: Annotated[Path, typer.Option(help="the page")] = Path("play.html"),
) -> None:
    """Run one attack of a run again and write a page with a slider on which its guess forms.

    The page needs no network and shows private rows.
    """
    if out.suffix != ".html":
        raise ConfigError(f"--out {str(out)!r}: is no page. Write play.html, for example.")
    opened = Run.open(run)
    from experiments.extras.watch.recording import played

    write_bytes(out, played(opened, job).encode(), private=True)
    say(out)
    show_page(out.resolve().as_uri())
