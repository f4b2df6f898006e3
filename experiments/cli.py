"""The command line. Each command imports heavy modules only when it runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from experiments.audited import audit
from experiments.invocation import Invocation, Json, Target
from experiments.origin import check_origin
from experiments.plan.folder import STAGES, RunStage
from fedsim.build import suggest
from fedsim.errors import ConfigError, FedsimError

# With rich present, typer escapes the brackets of help texts although markup is off.
typer.core.HAS_RICH = False
app = typer.Typer(
    name="fedsim",
    help="Simulate federated learning with an eavesdropping server, attack the updates that it "
    "captured, and report how much private data they leaked.",
    no_args_is_help=True,
    suggest_commands=False,  # click does it already
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="override an option: federation.rounds=5"),
]
Out = Annotated[Path | None, typer.Option(help="run folder; default: runs/<name>")]
Seed = Annotated[int | None, typer.Option(help="one seed, in place of the experiment's")]
Workers = Annotated[int | None, typer.Option(help="client workers and attack workers, each")]
Gpus = Annotated[float | None, typer.Option(help="GPUs per worker, e.g. 0.5; 0 runs on the CPU")]
Engine = Annotated[str | None, typer.Option(help="ray (parallel) or in-process")]
Quiet = Annotated[bool, typer.Option("--quiet", help="print only errors and the summary line")]
Full = Annotated[bool, typer.Option("--full", help="report every table, metric and guess")]


def _command(stages: tuple[RunStage, ...]) -> Callable[..., None]:
    def command(
        experiment: Target,
        sets: Sets = None,
        out: Out = None,
        seed: Seed = None,
        workers: Workers = None,
        gpus: Gpus = None,
        engine: Engine = None,
        quiet: Quiet = False,
        full: Full = False,
        as_json: Json = False,
    ) -> None:
        run = Invocation(experiment, sets or [], out, seed, workers, engine, gpus).run(stages)
        from experiments.pipeline import execute

        outcome = execute(run, stages, quiet=quiet or as_json, full=full)
        print(json.dumps(outcome.table()) if as_json else outcome.line())
        raise typer.Exit(1 if outcome.failed else 0)

    if "report" not in stages:  # there is nothing to write in full
        kept = [one for name, one in signature(command).parameters.items() if name != "full"]
        vars(command)["__signature__"] = Signature(kept)
    return command


for _name, _chosen, _sentence in (
    ("run", STAGES, "Run all stages: simulate, attack, score, report. Finished work is kept."),
    ("simulate", STAGES[:1], "Train with Flower and capture the updates the server receives."),
    ("attack", STAGES[1:2], "Attack the captures that have not been attacked yet."),
    ("score", STAGES[2:3], "Score the attacks' guesses against the private data."),
    ("report", STAGES[3:], "Write the tables, figures and HTML page."),
):
    app.command(_name, help=_sentence)(_command(_chosen))


@app.command()
def doctor(experiment: Target, as_json: Json = False) -> None:
    """Check captures by replaying each client's training on its true data."""
    folder = Invocation(experiment).run(())
    from experiments.checks.capture_check import examine

    checkup = examine(folder)
    print(json.dumps(checkup.table()) if as_json else checkup.text())
    raise typer.Exit(1 if checkup.faults else 0)


@app.command()
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
    print(json.dumps(found.table()) if as_json else found.text())


app.command()(audit)


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
    print(json.dumps(description.table()) if as_json else description.text())


@app.command()
def prepare(experiment: Target, sets: Sets = None, out: Out = None, seed: Seed = None) -> None:
    """Create the run folder and print its cells, to simulate with flwr run or your own engine."""
    for cell in Invocation(experiment, sets or [], out, seed).run(("simulate",)).cells:
        print(cell.folder.resolve())


@app.command()
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
    print(trained.line(folder))


@app.command()
def bench(
    what: Annotated[str, typer.Argument(metavar="WHAT", show_default=False)] = "",
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Measure the speed of text and images, overhead, and ranks of true tokens.

    WHAT is capture, workers, text, images or ranks. Without it all five run, which takes a quarter
    of an hour. "ranks" measures how far the true tokens stand out in a defended gradient; --set
    changes its model, data set, sentences (task.split) and federation.batch_size.
    """
    from experiments.benchmarks.measure import PARTS

    if what and what not in PARTS:
        raise ConfigError(f"bench {what!r}: there is no such benchmark. {suggest(what, PARTS)}")
    from experiments.benchmarks.bench import bench as measure

    measures = []
    for each in measure(what, sets or []):
        measures.append(vars(each))
        if not as_json:
            print(each.text(), flush=True)
    if as_json:
        print(json.dumps(measures))


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
    if as_json:
        print(json.dumps(entries))
        return
    width = max(len(name) for name in entries)
    for name, sentence in entries.items():
        print(f"{name:<{width}}  {sentence}")


@app.command(name="describe")
def describe_(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="e.g. lamp, dp_sgd, psnr or federation")
    ],
    as_json: Json = False,
) -> None:
    """Explain an attack, defense, metric or section of an experiment, with its options."""
    from experiments.preview.describe import manual

    found = manual(name)
    print(json.dumps(found.table()) if as_json else found.text())


def main() -> None:
    """Run the command line. A user's mistake ends in one line on stderr, never in a traceback."""
    try:
        check_origin()
        result: Any = app(standalone_mode=False)
    except FedsimError as error:
        sys.exit(_complain(str(error)))
    except KeyboardInterrupt:
        sys.exit(_complain("interrupted. Run the same command again to continue.", code=130))
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


if __name__ == "__main__":
    main()
