"""What each component of ``span`` is worth: the attack with it, and with it replaced.

A component is switched off from outside, so that the attack holds no switch. The sentences are of
splits on which no threshold was set. CPU times are of the whole attack on one batch.

    python -m benchmarks.bench_ablation runs/span-ablation.jsonl --cells gpt2-8k,noise,1
    python -m benchmarks.bench_ablation runs/span-ablation.jsonl --record

The first appends a line for each batch and component to the file, and goes on where it stopped. The
second makes ``docs/results/span-ablation.json`` of it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from attacks.base import Job, Reconstruction
from attacks.proofs.gradient_pursuit import GradientPursuit
from attacks.span.causal.whitening import Whitening
from attacks.span.encoder.joint_words import JointWords
from attacks.span.encoder.position_scores import PositionScores
from attacks.span.span import Span
from attacks.tokens.next_token_shift import DirectionalShift
from attacks.tokens.soft_traces import soft_traces
from benchmarks.bench_ranks import WARM_UP
from clients.train import LocalTrainer
from docs.measured import RESULTS
from fedsim.capture import CaptureKey, Observation
from fedsim.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.defenses import build_chain
from fedsim.defenses.chain import Chain
from fedsim.errors import CannotAttack
from fedsim.federation import FederationConfig
from fedsim.knowledge import Knowledge
from fedsim.models import TEXT_MODELS
from fedsim.seeds import generator
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.text import TextTask
from fedsim.threads import one_thread
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
    "weak noise": ({"name": "gaussian_noise", "std": 1e-4},),
    "noise": ({"name": "gaussian_noise", "std": 1e-3},),
    "strong noise": ({"name": "gaussian_noise", "std": 5e-3},),
    "pruning": ({"name": "prune", "fraction": 0.9},),
    "sign": ({"name": "sign"},),
    "AdamW": (),
}
_ADAMW = {"protocol": "fedavg", "optimizer": "adamw", "learning_rate": 5e-5}


def _first(match: Any, lines: Sequence[Any], count: int, found: Any = None) -> GradientPursuit:  # noqa: ANN401
    """The likeliest lines in place of those that explain the update together."""
    del found
    return GradientPursuit.of(match, lines[:count])


def _raw(update: Tensors, ridge: float) -> Whitening:
    """An update whose singular values keep their ratios."""
    return _WHITENED(update, 1e6 * ridge)


def _nearest(scores: PositionScores) -> None:
    """Words by their distance at a place, not compared with other places."""
    _PREPARED(scores)
    object.__setattr__(scores, "_centred", scores._inner)


_WHITENED, _PREPARED = Whitening.of, PositionScores.__post_init__
_JOINT, _SHIFT = JointWords.of, DirectionalShift

_DECODER, _GROWTH = "attacks.span.causal.decoder.", "attacks.span.causal.matched_growth."
_ENCODER, _SEARCH = "attacks.span.encoder.decoder.", "attacks.span.encoder.word_search.WordSearch."
COMPONENTS: Mapping[str, Mapping[str, Any]] = {
    "sweep": {
        "attacks.tokens.candidates.nearest_words": lambda *given: None,
        "attacks.tokens.candidates._anywhere": lambda layers, space, words, places: words,
    },
    "word clusters": {
        "attacks.tokens.word_clusters.WordClusters.of": lambda *given: None,
    },
    "next-token shift": {
        _DECODER + "DirectionalShift.of": lambda network, update, most: _SHIFT(network, {}),
    },
    "second block": {
        "attacks.span.decoding.soft_traces": lambda model, rows: replace(
            soft_traces(model, rows=rows), later=()
        ),
    },
    "consistency in the search": {_DECODER + "Decoder._explains": lambda *given: False},
    "prefix fit": {_DECODER + "PrefixFit.tells": False},
    "gradient pursuit": {_DECODER + "choose": _first},
    "refinement": {_DECODER + "refined": lambda line, *given: line.tolist()},
    "second search": {_DECODER + "Tree.again": lambda *given: []},
    "matched growth": {_DECODER + "_ADAPTIVE": frozenset()},
    "whitening": {_GROWTH + "Whitening.of": _raw},
    "suffix swaps": {_GROWTH + "swap_suffixes": lambda lines, *given: lines},
    "regrowth": {_GROWTH + "MatchedGrowth._again": lambda growth, found: found},
    "table rows": {_ENCODER + "table_rows": lambda model: None},
    "row view": {
        "attacks.span.encoder.proposals.JointWords.of": lambda traces, ends, count, rows: _JOINT(
            traces, ends, count, rows if traces.first is None else None
        ),
    },
    "position scores": {
        "attacks.span.encoder.position_scores.PositionScores.__post_init__": _nearest,
    },
    "residual proposals": {_SEARCH + "_left": lambda *given: None},
    "crossover": {_SEARCH + "_mixed": lambda search, guess, row, job: guess},
    "coordinate sweep": {_SEARCH + "_swept": lambda search, guess, row, job: guess},
}
"""Component -> what takes the place of which names while it is off."""

_EXACT = ("sweep", "word clusters")
_CAUSAL = (
    "next-token shift",
    "second block",
    "consistency in the search",
    "prefix fit",
    "gradient pursuit",
    "refinement",
    "second search",
)
_GROWN = ("matched growth", "whitening", "suffix swaps", "regrowth")
_WORDS = (
    "word clusters",
    "table rows",
    "row view",
    "position scores",
    "residual proposals",
    "crossover",
    "coordinate sweep",
)
_ENCODERS = {"MiniLM", "tiny-bert"}
_ALONE = {
    "crossover",
    "prefix fit",
    "suffix swaps",
    "regrowth",
    "word clusters",
    "residual proposals",
}
"""Components that a single sentence does not use."""


@dataclass(frozen=True)
class AblationRow:
    """The attack on one batch, with all components or without one.

    Attributes:
        without: the component; empty if none is off.
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
    without: str
    recall: float
    precision: float
    exact: int
    proven: int
    seconds: float

    def text(self) -> str:
        """For a terminal."""
        cell = f"{self.model:<9} {self.defense:<12} {self.batch:>2} {self.first:>3}"
        found = f"{self.recall:.2f} {self.precision:.2f}  {self.exact} exact, {self.proven} proven"
        return f"{cell}  {self.without or '-':<26} {found}  {self.seconds:>6.1f} s"


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
        chain = build_chain([dict(one) for one in DEFENSES[defense]], "defenses")
        trainer = LocalTrainer(self.task, federation, chain, 0, torch.device("cpu"))
        update = trainer.run(self.sent, self.rows.take(range(first, first + count)), 1, 0)
        known: dict[str, Any] = {"num_examples": count}
        if options:
            known |= {"optimizer": "adamw", "learning_rate": 5e-5, "local_steps": 1}
        key = CaptureKey(round=1, client=0)
        seen = Observation(key, self.sent, update.tensors, update.kind, Knowledge(**known))
        return seen, update.batch


def components(model: str, defense: str, batch: int) -> tuple[str, ...]:
    """Those that may decide the guess of a cell."""
    if defense == "none":
        names: tuple[str, ...] = _EXACT if model in _ENCODERS else _EXACT[:1]
    elif model in _ENCODERS:
        names = _WORDS
    else:
        names = _GROWN if defense == "AdamW" else _CAUSAL
    if batch > 1:
        return tuple(name for name in names if name not in {"refinement", "second search"})
    return tuple(name for name in names if name not in _ALONE)


@contextmanager
def switched_off(name: str) -> Iterator[None]:
    """Replace a component; an empty name replaces none."""
    with ExitStack() as stack:
        for target, instead in COMPONENTS[name].items() if name else ():
            stack.enter_context(patch(target, instead))
        yield


def ablation(
    out: Path,
    firsts: Sequence[int],
    cells: Sequence[tuple[str, str, int]],
    budget: float = float("inf"),
) -> Iterator[AblationRow]:
    """Rows that the file lacks, appended to it, batch by batch, until CPU seconds are used up."""
    known = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {
        tuple(row[k] for k in ("model", "defense", "batch", "first", "without")) for row in known
    }
    case = cache(AblationCase.of)
    begun = time.process_time()
    for first in firsts:
        for model, defense, batch in cells:
            for without in ("", *components(model, defense, batch)):
                if (model, defense, batch, first, without) in done:
                    continue
                if time.process_time() - begun > budget:
                    return
                with one_thread():
                    row = _row(case(model), defense, batch, first, without)
                with out.open("a") as file:
                    file.write(json.dumps(asdict(row)) + "\n")
                yield row


def _row(case: AblationCase, defense: str, batch: int, first: int, without: str) -> AblationRow:
    seen, truth = case.capture(defense, first, batch)
    begun = time.process_time()
    made: Reconstruction | None = None
    with switched_off(without):
        try:
            rngs = [generator(0, "ablation")]
            (made,) = Span().reconstruct([seen], case.task, rngs, Job())
        except CannotAttack:
            pass
    seconds = round(time.process_time() - begun, 2)
    guessed = [] if made is None else case.task.examples(made.guess).tokens
    private = case.task.examples(truth).tokens
    mine = Counter(token for line in guessed for token in line)
    real = Counter(token for line in private for token in line)
    both = (mine & real).total()
    whole = (Counter(map(tuple, guessed)) & Counter(map(tuple, private))).total()
    levels = () if made is None else made.confidence or ()
    proven = sum(level in {"certified", "consistent"} for level in levels)
    return AblationRow(
        case.name,
        defense,
        batch,
        first,
        without,
        both / max(1, real.total()),
        both / max(1, mine.total()),
        whole,
        proven,
        seconds,
    )


def recorded(out: Path) -> dict[str, Any]:
    """The result file of what was measured: each component beside the whole attack, on its rows."""
    rows = [AblationRow(**json.loads(line)) for line in out.read_text().splitlines()]
    cells: dict[tuple[str, str, int], dict[str, dict[int, AblationRow]]] = {}
    for row in rows:
        cell = cells.setdefault((row.model, row.defense, row.batch), defaultdict(dict))
        cell[row.without][row.first] = row
    lines = []
    for (model, defense, batch), variants in cells.items():
        for without, rows_of in variants.items():
            if not without:
                continue
            shared = sorted(rows_of.keys() & variants[""].keys())
            setting = {"cell": f"{model}, {defense}, B = {batch}", "without": without}
            for measure in ("recall", "exact", "seconds"):
                for side, source in (("with it", variants[""]), ("without", rows_of)):
                    values = [float(getattr(source[first], measure)) for first in shared]
                    size = batch if measure == "exact" else 1
                    lines.append(
                        {
                            "setting": {**setting, "column": f"{measure} {side}"},
                            "measure": measure,
                            "n": size * len(values),
                            "mean": round(sum(values) / len(values) / size, 4),
                            "unit": "of n" if measure == "exact" else "1",
                        }
                    )
    head = ["git", "rev-parse", "--short=7", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
    return {
        "title": "Components of span, each replaced while the others ran",
        "paper": "",
        "command": "python -m benchmarks.bench_ablation runs/span-ablation.jsonl",
        "commit": commit,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seed": 0,
        "machine": "2 shared CPU cores, no GPU, one thread",
        "cpu_seconds": round(sum(row.seconds for row in rows)),
        "columns": {"lines": ["cell", "without"], "across": "column", "digits": {"seconds": 1}},
        "rows": lines,
        "notes": [
            "One to three batches a cell, of rows on which no threshold was set: a difference of a "
            "few hundredths of recall is within what another batch would change.",
            "The built-in models are trained for 60 steps on public sentences, and are so narrow "
            "that a defense leaves part of the words.",
        ],
    }


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("out", type=Path)
    options.add_argument("--cells", nargs="*", default=[], metavar="MODEL,DEFENSE,BATCH")
    options.add_argument("--firsts", default="0,4,8,12,16,20", help="first rows of the batches")
    options.add_argument("--record", action="store_true")
    return options


def main() -> None:
    """Measure cells, or record what was measured."""
    given = parser().parse_args()
    if given.record:
        path = RESULTS / "span-ablation.json"
        path.write_text(json.dumps(recorded(given.out), indent=1) + "\n")
        return
    cells = [(model, defense, int(batch)) for model, defense, batch in map(_split, given.cells)]
    for row in ablation(given.out, [int(first) for first in given.firsts.split(",")], cells):
        say(row.text(), flush=True)


def _split(text: str) -> tuple[str, str, str]:
    model, defense, batch = text.split(",")
    return model, defense, batch


if __name__ == "__main__":
    main()
