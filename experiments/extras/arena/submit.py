"""``fedsim submit``: guesses at a sealed bundle."""

from pathlib import Path
from typing import Annotated

import typer

from fedsim.errors import ConfigError
from fedsim.visible import say


def submit(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="what fedsim seal published")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="a new folder")],
    attack: Annotated[
        str | None, typer.Option(metavar="NAME", help="an attack, built in or installed")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="an option of the attack: steps=100"),
    ] = None,
    guesses: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=".safetensors, .npz, .pt or, of texts, .json"),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="name on the board; default: that of the attack")
    ] = None,
    cpu_seconds: Annotated[
        float | None, typer.Option(min=0, help="with --guesses: what they cost")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print one JSON object instead of text")
    ] = False,
) -> None:
    """Attack a sealed bundle, or hand in guesses at it; no private row is needed or read."""
    from experiments.extras.arena.records import open_bundle
    from experiments.extras.arena.submitting import submit_attack, submit_guesses
    from fedsim.api.calls import override

    if (attack is None) == (guesses is None):
        raise ConfigError("submit: name an attack, --attack span, or a file, --guesses FILE.")
    sealed = open_bundle(bundle)
    if attack is not None:
        submission = submit_attack(
            sealed, override({"name": attack}, sets or []), out, name or attack
        )
    elif name is None or cpu_seconds is None:
        raise ConfigError(
            "--guesses: say whose they are and what they cost: --name, --cpu-seconds."
        )
    else:
        assert guesses is not None
        submission = submit_guesses(sealed, guesses, name, cpu_seconds, out)
    if as_json:
        say(submission.model_dump_json())
    else:
        say(
            f"submitted {submission.name}: guesses at {len(submission.files)} of "
            f"{len(sealed.manifest.rules.answers)} clients, {submission.cpu_seconds:.0f} CPU "
            f"seconds; send {out} to whoever holds the truth"
        )
