"""What ``fedsim new`` writes: the code of the tutorials, ready to run.

May import: fedsim.*, as whoever copies them.
"""
