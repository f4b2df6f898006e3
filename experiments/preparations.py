"""Commands that explain or prepare an experiment, and attack nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from experiments.invocation import Invocation
from experiments.mirror import working_folder
from experiments.options import Json, Out, Quiet, Seed, Sets, Target
from fedsim.visible import say


def prepare(experiment: Target, sets: Sets = None, out: Out = None, seed: Seed = None) -> None:
    """Create the run folder and print its cells, to simulate with flwr run or your own engine."""
    with working_folder(experiment, out, ()) as (target, folder):
        for cell in Invocation(target, sets or [], folder, seed).run(("simulate",)).cells:
            say(cell.folder.resolve())


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


def describe_(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="e.g. lamp, dp_sgd, psnr or federation")
    ],
    as_json: Json = False,
) -> None:
    """Explain an attack, defense, metric or section of an experiment, with its options."""
    from experiments.preview.describe import manual

    found = manual(name)
    say(json.dumps(found.table()) if as_json else found.text())


def schema_() -> None:
    """Print the JSON Schema of an experiment file, with which editors complete and check it."""
    from experiments.preview.schema import schema

    say(json.dumps(schema(), indent=1))
