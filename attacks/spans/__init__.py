"""Attacks on the span of the first block's gradients."""
