"""``python -m benchmarks``: measurements of fedsim itself, in a checkout."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.bench import bench
from benchmarks.measure import PARTS
from experiments.commands.parameters import Json, Sets
from fedsim.config.build import suggest
from fedsim.errors import ConfigError, FedsimError
from fedsim.visible import say

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def measure(
    what: Annotated[str, typer.Argument(metavar="WHAT", show_default=False)] = "",
    sets: Sets = None,
    path: Annotated[
        Path | None, typer.Option(help="checkout of a paper's public code, for reference")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure the speed of text and images, overhead, ranks of true tokens, and architectures.

    WHAT is capture, workers, text, images, ranks, families, stages, gpu or reference. Without it
    all but the last run, which takes a quarter of an hour, and ten minutes more where there is a
    GPU, which "gpu" compares with the CPU. "stages" times the commands of a run of 1,000 captures.
    "families" tries each attack on each architecture. "ranks" measures
    how far the true tokens stand out in a defended gradient; --set changes its model, data set,
    sentences (task.split) and federation.batch_size. "reference" runs the public code of Inverting
    Gradients or DAGER beside ours, on the same weights, rows and update.
    """
    if what and what not in PARTS:
        raise ConfigError(f"{what!r}: no such benchmark. {suggest(what, PARTS)}")
    measures = []
    for each in bench(what, sets or [], path):
        measures.append(vars(each))
        if not as_json:
            say(each.text(), flush=True)
    if as_json:
        say(json.dumps(measures))


if __name__ == "__main__":
    try:
        app()
    except FedsimError as error:
        say(f"benchmarks: {error}", error=True)
        sys.exit(2)
