"""The first benchmarks: overhead of capturing and speed-up by workers; and all by name."""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from attacks.scheduling.cluster import start_ray
from attacks.scheduling.jobs import plan
from attacks.scheduling.ledger import Ledger
from attacks.scheduling.pool import RayPool
from benchmarks.bench_families import family_table
from benchmarks.bench_gpu import check_gpu, each_attack, together
from benchmarks.bench_images import image_speed
from benchmarks.bench_ranks import rank_tables
from benchmarks.bench_reference import reference_speed
from benchmarks.bench_stages import stage_table
from benchmarks.bench_text import text_speed
from benchmarks.measure import PARTS, Measure
from benchmarks.overhead import round_cost, update_bytes
from experiments.plan.cells import Cell
from experiments.plan.config import Plan, parse_experiment
from experiments.plan.folder import Run
from experiments.stages.attack import demand
from experiments.stages.simulate import Simulator
from fedsim.errors import ConfigError

REPEATS, CLIENTS, JOBS, STEPS = 7, 4, 16, 400
ROUNDS = {"LeNet": 40, "MiniLM": 2}
MODELS: dict[str, dict[str, Any]] = {
    "LeNet": {"model": "lenet", "dataset": "shapes", "heldout_rows": 1},
    "MiniLM": {
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "dataset": "nyu-mll/glue:cola",
        "heldout_rows": 1,
    },
}


class BenchLine(Protocol):
    """A dataclass of plain fields, one line of a part's table."""

    def text(self) -> str:
        """For a terminal."""
        ...


def bench(
    part: str = "", sets: Sequence[str] = (), checkout: Path | None = None
) -> Iterator[BenchLine]:
    """Yield the measurements of one of ``PARTS``, or of all, as soon as each is available.

    Models on a hub that cannot be reached are skipped, and in all of them so are a missing GPU and
    the public code of others, which is measured where its ``checkout`` is given.

    Raises:
        ConfigError: overrides were given for a benchmark without options, there is no GPU, or the
            checkout is missing, of another project or not asked for.
    """
    if (part == PARTS[-1]) != (checkout is not None):
        raise ConfigError(
            "benchmarks reference: measures beside public code of a paper. Pass its checkout to "
            "this benchmark alone: python -m benchmarks reference --path FOLDER"
        )
    if checkout is not None:
        yield from reference_speed(checkout)
        return
    if sets and part != "ranks":
        raise ConfigError(f"--set {sets[0]!r}: only ranks takes overrides. Remove it.")
    if part == "gpu":
        check_gpu()
    for name in (part,) if part else BENCHES:
        with tempfile.TemporaryDirectory() as folder:
            yield from BENCHES[name](Path(folder), sets)


def _captures(folder: Path, sets: Sequence[str]) -> Iterator[Measure]:
    del sets
    for name, task in MODELS.items():
        if "/" in task["model"] and "FEDSIM_HUB" not in os.environ:
            continue
        federation = {"engine": "in-process", "clients": CLIENTS, "rounds": ROUNDS[name]}
        run = _run(folder / name, task, federation=federation)
        yield from capture_cost(name, run, ROUNDS[name])


def _run(root: Path, task: dict[str, Any], **changes: Any) -> Run:  # noqa: ANN401
    table = {"name": "bench", "task": task, **changes}
    return Run.create(Plan(name="bench", experiments=(parse_experiment(table),)), root)


def capture_cost(name: str, run: Run, rounds: int) -> Iterator[Measure]:
    """A round with and without the eavesdropper, in turn, and bytes on disk.

    The share of wall time depends on what else the machine does; that of CPU time does not, and
    counts what the writer's thread does while the round goes on.
    """
    cell, captures = run.cells[0], run.root / "captures"
    round_cost(cell.folder, None)  # loads data and warms up
    plain, overheard = [], []
    for _ in range(REPEATS):
        shutil.rmtree(captures, ignore_errors=True)
        plain.append(round_cost(cell.folder, None))
        overheard.append(round_cost(cell.folder, captures))
    on_disk = sum(path.stat().st_size for path in captures.rglob("*") if path.is_file())
    models = sum(path.stat().st_size for path in captures.glob("models/*"))
    sent = rounds * CLIENTS * update_bytes(cell.folder)
    wall = [cost.wall for cost in plain]
    yield Measure.of(f"{name}: a round of {CLIENTS} clients", wall, "s", "-")
    pairs = list(zip(overheard, plain, strict=True))
    for what, shares in (
        ("wall", [100 * (a.wall / b.wall - 1) for a, b in pairs]),
        ("CPU", [100 * (a.cpu / b.cpu - 1) for a, b in pairs]),
    ):
        yield Measure.of(f"{name}: capture, share of a round's {what} time", shares, "%", "<= 2")
    ratio = (on_disk - models) / sent
    yield Measure(f"{name}: bytes on disk / bytes of the updates", ratio, "", "<= 1.02")
    shutil.rmtree(captures)


def two_workers(root: Path, gpus: float = 0.0) -> Measure:
    """Speed-up of two attack workers over one, on equal jobs, each with a share of one GPU."""
    federation = {"engine": "in-process", "clients": JOBS, "rounds": 1}
    stage = {"group_size": 1, "gpus": gpus}
    run = _run(root, MODELS["LeNet"], federation=federation, attack_stage=stage)
    cell = run.cells[0]
    with Simulator() as simulator:
        simulator.simulate(cell)
    with _ray(1 if gpus else 0):
        _attack(cell, root / "warm", 2, steps=2)  # both processes import what they need
        pairs = [
            (_attack(cell, root / f"one-{i}", 1), _attack(cell, root / f"two-{i}", 2))
            for i in range(2)
        ]
    ratio = statistics.median(one / two for one, two in pairs)
    what = f"{JOBS} equal attack jobs" + (f", {gpus:g} GPU each" if gpus else "")
    return Measure(f"{what}: one worker / two workers", ratio, "x", "-" if gpus else ">= 1.8")


def _workers(folder: Path, sets: Sequence[str]) -> Iterator[Measure]:
    del sets
    yield two_workers(folder / "workers")


def _text(folder: Path, sets: Sequence[str]) -> Iterator[Measure]:
    del folder, sets
    return text_speed()


def _images(folder: Path, sets: Sequence[str]) -> Iterator[Measure]:
    del folder, sets
    return image_speed()


def _ranks(folder: Path, sets: Sequence[str]) -> Iterator[BenchLine]:
    del folder
    return rank_tables(sets)


def _families(folder: Path, sets: Sequence[str]) -> Iterator[BenchLine]:
    del folder, sets
    return family_table()


def _stages(folder: Path, sets: Sequence[str]) -> Iterator[BenchLine]:
    del sets
    return stage_table(folder)


def _gpu(folder: Path, sets: Sequence[str]) -> Iterator[BenchLine]:
    del sets
    if torch.cuda.is_available():
        yield from each_attack(folder)
        yield from together(torch.device("cuda"))
        yield two_workers(folder / "workers", gpus=0.5)


BENCHES: dict[str, Callable[[Path, Sequence[str]], Iterator[BenchLine]]] = {
    "capture": _captures,
    "workers": _workers,
    "text": _text,
    "images": _images,
    "ranks": _ranks,
    "families": _families,
    "stages": _stages,
    "gpu": _gpu,
}
"""For each of ``PARTS`` but the last the function that measures it, from a folder and overrides."""


@contextmanager
def _ray(gpus: int) -> Iterator[None]:
    stop = start_ray(cpus=2, gpus=gpus)
    try:
        yield
    finally:
        stop()


def _attack(cell: Cell, folder: Path, workers: int, steps: int = STEPS) -> float:
    table = {"name": "inverting", "steps": steps}
    given = demand(cell.experiment.attack_stage)
    specs = plan(cell.captures.root, folder / "guesses", "inverting", table, 0, given, chunk=1)
    started = time.monotonic()
    with Ledger(folder / "jobs.sqlite") as ledger, RayPool(ledger, max_running=workers) as pool:
        pool.submit(specs)
        pool.drain()
    return time.monotonic() - started
