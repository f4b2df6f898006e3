"""What a GPU changes: the guess, speed and memory of each attack, and how many victims fit.

Ten minutes on one GPU. The small models say whether an attack gives the same guess there, and not
how much faster it can be; LAMP at the shape of BERT-base says that.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from attacks.base import Job, Reconstruction
from attacks.scheduling.jobs import Demand, JobSpec, plan
from attacks.scheduling.worker import HALVED, reconstruct, run_job
from attacks.texts.lamp import LAMP
from benchmarks.family_cases import FamilyCase
from benchmarks.measure import Measure
from experiments.plan.config import Plan, parse_experiment
from experiments.plan.folder import Run
from experiments.stages.simulate import Simulator
from fedsim.errors import ConfigError
from fedsim.records import JobRecord
from fedsim.store.files import load_tensors

BUDGET = 30.0
"""Seconds of one attack."""
TASKS: dict[str, dict[str, Any]] = {
    "LeNet": {"model": "lenet", "dataset": "shapes"},
    "MLP": {"model": "mlp", "dataset": "shapes"},
    "ViT": {"model": "vit", "dataset": "shapes", "image_size": 16},
    "ResNet": {"model": "resnet20", "dataset": "shapes", "image_size": 16},
    "BERT": {"model": "tiny-bert", "dataset": "sentences", "max_length": 24},
    "GPT-2": {"model": "tiny-gpt2", "dataset": "sentences", "max_length": 24},
}
ATTACKS: dict[str, list[dict[str, Any]]] = {
    "LeNet": [
        {"name": "closed_form"},
        {"name": "dlg", "steps": 10, "restarts": 2},
        {"name": "idlg", "steps": 10, "restarts": 2},
        {"name": "inverting", "steps": 100, "restarts": 8},
        {"name": "gi_gip", "latent_steps": 20, "weight_steps": 20},
        {"name": "bayes", "steps": 100},
        {"name": "lti", "width": 64, "epochs": 2},
        {"name": "ridge"},
    ],
    "MLP": [{"name": "spear", "samples": 10000}],
    "ViT": [{"name": "patch_rows"}],
    "ResNet": [{"name": "statistics"}],
    "BERT": [
        {"name": "embedding_rows"},
        {"name": "span"},
        {"name": "dlg_text", "steps": 50},
        {"name": "tag", "steps": 50},
        {"name": "lamp", "steps": 50, "starts": 8, "alpha_lm": 0.0},
        {"name": "lti", "width": 64, "channels": 16, "epochs": 2, "bins": 0.02},
    ],
    "GPT-2": [{"name": "film"}, {"name": "span"}],
}
BERT_BASE: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
}
VICTIMS = (1, 16, 100)


@dataclass(frozen=True)
class GpuRow:
    """One attack on one victim, on the CPU and on the GPU.

    Attributes:
        cpu: seconds there.
        gpu: seconds there, the second time.
        difference: of the guesses: largest of a pixel, or share of tokens; None without a guess.
        peak_bytes: most that the job held on the GPU.
        device: what computed.
        ended: how the two jobs ended, if not both with a guess.
    """

    model: str
    attack: str
    cpu: float
    gpu: float
    difference: float | None
    peak_bytes: int
    device: str
    ended: str

    def text(self) -> str:
        """For a terminal."""
        off = "no guess" if self.difference is None else f"difference {self.difference:.1e}"
        return (
            f"{self.model:<6} {self.attack:<15} CPU {self.cpu:8.3f} s  {self.device} "
            f"{self.gpu:8.3f} s ({self.cpu / max(self.gpu, 1e-9):5.1f} x)  {off:<18} "
            f"{self.peak_bytes / 1e6:8.1f} MB  {self.ended}".rstrip()
        )


def check_gpu() -> None:
    """Raise ``ConfigError`` if there is no GPU."""
    if not torch.cuda.is_available():
        raise ConfigError(
            "benchmarks gpu: torch finds no GPU, so nothing was measured. Run it where "
            "torch.cuda.is_available() is true."
        )


def each_attack(
    folder: Path, attacks: Mapping[str, list[dict[str, Any]]] = ATTACKS
) -> Iterator[GpuRow]:
    """Each attack by the same jobs that a run makes, once without and twice with a GPU."""
    for model, tables in attacks.items():
        captures = _captures(folder / model, TASKS[model])
        for table in tables:
            yield _compared(model, captures, table)


def _captures(folder: Path, task: dict[str, Any]) -> Path:
    federation: dict[str, Any] = {"engine": "in-process", "clients": 1, "rounds": 1}
    federation["train_mode"] = task["model"] == "resnet20"  # else it sends no batch statistics
    auxiliary = {"split": "public", "rows": 64}
    table = {"name": "gpu", "task": task, "federation": federation, "auxiliary": auxiliary}
    run = Run.create(Plan(name="gpu", experiments=(parse_experiment(table),)), folder)
    with Simulator() as simulator:
        simulator.simulate(run.cells[0])
    return run.cells[0].captures.root


def _compared(model: str, captures: Path, table: dict[str, Any]) -> GpuRow:
    jobs = []
    for place, gpus in (("cpu", 0.0), ("warm", 1.0), ("gpu", 1.0)):
        demand = Demand(gpus=gpus, budget=BUDGET)
        guesses = captures.parent / place / "guesses"
        (spec,) = plan(captures, guesses, table["name"], table, 0, demand)
        jobs.append((spec, run_job(spec)[0]))
    (here, on_cpu), _, (there, on_gpu) = jobs
    whole = on_cpu.sha256 is not None and on_gpu.sha256 is not None
    said = {f"{record.status}: {record.reason}" for record in (on_cpu, on_gpu)}
    return GpuRow(
        model,
        table["name"],
        on_cpu.seconds,
        on_gpu.seconds,
        _difference(here, there, on_cpu) if whole else None,
        on_gpu.peak_bytes,
        on_gpu.device,
        "" if whole else "; ".join(sorted(said)),
    )


def _difference(here: JobSpec, there: JobSpec, record: JobRecord) -> float:
    ours, theirs = (load_tensors(spec.guess_path(record.key))["inputs"] for spec in (here, there))
    if ours.shape != theirs.shape:
        return 1.0
    if ours.is_floating_point():
        return float((ours - theirs).abs().max())
    return float((ours != theirs).double().mean())


def together(
    device: torch.device,
    shape: Mapping[str, Any] = BERT_BASE,
    victims: tuple[int, ...] = VICTIMS,
    steps: int = 10,
) -> Iterator[Measure]:
    """LAMP's seconds and memory for so many victims.

    Eight updates stand for all: a hundred of 340 MB would fill the memory of most machines.
    """
    case = FamilyCase.of("bert", shape=shape)
    updates = [case.capture([row])[0] for row in range(min(8, max(victims)))]
    attack = LAMP(prior="", alpha_lm=0.0, steps=steps, starts=1)
    spec = JobSpec(Path(), Path(), "lamp", {}, (), 0)
    for count in victims:
        keys = [updates[0].key.model_copy(update={"client": number}) for number in range(count)]
        group = [replace(updates[k % len(updates)], key=key) for k, key in enumerate(keys)]
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        job = Job(device=device, deadline=time.monotonic() + 4 * BUDGET)
        begun = time.monotonic()
        made = reconstruct(attack, group, case.task, job, spec)
        seconds = time.monotonic() - begun
        name = f"LAMP, {shape['num_hidden_layers']} x {shape['hidden_size']}, {count} victims"
        yield Measure(f"{name}: a step of each", 1e3 * seconds / steps / count, "ms", "-")
        if device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(device)
            yield Measure(f"{name}: peak of the GPU's memory", peak / 1e9, "GB", "-")
        halved = sum(isinstance(one, Reconstruction) and HALVED in one.note for one in made)
        failed = sum(isinstance(one, Exception) for one in made)
        yield Measure(f"{name}: not in one pass", halved + failed, "victims", "0")
