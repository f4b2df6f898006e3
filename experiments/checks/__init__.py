"""The checks behind ``fedsim doctor``: captures are compared with replays on the true data.

May import: experiments.stages and below.
"""
