"""``fedsim prior``: a language model for attacks on text."""

from pathlib import Path
from typing import Annotated

import typer

from experiments.commands.parameters import Quiet, Seed, Sets, Target
from experiments.invocation import Invocation
from fedsim.visible import say


def prior(
    experiment: Target,
    sets: Sets = None,
    out: Annotated[
        Path | None, typer.Option(help="folder for the prior; default: priors/<name>")
    ] = None,
    seed: Seed = None,
    epochs: Annotated[int, typer.Option(min=1, help="passes over the rows, at most")] = 30,
    width: Annotated[int, typer.Option(min=32, help="width of each layer, a multiple of 32")] = 128,
    layers: Annotated[int, typer.Option(min=1, help="number of layers")] = 2,
    quiet: Quiet = False,
) -> None:
    """Train a language model on the auxiliary rows, as a prior for text attacks."""
    plan = Invocation(experiment, sets or [], None, seed).resolved()
    from experiments.priors.prior import train_prior

    folder = out or Path("priors") / plan.name
    trained = train_prior(plan, folder, width=width, layers=layers, epochs=epochs, quiet=quiet)
    say(trained.line(folder))
