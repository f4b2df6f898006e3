"""Benchmarks of ``fedsim attest`` and of the guard."""
