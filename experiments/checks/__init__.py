"""The checks behind ``fedsim doctor``: captures are compared with replays on the true data."""
