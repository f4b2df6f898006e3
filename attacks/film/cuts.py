"""Thresholds of FILM: of its bag of words, its beams and the evidence from the span."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FilmCuts:
    """Thresholds of ``film``. Sines are of the angle to the span of a layer's inputs."""

    # Squared length of a tied row, in medians, from which the head does not explain it.
    far_row: float = 100.0
    # Least share of the largest energy that a direction of absent rows counts with; below lies
    # rounding.
    row_energy: float = 1e-14
    # Nats taken off a beam that leaves no room for a word it has to hold; more than any
    # sentence costs.
    uncovered: float = 1000.0
    decade_nats: float = 2.0  # nats for a sine ten times smaller
    fewest_decades: float = -1.0  # lower bound of the decades that count, reached at a sine of 1
    most_decades: float = 3.0  # upper bound of the decades that count, reached at a sine of 0.0001
    # Nats that a word outside the span costs; more than a likelier word gains.
    outside: float = 100.0
    # Nearest words tried where none is in the span, and doubtful sentences tried for each
    # accepted one.
    tried: int = 2
    in_span_share: float = 0.8  # least share of an accepted sentence's tokens that lie in the span
    # Divisor of the largest accepted sine for the part of a sentence that no accepted sentence
    # shares.
    stricter: int = 10
    unclear_sine: float = 0.005  # largest accepted sine where no gap separates the tokens
    first_search: int = 1  # factor on the largest accepted sine in the first search
    second_search: int = 3  # factor on the largest accepted sine in the second search
    # Words of a place, likeliest first, that the layers behind the attention are asked for.
    likely_words: int = 48
    fitting_words: int = 4  # longest sentence that the layers are not fitted to


CUTS = FilmCuts()
