from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from experiments.gallery import Example
from fedsim.capture import CaptureKey
from fedsim.cell import (
    AuxiliaryConfig,
    CaptureConfig,
    CellConfig,
    FederationConfig,
    ServerKnows,
    TaskConfig,
)
from fedsim.files import Record, write_json
from fedsim.metrics import METRICS
from fedsim.records import ScoreRow, UtilityRow

HOSTILE = "<script>alert('x')</script>"
FROZEN = "embedding_rows needs the gradient of the word embeddings, which the client does not send."
BROKEN = f'RuntimeError: {HOSTILE} | "bad"'
DEFENSES: list[tuple[str, dict[str, Any]]] = [
    ("none", {}),
    ("freeze_embeddings", {"positions": True, "words": True}),
    ("gaussian_noise", {"stage": "client", "std": 0.01}),
]
ATTACKS = {
    "image-classification": ("dlg", "inverting", "prior_only"),
    "text-classification": ("embedding_rows", "lamp", "prior_only"),
}
METRICS_OF = {
    "image-classification": ("mse", "psnr", "ssim", "label_accuracy"),
    "text-classification": (
        *("rouge1", "rouge2", "rougeL", "rouge1_special", "bleu"),
        *("exact_match", "token_precision", "token_recall", "token_accuracy"),
    ),
}
SENTENCES = [
    "Mary Okafor met the surgeon in Leiden on the 4th of March to discuss the second biopsy",
    "the bridge at Kaunas will stay closed until the last inspection has been signed",
    "nobody but Tomas had the key to the green cabinet in the archive",
    "the letter that she wrote to the bank in Porto was never answered",
    "they moved the meeting with the lawyer to a small room behind the station",
]
ROUNDS, CLIENTS = 3, 3


def cell_of(task: str, defense: tuple[str, dict[str, Any]]) -> CellConfig:
    image = task.startswith("image")
    return CellConfig(
        seed=0,
        task=TaskConfig(
            model="lenet" if image else "bert-base-uncased",
            dataset="uoft-cs/cifar10" if image else "nyu-mll/glue:cola",
            split="train[:900]",
        ),
        auxiliary=AuxiliaryConfig(dataset="Salesforce/wikitext", split="train", rows=1000),
        federation=FederationConfig(
            clients=CLIENTS,
            rounds=ROUNDS,
            batch_size=2,
            protocol="fedsgd" if image else "fedavg",
            learning_rate=0.01,
        ),
        capture=CaptureConfig(),
        server_knows=ServerKnows(labels=True),
        defense=() if defense[0] == "none" else ({"name": defense[0], **defense[1]},),
    )


def value_of(metric: str, attack: str, defense: str, round_: int, rng: random.Random) -> float:
    strength = {"none": 0.95, "gaussian_noise": 0.45, "freeze_embeddings": 0.35}[defense]
    strength = 0.12 if attack == "prior_only" else max(0.1, strength - 0.09 * (round_ - 1))
    noisy = min(1.0, max(0.0, rng.gauss(strength, 0.08)))
    if metric == "mse":
        return 0.08 * (1 - noisy) ** 2
    if metric == "psnr":
        return 8 + 30 * noisy
    if metric in {"exact_match", "label_accuracy"}:
        return float(noisy > 0.9)
    return 100 * noisy if metric == "bleu" else noisy


def status_of(task: str, attack: str, defense: str, round_: int, client: int) -> tuple[str, str]:
    if attack == "embedding_rows" and defense == "freeze_embeddings":
        return "skipped", FROZEN
    if (attack, defense, round_, client) == ("dlg", "gaussian_noise", 2, 1):
        return "failed", BROKEN
    if (attack, defense, round_, client) == ("lamp", "none", 3, 0):
        return "timeout", "the job was given 600 s."
    return "done", ""


def scores(task: str) -> Iterator[ScoreRow]:
    rng = random.Random(f"scores {task}")
    for defense in DEFENSES:
        config = cell_of(task, defense)
        for attack in ATTACKS[task]:
            for control in ("none",) if attack == "prior_only" else ("none", "other_client"):
                seen = "prior_only" if control == "other_client" else attack
                for round_ in range(1, ROUNDS + 1):
                    for client in range(CLIENTS):
                        status, reason = status_of(task, attack, defense[0], round_, client)
                        for example in range(2):
                            for metric in METRICS_OF[task]:
                                value = value_of(metric, seen, defense[0], round_, rng)
                                yield ScoreRow(
                                    run="quickstart",
                                    cell=f"{task}.{defense[0]}",
                                    seed=0,
                                    task=task,
                                    model=config.task.model,
                                    dataset=config.task.dataset,
                                    split=config.task.split,
                                    protocol=config.federation.protocol,
                                    batch_size=2,
                                    local_steps=1,
                                    defense=defense[0],
                                    defense_options=json.dumps(defense[1], sort_keys=True),
                                    attack=attack,
                                    attack_options='{"steps":300}',
                                    adaptive=attack == "lamp",
                                    control=control,
                                    round=round_,
                                    client=client,
                                    example=example,
                                    metric=metric,
                                    value=None if status == "skipped" else value,
                                    unit=METRICS[metric].unit,
                                    status=status,
                                    reason=reason,
                                    objective=None,
                                    certified=None,
                                    level=None,
                                    seconds=1.5,
                                )


def utilities(task: str) -> Iterator[UtilityRow]:
    names = ("loss", "accuracy") if task.startswith("image") else ("loss", "accuracy", "mcc")
    for i, defense in enumerate(DEFENSES):
        for round_ in range(ROUNDS + 1):
            gain = 0.1 * round_ / (1 + i)
            for metric in names:
                yield UtilityRow(
                    run="quickstart",
                    cell=f"{task}.{defense[0]}",
                    seed=0,
                    defense=defense[0],
                    defense_options=json.dumps(defense[1], sort_keys=True),
                    round=round_,
                    metric=metric,
                    value=2.3 - gain if metric == "loss" else 0.1 + gain,
                    epsilon=None,
                    bytes_up=0 if round_ == 0 else 61_706 * 4 * CLIENTS,
                    seconds=0.5,
                )


def picture(seed: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    small = torch.rand(1, 3, 5, 5, generator=rng)
    return torch.nn.functional.interpolate(small, size=(32, 32), mode="bicubic")[0].clamp(0, 1)


def examples() -> Iterator[Example]:
    rng = random.Random("examples")
    for task, attacks in ATTACKS.items():
        for defense, _ in DEFENSES:
            for attack in attacks:
                for n in range(9):
                    key = CaptureKey(round=1 + n // 3, client=n % 3)
                    if status_of(task, attack, defense, key.round, key.client)[0] == "skipped":
                        continue
                    psnr = value_of("psnr", attack, defense, key.round, rng)
                    known = (psnr - 8) / 30
                    if task.startswith("image"):
                        original: Any = picture(n)
                        noise = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(n))
                        guess: Any = original * known + noise * (1 - known)
                        metrics = {"psnr": psnr}
                    else:
                        original = tuple((SENTENCES[n % 5] + " " + HOSTILE).split())
                        words = [w if rng.random() < known else "the" for w in original]
                        guess, metrics = tuple(words), {"rougeL": known}
                    yield Example(
                        cell=f"{task}.{defense}",
                        attack=attack,
                        key=key,
                        index=0,
                        modality="image" if task.startswith("image") else "text",
                        original=original,
                        guess=None if (attack, n) == ("lamp", 8) else guess,
                        metrics=metrics,
                        certified=known > 0.8 if attack == "embedding_rows" else None,
                    )


def write_rows(path: Path, kind: type[Record], rows: list[Any]) -> None:
    names = list(kind.model_fields)
    columns = {name: [getattr(row, name) for row in rows] for name in names}
    pq.write_table(pa.table(columns), path)


def make_run(folder: Path, *, shuffle: bool = False) -> Path:
    folder.mkdir(parents=True)
    rows = [row for task in ATTACKS for row in scores(task)]
    utility = [row for task in ATTACKS for row in utilities(task)]
    if shuffle:
        random.Random(1).shuffle(rows)
        random.Random(2).shuffle(utility)
    write_rows(folder / "scores.parquet", ScoreRow, rows)
    write_rows(folder / "utility.parquet", UtilityRow, utility)
    for task in ATTACKS:
        for defense in DEFENSES:
            write_json(folder / f"{task}.{defense[0]}" / "cell.json", cell_of(task, defense))
    provenance = {
        "fedsim": "0.1.0",
        "commit": "4f2a9c1d0b7e",
        "dirty": False,
        "packages": {"torch": "2.9.0", "flwr": "1.41.0"},
        "cpus": 2,
        "seconds": {"simulate": 12.5, "attack": 61.2},
        "command": f"fedsim run quickstart --out {HOSTILE}",
    }
    write_json(folder / "provenance.json", provenance)
    (folder / "experiment.toml").write_text(f'name = "quickstart"  # {HOSTILE}\nseeds = [0]\n')
    return folder
