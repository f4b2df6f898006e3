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
import pkgutil
import time
from collections import Counter
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

_MAILS = ("film/enron-sentences", "validation[1000:1100]")
MODELS: Mapping[str, tuple[str, str, str]] = {
    "tiny-gpt2": ("tiny-gpt2", "sentences", "test[:40]"),
    "gpt2-8k": ("fedsim/gpt2-8k", *_MAILS),
    "llama-8k": ("fedsim/llama-8k", *_MAILS),
    "MiniLM": ("sentence-transformers/all-MiniLM-L6-v2", "nyu-mll/glue:cola", "validation[:100]"),
}
_NOISE = {"gpt2-8k": 8e-3, "llama-8k": 3e-3, "MiniLM": 1e-3}
"""Standard deviation at which a part of the words is read, found on other rows."""
DEFENSES: Mapping[str, Sequence[Mapping[str, object]]] = {
    "none": (),
    "noise": ({"name": "gaussian_noise"},),
    "pruning": ({"name": "prune", "fraction": 0.99},),
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

_CUTS, _CAUSAL, _WORDS = (
    "attacks.tokens.cuts.CUTS.",
    "attacks.span.causal.",
    "attacks.span.encoder.",
)
THRESHOLDS: Mapping[str, str] = {
    **{
        name: _CUTS + name
        for name in (
            "gap",
            "token_sine",
            "end_sine",
            "end_ratio",
            "rank_fall",
            "sentence_sine",
            "neighbour_ratio",
            "lowest_limit",
            "highest_limit",
            "absent_weight",
            "separation",
            "end_gain",
            "next_tokens",
            "prefixes",
            "fewest_lines",
            "row_level",
        )
    },
    "largest ratio": "attacks.tokens.evidence._LARGEST_RATIO",
    "layer trust": "attacks.tokens.evidence._LAYER_TRUST",
    "model weight": "attacks.tokens.next_token_shift._MODEL_WEIGHT",
    "shift weight": "attacks.tokens.next_token_shift._SHIFT_WEIGHT",
    "grown places": "attacks.tokens.soft_traces._GROWN_PLACES",
    "tokens ahead": _CAUSAL + "decoder._AHEAD",
    "weight error": _CAUSAL + "prefix_fit._WEIGHT_ERROR",
    "least lack": _CAUSAL + "prefix_fit._LEAST_LACK",
    "matched room": _CAUSAL + "matched_growth._MATCHED_ROOM",
    "weights shift": _CAUSAL + "matched_growth._WEIGHTS_SHIFT",
    "weights trust": _CAUSAL + "matched_growth._WEIGHTS_TRUST",
    "whitening ridge": _CAUSAL + "matched_growth._WHITENING_RIDGE",
    "nearest words": _WORDS + "joint_words._NEAREST",
    "row weight": _WORDS + "proposals._ROWS",
}
"""Threshold -> where it stands; each is halved and doubled."""


def _scaled(*names: str) -> tuple[str, ...]:
    return tuple(f"{name} {factor}" for name in names for factor in ("x 1/2", "x 2"))


_TOLD = ("next-token shift", "second block", "consistency in the search", "gradient pursuit")
_ONE = (*_TOLD, "refinement", "second search")
_LAYERS = ("layer trust", "largest ratio", "separation", "end_gain", "next_tokens", "prefixes")
_NEXT = ("model weight", "shift weight", "grown places")
_FIT = ("tokens ahead", "weight error", "least lack", "fewest_lines")
_SINES = ("gap", "token_sine", "end_sine", "end_ratio", "rank_fall", "absent_weight")
_ENDS = ("lowest_limit", "highest_limit")
_NEAR = ("table rows", "row view", "position scores", "coordinate sweep")
_GROWN = ("matched growth", "whitening", "suffix swaps", "regrowth")
_RIDGES = ("matched room", "weights shift", "weights trust", "whitening ridge")
PLAN: Mapping[tuple[str, str, int], tuple[str, ...]] = {
    ("MiniLM", "noise", 1): _NEAR,
    ("MiniLM", "sign", 1): _NEAR,
    ("tiny-gpt2", "AdamW", 2): _GROWN,
    ("gpt2-8k", "noise", 1): _ONE,
    ("llama-8k", "noise", 1): _ONE,
    ("llama-8k", "sign", 1): _ONE,
    ("gpt2-8k", "noise", 2): (*_TOLD, "prefix fit"),
    ("MiniLM", "sign", 2): (*_NEAR, "residual proposals", "crossover", "word clusters"),
    ("MiniLM", "none", 2): ("sweep", "word clusters"),
    ("gpt2-8k", "none", 4): ("sweep", *_scaled(*_SINES, *_ENDS)),
    ("llama-8k", "none", 4): _scaled(*_SINES, *_ENDS),
    ("MiniLM", "none", 4): _scaled(*_SINES, "sentence_sine", "neighbour_ratio"),
    ("gpt2-8k", "pruning", 1): (*_ONE, *_scaled(*_LAYERS, *_NEXT)),
    ("MiniLM", "pruning", 1): (*_NEAR, *_scaled("row_level", "nearest words", "row weight")),
    ("llama-8k", "sign", 2): (*_TOLD, "prefix fit", *_scaled(*_FIT)),
    ("tiny-gpt2", "AdamW", 3): _scaled(*_RIDGES),
    ("llama-8k", "pruning", 1): _ONE,
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
        chain = [dict(table) for table in DEFENSES[defense]]
        if defense == "noise":
            chain[0]["std"] = _NOISE.get(self.name, 1e-3)
        trainer = LocalTrainer(
            self.task, federation, build_chain(chain, "defenses"), 0, torch.device("cpu")
        )
        update = trainer.run(self.sent, self.rows.take(range(first, first + count)), 1, 0)
        known: dict[str, Any] = {"num_examples": count}
        if options:
            known |= {"optimizer": "adamw", "learning_rate": 5e-5, "local_steps": 1}
        key = CaptureKey(round=1, client=0)
        seen = Observation(key, self.sent, update.tensors, update.kind, Knowledge(**known))
        return seen, update.batch


@contextmanager
def changed(name: str) -> Iterator[None]:
    """Replace a component or scale a threshold; an empty name changes nothing."""
    threshold, _, factor = name.rpartition(" x ")
    if threshold:
        with _threshold(THRESHOLDS[threshold], 2.0 if factor == "2" else 0.5):
            yield
        return
    with ExitStack() as stack:
        for target, instead in COMPONENTS[name].items() if name else ():
            stack.enter_context(patch(target, instead))
        yield


@contextmanager
def _threshold(path: str, factor: float) -> Iterator[None]:
    """Scale a module's number, or a field of its frozen table."""
    owner, _, name = path.rpartition(".")
    holder = pkgutil.resolve_name(owner)
    value = getattr(holder, name)
    scaled = max(1, round(factor * value)) if isinstance(value, int) else factor * value
    object.__setattr__(holder, name, scaled)
    try:
        yield
    finally:
        object.__setattr__(holder, name, value)


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
    cells = [(model, defense, int(batch)) for model, defense, batch in map(_split, given.cells)]
    firsts = [int(first) for first in given.firsts.split(",")]
    for row in ablation(given.out, firsts, cells or [*PLAN]):
        say(row.text(), flush=True)


def _split(text: str) -> tuple[str, str, str]:
    model, defense, batch = text.split(",")
    return model, defense, batch


if __name__ == "__main__":
    main()
