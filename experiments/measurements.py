"""``fedsim limits`` and ``fedsim bench``: numbers beside those of the attacks on a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from experiments.invocation import Invocation
from experiments.options import Json, Sets, Target
from fedsim.build import suggest
from fedsim.errors import ConfigError
from fedsim.visible import say


def limits(
    experiment: Target,
    victims: Annotated[
        int, typer.Option(min=0, help="images per cell to compute a PSNR ceiling for")
    ] = 3,
    as_json: Json = False,
) -> None:
    """Compute upper limits on any attack: rank, differential privacy, information.

    The next fedsim report adds these tables to the page, next to what the attacks achieved.
    """
    run = Invocation(experiment).run(())
    from experiments.bounds.limits import limits as examine
    from experiments.report.limit_tables import limit_tables

    found = limit_tables(run, examine(run, victims))
    say(json.dumps(found.table()) if as_json else found.text())


def bench(
    what: Annotated[str, typer.Argument(metavar="WHAT", show_default=False)] = "",
    sets: Sets = None,
    path: Annotated[
        Path | None, typer.Option(help="checkout of a paper's public code, for reference")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure the speed of text and images, overhead, ranks of true tokens, and architectures.

    WHAT is capture, workers, text, images, ranks, families, gpu or reference. Without it all but
    the last run, which takes a quarter of an hour, and ten minutes more where there is a GPU, which
    "gpu" compares with the CPU. "families" tries each attack on each architecture. "ranks" measures
    how far the true tokens stand out in a defended gradient; --set changes its model, data set,
    sentences (task.split) and federation.batch_size. "reference" runs the public code of Inverting
    Gradients or DAGER beside ours, on the same weights, rows and update.
    """
    from experiments.benchmarks.measure import PARTS

    if what and what not in PARTS:
        raise ConfigError(f"bench {what!r}: there is no such benchmark. {suggest(what, PARTS)}")
    from experiments.benchmarks.bench import bench as measure

    measures = []
    for each in measure(what, sets or [], path):
        measures.append(vars(each))
        if not as_json:
            say(each.text(), flush=True)
    if as_json:
        say(json.dumps(measures))
