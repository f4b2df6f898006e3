"""The commands of ``fedsim``, a file for each; ``experiments.cli`` assembles them."""
