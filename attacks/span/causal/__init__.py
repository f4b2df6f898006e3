"""A causal model's sentences, decoded from a blurred update."""
