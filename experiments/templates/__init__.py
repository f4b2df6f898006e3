"""What ``fedsim new`` writes: the code of the tutorials, ready to run."""
