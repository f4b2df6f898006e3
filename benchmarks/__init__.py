"""Measurements of fedsim itself: ``python -m benchmarks`` in a checkout."""
