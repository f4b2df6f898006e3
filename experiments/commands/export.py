"""``fedsim export``: the numbers of a run, for other tools. Private rows are never among them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.captures.runs import RunFrames, load
from experiments.commands.parameters import RunFolder
from fedsim.build import suggest
from fedsim.errors import ConfigError
from fedsim.visible import say

if TYPE_CHECKING:
    import pandas as pd

_OPTIONS = (
    *("task", "model", "dataset", "protocol", "batch_size", "local_steps"),
    *("seed", "defense", "defense_options"),
)


@dataclass
class CellLog:
    """One cell as trackers of experiments log it.

    Attributes:
        name: of the cell.
        options: what tells it from others; for each attack, its options as canonical JSON.
        rounds: round -> name -> value: ``utility/<metric>``, ``utility/epsilon`` and
            ``<attack>/<metric>``, the mean over the round's examples, as the report takes it: a
            refused victim counts with the guess of ``prior_only``. An attack that occurs with
            several options has a number from the second on: ``lamp.2``.
    """

    name: str
    options: dict[str, Any]
    rounds: dict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))


def logs(frames: RunFrames) -> list[CellLog]:
    """Every cell of a run; controls and probes are left out."""
    from experiments.analysis.frames import counted

    by_cell: dict[str, CellLog] = {}
    for table in (frames.scores, frames.utility):
        for _, row in table.drop_duplicates("cell").iterrows():
            known = {name: row[name] for name in _OPTIONS if name in row}
            by_cell.setdefault(row["cell"], CellLog(row["cell"], known))
    for row in frames.utility.to_dict("records"):
        values = by_cell[row["cell"]].rounds[row["round"]]
        values[f"utility/{row['metric']}"] = row["value"]
        if row["epsilon"] == row["epsilon"] and row["epsilon"] is not None:
            values["utility/epsilon"] = row["epsilon"]
    genuine = frames.scores[(frames.scores.control == "none") & (frames.scores.probe == "none")]
    for cell, scores in counted(genuine).dropna(subset="value").groupby("cell"):
        _add_attacks(by_cell[str(cell)], scores)
    return list(by_cell.values())


def _add_attacks(log: CellLog, scores: pd.DataFrame) -> None:
    attacks = scores[["attack", "attack_options"]].drop_duplicates().sort_values("attack_options")
    for name, options in sorted(zip(attacks.attack, attacks.attack_options, strict=True)):
        again = sum(key.split(".")[0] == name for key in log.options)
        label = f"{name}.{again + 1}" if again else name
        log.options[label] = options
        mine = scores[(scores.attack == name) & (scores.attack_options == options)]
        for (number, metric), value in mine.groupby(["round", "metric"]).value.mean().items():
            log.rounds[number][f"{label}/{metric}"] = value


def _tables(frames: RunFrames) -> dict[str, pd.DataFrame]:
    return {"scores": frames.scores, "utility": frames.utility}


def _json(run: Path, frames: RunFrames, out: Path | None) -> str:
    folder = out or run / "export"
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in _tables(frames).items():
        table.to_json(folder / f"{name}.jsonl", orient="records", lines=True)
    return str(folder)


def _datasets(run: Path, frames: RunFrames, out: Path | None) -> str:
    from datasets import Dataset

    folder = out or run / "export"
    for name, table in _tables(frames).items():
        Dataset.from_pandas(table, preserve_index=False).save_to_disk(folder / name)
    return str(folder)


def _tensorboard(run: Path, frames: RunFrames, out: Path | None) -> str:
    from torch.utils.tensorboard import SummaryWriter

    folder = out or run / "tensorboard"
    for log in logs(frames):
        with SummaryWriter(str(folder / log.name)) as writer:
            writer.add_text("options", f"```\n{json.dumps(log.options, indent=1)}\n```")
            for number, values in log.rounds.items():
                for name, value in values.items():
                    writer.add_scalar(name, value, number)
    return str(folder)


def _mlflow(run: Path, frames: RunFrames, out: Path | None) -> str:
    import mlflow

    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        mlflow.set_tracking_uri(f"sqlite:///{out.resolve() / 'mlflow.db'}")
    mlflow.set_experiment(run.resolve().name)
    for log in logs(frames):
        with mlflow.start_run(run_name=log.name):
            mlflow.log_params(log.options)
            for number, values in log.rounds.items():
                mlflow.log_metrics(values, step=number)
    return str(mlflow.get_tracking_uri())


def _wandb(run: Path, frames: RunFrames, out: Path | None) -> str:
    import wandb

    name = run.resolve().name
    for log in logs(frames):
        with wandb.init(project=name, name=log.name, config=log.options, dir=out) as tracked:
            for number, values in sorted(log.rounds.items()):
                tracked.log(values, step=number)
    return f"project {name}"


TARGETS: dict[str, Callable[[Path, RunFrames, Path | None], str]] = {
    "json": _json,
    "datasets": _datasets,
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}


def export(
    run: RunFolder,
    to: Annotated[str, typer.Option("--to", metavar="TOOL", help=f"{', '.join(TARGETS)}")],
    out: Annotated[
        Path | None, typer.Option(help="folder; default: in the run, or the tool's own")
    ] = None,
) -> None:
    """Hand the scores and the utility of a run to another tool; private rows stay.

    json writes JSON lines, and datasets what Hugging Face's load_from_disk reads. The trackers get
    a run for each cell, with utility and each attack's mean scores by round; their own settings
    apply, such as MLFLOW_TRACKING_URI or WANDB_MODE.
    """
    if to not in TARGETS:
        raise ConfigError(f"--to {to}: there is no such tool. {suggest(to, TARGETS)}")
    try:
        say(f"{to}: {TARGETS[to](run, load(run, controls=True), out)}")
    except ImportError as error:
        raise ConfigError(
            f"--to {to}: {error.name} is not installed. Run pip install -e '.[trackers]'."
        ) from None
