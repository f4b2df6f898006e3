"""Components of ``span`` switched off, and thresholds scaled, from outside."""

import pkgutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from attacks.proofs.gradient_pursuit import GradientPursuit
from attacks.span.causal.whitening import Whitening
from attacks.span.encoder.proposals import PositionScores
from attacks.tokens.next_token_shift import DirectionalShift
from attacks.tokens.soft_traces import soft_traces
from fedsim.types import Tensors

_OPTIMIZERS = frozenset({None, "sgd", "momentum", "adam", "adamw", "adafactor"})


def _first(match: Any, lines: Sequence[Any], count: int, found: Any = None) -> GradientPursuit:  # noqa: ANN401
    """The likeliest lines in place of those that explain the update together."""
    del found
    return GradientPursuit.of(match, lines[:count])


def _raw(update: Tensors, ridge: float) -> Whitening:
    """An update whose singular values keep their ratios."""
    return _WHITENED(update, 1e6 * ridge)


_WHITENED, _SHIFT = Whitening.of, DirectionalShift

_DECODER, _GROWTH = "attacks.span.causal.decoder.", "attacks.span.causal.matched_growth."
_SEARCH = "attacks.span.encoder.word_search.WordSearch."
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
        "attacks.span.decoding.soft_traces": lambda model: replace(soft_traces(model), later=()),
    },
    "consistency in the search": {_DECODER + "Decoder.explains": lambda *given: False},
    "prefix fit": {_DECODER + "PrefixFit.tells": False},
    "gradient pursuit": {_DECODER + "choose": _first},
    "refinement": {_DECODER + "refined": lambda line, *given: line.tolist()},
    "second search": {_DECODER + "Tree.again": lambda *given: []},
    "matched growth": {_DECODER + "MULTIPLES": _OPTIMIZERS},
    "whitening": {_GROWTH + "Whitening.of": _raw},
    "suffix swaps": {_GROWTH + "swap_suffixes": lambda lines, *given: lines},
    "table rows": {"attacks.span.decoding.table_rows": lambda model: None},
    "position scores": {
        "attacks.span.encoder.proposals.PositionScores.centred": PositionScores.words,
    },
    "residual proposals": {_SEARCH + "_residual": lambda *given: None},
    "crossover": {_SEARCH + "_mixed": lambda search, guess, row, job: guess},
    "coordinate sweep": {_SEARCH + "_swept": lambda search, guess, row, job: guess},
}
"""Component -> what takes the place of which names while it is off."""

_CAUSAL, _WORDS = "attacks.span.causal.", "attacks.span.encoder."
THRESHOLDS: Mapping[str, str] = {
    "gap": "attacks.tokens.candidates.GAP",
    "token_sine": "attacks.tokens.candidates._TOKEN_SINE",
    "end_sine": "attacks.tokens.candidates.END_SINE",
    "end_ratio": "attacks.tokens.candidates._END_RATIO",
    "rank_fall": "attacks.tokens.subspace._RANK_FALL",
    "sentence_sine": "attacks.tokens.sine_descent._SENTENCE_SINE",
    "neighbour_ratio": "attacks.tokens.sine_descent._NEIGHBOUR_RATIO",
    "lowest_limit": "attacks.tokens.candidates._LOWEST_LIMIT",
    "highest_limit": "attacks.tokens.candidates._HIGHEST_LIMIT",
    "separation": "attacks.tokens.evidence._SEPARATION",
    "end_gain": "attacks.tokens.prefix_search.END_GAIN",
    "next_tokens": "attacks.tokens.prefix_search.NEXT_TOKENS",
    "prefixes": "attacks.tokens.prefix_search.PREFIXES",
    "fewest_lines": "attacks.tokens.prefix_search.FEWEST_LINES",
    "row_level": "attacks.tokens.table_rows._ROW_LEVEL",
    "absent_weight": "attacks.proofs.certificate._ABSENT_WEIGHT",
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
    """Scale a module's number; a public one in each module of attacks that imports it, too."""
    owner, _, name = path.rpartition(".")
    value = getattr(pkgutil.resolve_name(owner), name)
    scaled = max(1, round(factor * value)) if isinstance(value, int) else factor * value
    with ExitStack() as stack:
        stack.enter_context(patch(path, scaled))
        for where in [] if name.startswith("_") else [*sys.modules]:
            if where.startswith("attacks.") and vars(sys.modules[where]).get(name) is value:
                stack.enter_context(patch.object(sys.modules[where], name, scaled))
        yield
