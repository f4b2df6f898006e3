"""A small run of two tasks, its tables drawn from a seed, and its page as lines of text."""

import json
import random
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch

from experiments.stages.coverage import Coverage, coverage
from experiments.stages.gallery import Shown, ranks, write_gallery
from experiments.stages.png import png
from fedsim.metrics import METRICS
from fedsim.records import ScoreRow, UtilityRow
from fedsim.store.files import write_json
from fedsim.store.rows import write_rows
from tests.experiments.report.cells import CLIENTS, DEFENSES, ROUNDS, cell_of

HOSTILE = "<script>alert('x')</script>"
FROZEN = "embedding_rows needs the gradient of the word embeddings, which the client does not send."
BROKEN = f'RuntimeError: {HOSTILE} | "bad"'
ATTACKS = {
    "image-classification": ("dlg", "inverting", "prior_only"),
    "text-classification": ("embedding_rows", "lamp", "prior_only"),
}
METRICS_OF = {
    "image-classification": ("mse", "psnr", "ssim", "label_accuracy"),
    "text-classification": (
        *("rouge1", "rouge2", "rougeL", "rouge1_special", "bleu"),
        *("exact_match", "batch_token_precision", "batch_token_recall", "token_accuracy"),
    ),
}
SENTENCES = [
    "Mary Okafor met the surgeon in Leiden on the 4th of March to discuss the second biopsy",
    "the bridge at Kaunas will stay closed until the last inspection has been signed",
    "nobody but Tomas had the key to the green cabinet in the archive",
    "the letter that she wrote to the bank in Porto was never answered",
    "they moved the meeting with the lawyer to a small room behind the station",
]


def options_of(defense: tuple[str, dict[str, Any]]) -> str:
    """As ``Chain.options_json`` writes them; no defense is an empty chain."""
    name, options = defense
    return json.dumps([] if name == "none" else [{"name": name, **options}], sort_keys=True)


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
                                    defense_options=options_of(defense),
                                    attack=attack,
                                    attack_options='{"steps":300}',
                                    adaptive=attack == "lamp",
                                    control=control,
                                    round=round_,
                                    client=client,
                                    probe="none",
                                    example=example,
                                    row=2 * client + example,
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
                    defense_options=options_of(defense),
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


def examples() -> Iterator[Shown]:
    rng = random.Random("examples")
    for task, attacks in ATTACKS.items():
        for defense, _ in DEFENSES:
            for attack in attacks[:-1]:  # the prior is not shown
                for rank in ranks(9, 5 if task.startswith("image") else 3):
                    number = rank - 1
                    round_, client = 1 + number // 3, number % 3
                    if status_of(task, attack, defense, round_, client)[0] == "skipped":
                        continue
                    psnr = value_of("psnr", attack, defense, round_, rng)
                    known = (psnr - 8) / 30
                    if task.startswith("image"):
                        image = picture(number)
                        noise = torch.Generator().manual_seed(number)
                        mixed = image * known + torch.rand(3, 32, 32, generator=noise) * (1 - known)
                        original, guess = png(image), png(mixed)
                    else:
                        text = SENTENCES[number % 5] + " " + HOSTILE
                        words = [w if rng.random() < known else "the" for w in text.split()]
                        original, guess = text.encode(), " ".join(words).encode()
                    yield Shown(
                        cell=f"{task}.{defense}",
                        attack=attack,
                        attack_options='{"steps":300}',
                        round=round_,
                        client=client,
                        example=0,
                        rank=rank,
                        total=9,
                        value=psnr if task.startswith("image") else known,
                        original=original,
                        guess=None if (attack, rank) == ("lamp", 9) else guess,
                        certified=known > 0.8 if attack == "embedding_rows" else None,
                    )


def make_run(folder: Path, *, shuffle: bool = False) -> Path:
    folder.mkdir(parents=True)
    rows = [row for task in ATTACKS for row in scores(task)]
    utility = [row for task in ATTACKS for row in utilities(task)]
    if shuffle:
        random.Random(1).shuffle(rows)
        random.Random(2).shuffle(utility)
    write_rows(folder / "scores.parquet", ScoreRow, rows)
    write_rows(folder / "utility.parquet", UtilityRow, utility)
    write_rows(folder / "coverage.parquet", Coverage, coverage(rows))
    write_gallery(folder, list(examples()))
    for task in ATTACKS:
        for defense in DEFENSES:
            write_json(folder / f"{task}.{defense[0]}" / "cell.json", cell_of(task, defense))
    provenance = {
        "fedsim": "0.1.0",
        "packages": {"torch": "2.9.0", "flwr": "1.41.0"},
        "cpus": 2,
        "seconds": {"simulate": 12.5, "attack": 61.2},
        "commands": {"simulate": f"fedsim run quickstart --out {HOSTILE}"},
        "commits": {"simulate": "4f2a9c1d0b7e"},
    }
    write_json(folder / "provenance.json", provenance)
    (folder / "experiment.toml").write_text(
        f'schema = 1\nname = "quickstart"  # {HOSTILE}\nseeds = [0]\n'
    )
    return folder


class Page(HTMLParser):
    """Tags, attributes and text of a page, a line a block; every element is closed.

    Pictures are named, drawings and the script left out.
    """

    VOID = frozenset({"meta", "img", "br", "path", "use", "rect"})
    UNSEEN = frozenset({"title", "style", "script", "svg"})
    INLINE = frozenset({"a", "abbr", "b", "code", "em", "mark", "small", "span", "td", "th"})

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.lines = [""]
        self.open: list[str] = []
        self.feed(source)

    @property
    def text(self) -> str:
        """All lines as one."""
        return " ".join(self.lines)

    @property
    def block(self) -> str:
        """The lines as a file."""
        return "\n".join(line.strip() for line in self.lines if line.strip()) + "\n"

    def say(self, text: str) -> None:
        self.lines[-1] += text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag not in self.INLINE | self.VOID | {"dd"}:
            self.lines.append("")
        if tag in {"td", "th", "dd"} and self.lines[-1]:
            self.say(": " if tag == "dd" else " | ")
        if tag in {"small", "br"}:
            self.say(" ")
        if tag == "img":
            self.say(f"[{dict(attrs)['alt']}] ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag not in self.INLINE | self.VOID | {"dt"}:
            self.lines.append("")

    def handle_data(self, data: str) -> None:
        if not self.UNSEEN & set(self.open):
            shown = " ".join(f"<{data}>".split())[1:-1]
            self.lines[-1] = f"{self.lines[-1]}{shown}".replace("  ", " ").lstrip()
