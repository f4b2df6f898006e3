"""``fedsim limits``: upper limits on any attack on a run."""

import json
from typing import Annotated

import typer

from experiments.commands.parameters import Json, Target
from experiments.invocation import Invocation
from fedsim.visible import say


def limits(
    experiment: Target,
    gaussian: Annotated[
        bool, typer.Option(help="bound the PSNR were images Gaussian, too, which takes Jacobians")
    ] = True,
    as_json: Json = False,
) -> None:
    """Compute upper limits on any attack: rank, differential privacy, information.

    The next fedsim report adds these tables to the page, next to what the attacks achieved.
    """
    run = Invocation(experiment).run(())
    from experiments.bounds.limits import limits as examine
    from experiments.report.limit_tables import limit_tables

    tables = limit_tables(run, examine(run, gaussian=gaussian))
    say(json.dumps(tables.table()) if as_json else tables.text())
