"""Commands in processes that start in milliseconds and die without warning, and what they leave."""

import json
import multiprocessing
import os
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from experiments.plan.folder import STAGES, RunStage
from tests.apps.cases import files_of

_VOLATILE = {"seconds", "attempts", "peak_bytes", "trace", "seal"}
_MADE: dict[RunStage, tuple[str, ...]] = {
    "simulate": ("*/captures/**/*", "*/truth/**/*"),
    "attack": ("*/guesses/**/*", "*/prepared/**/*"),
    "score": ("*.parquet", "gallery/**/*"),
    "report": ("summary.json", "report/**/*"),
}
_CONTEXT = multiprocessing.get_context("forkserver")
_IMPORTED = [
    "experiments.pipeline",
    "experiments.report.page",
    "experiments.report.headline",
    "experiments.stages.membership",
    "experiments.stages.score",
    "server.app",
    "server.grids.in_process",
    "clients.app",
    "attacks",
    "torch._dynamo",
    "torchmetrics",
    "ray",
    "rouge_score.rouge_scorer",
    "sacrebleu",
    "transformers.models.bert.modeling_bert",
]
"""By the process that forks the commands, without a call: a fork of a thread would not work."""


def start(arguments: list[str], log: Path) -> BaseProcess:
    """Start ``fedsim`` with these arguments, at the head of a process group of its own."""
    _CONTEXT.set_forkserver_preload(_IMPORTED)
    process = _CONTEXT.Process(target=_command, args=(arguments, log))
    process.start()
    return process


def _command(arguments: list[str], log: Path) -> None:
    import sys

    from experiments.cli import main

    os.setsid()
    with log.open("ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    sys.argv = ["fedsim", *arguments]
    main()


def finish(arguments: list[str], log: Path, patience: float = 1200.0) -> float:
    """Run a command to its end; returns its seconds."""
    started = time.monotonic()
    process = start(arguments, log)
    process.join(patience)
    ended = process.exitcode is not None or f"not done within {patience:.0f} s"
    assert (ended, process.exitcode) == (True, 0), log.read_text()
    return time.monotonic() - started


def kill_after(arguments: list[str], log: Path, seconds: float) -> bool:
    """Start a command and kill its process group; whether it was still at work."""
    process = start(arguments, log)
    process.join(seconds)
    alive = process.exitcode is None
    if alive:
        try:
            os.killpg(process.pid or 0, signal.SIGKILL)
        except ProcessLookupError:  # it has not yet made its group
            process.kill()
    process.join()
    return alive


def made(run: Path, stage: RunStage) -> dict[str, Any]:
    """What a stage has made, by file name, without the times that it took."""
    files = {path for pattern in _MADE[stage] for path in run.glob(pattern) if path.is_file()}
    found = {str(path.relative_to(run)): path for path in sorted(files) if path.suffix != ".lock"}
    return {name: _without_times(path) for name, path in found.items()}


def _without_times(path: Path) -> Any:
    if path.suffix == ".html":
        return path.read_bytes().partition(b"<footer")[0]
    if path.suffix == ".json" and {"guesses", "prepared"} & set(path.parts):
        return {k: v for k, v in json.loads(path.read_text()).items() if k not in _VOLATILE}
    return path.read_bytes()


def forget(run: Path, stage: RunStage) -> None:
    """Remove what the stage and those after it have made."""
    for later in STAGES[STAGES.index(stage) :]:
        for pattern in _MADE[later]:
            for path in run.glob(pattern):
                if path.is_file():
                    path.unlink()
        if later == "simulate":
            for path in run.glob("*/simulation.json"):
                path.unlink()
        if later == "attack":
            for path in run.glob("jobs.*"):
                path.unlink()


def temporaries(run: Path) -> list[str]:
    """Names of files that a killed writer left behind."""
    return [name for name in files_of(run) if name.endswith((".tmp", ".unfinished"))]
