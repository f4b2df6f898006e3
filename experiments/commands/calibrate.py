"""``fedsim calibrate``: the weakest defense that holds, and what it costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from experiments.commands.parameters import (
    Address,
    DryRun,
    Engine,
    Gpus,
    Json,
    Quiet,
    Seed,
    Sets,
    Target,
    Workers,
)
from experiments.invocation import Invocation, check_gpus, folder_of
from fedsim.errors import ConfigError
from fedsim.visible import say

if TYPE_CHECKING:
    from experiments.decision.question import CalibrationTask

Hold: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="METRIC=VALUE",
        help="verbatim=0, recognisable=0, or a mean, as rouge1=.2 or psnr=18; without any, the "
        "strongest that --lose allows is found",
    ),
]
Share: TypeAlias = Annotated[
    float, typer.Option(min=0.001, max=0.5, help="of all clients, that may be hit if none was")
]
Lose: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MEASURE=SHARE",
        help="most that may be lost, as a share of the undefended value: accuracy=.02",
    ),
]
Ranges: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--range", metavar="DEFENSE=WEAKEST:STRONGEST", help="in place of its own range"),
]
Depth: TypeAlias = Annotated[
    int, typer.Option(min=1, max=10, help="most strengths tried of a defense, out of 2^depth - 1")
]
Group: TypeAlias = Annotated[
    int, typer.Option(min=1, help="clients attacked before the first test")
]
Sure: TypeAlias = Annotated[
    float,
    typer.Option(
        min=0.5, max=0.9999, help="confidence that no 'holds' is wrong, and that no 'leaks' is"
    ),
]
Seeds: TypeAlias = Annotated[
    int,
    typer.Option(
        min=3,
        help="most seeds under which what holds is trained, until its cost is sure; three are "
        "tried first",
    ),
]
Folder: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="folder of this machine; default: runs/<name>-calibrated"),
]


def calibrate(
    experiment: Target,
    hold: Hold = None,
    share: Share = 0.1,
    lose: Lose = None,
    ranges: Ranges = None,
    depth: Depth = 4,
    group: Group = 4,
    sure: Sure = 0.95,
    seeds: Seeds = 8,
    sets: Sets = None,
    out: Folder = None,
    seed: Seed = None,
    workers: Workers = None,
    gpus: Gpus = None,
    engine: Engine = None,
    address: Address = None,
    quiet: Quiet = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Find the weakest strength of each defense that holds, and what it costs.

    Of the experiment's defenses the kinds count, not their strengths: each is searched by
    bisection. At a strength clients are attacked until it is sure that it leaks, and it holds by
    all of them; utility is trained where it holds. The same command goes on where it was stopped.
    Exit code 1 says that no defense was shown to hold at that cost.

    With --lose alone nothing is attacked: the strongest strength of each defense that loses no more
    is found, so that defenses can be compared at equal utility.
    """
    given = Invocation(experiment, sets or [], None, seed, workers, engine, gpus, address)
    if given.opened() is not None:
        raise ConfigError(f"{experiment}: is a run. Name the experiment, and --out to go on.")
    from experiments.decision.question import ask

    task = ask(
        given.plan(),
        hold=hold or [],
        share=share,
        lose=lose or [],
        ranges=ranges or [],
        depth=depth,
        group=group,
        error=1 - sure,
        seeds=seeds,
    )
    _warn(task)
    if dry_run:
        _describe(task, as_json=as_json)
        return
    check_gpus(task.experiment, training=True, attacking=bool(task.targets))
    root = folder_of(out) if out else Path("runs") / f"{task.experiment.name}-calibrated"
    raise typer.Exit(0 if _search(task, root, quiet=quiet, as_json=as_json) else 1)


def _warn(task: CalibrationTask) -> None:
    for title in task.unadapted:
        say(
            f"{title} can be shown to leak, never to hold: no attack of the experiment is adapted "
            "to it. Add one, or remove it.",
            error=True,
        )


def _describe(task: CalibrationTask, *, as_json: bool) -> None:
    """Print the plan of the largest search, and what it costs."""
    from experiments.preview.show import describe

    description = describe(task.most())
    text = f"{description.text()}\n# This is the most that the search can take."
    say(json.dumps(description.table()) if as_json else text)


def _search(task: CalibrationTask, root: Path, *, quiet: bool, as_json: bool) -> bool:
    """Whether a strength holds, or is affordable where nothing is to be held."""
    from experiments.console import Console
    from experiments.decision.calibrate import Calibration
    from experiments.decision.page import write_answer
    from experiments.decision.question import begin
    from experiments.decision.wording import text

    begin(task, root)
    with Console(quiet or as_json) as console:
        answer = Calibration(task, root, console).answer()
    page = write_answer(answer, task.experiment, root)
    files = f"page: {page}" if task.targets else f"all of them beside none: fedsim run {page}"
    if task.targets and answer.chosen is not None:
        files += f"; the chosen defense: fedsim run {page.parent / 'chosen.toml'}"
    say(json.dumps(answer.model_dump(mode="json")) if as_json else text(answer, files))
    return answer.chosen is not None
