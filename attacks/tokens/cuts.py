"""Thresholds of what reads tokens from an update, proves a batch, or searches its sentences."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenCuts:
    """Thresholds on ranks, tokens and sentences. Sines are of the angle to the span.

    Attributes:
        singular_value: smallest singular value that counts towards a span, as a share of the
            largest; below lies float32 rounding at the client.
        factor_singular_value: the same for the second factor of an adapter.
        rank_fall: a singular value this many times above the next ends a span that rounding blurs.
        lost_dimensions: dimensions that layer normalisation may take from inputs and gradients; a
            span with no more than these to spare is full.
        equal_rank: least rank of a span that hides no token, as a share of another's of the same.
        missing_direction: sine from which a direction is absent from a span.
        gap: least ratio of the smallest rejected to the largest accepted sine.
        token_sine: largest sine of an accepted token.
        end_sine: a position whose every sine is larger lies behind all sentences.
        end_ratio: the same, as a multiple of the worst position before.
        lowest_limit: smallest sine at which a token may be cut off in its sentence.
        highest_limit: largest sine at which a token may be cut off in its sentence.
        retry: factor on that limit in a second search, where the first proves nothing.
        sentence_sine: largest mean sine of a sentence in the span.
        neighbour_ratio: least ratio of a neighbour's mean sine to that of a sentence in the span.
        twins: most neighbours below that ratio: other sentences that differ in one word.
        sum_error: error of inputs that are sums of words and positions, as a share of their norm.
        absent_weight: weight below which a sentence is absent, as a share of the largest.
        proof_sentences: most sentences tried for a batch, and the largest multiplicity.
        separation: distance of false from true tokens, in logs, from which a layer tells.
        least_noise: least variance of noise, as a share of the mean square of a gradient.
        fewest_directions: spikes below which a layer says nothing.
        row_level: p-value of the strongest row of noise, below which the embedding tables tell.
        end_gain: log-likelihood ratio of the end of a sentence, beside what the model says.
        next_tokens: tokens tried behind each prefix.
        prefixes: prefixes kept for each sentence of the batch.
        fewest_lines: the least of that.
        consistency_rivals: sentences that differ from a guess in one word, which noise must not
            explain.
        stray_entries: share of a true gradient's entries that may be out of their bounds.
        fewest_entries: entries of a weight that were sent, below which nothing is told from them.
        clear_sign: size of an entry whose sign rounding cannot change, in units of a tensor's rms.
        gradient_rounding: error of an entry of a float32 gradient, in the same units.
        guess_rounding: error of a whole float32 gradient, as a share of its norm.
        sharp_width: largest relative width of the bounds of an entry by which a scale is fitted.
        living_tensor: rms of a tensor that is more than rounding, as a share of the median one's.
        granted_noise: largest difference of measured from granted noise, as a share.
        outside_dimensions: rows and columns outside a guess's spaces that noise is measured on.
        least_probability: smallest probability of a word that is worth a mention.
        pursued: share of a direction that a pursuit leaves to rounding.
        pursued_room: share of a row outside the chosen ones below which it says nothing new.
        noisy_room: the same where noise blurs what the rows leave.
        pursued_rows: most rows of a pursuit, as a share of the width.
    """

    singular_value: float = 1e-7
    factor_singular_value: float = 1e-6
    rank_fall: float = 30.0
    lost_dimensions: int = 2
    equal_rank: float = 0.9
    missing_direction: float = 0.5
    gap: float = 4.0
    token_sine: float = 0.1
    end_sine: float = 0.03
    end_ratio: int = 10
    lowest_limit: float = 0.003
    highest_limit: float = 0.1
    retry: int = 3
    sentence_sine: float = 0.05
    neighbour_ratio: float = 10.0
    twins: int = 8
    sum_error: float = 1e-4
    absent_weight: float = 0.05
    proof_sentences: int = 32
    separation: float = 0.4
    least_noise: float = 1e-4
    fewest_directions: int = 3
    row_level: float = 0.01
    end_gain: float = 1.0
    next_tokens: int = 48
    prefixes: int = 8
    fewest_lines: int = 8
    consistency_rivals: int = 8
    stray_entries: float = 1e-3
    fewest_entries: int = 256
    clear_sign: float = 0.01
    gradient_rounding: float = 1e-4
    guess_rounding: float = 1e-6
    sharp_width: float = 0.1
    living_tensor: float = 1e-3
    granted_noise: float = 0.06
    outside_dimensions: int = 8
    least_probability: float = 0.1
    pursued: float = 3e-4
    pursued_room: float = 1e-3
    noisy_room: float = 1e-2
    pursued_rows: float = 0.7


CUTS = TokenCuts()
