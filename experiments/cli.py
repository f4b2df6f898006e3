"""The command line. Anything heavy is imported by the stage that needs it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.config import Plan, load_plan
from experiments.folder import Run
from experiments.origin import check_origin
from fedsim.build import suggest
from fedsim.errors import ConfigError, FedsimError

if TYPE_CHECKING:
    from experiments.pipeline import Stage

app = typer.Typer(
    name="fedsim",
    help="Simulate federated learning under an eavesdropping server, attack what it captured, and "
    "report how much leaked.",
    no_args_is_help=True,
    suggest_commands=False,  # click does it already
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Target = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_EXPERIMENT",
        help="a run folder, an experiment file, or the name of a shipped experiment",
        show_default=False,
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="override, as federation.rounds=5"),
]
Out = Annotated[Path | None, typer.Option(help="the run folder; runs/<name> if not given")]
Seed = Annotated[int | None, typer.Option(help="one seed instead of the experiment's")]
Workers = Annotated[int | None, typer.Option(help="client workers and attack workers")]
Quiet = Annotated[bool, typer.Option("--quiet", help="print errors and the last line only")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object instead of text")]


@dataclass(frozen=True)
class Invocation:
    """What the options common to all stages say."""

    target: str
    sets: list[str] = field(default_factory=list)
    out: Path | None = None
    seed: int | None = None
    workers: int | None = None

    def plan(self) -> Plan:
        """The experiment with the overrides applied."""
        overrides = list(self.sets)
        if self.seed is not None:
            overrides.append(f"seeds=[{self.seed}]")
        if self.workers is not None:
            overrides.append(f"federation.client_workers={self.workers}")
            overrides.append(f"attack_stage.workers={self.workers}")
        return load_plan(self.target, overrides)

    def opened(self) -> Run | None:
        """The run, if the target is a folder; it keeps its experiment."""
        if not Path(self.target).is_dir():
            return None
        if self.sets or self.out or self.seed is not None or self.workers is not None:
            raise ConfigError(
                f"{self.target}: a run folder keeps its experiment, so --set, --out, --seed "
                "and --workers do not apply. Name the experiment instead."
            )
        return Run.open(Path(self.target))

    def run(self, stages: Sequence[Stage]) -> Run:
        """The run to work on; nothing is written unless the stages can start."""
        if (opened := self.opened()) is not None:
            run = opened
        else:
            plan = self.plan()
            run = Run.plan_at(plan, self.out or Path("runs") / plan.name)
        todo = [cell for cell in run.cells if not cell.simulated]
        if todo and "simulate" not in stages:
            raise ConfigError(
                f"{todo[0].folder}: not simulated. Run fedsim simulate {self.target} first."
            )
        if todo:
            from experiments.rehearsal import rehearse

            rehearse(todo)
        return Run.create(run.plan, run.root) if todo or opened is None else run


def _stages(invocation: Invocation, stages: tuple[Stage, ...], quiet: bool, as_json: bool) -> None:
    run = invocation.run(stages)
    from experiments.pipeline import execute

    outcome = execute(run, stages, quiet=quiet or as_json)
    print(json.dumps(outcome.table()) if as_json else outcome.line())
    raise typer.Exit(1 if outcome.failed else 0)


@app.command()
def run(
    experiment: Target,
    sets: Sets = None,
    out: Out = None,
    seed: Seed = None,
    workers: Workers = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """All stages: simulate, attack, score, report; what is done already is not done again."""
    invocation = Invocation(experiment, sets or [], out, seed, workers)
    _stages(invocation, ("simulate", "attack", "score", "report"), quiet, as_json)


@app.command()
def simulate(
    experiment: Target,
    sets: Sets = None,
    out: Out = None,
    seed: Seed = None,
    workers: Workers = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train with Flower and capture what the server receives."""
    invocation = Invocation(experiment, sets or [], out, seed, workers)
    _stages(invocation, ("simulate",), quiet, as_json)


@app.command()
def attack(
    experiment: Target,
    sets: Sets = None,
    out: Out = None,
    seed: Seed = None,
    workers: Workers = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Attack captures that have no guess yet."""
    invocation = Invocation(experiment, sets or [], out, seed, workers)
    _stages(invocation, ("attack",), quiet, as_json)


@app.command()
def score(experiment: Target, quiet: Quiet = False, as_json: Json = False) -> None:
    """Compare guesses with the truth."""
    _stages(Invocation(experiment), ("score",), quiet, as_json)


@app.command()
def report(experiment: Target, quiet: Quiet = False, as_json: Json = False) -> None:
    """Write tables, figures and the HTML page."""
    _stages(Invocation(experiment), ("report",), quiet, as_json)


@app.command()
def doctor(experiment: Target, as_json: Json = False) -> None:
    """Replay the clients' steps on the true data: is each capture what it claims to be?"""
    folder = Invocation(experiment).run(())
    from experiments.doctor import examine

    checkup = examine(folder)
    print(json.dumps(checkup.table()) if as_json else checkup.text())
    raise typer.Exit(1 if checkup.faults else 0)


@app.command()
def show(
    experiment: Target,
    sets: Sets = None,
    seed: Seed = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """The resolved experiment, its cells, the threat model and the cost; nothing is run."""
    invocation = Invocation(experiment, sets or [], None, seed, workers)
    opened = invocation.opened()
    plan = invocation.plan() if opened is None else opened.plan
    from experiments.show import describe

    description = describe(plan)
    print(json.dumps(description.table()) if as_json else description.text())


@app.command(name="list")
def list_(
    what: Annotated[str, typer.Argument(metavar="WHAT", show_default=False)] = "",
    as_json: Json = False,
) -> None:
    """Attacks, defenses, metrics, models, datasets or experiments."""
    from experiments.catalog import CATALOGS

    if what not in CATALOGS:
        raise ConfigError(f"list {what!r}: there is no such list. {suggest(what, CATALOGS)}")
    entries = CATALOGS[what]()
    if as_json:
        print(json.dumps(entries))
        return
    width = max(len(name) for name in entries)
    for name, sentence in entries.items():
        print(f"{name:<{width}}  {sentence}")


def main() -> None:
    """Entry point: one line on stderr for a user's mistake, never a traceback."""
    try:
        check_origin()
        result: Any = app(standalone_mode=False)
    except FedsimError as error:
        sys.exit(_complain(str(error)))
    except KeyboardInterrupt:
        sys.exit(_complain("stopped. Run the same command again to go on.", code=130))
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except Exception as error:
        usage = getattr(error, "format_message", None)  # click's usage errors
        if usage is None:
            raise
        sys.exit(_complain(f"{usage()} See fedsim --help."))
    sys.exit(result or 0)


def _complain(message: str, code: int = 2) -> int:
    print(f"fedsim: {' '.join(message.split())}", file=sys.stderr)
    return code
