"""``fedsim run``, and its four stages alone: simulate, attack, score and report."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any

import typer

from experiments.commands.captures import attack_foreign, is_captures, report_foreign, score_foreign
from experiments.commands.parameters import (
    Address,
    DryRun,
    Engine,
    Full,
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
from fedsim.api.unfinished import continuation
from fedsim.errors import ConfigError, Interrupted, Terminated
from fedsim.visible import say

_FOREIGN: dict[str, Callable[..., int]] = {
    "attack": attack_foreign,
    "score": score_foreign,
    "report": report_foreign,
}


def command(name: str) -> Callable[..., None]:
    """One stage, or for ``run`` all of them, with the options that make sense there."""
    return _command(STAGES if name == "run" else (STAGES[STAGES.index(name)],), _FOREIGN.get(name))


def _command(
    stages: tuple[RunStage, ...], foreign: Callable[..., int] | None = None
) -> Callable[..., None]:
    def command(
        experiment: Target,
        sets: Sets = None,
        out: Out = None,
        seed: Seed = None,
        workers: Workers = None,
        gpus: Gpus = None,
        engine: Engine = None,
        address: Address = None,
        quiet: Quiet = False,
        full: Full = False,
        redact: Redact = False,
        retry_failed: Retry = False,
        dry_run: DryRun = False,
        watch: Watch = False,
        as_json: Json = False,
        **described: Any,  # noqa: ANN401
    ) -> None:
        if foreign is not None and is_captures(experiment):
            if redact:
                raise ConfigError(
                    "--redact: of another application's captures the page is guesses alone. Pass "
                    "on what the command prints."
                )
            raise typer.Exit(foreign(Path(experiment), quiet, as_json, **described))
        if extra := [name for name, value in described.items() if value]:
            if not Path(experiment).exists():
                find(experiment)
            raise ConfigError(
                f"--{extra[0].replace('_', '-')}: is for the captures of another application, and "
                f"{experiment!r} is none. Leave it out."
            )
        if dry_run:
            show(experiment, sets, seed, workers, as_json)
            return
        folder = folder_of(out) if out else None
        given = Invocation(experiment, sets or [], folder, seed, workers, engine, gpus, address)
        run = given.run(stages)
        from experiments.pipeline import execute

        with _stopped(run.root), _watched(run.root) if watch else nullcontext():
            outcome = execute(
                run,
                stages,
                quiet=quiet or as_json,
                full=full,
                redact=redact,
                retry_failed=retry_failed,
            )
        say(json.dumps(outcome.table()) if as_json else outcome.line())
        raise typer.Exit(1 if outcome.failed else 0)

    of_stage = {"full": "report", "retry_failed": "attack"}
    unfit = {"described", *(name for name, stage in of_stage.items() if stage not in stages)}
    unfit |= set() if stages == STAGES else {"dry_run", "watch"}
    unfit |= set() if stages == ("report",) else {"redact"}
    unfit |= set() if {"simulate", "attack"} & {*stages} else {"address"}
    parameters = signature(command, eval_str=True).parameters.items()
    fitting = [parameter for name, parameter in parameters if name not in unfit]
    if foreign is not None:
        more = signature(foreign, eval_str=True).parameters.values()
        fitting += [parameter for parameter in more if parameter.kind is Parameter.KEYWORD_ONLY]
    vars(command)["__signature__"] = Signature(fitting)
    return command


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
