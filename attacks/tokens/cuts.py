"""Thresholds of what reads tokens from an update, or searches its sentences."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenCuts:
    """Thresholds on ranks, tokens and sentences. Sines are of the angle to the span."""

    # Smallest singular value that counts towards a span, as a share of the largest; below lies
    # float32 rounding at the client.
    singular_value: float = 1e-7
    factor_singular_value: float = 1e-6  # the same for the second factor of an adapter
    # A singular value this many times above the next ends a span that rounding blurs.
    rank_fall: float = 30.0
    # Dimensions that layer normalisation may take from inputs and gradients; a span with no
    # more than these to spare is full.
    lost_dimensions: int = 2
    # Least rank of a span that hides no token, as a share of another's of the same.
    equal_rank: float = 0.9
    missing_direction: float = 0.5  # sine from which a direction is absent from a span
    gap: float = 4.0  # least ratio of the smallest rejected to the largest accepted sine
    token_sine: float = 0.1  # largest sine of an accepted token
    end_sine: float = 0.03  # a position whose every sine is larger lies behind all sentences
    end_ratio: int = 10  # the same, as a multiple of the worst position before
    lowest_limit: float = 0.003  # smallest sine at which a token may be cut off in its sentence
    highest_limit: float = 0.1  # largest sine at which a token may be cut off in its sentence
    retry: int = 3  # factor on that limit in a second search, where the first proves nothing
    sentence_sine: float = 0.05  # largest mean sine of a sentence in the span
    # Least ratio of a neighbour's mean sine to that of a sentence in the span.
    neighbour_ratio: float = 10.0
    twins: int = 8  # most neighbours below that ratio: other sentences that differ in one word
    # Error of inputs that are sums of words and positions, as a share of their norm.
    sum_error: float = 1e-4
    separation: float = 0.4  # distance of false from true tokens, in logs, from which a layer tells
    # Least variance of noise, as a share of the mean square of a gradient.
    least_noise: float = 1e-4
    fewest_directions: int = 3  # spikes below which a layer says nothing
    # P-value of the strongest row of noise, below which the embedding tables tell.
    row_level: float = 0.01
    # Log-likelihood ratio of the end of a sentence, beside what the model says.
    end_gain: float = 1.0
    next_tokens: int = 48  # tokens tried behind each prefix
    prefixes: int = 8  # prefixes kept for each sentence of the batch
    fewest_lines: int = 8  # the least of that
    least_probability: float = 0.1  # smallest probability of a word that is worth a mention
    pursued: float = 3e-4  # share of a direction that a pursuit leaves to rounding
    # Share of a row outside the chosen ones below which it says nothing new.
    pursued_room: float = 1e-3
    noisy_room: float = 1e-2  # the same where noise blurs what the rows leave
    # Dimensions that the rows of a pursuit leave, as rows that fill the width explain anything. At
    # width 256 all 222 to 252 words of sixteen mails are named; with .7 of the width none were.
    pursued_spare: int = 3
    pursued_rows: float = 0.7  # most rows where noise blurs them, as a share of the width


CUTS = TokenCuts()
