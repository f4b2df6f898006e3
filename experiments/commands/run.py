"""``fedsim run``, and its four stages alone: simulate, attack, score and report."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import typer

from experiments.commands import captures
from experiments.commands.parameters import (
    Address,
    Attacked,
    DryRun,
    Engine,
    Gpus,
    Json,
    Out,
    Quiet,
    Redact,
    Retry,
    Seed,
    Sets,
    Target,
    Watch,
    Workers,
)
from experiments.commands.show import show
from experiments.invocation import Invocation, folder_of
from experiments.plan.config import find
from experiments.plan.folder import STAGES, RunStage
from fedsim.api.run import continuation
from fedsim.errors import ConfigError, Interrupted, Terminated
from fedsim.visible import say


def run(
    experiment: Target,
    sets: Sets = None,
    out: Out = None,
    seed: Seed = None,
    workers: Workers = None,
    gpus: Gpus = None,
    engine: Engine = None,
    address: Address = None,
    quiet: Quiet = False,
    retry_failed: Retry = False,
    dry_run: DryRun = False,
    watch: Watch = False,
    as_json: Json = False,
) -> None:
    """Run all stages: simulate, attack, score, report. Finished work is kept."""
    if dry_run:
        show(experiment, sets, seed, workers, as_json=as_json)
        return
    given = Invocation(experiment, sets or [], _path(out), seed, workers, engine, gpus, address)
    _execute(given, STAGES, quiet, as_json, watch=watch, retry_failed=retry_failed)


def simulate(
    experiment: Target,
    sets: Sets = None,
    out: Out = None,
    seed: Seed = None,
    workers: Workers = None,
    gpus: Gpus = None,
    engine: Engine = None,
    address: Address = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train with Flower and capture the updates the server receives."""
    given = Invocation(experiment, sets or [], _path(out), seed, workers, engine, gpus, address)
    _execute(given, ("simulate",), quiet, as_json)


def attack(
    experiment: Attacked,
    sets: Sets = None,
    out: Out = None,
    seed: Seed = None,
    workers: Workers = None,
    gpus: Gpus = None,
    engine: Engine = None,
    address: Address = None,
    quiet: Quiet = False,
    retry_failed: Retry = False,
    as_json: Json = False,
    model: captures.Model = None,
    tokenizer: captures.Tokenizer = None,
    task: captures.Task = None,
    loss: captures.Loss = None,
    image_shape: captures.Shape = None,
    input_shape: captures.InputShape = None,
    input_range: captures.InputRange = None,
    base: captures.Base = None,
    lora_alpha: captures.Alpha = None,
    max_length: captures.Longest = None,
    knows: captures.Knows = None,
    kind: captures.Kind = None,
    attacks: captures.Attacks = None,
    budget: captures.Budget = None,
    rounds: captures.Rounds = None,
    clients: captures.Clients = None,
) -> None:
    """Attack the captures that have not been attacked yet."""
    described = captures.Description(
        model=model,
        tokenizer=tokenizer,
        task=task,
        loss=loss,
        image_shape=image_shape,
        input_shape=input_shape,
        input_range=input_range,
        base=base,
        lora_alpha=lora_alpha,
        max_length=max_length,
        knows=knows,
        kind=kind,
    )
    chosen = captures.Chosen(attacks, budget, rounds, clients)
    if captures.is_captures(experiment):
        done = captures.attack_foreign(Path(experiment), described, chosen, quiet, as_json)
        raise typer.Exit(done)
    _refuse(experiment, {**vars(described), **vars(chosen)})
    given = Invocation(experiment, sets or [], _path(out), seed, workers, engine, gpus, address)
    _execute(given, ("attack",), quiet, as_json, retry_failed=retry_failed)


def score(
    experiment: Attacked,
    sets: Sets = None,
    out: Out = None,
    seed: Seed = None,
    quiet: Quiet = False,
    as_json: Json = False,
    truth: captures.Truth = None,
) -> None:
    """Score the attacks' guesses against the private data."""
    if captures.is_captures(experiment):
        raise typer.Exit(captures.score_foreign(Path(experiment), truth, as_json))
    _refuse(experiment, {"truth": truth})
    given = Invocation(experiment, sets or [], _path(out), seed)
    _execute(given, ("score",), quiet, as_json)


def report(
    experiment: Attacked,
    sets: Sets = None,
    out: Out = None,
    seed: Seed = None,
    quiet: Quiet = False,
    redact: Redact = False,
    as_json: Json = False,
) -> None:
    """Write the tables, figures and HTML page."""
    if captures.is_captures(experiment):
        if redact:
            raise ConfigError(
                "--redact: of another application's captures the page is guesses alone. Pass on "
                "what the command prints."
            )
        raise typer.Exit(captures.report_foreign(Path(experiment), as_json))
    given = Invocation(experiment, sets or [], _path(out), seed)
    _execute(given, ("report",), quiet, as_json, redact=redact)


def _path(out: str | None) -> Path | None:
    return folder_of(out) if out else None


def _refuse(experiment: str, described: dict[str, object]) -> None:
    """Refuse options that describe another application's captures, where there are none."""
    if extra := [name for name, value in described.items() if value]:
        if not Path(experiment).exists():
            find(experiment)
        raise ConfigError(
            f"--{extra[0].replace('_', '-')}: is for the captures of another application, and "
            f"{experiment!r} is none. Leave it out."
        )


def _execute(
    given: Invocation,
    stages: tuple[RunStage, ...],
    quiet: bool,
    as_json: bool,
    *,
    watch: bool = False,
    **options: bool,
) -> None:
    """Run stages, print their outcome and exit."""
    whole = given.run(stages)
    from experiments.pipeline import execute

    with _stopped(whole.root), _watched(whole.root) if watch else nullcontext():
        outcome = execute(whole, stages, quiet=quiet or as_json, **options)
    say(json.dumps(outcome.table()) if as_json else outcome.line())
    raise typer.Exit(1 if outcome.failed else 0)


@contextmanager
def _stopped(root: Path) -> Iterator[None]:
    """Say how a run that is stopped goes on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(continuation(root)) from None
    except Terminated as stop:
        stop.advice = continuation(root)
        raise


@contextmanager
def _watched(root: Path) -> Iterator[None]:
    """``fedsim watch`` beside the block, in a process of its group.

    So neither its errors nor its threads can change a number, and its standard input ends with this
    process, however that ends.
    """
    command = [sys.executable, "-P", "-m", "fedsim", "watch", str(root), "--beside"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as server:
        try:
            yield
        finally:
            assert server.stdin is not None
            with suppress(OSError):  # it may have ended before
                server.stdin.close()
