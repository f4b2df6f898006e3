"""The commands of ``fedsim``, a file for each; ``experiments.cli`` assembles them.

May import: all but experiments.cli and extras.
"""
