"""What each component and threshold of ``span`` is worth: the attack with it and without it.

A component is replaced, and a threshold halved or doubled, from outside, so that the attack holds
no switch. Each change is paired with the whole attack on the same messages, which are of rows on
which no threshold was set. CPU times are of the whole attack on one batch.

    python -m benchmarks.bench_ablation runs/span-ablation.jsonl --firsts 0,4,8
    python -m benchmarks.bench_ablation runs/span-ablation.jsonl --record

The first appends a line for each batch and change to the file, and goes on where it stopped. The
second makes ``docs/results/span-ablation.json`` of it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from scipy.stats import t as student

from attacks.base import Job, Reconstruction
from attacks.span.span import Span
from benchmarks.bench_ranks import WARM_UP
from benchmarks.span_changes import changed
from clients.train import LocalTrainer
from docs.measured import RESULTS, made_here
from fedsim.config.cell import TaskConfig
from fedsim.config.federation import FederationConfig
from fedsim.data.rows import load_rows
from fedsim.defenses import build_chain
from fedsim.defenses.chain import Chain
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.models import TEXT_MODELS
from fedsim.process import one_thread
from fedsim.seeds import generator
from fedsim.store.capture import CaptureKey, Observation
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Rows, Tensors
from fedsim.visible import say

_OWN = ("sentences", "test[:40]")
_MAILS = ("film/enron-sentences", "validation[1000:1100]")
MODELS: Mapping[str, tuple[str, str, str]] = {
    "tiny-gpt2": ("tiny-gpt2", *_OWN),
    "tiny-bert": ("tiny-bert", *_OWN),
    "gpt2-8k": ("fedsim/gpt2-8k", *_MAILS),
    "llama-8k": ("fedsim/llama-8k", *_MAILS),
    "MiniLM": ("sentence-transformers/all-MiniLM-L6-v2", "nyu-mll/glue:cola", "validation[:100]"),
}
DEFENSES: Mapping[str, Sequence[Mapping[str, object]]] = {
    "none": (),
    **{f"noise {std}": ({"name": "gaussian_noise", "std": std},) for std in (0.001, 0.003, 0.008)},
    "pruning to 10 %": ({"name": "prune", "fraction": 0.9},),
    "pruning to 1 %": ({"name": "prune", "fraction": 0.99},),
    "sign": ({"name": "sign"},),
    "AdamW": (),
}
"""The noise at which a part of the words is read was found for each model on other rows."""
_ADAMW = {"protocol": "fedavg", "optimizer": "adamw", "learning_rate": 5e-5}


def _scaled(*names: str) -> tuple[str, ...]:
    return tuple(f"{name} {factor}" for name in names for factor in ("x 1/2", "x 2"))


_TOLD = ("next-token shift", "second block", "consistency in the search", "gradient pursuit")
_ONE = (*_TOLD, "refinement", "second search")
_LAYERS = ("layer trust", "largest ratio", "separation", "end_gain", "next_tokens", "prefixes")
_NEXT = ("model weight", "shift weight", "grown places")
_FIT = ("tokens ahead", "weight error", "least lack", "fewest_lines")
_SINES = ("gap", "token_sine", "end_sine", "end_ratio", "rank_fall", "absent_weight")
_ENDS = ("lowest_limit", "highest_limit")
_NEAR = ("table rows", "position scores", "coordinate sweep")
_GROWN = ("matched growth", "whitening", "suffix swaps")
_RIDGES = ("matched room", "weights shift", "weights trust", "whitening ridge")
PLAN: Mapping[tuple[str, str, int], tuple[str, ...]] = {
    ("gpt2-8k", "none", 4): ("sweep", *_scaled(*_SINES, *_ENDS)),
    ("llama-8k", "none", 4): _scaled(*_SINES, *_ENDS),
    ("MiniLM", "none", 4): (
        *("sweep", "word clusters"),
        *_scaled(*_SINES, "sentence_sine", "neighbour_ratio"),
    ),
    ("tiny-gpt2", "noise 0.001", 1): (*_ONE, *_scaled(*_LAYERS, *_NEXT)),
    ("tiny-gpt2", "noise 0.001", 2): (*_TOLD, "prefix fit", *_scaled(*_FIT)),
    ("tiny-gpt2", "pruning to 10 %", 1): _TOLD[:3],
    ("tiny-gpt2", "sign", 1): _ONE,
    ("tiny-gpt2", "AdamW", 2): (*_GROWN, *_scaled(*_RIDGES)),
    ("tiny-bert", "pruning to 10 %", 1): _NEAR,
    ("tiny-bert", "sign", 1): (*_NEAR, *_scaled("row_level", "nearest words", "row weight")),
    ("MiniLM", "noise 0.001", 1): _NEAR,
    ("MiniLM", "sign", 1): _NEAR,
    ("gpt2-8k", "noise 0.008", 1): _ONE,
    ("llama-8k", "noise 0.003", 1): _ONE,
    ("llama-8k", "sign", 1): _ONE,
    ("gpt2-8k", "pruning to 1 %", 1): _ONE,
    ("llama-8k", "pruning to 1 %", 1): _ONE,
    ("MiniLM", "pruning to 1 %", 1): _NEAR,
    ("gpt2-8k", "noise 0.008", 2): (*_TOLD, "prefix fit"),
    ("MiniLM", "sign", 2): (*_NEAR, "residual proposals", "crossover", "word clusters"),
}
"""Model, defense and batch size -> the changes that may decide its guess, the cheap ones first."""


@dataclass(frozen=True)
class AblationRow:
    """The attack on one batch, whole or changed.

    Attributes:
        change: the component that is off or the threshold that is scaled; empty for none.
        first: number of the batch's first row.
        recall: share of the private tokens that are guessed, whatever their place.
        precision: share of the guessed tokens that are private.
        exact: sentences found whole.
        proven: sentences that are certified or consistent.
        seconds: CPU time.
    """

    model: str
    defense: str
    batch: int
    first: int
    change: str
    recall: float
    precision: float
    exact: int
    proven: int
    seconds: float

    def text(self) -> str:
        """For a terminal."""
        cell = f"{self.model:<9} {self.defense:<8} {self.batch:>2} {self.first:>3}"
        outcome = f"{self.recall:.2f} {self.precision:.2f}  {self.exact} exact, {self.proven} sure"
        return f"{cell}  {self.change or '-':<26} {outcome}  {self.seconds:>6.1f} s"


@dataclass(frozen=True)
class AblationCase:
    """A model with the rows of its victims."""

    name: str
    task: TextTask
    rows: Rows
    sent: Tensors

    @classmethod
    def of(cls, name: str) -> AblationCase:
        """Load a model and its rows; a built-in model is trained a little on public sentences."""
        model, data, split = MODELS[name]
        rows = load_rows(data, split, modality="text")
        config = TaskConfig.model_validate({"model": model, "dataset": data, "max_length": 32})
        task = make_task(config, rows)
        assert isinstance(task, TextTask)
        sent = initial_weights(task, config, 0)
        if model in TEXT_MODELS:
            public = load_rows("sentences", "public", modality="text")
            trainer = LocalTrainer(task, WARM_UP, Chain(), 0, torch.device("cpu"))
            sent = sent | trainer.run(sent, public, 0, 0).tensors
        return cls(name, task, rows, sent)

    def capture(self, defense: str, first: int, count: int) -> tuple[Observation, Batch]:
        """What the server sees of so many rows, and the batch."""
        options: dict[str, Any] = _ADAMW if defense == "AdamW" else {}
        federation = FederationConfig(batch_size=count, engine="in-process", **options)
        chain = build_chain([dict(table) for table in DEFENSES[defense]], "defenses")
        trainer = LocalTrainer(self.task, federation, chain, 0, torch.device("cpu"))
        update = trainer.run(self.sent, self.rows.take(range(first, first + count)), 1, 0)
        known: dict[str, Any] = {"num_examples": count}
        if options:
            known |= {"optimizer": "adamw", "learning_rate": 5e-5, "local_steps": 1}
        key = CaptureKey(round=1, client=0)
        seen = Observation(key, self.sent, update.tensors, update.kind, Knowledge(**known))
        return seen, update.batch


def ablation(
    out: Path, firsts: Sequence[int], cells: Sequence[tuple[str, str, int]]
) -> Iterator[AblationRow]:
    """Rows that the file lacks, appended to it batch by batch."""
    known = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {
        tuple(row[k] for k in ("model", "defense", "batch", "first", "change")) for row in known
    }
    case = cache(AblationCase.of)
    for first in firsts:
        for model, defense, batch in cells:
            for change in ("", *PLAN[model, defense, batch]):
                if (model, defense, batch, first, change) in done:
                    continue
                with one_thread():
                    row = _row(case(model), defense, batch, first, change)
                with out.open("a") as file:
                    file.write(json.dumps(asdict(row)) + "\n")
                yield row


def _row(case: AblationCase, defense: str, batch: int, first: int, change: str) -> AblationRow:
    seen, truth = case.capture(defense, first, batch)
    begun = time.process_time()
    guess: Reconstruction | None = None
    with changed(change):
        try:
            rngs = [generator(0, "ablation")]
            (guess,) = Span().reconstruct([seen], case.task, rngs, Job())
        except CannotAttack:
            pass
    seconds = round(time.process_time() - begun, 2)
    guessed = [] if guess is None else case.task.examples(guess.guess).tokens
    private = case.task.examples(truth).tokens
    tokens = Counter(token for line in guessed for token in line)
    real = Counter(token for line in private for token in line)
    both = (tokens & real).total()
    exact = (Counter(map(tuple, guessed)) & Counter(map(tuple, private))).total()
    levels = () if guess is None else guess.confidence or ()
    return AblationRow(
        case.name,
        defense,
        batch,
        first,
        change,
        both / max(1, real.total()),
        both / max(1, tokens.total()),
        exact,
        sum(level in {"certified", "consistent"} for level in levels),
        seconds,
    )


def recorded(out: Path) -> dict[str, Any]:
    """The result file: each change beside the whole attack, on the same messages."""
    rows = [AblationRow(**json.loads(line)) for line in out.read_text().splitlines()]
    cells: dict[tuple[str, str, int], dict[str, dict[int, AblationRow]]] = {}
    for row in rows:
        cell = cells.setdefault((row.model, row.defense, row.batch), defaultdict(dict))
        cell[row.change][row.first] = row
    lines = []
    for (model, defense, batch), changes in cells.items():
        for change, changed_rows in changes.items():
            shared = sorted(changed_rows.keys() & changes[""].keys()) if change else []
            pairs = [(changes[""][first], changed_rows[first]) for first in shared]
            setting = {"change": change, "cell": f"{model}, {defense}, B = {batch}"}
            lines += [{"setting": setting, **value} for value in _compared(pairs, batch)]
    return {
        "title": "Components and thresholds of span, each changed while the others ran",
        "paper": "",
        "command": "python -m benchmarks.bench_ablation runs/span-ablation.jsonl",
        **made_here(sum(row.seconds for row in rows)),
        "columns": {"lines": ["cell", "change"], "digits": {"seconds": 1, "seconds, changed": 1}},
        "rows": lines,
        "notes": [
            "n: batches; all are of rows on which no threshold was set. A difference is that of "
            "the changed attack less the whole one on the same batch, with Student's 95 % "
            "interval where batches differ.",
            "Noise is given by its standard deviation. The built-in models, tiny-gpt2 and "
            "tiny-bert, are trained for 60 steps on public sentences.",
            "Regrowth and the row view were removed for what is seen here; commit 0d5206e has "
            "them.",
        ],
        "generator": "python -m benchmarks.bench_ablation runs/span-ablation.jsonl --record",
    }


def _compared(
    pairs: Sequence[tuple[AblationRow, AblationRow]], batch: int
) -> Iterator[dict[str, Any]]:
    """Values of the whole and the changed attack, and of their difference."""
    if not pairs:
        return
    whole, gain = [a.recall for a, _ in pairs], [b.recall - a.recall for a, b in pairs]
    spread = stdev(gain) if len(gain) > 1 else 0.0
    half = float(student.ppf(0.975, max(1, len(gain) - 1))) * spread / len(gain) ** 0.5
    ends = {"low": round(mean(gain) - half, 4), "high": round(mean(gain) + half, 4)}
    yield {"measure": "recall", "n": len(pairs), "mean": round(mean(whole), 4), "unit": "1"}
    value = {"measure": "difference", "n": len(pairs), "mean": round(mean(gain), 4), "unit": "1"}
    yield value | (ends if half else {})
    for name, side in (("exact", 0), ("exact, changed", 1)):
        share = mean(pair[side].exact for pair in pairs) / batch
        yield {"measure": name, "n": batch * len(pairs), "mean": round(share, 4), "unit": "of n"}
    for name, side in (("seconds", 0), ("seconds, changed", 1)):
        seconds = round(mean(pair[side].seconds for pair in pairs), 1)
        yield {"measure": name, "n": len(pairs), "mean": seconds, "unit": "1"}


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("out", type=Path)
    options.add_argument("--cells", nargs="*", default=[], metavar="MODEL,DEFENSE,BATCH")
    options.add_argument("--firsts", default="0,4,8", help="first rows of the batches")
    options.add_argument("--record", action="store_true")
    return options


def main() -> None:
    """Measure cells, or record what was measured."""
    given = parser().parse_args()
    if given.record:
        text = json.dumps(recorded(given.out), indent=1) + "\n"
        (RESULTS / "span-ablation.json").write_text(text)
        return
    cells = [(model, defense, int(batch)) for model, defense, batch in map(_split, given.cells)]
    firsts = [int(first) for first in given.firsts.split(",")]
    for row in ablation(given.out, firsts, cells or [*PLAN]):
        say(row.text(), flush=True)


def _split(text: str) -> tuple[str, str, str]:
    model, defense, batch = text.split(",")
    return model, defense, batch


if __name__ == "__main__":
    main()
