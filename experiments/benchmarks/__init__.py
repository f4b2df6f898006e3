"""The benchmarks of ``fedsim bench``, and the reference implementations they compare with."""
