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
        mean_rounding: mean error of a rounded number, in units of its last place.
        rank_fall: a singular value this many times above the next ends a span that rounding blurs.
        lost_dimensions: dimensions that layer normalisation may take from inputs and gradients; a
            span with no more than these to spare is full.
        equal_rank: least rank of a span that hides no token, as a share of another's of the same.
        missing_direction: sine from which a direction is absent from a span.
        anywhere_tokens: tokens that stay after the one test for all positions together.
        tokens_beyond_rank: tokens measured at each position in excess of the rank.
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
        companions: tokens that a word's gradient is explained by at most.
        company_words: words of a blurred update tried for each sentence.
        unexplained: share of both its gradients at which no further one is needed.
        agreement: share of a set's words that have to choose a word for it to belong to them.
        loyalty: share of a word's choices that have to be of its set for it to order the set.
        kicks: fresh draws of a line's worst tokens, in a row, before the line is given up.
        absent_weight: weight below which a sentence is absent, as a share of the largest.
        proof_sentences: most sentences tried for a batch, and the largest multiplicity.
        least_spread: smallest spread of a statistic of false tokens.
        least_true_spread: smallest spread of a statistic of true tokens.
        separation: distance of false from true tokens, in logs, from which a layer tells.
        model_error: share of an input's square that may lie outside the span for other reasons
            than white noise: imputation, dropout, steps at other weights.
        mild_shift: slope of the likelihood of a layer that does not tell, a spread of the absent.
        outlier_share: share of true tokens with a wider spread.
        outlier_spread: that spread, as a multiple.
        layer_trust: weight of one layer's log-likelihood ratio, as layers err together.
        least_ratio: most that one layer can say against a token.
        largest_ratio: most that one layer can say for a token.
        grown_places: places of the greedy growth that fits the layers first.
        grown_starts: first tokens that it tries in excess of the sentences.
        least_noise: least variance of noise, as a share of the mean square of a gradient.
        fewest_directions: spikes below which a layer says nothing.
        row_level: p-value of the strongest row of noise, below which the embedding tables tell.
        told_weight: weight of a language model's log-probability.
        told_shift: weight of the change that the update makes to it, a spread of the vocabulary.
        told_start: factor on that for the first word, where all sentences show in each other's.
        feed_forward: least ratio of the sides of a feed-forward weight.
        even_ranks: median over largest rank of such weights, below which all matrices are taken.
        end_gain: log-likelihood ratio of the end of a sentence, beside what the model says.
        adapters_shift: the weight of that change where adapters alone were trained.
        weights_shift: the same where all weights were trained.
        head_shift: the same for what the head's update says of the next word.
        weights_trust: share of the log-likelihood ratio of white noise that counts there.
        matched_room: tokens of the prefixes compared with an update at a time; half are kept.
        matched_tokens: tokens tried behind each of them.
        spread_tokens: length of prefixes up to which they are spread over their first words.
        spread_words: the least number of these, of several sentences and all weights.
        matched_stale: further tokens that may pass without a likelier sentence.
        matched_trust: share of the log-likelihood ratio of white noise that counts.
        junctions: places tried where two sentences may have taken each other's ends.
        least_gain: nats by which an exchange of ends has to be likelier.
        barred_words: first words tried in vain until the rest of a batch is given up.
        matched_words: nats that a pursuit speaks for the words that it finds.
        evened: mean squares of the singular values that are added to each square.
        evened_telling: the same where a weight tells the next word.
        next_tokens: tokens tried behind each prefix.
        near_tokens: of these, those tried in the second block.
        first_words: factor on both behind a single prefix, the start of every sentence.
        prefixes: prefixes kept for each sentence of the batch.
        begin_tokens: first tokens that tell sentences of a batch from one another.
        hopeless: log-probability below a sentence of the same begin that ends a prefix.
        lines: candidates kept of each first word, divided by the sentences of the batch.
        fewest_lines: the least of that.
        residual_rounds: rounds of imputation of what found sentences leave of an update.
        residual_words: words tried at each position in it, the likeliest in the whole update.
        rivals: tokens tried at each place of a decoded sentence by its gradient.
        sure: lead of a token in nats from which no other is tried.
        sweeps: most rounds of that.
        fit_error: error of a gradient for other reasons than noise, as a share of its rms.
        weight_error: error of a prefix's weight in the batch for such reasons, as a share.
        sign_error: the same where signs alone were sent.
        weight_noise: factor on the variance that noise alone gives that weight.
        least_share: weight of a prefix, as a share of a true one's, below which it is forgotten.
        least_lack: what a chosen prefix's weight lacks, in its errors, from which it is doubted.
        fit_rounds: most rounds of extending sentences where their support ends.
        tries: most searches behind one beginning of a sentence.
        ahead: most tokens of such a search.
        consistency_level: smallest p-value of a guess that noise explains.
        rival_level: largest p-value of sentences that differ from it in a word.
        consistency_rivals: number of these.
        stray_entries: share of a true gradient's entries that may be out of their bounds.
        fewest_entries: entries of a weight that were sent, below which nothing is told from them.
        clear_sign: size of an entry whose sign rounding cannot change, in units of a tensor's rms.
        gradient_rounding: error of an entry of a float32 gradient, in the same units.
        guess_rounding: error of a whole float32 gradient, as a share of its norm.
        sharp_width: largest relative width of the bounds of an entry by which a scale is fitted.
        living_tensor: rms of a tensor that is more than rounding, as a share of the median one's.
        granted_noise: largest difference of measured from granted noise, as a share.
        outside_dimensions: rows and columns outside a guess's spaces that noise is measured on.
        bag_spread: smallest spread of the scores of true tokens.
        bag_odds: factor on the odds of a true token; above 1, noise alone yields words.
        bag_tail: share of the vocabulary that the tail of false tokens is measured on.
        least_probability: smallest probability of a word that is worth a mention.
        missing_words: share of a batch's words that may be missing from a shortlist.
        nearest_words: words of an encoder's shortlist for each place of a sentence.
        pursued: share of a direction that a pursuit leaves to rounding.
        pursued_room: share of a row outside the chosen ones below which it says nothing new.
        noisy_room: the same where noise blurs what the rows leave.
        pursued_rows: most rows of a pursuit, as a share of the width.
        pursued_atoms: most rows of its dictionary, those with the largest share in the space.
        pursued_choices: choices of one word for each place that are tried.
        pursued_contexts: random prefixes that a word's usual input is the mean of.
        pursued_prefixes: prefixes kept in the growth of a sentence.
        pursued_end: least log-probability of a sentence's end that nothing else shows.
        pursued_trust: nats that a token's whole input in the space speaks for it.
    """

    singular_value: float = 1e-7
    factor_singular_value: float = 1e-6
    mean_rounding: float = 0.3
    rank_fall: float = 30.0
    lost_dimensions: int = 2
    equal_rank: float = 0.9
    missing_direction: float = 0.5
    anywhere_tokens: int = 1024
    tokens_beyond_rank: int = 32
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
    companions: int = 16
    company_words: int = 20
    unexplained: float = 0.005
    agreement: float = 0.4
    loyalty: float = 0.75
    kicks: int = 8
    absent_weight: float = 0.05
    proof_sentences: int = 32
    least_spread: float = 0.1
    least_true_spread: float = 0.15
    separation: float = 0.4
    model_error: float = 0.002
    mild_shift: float = 2.0
    outlier_share: float = 0.05
    outlier_spread: float = 3.0
    layer_trust: float = 0.5
    least_ratio: float = -8.0
    largest_ratio: float = 6.0
    grown_places: int = 7
    grown_starts: int = 6
    least_noise: float = 1e-4
    fewest_directions: int = 3
    row_level: float = 0.01
    told_weight: float = 0.5
    told_shift: float = 3.0
    told_start: float = 0.2
    feed_forward: float = 4.0
    even_ranks: float = 0.33
    end_gain: float = 1.0
    adapters_shift: float = 0.8
    weights_shift: float = 2.0
    head_shift: float = 0.5
    weights_trust: float = 0.2
    matched_room: int = 320
    matched_tokens: int = 12
    spread_tokens: int = 10
    spread_words: int = 16
    matched_stale: int = 6
    matched_trust: float = 1.0
    junctions: int = 24
    least_gain: float = 0.5
    barred_words: int = 64
    matched_words: float = 3.0
    evened: float = 0.3
    evened_telling: float = 0.03
    next_tokens: int = 48
    near_tokens: int = 8
    first_words: int = 4
    prefixes: int = 8
    begin_tokens: int = 4
    hopeless: float = 60.0
    lines: int = 32
    fewest_lines: int = 8
    residual_rounds: int = 8
    residual_words: int = 1024
    rivals: int = 8
    sure: float = 6.0
    sweeps: int = 2
    fit_error: float = 0.05
    weight_error: float = 0.2
    sign_error: float = 0.3
    weight_noise: float = 4.0
    least_share: float = 0.03
    least_lack: float = 1.3
    fit_rounds: int = 12
    tries: int = 2
    ahead: int = 12
    consistency_level: float = 0.01
    rival_level: float = 1e-6
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
    bag_spread: float = 0.5
    bag_odds: float = 1.0
    bag_tail: float = 0.01
    least_probability: float = 0.1
    missing_words: float = 0.02
    nearest_words: int = 8
    pursued: float = 3e-4
    pursued_room: float = 1e-3
    noisy_room: float = 1e-2
    pursued_rows: float = 0.7
    pursued_atoms: int = 1 << 17
    pursued_choices: int = 256
    pursued_contexts: int = 6
    pursued_prefixes: int = 16
    pursued_end: float = -3.0
    pursued_trust: float = 15.0


CUTS = TokenCuts()
