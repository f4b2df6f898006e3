"""The command line. Each command imports heavy modules only when it runs."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from experiments.audit.options import (
    Base,
    Loss,
    Model,
    Truth,
    attack_foreign,
    examine_foreign,
    is_captures,
    report_foreign,
    score_foreign,
)
from experiments.audited import audit
from experiments.exports import export
from experiments.help_page import Chapters
from experiments.invocation import Invocation
from experiments.measurements import bench, limits
from experiments.mirror import working_folder
from experiments.options import (
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
    Workers,
)
from experiments.origin import check_origin
from experiments.plan.folder import STAGES, RunStage
from experiments.preparations import describe_, prepare, prior, schema_
from experiments.upkeep import check, diff, ls, open_, rm
from fedsim import __version__
from fedsim.build import suggest
from fedsim.errors import ConfigError, FedsimError, Terminated
from fedsim.visible import say

_INTERRUPTED, _TERMINATED = 130, 143
_CONTINUE = "Run the same command again to continue."
# With rich present, typer escapes the brackets of help texts although markup is off.
typer.core.HAS_RICH = False
app = typer.Typer(
    name="fedsim",
    cls=Chapters,
    invoke_without_command=True,
    suggest_commands=False,  # click does it already
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def fedsim(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Simulate federated learning with an eavesdropping server.

    Attack the updates that it captured, and report how much private data they leaked.
    """
    if version:
        say(f"fedsim {__version__}")
    elif ctx.invoked_subcommand is None:
        say(ctx.get_help())


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
            raise ConfigError(
                f"--{extra[0].replace('_', '-')}: is for the captures of another application, and "
                f"{experiment!r} is none. Leave it out."
            )
        if dry_run:
            show(experiment, sets, seed, workers, as_json)
            return
        with working_folder(experiment, out, stages) as (target, folder):
            given = Invocation(target, sets or [], folder, seed, workers, engine, gpus, address)
            run = given.run(stages)
            from experiments.pipeline import execute

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
    unfit |= set() if stages == STAGES else {"dry_run"}
    unfit |= set() if stages == ("report",) else {"redact"}
    unfit |= set() if {"simulate", "attack"} & {*stages} else {"address"}
    own = signature(command, eval_str=True).parameters.items()
    kept = [one for name, one in own if name not in unfit]
    if foreign is not None:
        more = signature(foreign, eval_str=True).parameters.values()
        kept += [one for one in more if one.kind is Parameter.KEYWORD_ONLY]
    vars(command)["__signature__"] = Signature(kept)
    return command


_FOREIGN: dict[str, Callable[..., int]] = {
    "attack": attack_foreign,
    "score": score_foreign,
    "report": report_foreign,
}
for _name, _chosen, _sentence in (
    ("run", STAGES, "Run all stages: simulate, attack, score, report. Finished work is kept."),
    ("simulate", STAGES[:1], "Train with Flower and capture the updates the server receives."),
    ("attack", STAGES[1:2], "Attack the captures that have not been attacked yet."),
    ("score", STAGES[2:3], "Score the attacks' guesses against the private data."),
    ("report", STAGES[3:], "Write the tables, figures and HTML page."),
):
    app.command(_name, help=_sentence)(_command(_chosen, _FOREIGN.get(_name)))
for _extra in (prepare, prior, ls, check, diff, export, rm):
    app.command()(_extra)
app.command("describe")(describe_)
app.command("schema")(schema_)
app.command("open")(open_)


@app.command()
def doctor(
    experiment: Target,
    truth: Truth = None,
    model: Model = None,
    loss: Loss = None,
    base: Base = None,
    as_json: Json = False,
) -> None:
    """Check captures by replaying each client's training on its true data."""
    if is_captures(experiment):
        raise typer.Exit(examine_foreign(Path(experiment), as_json, truth, model, loss, base))
    folder = Invocation(experiment).run(())
    from experiments.checks.capture_check import examine

    checkup = examine(folder)
    say(json.dumps(checkup.table()) if as_json else checkup.text())
    raise typer.Exit(1 if checkup.faults else 0)


for _measured in (limits, audit):
    app.command()(_measured)


@app.command()
def show(
    experiment: Target,
    sets: Sets = None,
    seed: Seed = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Print the resolved experiment, its cells, threat model and cost; run nothing."""
    plan = Invocation(experiment, sets or [], None, seed, workers).resolved()
    from experiments.preview.show import describe

    description = describe(plan)
    say(json.dumps(description.table()) if as_json else description.text())


app.command()(bench)


@app.command(name="list")
def list_(
    what: Annotated[str, typer.Argument(metavar="WHAT", show_default=False)] = "",
    as_json: Json = False,
) -> None:
    """List attacks, defenses, metrics, models, datasets or experiments, or count each."""
    from experiments.preview.catalog import CATALOGS, counts

    if what and what not in CATALOGS:
        raise ConfigError(f"list {what!r}: there is no such list. {suggest(what, CATALOGS)}")
    entries = CATALOGS[what]() if what else counts()
    width = max(len(name) for name in entries)
    lines = (f"{name:<{width}}  {sentence}" for name, sentence in entries.items())
    say(json.dumps(entries) if as_json else "\n".join(lines))


def _terminate(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would cut the cleaning up
    raise Terminated(_TERMINATED)


def main() -> None:
    """Run the command line. A user's mistake ends in one line on stderr, never in a traceback."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        check_origin()
        result: Any = app(standalone_mode=False)
    except FedsimError as error:
        sys.exit(_complain(str(error)))
    except OSError as error:
        sys.exit(_complain(f"{str(error).rstrip('.')}. Correct it and run the same command again."))
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except Terminated:
        _complain(f"terminated. {_CONTINUE}")
        raise
    except Exception as error:
        usage = getattr(error, "format_message", None)  # click's usage errors
        if usage is None:
            raise
        sys.exit(_complain(f"{usage()} See fedsim --help."))
    if result == _INTERRUPTED:  # typer catches KeyboardInterrupt itself
        _complain(f"interrupted. {_CONTINUE}")
    sys.exit(result or 0)


def _complain(message: str) -> int:
    say(f"fedsim: {' '.join(message.split())}", error=True)
    return 2


if __name__ == "__main__":
    main()
