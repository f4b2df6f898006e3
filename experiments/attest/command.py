"""``fedsim attest``: which defense the replies carry, and whether a claim of it holds."""

from pathlib import Path
from typing import Annotated

import typer

from experiments.commands.captures import (
    Base,
    Clients,
    Description,
    Knows,
    Loss,
    Model,
    Rounds,
    Shape,
    Tokenizer,
    captures_of,
    numbers,
)
from experiments.commands.parameters import Json
from fedsim.config.named_code import allow
from fedsim.visible import say


def attest(
    captures: Annotated[
        Path,
        typer.Argument(help="a folder of captures, or of state dicts", show_default=False),
    ],
    claim: Annotated[
        str | None,
        typer.Option(help='declared: "local_dp clip=1 epsilon=10 delta=1e-5", "LocalDpMod(1, ..)"'),
    ] = None,
    model: Model = None,
    tokenizer: Tokenizer = None,
    loss: Loss = None,
    image_shape: Shape = None,
    base: Base = None,
    knows: Knows = None,
    rounds: Rounds = None,
    clients: Clients = None,
    as_json: Json = False,
) -> None:
    """Say of each reply which defense it carries, without canaries or the clients' help.

    Clip, noise, grid, zeros, signs, cuts and what was withheld, each with its size, and what cannot
    be told. With --claim the declared defense is held against the replies; exit code 1 says that a
    number refutes it.
    """
    from experiments.attest.claims import Declared
    from experiments.attest.rounds import attest_all
    from experiments.captures.captured import captured

    declared = None if claim is None else Declared.parse(claim)
    described = Description(model, tokenizer, None, loss, image_shape, base=base, knows=knows)
    for name in (model, loss):
        allow(name or "")
    options = described.options()
    foreign = captured(captures_of(captures), options.pop("model", None), **options)
    chosen = foreign.only(numbers(rounds, "--rounds"), numbers(clients, "--clients"))
    seen = attest_all(chosen, declared)
    say(seen.model_dump_json() if as_json else str(seen))
    raise typer.Exit(int(seen.refuted))
