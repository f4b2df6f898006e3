"""What an update tells of the tokens of its batch: spans, likelihoods and words; no guess yet."""
