"""The options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer


def _runs(incomplete: str) -> list[str]:
    """Run folders, for the shell's completion."""
    files = Path().glob("runs/*/experiment.toml")
    return [str(path.parent) for path in files if str(path.parent).startswith(incomplete)]


def _targets(incomplete: str) -> list[str]:
    """Run folders, experiment files here, and shipped experiments."""
    from experiments.plan.config import shipped

    known = [*shipped(), *(path.name for path in Path().glob("*.toml"))]
    return [*_runs(incomplete), *(name for name in known if name.startswith(incomplete))]


RUN = "a run folder, an experiment file, or the name of a shipped experiment"
Target = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_EXPERIMENT", help=RUN, show_default=False, autocompletion=_targets
    ),
]
Attacked = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_EXPERIMENT",
        help=f"{RUN}; also captures, or a folder of state dicts",
        show_default=False,
        autocompletion=_targets,
    ),
]
RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="a run folder", autocompletion=_runs)
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="override an option: federation.rounds=5"),
]
Out = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="run folder; default: runs/<name>"),
]
Seed = Annotated[int | None, typer.Option(help="one seed, in place of all of the experiment's")]
Workers = Annotated[
    int | None, typer.Option(help="processes that train clients, and as many that attack")
]
Gpus = Annotated[float | None, typer.Option(help="GPUs per worker, e.g. 0.5; 0 runs on the CPU")]
Engine = Annotated[str | None, typer.Option(help="ray (parallel) or in-process")]
Address = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Ray cluster to join; default: a new one")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="print only errors and the summary line")]
Retry = Annotated[
    bool,
    typer.Option("--retry-failed", help="attack again what failed, was skipped or ran out of time"),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="print the plan and its cost as fedsim show; run nothing")
]
Watch = Annotated[
    bool, typer.Option("--watch", help="follow it in a browser as fedsim watch does, to its end")
]
Redact = Annotated[
    bool,
    typer.Option("--redact", help="write redacted/, to pass on: no private rows, no folders"),
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object instead of text")]
