"""Exact texts from what the first block's gradients span."""
